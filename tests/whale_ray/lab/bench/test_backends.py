"""Every backend moves every message to every reader; measured times are not asserted."""

from __future__ import annotations

import numpy as np
import pytest

from whale_ray.lab.bench import backends, matrix, sweeps
from whale_ray.lab.bench.backends import Measurement, MessageLoad, measure_backend, sample_copies
from whale_ray.lab.bench.matrix import MEMCPY, PLAIN, SHM, TCP, ZMQ_TCP

KIB = 1 << 10
MS = 1_000_000
NAMES = [name for name in matrix._AGAINST if name != MEMCPY]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nbytes", [32, 100 * KIB])
def test_every_message_arrives(name: str, nbytes: int):
    load = MessageLoad(nbytes, 1, MS)
    with matrix._BACKENDS[name](load) as backend:
        sample = measure_backend(backend, load)
    assert sample.messages >= load.chunk
    assert sample.messages % load.chunk == 0
    assert sample.rate > 0
    assert sample.sender_cpu_s > 0
    assert sample.readers_cpu_s > 0


@pytest.mark.parametrize("name", [SHM, TCP, PLAIN, ZMQ_TCP])
def test_every_reader_gets_all(name: str):
    load = MessageLoad(4 * KIB, 3, MS)
    with matrix._BACKENDS[name](load) as backend:
        sample = measure_backend(backend, load)  # which compares the readers' counts
    assert sample.messages >= load.chunk


@pytest.mark.parametrize("name", [SHM, TCP])
def test_messages_larger_than_the_usual_ring_fit(name: str):
    load = MessageLoad(4096 * KIB, 1, MS)
    assert load.memory_bytes == 32 * 1024 * KIB
    with matrix._BACKENDS[name](load) as backend:
        assert measure_backend(backend, load).messages >= 1


def test_copies():
    sample = sample_copies(MessageLoad(64, 1, MS))
    assert sample.messages % 1024 == 0
    assert sample.messages > 0


class PassingTime:
    """A clock on which an hour passes between any two looks."""

    def __init__(self) -> None:
        self._now_ns = 0

    def monotonic_ns(self) -> int:
        self._now_ns += 3600 * 1000 * MS
        return self._now_ns


def test_a_chunk_is_sent_even_if_the_time_is_up_before(monkeypatch: pytest.MonkeyPatch):
    class Counting:
        def __init__(self) -> None:
            self.done: list[int | str] = []

        def send(self, count: int) -> None:
            self.done.append(count)

        def finish(self) -> None:
            self.done.append("finished")

    monkeypatch.setattr(backends, "_CLOCK", PassingTime())
    sender, load = Counting(), MessageLoad(64, 1, MS)
    assert backends._send_for(sender, load) == load.chunk
    assert sender.done == [load.chunk, "finished"]


def test_a_chunk_is_copied_even_if_the_time_is_up_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backends, "_CLOCK", PassingTime())
    load = MessageLoad(64, 1, MS)
    assert sample_copies(load) == Measurement(load.chunk, 3600, 3600, 0)


def test_a_backend_that_loses_a_message_is_noticed():
    class Lossy:
        def sender(self):
            return self

        def send(self, count: int) -> None:
            pass

        def finish(self) -> None:
            pass

        def receiver(self, reader: int):
            return lambda: reader

    with pytest.raises(RuntimeError, match=r"Lossy: \d+ messages were sent, \[0\] received"):
        measure_backend(Lossy(), MessageLoad(64, 1, MS))


def test_ratios_are_medians_of_pairs():
    def samples(*rates: int) -> list[Measurement]:
        return [Measurement(rate, 1.0, 0.0, 0.0) for rate in rates]

    found = {TCP: samples(10, 400, 90), PLAIN: samples(20, 100, 100)}
    assert matrix.paired_ratio(found, TCP, PLAIN) == 0.9  # of 0.5, 4 and 0.9


def test_the_matrix():
    effort = matrix.MatrixEffort((64, 256 * KIB), (1, 2), 1, MS, 1)
    rows = matrix.matrix_rows(effort)
    assert [(row.parameters["bytes"], row.parameters["readers"]) for row in rows] == [
        (nbytes, readers) for readers in (1, 2) for nbytes in (64, 256 * KIB) for _ in range(6)
    ]
    by_name = {row.parameters["how"]: row for row in rows if row.parameters["readers"] == 1}
    assert by_name[TCP].against == PLAIN
    assert by_name[TCP].parameters["ring MiB"] == 4
    assert list(by_name[TCP].also) == [
        "x pyzmq tcp",
        "messages/s",
        "sender CPU s/GB",
        "readers CPU s/GB",
    ]


def test_the_aims_for_tcp():
    rows = matrix.tcp_rows(matrix.MatrixEffort((), (), 1, MS, 1))
    aims = [(row.against, row.aim.limit) for row in rows if row.aim is not None]
    assert aims == [("plain sockets", 0.9), ("pyzmq tcp", 1.5)]


SWEEP = sweeps.SweepEffort((4 * KIB, 256 * KIB), (1.0, 10.0), 1, 2000)


def test_tuples_are_due_as_poisson_arrivals():
    rows, due = sweeps.tuples(20_000, 100_000)
    assert (np.diff(due) >= 0).all()
    assert due[-1] == pytest.approx(200 * MS, rel=0.05)
    assert rows["due"].tolist() == due.tolist()
    assert 100 * len(rows) <= rows.nbytes < 102 * len(rows)


def test_the_sweep_over_mms():
    rows = sweeps.mms_rows(SWEEP)
    assert [(row.parameters["MMS KiB"], row.parameters["over"]) for row in rows[::2]] == [
        (4, "shm"),
        (4, "tcp"),
        (256, "shm"),
        (256, "tcp"),
    ]
    latency, highest = rows[:2]
    assert latency.name == "MMS sweep: latency p50"
    assert latency.parameters["due per s"] == sweeps.ARRIVALS_PER_S
    assert latency.also["p99 ms"] >= latency.value > 0
    assert latency.also["slices"] >= highest.also["slices"] / 2 > 10
    assert highest.name == "MMS sweep: highest rate"
    assert [row.ratio for row in rows[4:]] == [1.0] * 4


def test_the_sweep_over_wtl():
    rows = sweeps.wtl_rows(SWEEP)
    assert [row.parameters["WTL ms"] for row in rows] == [1.0, 1.0, 10.0, 10.0]
    assert rows[0].ratio == 1.0
