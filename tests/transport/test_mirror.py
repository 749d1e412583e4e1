"""Taps and mirrors: the same bytes at the same positions, shown in whole frames only."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.links import payload, private_ring, put, take
from whale_ray.configs.errors import CorruptedMessageError, ResourceError
from whale_ray.transport.channel import Outcome
from whale_ray.transport.doorbell import Doorbell
from whale_ray.transport.mirror import MirrorRing, RingTap, make_memory
from whale_ray.transport.ring_layout import HEAD, RECEIVED
from whale_ray.transport.shm import attach_ring, create_ring

RING_BYTES = 4096


def mirror(readers: int = 1, **options: object) -> MirrorRing:
    return MirrorRing.create(
        RING_BYTES, readers, "test", "mirror", kind="private", poison_released=True, **options
    )


def carry(tap: RingTap, target: MirrorRing, stop: int) -> None:
    """Copy what is missing up to position `stop`, as a link would."""
    start = target.received
    places = target.writable(start, stop - start)
    content = b"".join(tap.pieces(start, stop))
    for place in places:
        place[:], content = content[: len(place)], content[len(place) :]
    assert not content
    target.advance(stop - start)


@given(st.integers(0, 2**32 - 1))
def test_any_pieces_arrive_as_the_same_frames(seed):
    chance = random.Random(seed)
    producer = private_ring(RING_BYTES)
    tap, target = RingTap.beside(producer), mirror()
    reader = target.consumer(0)
    sent, received = [], []
    for _ in range(200):
        content = payload(len(sent), chance.randrange(producer.max_frame_bytes + 1))
        if put(producer, content) is Outcome.SENT:
            sent.append(content)
        stop = tap.whole_frames(tap.released, target.limit, chance.choice([0, 512, 1 << 18]))
        # A link may cut a frame at any multiple of 64 bytes; readers see only whole frames.
        carry(tap, target, chance.randrange(target.received, max(target.received, stop) + 1, 64))
        before = target.published
        assert target.publish() == (target.published > before)
        assert target.published <= target.received <= tap.head
        if chance.random() < 0.7:
            received += take(reader)
            tap.release(min(target.lowest_tail, target.published))
        assert received == sent[: len(received)]
    producer.close()
    while target.received < tap.head:
        carry(tap, target, tap.whole_frames(target.published, target.limit, 1 << 18))
        target.publish()
        received += take(reader)
    target.publish()
    received += take(reader)
    assert received == sent
    assert tap.finished_at == target.received
    target.finish()
    assert reader.closed_by_peer


def test_a_tap_hands_out_whole_frames_and_pieces_that_wrap():
    producer = private_ring(RING_BYTES)
    tap = RingTap.beside(producer)
    assert tap.whole_frames(0, 1 << 20, 1 << 20) == 0
    for _ in range(3):
        put(producer, bytes(1000))  # 1,024 with its length
    assert tap.head == 3072
    assert tap.whole_frames(0, 3071, 1 << 20) == 2048
    assert tap.whole_frames(0, 1 << 20, 2000) == 1024
    assert tap.whole_frames(0, 1 << 20, 1) == 1024, "one, however large"
    put(producer, bytes(900))
    tap.release(2048)
    put(producer, bytes(1000))
    assert tap.head == 3072 + 1024 - 64 + 64 + 1024, "with padding before the end"
    assert tap.whole_frames(3072, 4096, 1 << 20) == 4032, "padding goes with what follows"
    first, second = tap.pieces(3072, tap.head)
    assert (len(first), len(second)) == (1024, 1024)
    assert first.readonly


def test_a_tap_wakes_the_producer_and_a_closed_one_holds_nothing():
    rung = Doorbell.private()
    producer = private_ring(RING_BYTES)
    tap = RingTap.beside(producer, rung)
    while put(producer, bytes(1000)) is Outcome.SENT:
        pass
    tap.release(1024)
    assert producer.ready_to_send(1000) is Outcome.SENT
    assert tap.finished_at is None
    head = tap.head
    tap.close()
    tap.close()
    assert producer.closed_by_peer
    assert (tap.head, tap.finished_at, tap.whole_frames(0, head, head)) == (head, None, 0)


def test_a_tap_of_another_process_ring_attaches_like_a_reader():
    producer, handle = create_ring(1 << 16, 2, "test", "tapped")
    tap = RingTap.attach(handle, 1)
    reader = attach_ring(handle, 0)
    with pytest.raises(ResourceError, match="reader 1 .* is taken or was closed"):
        RingTap.attach(handle, 1)
    put(producer, b"both see it")
    assert take(reader) == [b"both see it"]
    assert b"".join(tap.pieces(0, tap.head))[8:19] == b"both see it"
    for end in (producer, reader, tap):
        end.close()


def test_a_tap_of_a_mirror_is_ahead_of_its_readers():
    producer = private_ring(RING_BYTES)
    tap, target = RingTap.beside(producer), mirror(readers=2)
    reader, further = target.consumer(0), RingTap.of(target, 1)
    put(producer, b"x")
    carry(tap, target, tap.head)
    assert further.head == 64
    assert take(reader) == []
    target.publish()
    assert take(reader) == [b"x"]
    assert target.lowest_tail == 0, "the tap holds it"
    further.release(64)
    assert target.limit == 64 + RING_BYTES
    target.finished_at = 64
    assert further.finished_at == 64
    assert not target.abandoned
    further.close()
    reader.close()
    assert target.limit == target.received + RING_BYTES
    assert target.abandoned


def test_a_mirror_refuses_what_would_overrun_a_reader_or_leave_a_gap():
    target = mirror()
    for position, nbytes in ((0, RING_BYTES + 64), (64, 64), (0, -64)):
        with pytest.raises(ValueError, match="of a mirror that has 0 and may take .* to 4096"):
            target.writable(position, nbytes)


def test_bytes_that_hold_no_frames_are_not_counted():
    target = mirror()
    (place,) = target.writable(0, 128)
    place[:8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(CorruptedMessageError, match="from position 0 to 128 hold no frames"):
        target.advance(128)
    assert (target.received, target.publish()) == (0, False)
    place[:8] = (100).to_bytes(8, "little")
    target.advance(64)
    assert (target.received, target.publish(), target.whole) == (64, False, False)
    target.advance(64)
    assert (target.publish(), target.published, target.whole) == (True, 128, True)


def test_readers_ring_where_they_were_asked_to():
    bell = Doorbell.private()
    producer = private_ring(RING_BYTES)
    tap, target = RingTap.beside(producer), mirror()
    reader = target.consumer(0, bell)
    for _ in range(3):
        put(producer, bytes(1000))
    carry(tap, target, tap.head)
    target.publish()
    assert target.request_wake_up(2048) == RING_BYTES

    def ready() -> bool:
        """Be asked once, when the sleep has been announced; then read, which rings."""
        take(reader)
        return False

    assert bell.wait(60_000_000_000, ready)
    assert target.request_wake_up(4096) == 3072 + RING_BYTES


def test_a_mirror_over_shared_memory_serves_other_processes_readers():
    target = MirrorRing.create(1 << 16, 1, "test", "shared-mirror")
    reader = attach_ring(target.handle, 0)
    producer = private_ring(1 << 16)
    tap = RingTap.beside(producer)
    put(producer, b"far")
    carry(tap, target, tap.head)
    target.publish()
    target.close()
    target.close()
    assert take(reader) == [b"far"]
    assert reader.closed_by_peer
    assert (target.abandoned, target.limit) == (True, 64 + (1 << 16))
    assert target.request_wake_up(1) == target.limit
    reader.close()


def test_another_writer_goes_on_where_the_last_one_has_come_to():
    segment, handle = make_memory(RING_BYTES, 2, "test", "handed-over")
    reader = attach_ring(handle, 0)
    producer = private_ring(RING_BYTES)
    tap = RingTap.beside(producer)
    for number in range(4):
        put(producer, payload(number, 100))
    first = MirrorRing.attach(handle)
    further = RingTap.of(first, 1, resume=True)
    assert not further.resumed
    carry(tap, first, 128)
    first.publish()
    carry(tap, first, 320)  # not published, and cut within a frame
    further.release(320)
    # The first writer is dead from here on: nothing is closed.
    second = MirrorRing.attach(handle)
    assert (second.received, second.published, second.whole) == (320, 256, False)
    assert take(reader) == [payload(0, 100), payload(1, 100)], "it publishes what is whole"
    again = RingTap.of(second, 1, resume=True)
    assert (again.resumed, again.released, again.head) == (True, 256, 320)
    with pytest.raises(ResourceError, match="reader 1 .* is taken or was closed"):
        RingTap.of(second, 1)
    carry(tap, second, tap.head)
    second.finished_at = 512
    second.publish()
    second.finish()
    third = MirrorRing.attach(handle)
    assert (third.finished, third.finished_at, third.received) == (True, 512, 512)
    third.close()
    assert take(reader) == [payload(2, 100), payload(3, 100)]
    assert reader.closed_by_peer
    for end in (reader, further, again, first, second, segment):
        end.close()


def test_an_attached_mirror_that_closes_does_not_end_the_stream():
    segment, handle = make_memory(RING_BYTES, 1, "test", "kept-open")
    reader = attach_ring(handle, 0)
    MirrorRing.attach(handle).close()
    assert not reader.closed_by_peer
    reader.close()
    segment.close()


def test_a_tap_that_takes_over_wakes_a_writer_that_may_wait():
    bell = Doorbell.private()
    producer = private_ring(RING_BYTES)
    RingTap.beside(producer)

    def ready() -> bool:
        """Let another tap take over between the only look and the sleep."""
        RingTap(producer.segment.share(), 0, bell, resume=True)
        return False

    assert bell.wait(60_000_000_000, ready)


@pytest.mark.parametrize(
    ("received", "published", "word"), [(0, 64, 0), (64, 0, -1), (RING_BYTES + 64, 0, 0)]
)
def test_memory_that_was_overwritten_is_refused(received, published, word):
    segment, handle = make_memory(RING_BYTES, 1, "test", "overwritten")
    segment.words(RECEIVED, RECEIVED + 8)[0] = received
    segment.words(HEAD, HEAD + 8)[0] = published
    segment.words(segment.handle.size - RING_BYTES, segment.handle.size)[0] = word
    with pytest.raises(ResourceError, match="mirror .*overwritten.* does not hold them"):
        MirrorRing.attach(handle)
    segment.close()


def test_a_frame_is_released_as_a_whole():
    producer = private_ring(RING_BYTES)
    tap = RingTap.beside(producer)
    for _ in range(3):
        put(producer, bytes(1000))
    for position, released in ((64, 0), (1024, 1024), (2000, 1024), (3072, 3072)):
        tap.release(position)
        assert tap.released == released
    put(producer, bytes(500))
    put(producer, bytes(1000))  # behind padding to the end of the memory
    assert tap.head == 4096 + 1024
    for position, released in ((4032, 3584), (4096, 3584), (4096 + 960, 3584), (5120, 5120)):
        tap.release(position)
        assert tap.released == released
