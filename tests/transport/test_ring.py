"""What the ring adds to the contract of channels: deaths, doorbells, copies, broken memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from whale_ray.configs.errors import CorruptedMessageError, ResourceError
from whale_ray.transport import ring_kernels as kernels
from whale_ray.transport.channel import Outcome
from whale_ray.transport.doorbell import Doorbell
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.ring import RingConsumer, RingProducer
from whale_ray.transport.shm import attach_ring, create_ring

FOREVER_NS = 60_000_000_000


def send_many(producer: RingProducer, size: int) -> int:
    """Fill the ring with frames of `size` bytes; return how many."""
    count = 0
    while producer.put_copy(np.full(size, count % 251, np.uint8)) is Outcome.SENT:
        count += 1
    return count


def take(consumer: RingConsumer) -> bytes | None:
    frame = consumer.get()
    if frame is None:
        return None
    content = frame.data.tobytes()
    consumer.release_buffer(frame)
    return content


def put_many(producer: RingProducer, rows: np.ndarray) -> int:
    return kernels.put_many(producer.state_address, rows)


def get_many(consumer: RingConsumer, rows: np.ndarray) -> int:
    return kernels.get_many(consumer.state_address, rows)


@pytest.fixture
def ring():
    """Return a function that makes rings, which are closed at the end."""
    ends: list[RingProducer | RingConsumer] = []

    def make(ring_bytes: int = 4096, readers: int = 1, **options):
        producer, consumers = create_inproc_ring(ring_bytes, readers, "test", **options)
        ends.extend((producer, *consumers))
        return producer, *consumers

    yield make
    for end in ends:
        end.close()


@pytest.fixture
def ring_with_doorbells():
    """Return a function that makes rings whose ends wake each other, closed at the end."""
    ends: list[RingProducer | RingConsumer] = []

    def make(
        ring_bytes: int = 4096,
        readers: int = 1,
        doorbells: Sequence[Doorbell] = (),
        producer_doorbell: Doorbell | None = None,
    ):
        producer, handle = create_ring(ring_bytes, readers, "test", "rung", doorbells)
        consumers = [attach_ring(handle, one, producer_doorbell) for one in range(readers)]
        ends.extend((producer, *consumers))
        return producer, *consumers

    yield make
    for end in ends:
        end.close()


# Deaths


def test_a_dropped_reader_does_not_block_the_producer(ring):
    producer, living, _dead = ring(readers=2)
    send_many(producer, 100)
    while take(living) is not None:
        pass
    assert producer.put_copy(np.zeros(100, np.uint8)) is Outcome.BACK_PRESSURED
    producer.drop_reader(1)
    assert producer.put_copy(np.zeros(100, np.uint8)) is Outcome.SENT
    assert take(living) == bytes(100)
    assert producer.statistics().lag_bytes == (0, None)


def test_a_reader_that_never_attached_can_be_dropped():
    producer, handle = create_ring(4096, 2, "test", "drop")
    consumer = attach_ring(handle, 0)
    send_many(producer, 100)
    while take(consumer) is not None:
        pass
    producer.drop_reader(1)
    producer.drop_reader(1)
    assert producer.put_copy(np.zeros(100, np.uint8)) is Outcome.SENT
    consumer.close()
    assert producer.put_copy(np.zeros(100, np.uint8)) is Outcome.CLOSED
    producer.close()
    producer.drop_reader(0)


def test_dropping_an_unknown_reader_is_refused(ring):
    producer, _ = ring()
    with pytest.raises(IndexError, match="reader 1: the ring has readers 0 to 0"):
        producer.drop_reader(1)


# Evictions


def test_an_evicted_reader_learns_of_it(ring):
    producer, evicted, other = ring(readers=2)
    send_many(producer, 100)
    assert take(evicted) is not None
    assert not evicted.evicted
    producer.drop_reader(0)
    assert evicted.evicted
    assert evicted.available(), "so that its worker calls get"
    target = np.zeros(100, np.uint8)
    for call in (
        evicted.get,
        lambda: evicted.get_copy(target),
    ):
        with pytest.raises(ResourceError, match="reader 0 of ring .* was evicted"):
            call()
    assert not other.evicted
    assert take(other) is not None
    evicted.close()
    assert not evicted.evicted, "it is over anyway"


def test_what_an_evicted_reader_was_reading_can_be_recognised(ring):
    producer, consumer, other = ring(readers=2)
    send_many(producer, 100)
    frame = consumer.get()
    assert frame is not None
    content = frame.data.tobytes()
    producer.drop_reader(0)
    while take(other) is not None:
        pass
    producer.put_copy(np.full(100, 77, np.uint8))
    assert frame.data.tobytes() != content, "the producer has the memory back"
    assert consumer.evicted
    consumer.release_buffer(frame)
    assert producer.put_copy(np.zeros(100, np.uint8)) is Outcome.SENT


def test_an_eviction_explains_memory_that_holds_no_frame(ring, monkeypatch: pytest.MonkeyPatch):
    producer, consumer = ring()
    producer.put_copy(np.zeros(10, np.uint8))
    producer.segment.words(4096, 4104)[0] = -1
    # As if it was evicted after the kernel had looked, and before it read the frame.
    monkeypatch.setattr(RingConsumer, "evicted", True)
    with pytest.raises(ResourceError, match="was evicted"):
        consumer.get()


# Doorbells


def wait_for(doorbell: Doorbell) -> tuple[threading.Thread, list[bool]]:
    """Return a thread that sleeps on `doorbell`, and its answer."""
    answers: list[bool] = []
    thread = threading.Thread(
        target=lambda: answers.append(doorbell.wait(FOREVER_NS, lambda: False))
    )
    thread.start()
    while not doorbell._words[1]:
        pass
    return thread, answers


def test_a_frame_wakes_every_sleeping_reader(ring_with_doorbells):
    doorbells = [Doorbell.private() for _ in range(3)]
    producer, *_ = ring_with_doorbells(readers=3, doorbells=doorbells)
    sleepers = [wait_for(doorbell) for doorbell in doorbells]
    producer.put_copy(np.zeros(1, np.uint8))
    for thread, answers in sleepers:
        thread.join()
        assert answers == [True]


def test_frames_in_bulk_and_the_end_wake_a_reader(ring_with_doorbells):
    doorbell = Doorbell.private()
    producer, _ = ring_with_doorbells(doorbells=[doorbell])
    for act in (lambda: put_many(producer, np.zeros((3, 8), np.uint8)), producer.close):
        thread, answers = wait_for(doorbell)
        act()
        thread.join()
        assert answers == [True]


def test_only_the_reader_that_makes_room_wakes_the_producer(ring_with_doorbells):
    doorbell = Doorbell.private()
    producer, fast, slow = ring_with_doorbells(readers=2, producer_doorbell=doorbell)
    send_many(producer, 100)
    thread, answers = wait_for(doorbell)
    while take(slow) is not None:
        pass
    # The slow reader has passed the position that the producer waits for; the other has not moved.
    thread.join()
    assert answers == [True]
    assert producer.put_copy(np.zeros(100, np.uint8)) is Outcome.BACK_PRESSURED
    thread, answers = wait_for(doorbell)
    assert take(fast) is not None
    thread.join()
    assert producer.put_copy(np.zeros(100, np.uint8)) is Outcome.SENT


def test_a_producer_of_a_large_ring_is_woken_when_a_quarter_is_free(ring_with_doorbells):
    doorbell = Doorbell.private()
    producer, consumer = ring_with_doorbells(ring_bytes=1 << 18, producer_doorbell=doorbell)
    size = (1 << 13) - 8
    assert send_many(producer, size) == 32
    assert producer.put_copy(np.zeros(size, np.uint8)) is Outcome.BACK_PRESSURED
    doorbell._words[1] = 1  # looks asleep
    for _ in range(7):
        take(consumer)
    assert doorbell._words[:2].tolist() == [0, 1]
    take(consumer)
    assert doorbell._words[:2].tolist() == [1, 0]
    assert producer.put_copy(np.zeros(size, np.uint8)) is Outcome.SENT


def test_a_reader_that_keeps_all_it_may_still_wakes_the_producer(ring_with_doorbells):
    doorbell = Doorbell.private()
    producer, consumer = ring_with_doorbells(ring_bytes=1 << 18, producer_doorbell=doorbell)
    size = (1 << 16) - 8
    assert send_many(producer, size) == 4
    doorbell._words[1] = 1  # looks asleep
    views = []
    take(consumer)
    for _ in range(3):
        frame = consumer.get()
        assert frame is not None
        views.append(frame.data[1:])
        consumer.release_buffer(frame)
        del frame
    assert doorbell._words[:2].tolist() == [1, 0]
    assert len(views) == 3


def test_a_closing_reader_wakes_the_producer(ring_with_doorbells):
    doorbell = Doorbell.private()
    producer, consumer = ring_with_doorbells(producer_doorbell=doorbell)
    send_many(producer, 100)
    thread, answers = wait_for(doorbell)
    consumer.close()
    thread.join()
    assert answers == [True]


def test_a_producer_that_does_not_wait_is_not_rung(ring_with_doorbells):
    doorbell = Doorbell.private()
    producer, consumer = ring_with_doorbells(producer_doorbell=doorbell)
    doorbell._words[1] = 1  # looks asleep
    for _ in range(100):
        producer.put_copy(np.zeros(100, np.uint8))
        take(consumer)
    assert doorbell._words[:2].tolist() == [0, 1]


# Copies


def test_many_small_frames_in_one_call(ring):
    producer, consumer = ring()
    rows = np.arange(40 * 32, dtype=np.uint8).reshape(40, 32)
    rows.flags.writeable = False
    assert put_many(producer, rows) == 40
    target = np.zeros((25, 32), np.uint8)
    assert get_many(consumer, target) == 25
    assert np.array_equal(target, rows[:25])
    assert take(consumer) == rows[25].tobytes(), "ordinary frames"
    assert get_many(consumer, target) == 14
    assert np.array_equal(target[:14], rows[26:])
    assert get_many(consumer, target) == kernels.EMPTY
    assert (producer.statistics().frames, consumer.statistics().frames) == (40, 40)
    assert consumer.statistics().lag_bytes == (0,)


def test_many_small_frames_as_far_as_there_is_room(ring):
    producer, consumer = ring()
    rows = np.zeros((100, 32), np.uint8)
    assert put_many(producer, rows) == 64
    assert put_many(producer, rows) == kernels.NO_ROOM
    assert get_many(consumer, np.zeros((10, 32), np.uint8)) == 10
    assert put_many(producer, rows) == 10
    consumer.close()
    assert put_many(producer, rows) == kernels.ALL_CLOSED


def test_copying_in_and_out(ring):
    producer, consumer = ring()
    target = np.zeros(100, np.uint8)
    for size in (0, 1, 63, 64, 100):
        content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        assert producer.put_copy(content) is Outcome.SENT
        assert consumer.get_copy(target) == size
        assert np.array_equal(target[:size], content)
    assert consumer.get_copy(target) is None
    assert producer.put_copy(np.zeros(2000, np.uint8)) is Outcome.TOO_LARGE
    producer.close()
    assert producer.put_copy(target) is Outcome.CLOSED


def test_a_frame_that_does_not_fit_its_target_stays(ring):
    producer, consumer = ring()
    producer.put_copy(np.full(65, 7, np.uint8))
    with pytest.raises(ValueError, match="does not have the size of the target"):
        consumer.get_copy(np.zeros(64, np.uint8))
    assert get_many(consumer, np.zeros((3, 64), np.uint8)) == kernels.OTHER_SIZE
    assert take(consumer) == b"\7" * 65
    assert consumer.statistics().frames == 1


def test_copies_do_not_overtake_held_frames(ring):
    producer, consumer = ring()
    send_many(producer, 10)
    view = consumer.get()
    assert view is not None
    with pytest.raises(RuntimeError, match="release them before copying others out"):
        consumer.get_copy(np.zeros(10, np.uint8))
    consumer.release_buffer(view)
    assert consumer.get_copy(np.zeros(10, np.uint8)) == 10


def test_an_end_that_is_not_open():
    producer, handle = create_ring(4096, 1, "test", "unopened")
    consumer = attach_ring(handle, 0)
    consumer.close()
    with pytest.raises(RuntimeError, match="call open"):
        consumer.get_copy(np.zeros(1, np.uint8))
    producer.close()


# Broken memory


@pytest.mark.parametrize("word", [5000, 1 << 40, -64, -(1 << 40), 2048])
def test_memory_that_holds_no_frame_is_an_error(ring, word: int):
    producer, consumer = ring()
    producer.put_copy(np.zeros(10, np.uint8))
    producer.segment.words(4096, 4104)[0] = word
    with pytest.raises(CorruptedMessageError, match="holds no frame at position 0: its memory"):
        consumer.get()
    with pytest.raises(CorruptedMessageError):
        consumer.get_copy(np.zeros(10, np.uint8))


# Memory


def test_closed_rings_are_unmapped():
    producer, (consumer,) = create_inproc_ring(1 << 16, 1, "test")
    mapping = weakref.ref(producer.segment._memory)
    producer.put_copy(np.zeros(100, np.uint8))
    frame = consumer.get()
    assert frame is not None
    view = frame.data[10:20]
    del frame
    producer.close()
    consumer.close()
    gc.collect()
    assert mapping() is not None, "the view needs it"
    del view
    gc.collect()
    assert mapping() is None
