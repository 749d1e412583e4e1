"""The limit of what waits in a ring: against a reader whose rate is known, and in real rings."""

from __future__ import annotations

import numpy as np
import pytest

from whale_ray.transport.channel import Outcome
from whale_ray.transport.doorbell import Doorbell
from whale_ray.transport.in_flight import InFlightLimit, RingProgress
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.mirror import RingTap
from whale_ray.transport.shm import attach_ring, create_ring

MS = 1_000_000
TARGET_NS = 10 * MS
CAPACITY = 4 << 20


class Reader:
    """Reads a ring at a rate, from a sender that fills what the limit leaves at every step."""

    def __init__(self, frame_bytes: int = 4096) -> None:
        self.limit = InFlightLimit(TARGET_NS, CAPACITY)
        self.sent = self.taken = self.refusals = self.now_ns = 0
        self._frame_bytes = frame_bytes
        self._credit = 0.0

    @property
    def waiting(self) -> int:
        return self.sent - self.taken

    def run(self, steps: int, bytes_per_ms: float, *, offered: int | None = None) -> None:
        """Pass some steps of a millisecond; `offered` bytes are sent in each, or all that may."""
        for _ in range(steps):
            budget = CAPACITY if offered is None else offered
            while budget > 0 and self.waiting < self.limit.limit_bytes:
                self.sent += self._frame_bytes
                budget -= self._frame_bytes
            self.refusals += budget > 0
            self._credit = min(self._credit + bytes_per_ms, self.waiting)
            frames = int(self._credit // self._frame_bytes)
            self._credit -= frames * self._frame_bytes
            self.taken += frames * self._frame_bytes
            self.now_ns += MS
            progress = RingProgress(self.sent, self.taken, self.refusals)
            self.limit.observe(self.now_ns, progress)


@pytest.mark.parametrize("bytes_per_ms", [8_192, 32_768, 131_072])
def test_what_waits_is_read_within_about_the_time(bytes_per_ms: int):
    reader = Reader()
    reader.run(3_000, bytes_per_ms)
    waits = []
    for _ in range(300):
        reader.run(1, bytes_per_ms)
        waits.append(reader.waiting / bytes_per_ms)
    # More is tried again and again, to find out whether the reader has become faster.
    assert max(waits) <= 2 * TARGET_NS / MS
    assert np.mean(waits) <= 1.5 * TARGET_NS / MS


@pytest.mark.parametrize("bytes_per_ms", [8_192, 131_072])
def test_the_reader_never_waits_for_the_sender(bytes_per_ms: int):
    reader = Reader()
    reader.run(1_000, bytes_per_ms)
    before = reader.taken
    reader.run(1_000, bytes_per_ms)
    assert reader.taken - before >= 0.95 * 1_000 * bytes_per_ms


def test_it_follows_a_reader_that_becomes_faster_and_slower():
    reader = Reader()
    reader.run(1_000, 10_000)
    slow = reader.limit.limit_bytes
    reader.run(1_000, 100_000)
    fast = reader.limit.limit_bytes
    reader.run(1_000, 10_000)
    assert 5 * slow < fast
    assert reader.limit.limit_bytes < fast / 5


def test_a_frame_at_a_time_goes_to_a_reader_that_is_slower_than_that():
    reader = Reader(frame_bytes=256 << 10)
    reader.run(5_000, 1_000)
    assert reader.waiting <= 2 * (256 << 10)
    before = reader.taken
    reader.run(5_000, 1_000)
    assert reader.taken - before >= 0.9 * 5_000 * 1_000


def test_a_ring_that_never_fills_has_no_limit():
    reader = Reader()
    reader.run(1_000, 1 << 20, offered=65_536)
    assert reader.limit.limit_bytes == CAPACITY


def test_after_a_reader_has_stood_still_it_gets_all_that_it_can_read_again():
    reader = Reader()
    reader.run(1_000, 100_000)
    reader.run(5_000, 0)
    assert reader.limit.limit_bytes == 1
    reader.run(1_000, 100_000)
    before = reader.taken
    reader.run(1_000, 100_000)
    assert reader.taken - before >= 0.95 * 1_000 * 100_000


# In a ring


def _put(producer, size: int = 1000) -> Outcome:
    return producer.put_copy(np.zeros(size, np.uint8))


@pytest.fixture
def ring():
    """Return the ends of a ring of 1 MiB."""
    producer, (consumer,) = create_inproc_ring(1 << 20, 1, "test")
    yield producer, consumer
    consumer.close()
    producer.close()


def test_no_frame_is_begun_behind_the_limit(ring):
    producer, consumer = ring
    producer.limit_in_flight(10_000)
    sent = 0
    while _put(producer) is Outcome.SENT:
        sent += 1
    assert sent == 10  # 1,024 bytes each: the last one begins before the limit
    assert producer.progress() == RingProgress(sent=10 * 1024, taken=0, refusals=1)
    consumer.release_buffer(consumer.get())
    assert producer.progress().taken == 1024
    assert _put(producer) is Outcome.SENT
    assert _put(producer) is Outcome.BACK_PRESSURED


def test_a_frame_that_is_larger_than_the_limit_goes_alone(ring):
    producer, consumer = ring
    producer.limit_in_flight(1)
    assert _put(producer, producer.max_frame_bytes) is Outcome.SENT
    assert _put(producer, 1) is Outcome.BACK_PRESSURED
    consumer.release_buffer(consumer.get())
    assert _put(producer, producer.max_frame_bytes) is Outcome.SENT


def test_what_a_reader_has_taken_and_holds_is_not_in_flight(ring):
    producer, consumer = ring
    producer.limit_in_flight(1)
    held = []
    for _ in range(100):
        assert _put(producer) is Outcome.SENT
        frame = consumer.get()
        held.append(frame.data[:1])
        consumer.release_buffer(frame)
    assert producer.progress().taken == producer.progress().sent
    held.clear()


def test_the_limit_can_be_lifted(ring):
    producer, _ = ring
    producer.limit_in_flight(1)
    assert _put(producer) is Outcome.SENT
    assert _put(producer) is Outcome.BACK_PRESSURED
    producer.limit_in_flight(producer.layout.capacity)
    assert _put(producer) is Outcome.SENT


def test_the_reader_rings_once_half_of_the_limit_is_read():
    doorbell = Doorbell.private()
    producer, handle = create_ring(1 << 20, 1, "test", "limited")
    consumer = attach_ring(handle, 0, doorbell)
    producer.limit_in_flight(8 * 1024)
    while _put(producer) is Outcome.SENT:
        pass
    rung = []
    for _ in range(8):
        doorbell._words[1] = 1  # looks asleep
        consumer.release_buffer(consumer.get())
        rung.append(doorbell._words[1] == 0)
    assert rung == [False, False, False, True, False, False, False, False]
    consumer.close()
    producer.close()


def test_what_a_tap_has_not_released_is_in_flight():
    producer, _ = create_ring(1 << 20, 1, "test", "tapped")
    tap = RingTap.beside(producer)
    producer.limit_in_flight(1)
    assert _put(producer) is Outcome.SENT
    assert _put(producer) is Outcome.BACK_PRESSURED
    tap.release(tap.head)
    assert _put(producer) is Outcome.SENT
    tap.close()
    producer.close()
