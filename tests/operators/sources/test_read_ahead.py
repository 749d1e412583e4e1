"""Record batches are read before they are asked for: in order, few, with errors in their place."""

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from whale_ray.operators.sources import read_ahead as reading_ahead
from whale_ray.operators.sources.read_ahead import BATCHES_AHEAD, read_ahead
from whale_ray.transport.thread_time import thread_work_ns


def batch_of(number: int) -> pa.RecordBatch:
    return pa.record_batch({"number": [number]})


def numbers_of(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    return (batch["number"][0].as_py() for batch in batches)


def test_all_batches_come_in_order():
    assert list(numbers_of(read_ahead(map(batch_of, range(100))))) == list(range(100))


def test_what_the_thread_spends_is_work_of_the_one_that_takes_the_batches():
    spent: dict[int, int] = {}

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(4):
            began_ns = time.thread_time_ns()
            while time.thread_time_ns() < began_ns + 2_000_000:
                pass
            thread = threading.get_ident()
            spent[thread] = spent.get(thread, 0) + time.thread_time_ns() - began_ns
            yield batch_of(number)

    began_ns, own_ns = thread_work_ns(), time.thread_time_ns()
    assert len(list(read_ahead(batches()))) == 4
    own_ns = time.thread_time_ns() - own_ns
    del spent[threading.get_ident()]  # the first batch, which is in its own time
    assert sum(spent.values()) >= 3 * 2_000_000
    assert thread_work_ns() - began_ns >= own_ns + sum(spent.values())


def test_no_batches():
    assert list(read_ahead(iter(()))) == []


def test_few_batches_are_read_before_they_are_asked_for():
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            read.append(number)
            yield batch_of(number)

    for taken, _ in enumerate(read_ahead(batches()), 1):
        assert taken <= len(read) <= taken + BATCHES_AHEAD


@pytest.mark.parametrize(("bytes_ahead", "ahead"), [(7, 0), (8, 1), (15, 1), (16, 2), (80, 2)])
def test_wide_batches_are_not_read_before_there_is_room_for_them(
    monkeypatch: pytest.MonkeyPatch, bytes_ahead: int, ahead: int
) -> None:
    monkeypatch.setattr(reading_ahead, "BYTES_AHEAD", bytes_ahead)
    has_read = threading.Semaphore(0)
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            read.append(number)
            has_read.release()
            yield batch_of(number)  # 8 bytes

    for taken, _ in enumerate(read_ahead(batches()), 1):
        expected = min(taken + ahead, 20)
        while len(read) < expected:
            assert has_read.acquire(timeout=60)
        assert len(read) == expected


def test_an_error_comes_after_the_batches_before_it():
    def batches() -> Iterator[pa.RecordBatch]:
        yield from map(batch_of, range(3))
        raise OSError("damaged")

    taken = numbers_of(read_ahead(batches()))
    assert [next(taken) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="damaged"):
        next(taken)


def test_once_it_is_closed_nothing_is_read_and_no_thread_is_left():
    readers: set[threading.Thread] = set()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(1_000_000):
            readers.add(threading.current_thread())
            yield batch_of(number)

    reading = read_ahead(batches())
    next(reading)
    next(reading)  # which the thread has read
    reading.close()
    readers.remove(threading.current_thread())  # of the first batch
    assert len(readers) == 1
    assert not any(thread.is_alive() for thread in readers)
