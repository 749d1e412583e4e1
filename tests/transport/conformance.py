"""The contract of every channel, whatever transports its bytes.

A backend's test file derives a class from `ChannelConformance` and says how its channels are
made: `make(ring_bytes, receivers, **options)` returns one sender and that many receivers, open
(of a `BroadcastConformance`, for channels with several receivers, more than one);
`options` are `poison_released` and `held_fraction`. Payloads carry their number and a checksum of
their own, so that a lost, doubled, torn or foreign frame cannot pass for the right one.
"""

from __future__ import annotations

import gc
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tests.transport.frames import fill, payload, receive, receive_all, send, writer
from whale_ray.configs.errors import HeldViewsError
from whale_ray.transport.channel import Channel, Outcome

RING_BYTES = 4096


@dataclass
class Ends:
    """Both sides of one channel."""

    sender: Channel
    receivers: list[Channel]
    max_frame_bytes: int


Make = Callable[..., Ends]


class ChannelConformance:
    """Derive from it, and define `make`."""

    memory = "ring"
    """What the channel's memory is called in messages."""
    smallest_frame_bytes = 64
    """What a frame of 56 bytes takes in it."""
    stride = 1
    """Of the numbers and sizes that are tried one after the other, only every so many-th."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        raise NotImplementedError

    # Sending and receiving

    def test_frames_arrive_whole_once_and_in_order(self, make: Make):
        ends = make(RING_BYTES, 1)
        for number in range(0, 300, self.stride):
            content = payload(number, number * 37 % (ends.max_frame_bytes + 1))
            assert send(ends.sender, content) is Outcome.SENT
            assert receive_all(ends.receivers[0]) == [content]

    def test_every_size_up_to_the_largest(self, make: Make):
        ends = make(RING_BYTES, 1)
        for size in {*range(0, ends.max_frame_bytes + 1, self.stride), ends.max_frame_bytes}:
            content = payload(size, size)
            assert send(ends.sender, content) is Outcome.SENT
            assert receive(ends.receivers[0]) == content
        assert ends.receivers[0].get() is None

    def test_many_frames_wait_in_order(self, make: Make):
        ends = make(RING_BYTES, 1)
        sent = fill(ends.sender, 40)
        assert len(sent) > 10
        assert receive_all(ends.receivers[0]) == sent

    def test_a_frame_beyond_the_largest_is_refused_for_good(self, make: Make):
        ends = make(RING_BYTES, 1)
        size = ends.max_frame_bytes + 1
        assert ends.sender.ready_to_send(size) is Outcome.TOO_LARGE
        assert send(ends.sender, bytes(size)) is Outcome.TOO_LARGE
        assert ends.receivers[0].get() is None
        assert send(ends.sender, b"small") is Outcome.SENT
        assert receive_all(ends.receivers[0]) == [b"small"]

    def test_nothing_to_get(self, make: Make):
        ends = make(RING_BYTES, 1)
        assert not ends.receivers[0].available()
        assert ends.receivers[0].get() is None
        send(ends.sender, b"x")
        assert ends.receivers[0].available()
        assert receive(ends.receivers[0]) == b"x"
        assert not ends.receivers[0].available()

    def test_encode_may_use_less_than_it_reserved(self, make: Make):
        ends = make(RING_BYTES, 1)
        for number in range(0, 200, self.stride):
            content = payload(number, number % 50)
            assert ends.sender.put(900, writer(content)) is Outcome.SENT
            assert receive_all(ends.receivers[0]) == [content]

    def test_encode_gets_exactly_what_was_reserved(self, make: Make):
        ends = make(RING_BYTES, 1)
        shapes = []
        ends.sender.put(77, lambda buffer: shapes.append((buffer.shape, buffer.dtype)) or 0)
        assert shapes == [((77,), np.uint8)]

    def test_an_encode_that_raises_sends_nothing(self, make: Make):
        ends = make(RING_BYTES, 1)
        send(ends.sender, b"before")

        def encode(buffer: np.ndarray) -> int:
            buffer[:] = 1
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ends.sender.put(500, encode)
        send(ends.sender, b"after")
        assert receive_all(ends.receivers[0]) == [b"before", b"after"]

    def test_an_encode_that_claims_too_much_sends_nothing(self, make: Make):
        ends = make(RING_BYTES, 1)
        with pytest.raises(ValueError, match="encode used 11 of 10 reserved bytes"):
            ends.sender.put(10, lambda _buffer: 11)
        assert receive_all(ends.receivers[0]) == []

    def test_each_end_has_its_own_calls(self, make: Make):
        ends = make(RING_BYTES, 1)
        for call in (ends.sender.get, ends.sender.available):
            with pytest.raises(TypeError, match="sending end"):
                call()
        with pytest.raises(TypeError, match="receiving end"):
            send(ends.receivers[0], b"x")
        with pytest.raises(TypeError, match="receiving end"):
            ends.receivers[0].ready_to_send(1)

    # Back-pressure

    def test_back_pressure_ends_with_a_release(self, make: Make):
        ends = make(RING_BYTES, 1)
        sent = fill(ends.sender, 200)
        assert ends.sender.ready_to_send(200) is Outcome.BACK_PRESSURED
        frame = ends.receivers[0].get()
        assert frame is not None
        assert frame.data.tobytes() == sent[0]
        assert send(ends.sender, bytes(200)) is Outcome.BACK_PRESSURED, "got, but not released"
        ends.receivers[0].release_buffer(frame)
        # Two, since the next may need padding of nearly its own size in front.
        assert receive(ends.receivers[0]) == sent[1]
        assert ends.sender.ready_to_send(200) is Outcome.SENT
        assert send(ends.sender, b"next") is Outcome.SENT
        assert receive_all(ends.receivers[0]) == [*sent[2:], b"next"]

    def test_the_largest_frame_fits_an_empty_channel_wherever_it_stands(self, make: Make):
        ends = make(RING_BYTES, 1)
        for number in range(0, 200, self.stride):
            send(ends.sender, payload(number, number * 61 % 300))
            receive_all(ends.receivers[0])
            content = payload(number, ends.max_frame_bytes)
            assert send(ends.sender, content) is Outcome.SENT
            assert receive_all(ends.receivers[0]) == [content]

    def test_encode_is_not_called_without_room(self, make: Make):
        ends = make(RING_BYTES, 1)
        fill(ends.sender, 200)
        outcome = ends.sender.put(200, lambda _buffer: pytest.fail("called"))
        assert outcome is Outcome.BACK_PRESSURED

    # The lifetime of received bytes

    def test_received_bytes_are_read_only(self, make: Make):
        ends = make(RING_BYTES, 1)
        send(ends.sender, b"fixed")
        frame = ends.receivers[0].get()
        assert frame is not None
        assert frame.data.dtype == np.uint8
        with pytest.raises(ValueError, match="read-only"):
            frame.data[0] = 1
        ends.receivers[0].release_buffer(frame)

    def test_a_stored_view_stays_right(self, make: Make):
        ends = make(RING_BYTES, 1, held_fraction=1.0)
        content = payload(0, 160)
        send(ends.sender, content)
        frame = ends.receivers[0].get()
        assert frame is not None
        stored = frame.data[32:].view(np.int64)[1:]
        ends.receivers[0].release_buffer(frame)
        number = 1
        while send(ends.sender, payload(number, 160)) is Outcome.SENT:
            assert receive(ends.receivers[0]) == payload(number, 160)
            number += 1
        assert stored.tobytes() == content[40:]
        assert ends.receivers[0].statistics().held_bytes > RING_BYTES // 2
        del stored
        assert not ends.receivers[0].available(), "looks for views that have gone"
        for number in range(100):
            assert send(ends.sender, payload(number, 160)) is Outcome.SENT
            assert receive(ends.receivers[0]) == payload(number, 160)
        assert ends.receivers[0].statistics().held_bytes == 0

    def test_views_of_any_kind_hold_their_frame(self, make: Make):
        import pyarrow as pa

        ends = make(RING_BYTES, 1)
        kinds = (
            memoryview,
            lambda data: data.reshape(8, 8)[::2, 1:3],
            lambda data: np.frombuffer(data, "<i4"),
            lambda data: pa.py_buffer(data).slice(8, 8),
            lambda data: np.lib.stride_tricks.as_strided(data, (2,), (1,)),
        )
        for kind in kinds:
            send(ends.sender, payload(3, 64))
            frame = ends.receivers[0].get()
            assert frame is not None
            view = kind(frame.data)
            ends.receivers[0].release_buffer(frame)
            assert ends.receivers[0].statistics().held_bytes > 0
            del view
            ends.receivers[0].available()
            assert ends.receivers[0].statistics().held_bytes == 0

    def test_views_beyond_the_limit_are_an_error(self, make: Make):
        ends = make(RING_BYTES, 1, held_fraction=0.25)
        stored: list[np.ndarray] = []

        def store() -> None:
            send(ends.sender, payload(len(stored), 56))
            frame = ends.receivers[0].get()
            assert frame is not None
            stored.append(frame.data)
            ends.receivers[0].release_buffer(frame)

        limit = RING_BYTES // 4 // self.smallest_frame_bytes
        while len(stored) <= limit:
            store()
        with pytest.raises(HeldViewsError) as caught:
            store()
        assert [view.tobytes() for view in stored] == [payload(n, 56) for n in range(len(stored))]
        assert str(caught.value) == (
            "keeps views of received batches, "
            f"{(limit + 1) * self.smallest_frame_bytes:,} of the 4,096 bytes of their "
            f"{self.memory}; copy them (batch.copy())"
        )

    def test_views_that_only_a_cycle_of_objects_holds_are_no_error(self, make: Make):
        ends = make(RING_BYTES, 1, held_fraction=0.25)
        gc.disable()
        try:
            for number in range(RING_BYTES // self.smallest_frame_bytes):
                send(ends.sender, payload(number, 56))
                frame = ends.receivers[0].get()
                assert frame is not None
                cycle: list[object] = [frame.data]
                cycle.append(cycle)
                ends.receivers[0].release_buffer(frame)
                del frame, cycle
        finally:
            gc.enable()

    def test_frames_in_use_are_not_held_views(self, make: Make):
        ends = make(RING_BYTES, 1, held_fraction=0.25)
        sent = fill(ends.sender, 56)
        frames = [ends.receivers[0].get() for _ in sent]
        assert [frame.data.tobytes() for frame in frames if frame is not None] == sent
        for frame in frames:
            assert frame is not None
            ends.receivers[0].release_buffer(frame)
        assert ends.receivers[0].statistics().held_bytes == 0

    def test_release_in_any_order_once(self, make: Make):
        ends = make(RING_BYTES, 1)
        for _ in range(20):
            sent = fill(ends.sender, 100)
            frames = [ends.receivers[0].get() for _ in sent]
            random.Random(3).shuffle(frames)
            for frame in frames:
                assert frame is not None
                ends.receivers[0].release_buffer(frame)
        with pytest.raises(ValueError, match="already released"):
            ends.receivers[0].release_buffer(frames[0])

    def test_poison_covers_released_memory_only(self, make: Make):
        ends = make(RING_BYTES, 1, poison_released=True)
        send(ends.sender, bytes(64))
        frame = ends.receivers[0].get()
        assert frame is not None
        # A wrong view, which keeps no reference to the frame.
        address, shape = frame.data.ctypes.data, frame.data.shape
        ends.receivers[0].release_buffer(frame)
        del frame
        send(ends.sender, payload(1, 64))
        kept = ends.receivers[0].get()
        assert kept is not None
        wrong = np.ctypeslib.as_array(_pointer_to(address), shape)
        assert set(wrong.tobytes()) == {0xDB}
        view = kept.data[:]
        ends.receivers[0].release_buffer(kept)
        for number in range(6):
            send(ends.sender, payload(number, 64))
            assert receive(ends.receivers[0]) == payload(number, 64)
        assert view.tobytes() == payload(1, 64)

    # The end

    def test_after_close_the_sender_refuses(self, make: Make):
        ends = make(RING_BYTES, 1)
        ends.sender.close()
        assert send(ends.sender, b"x") is Outcome.CLOSED
        assert ends.sender.ready_to_send(1) is Outcome.CLOSED
        ends.sender.close()

    def test_the_receiver_gets_all_that_was_sent_before_the_close(self, make: Make):
        ends = make(RING_BYTES, 1)
        sent = fill(ends.sender, 100)
        assert not ends.receivers[0].closed_by_peer
        ends.sender.close()
        assert not ends.receivers[0].closed_by_peer
        assert receive_all(ends.receivers[0]) == sent
        assert ends.receivers[0].closed_by_peer

    def test_the_sender_learns_that_the_receiver_closed(self, make: Make):
        ends = make(RING_BYTES, 1)
        assert send(ends.sender, b"x") is Outcome.SENT
        assert not ends.sender.closed_by_peer
        ends.receivers[0].close()
        assert ends.sender.closed_by_peer
        assert send(ends.sender, b"x") is Outcome.CLOSED
        assert ends.sender.ready_to_send(1) is Outcome.CLOSED

    def test_a_closed_receiver_gets_nothing(self, make: Make):
        ends = make(RING_BYTES, 1)
        send(ends.sender, b"x")
        send(ends.sender, b"y")
        frame = ends.receivers[0].get()
        assert frame is not None
        ends.receivers[0].close()
        ends.receivers[0].release_buffer(frame)
        assert not ends.receivers[0].available()
        assert ends.receivers[0].get() is None
        assert not ends.receivers[0].closed_by_peer
        ends.receivers[0].close()

    def test_memory_of_views_outlives_close(self, make: Make):
        ends = make(RING_BYTES, 1)
        send(ends.sender, payload(0, 500))
        frame = ends.receivers[0].get()
        assert frame is not None
        view = frame.data[100:]
        ends.sender.close()
        ends.receivers[0].close()
        assert view.tobytes() == payload(0, 500)[100:], "nobody wrote there meanwhile"

    # Statistics

    def test_statistics_count(self, make: Make):
        ends = make(RING_BYTES, 1)
        sent = fill(ends.sender, 300)
        whole = ends.receivers[0].statistics()
        receive(ends.receivers[0])
        sender, receiver = ends.sender.statistics(), ends.receivers[0].statistics()
        assert (sender.frames, sender.payload_bytes) == (len(sent), 300 * len(sent))
        assert (whole.frames, whole.payload_bytes) == (0, 0)
        assert (receiver.frames, receiver.payload_bytes) == (1, 300)
        assert sender.back_pressured == 1
        assert sender.capacity_bytes == RING_BYTES
        assert sender.lag_bytes == receiver.lag_bytes
        assert 300 * len(sent) <= (whole.lag_bytes[0] or 0) <= RING_BYTES
        ends.sender.close()
        assert ends.sender.statistics().frames == len(sent)
        assert zlib.crc32(b"".join(receive_all(ends.receivers[0]))) == zlib.crc32(
            b"".join(sent[1:])
        )

    def test_a_receiver_that_closed_has_no_lag(self, make: Make):
        ends = make(RING_BYTES, 1)
        fill(ends.sender, 300)
        ends.receivers[0].close()
        assert ends.sender.statistics().lag_bytes == (None,)


class BroadcastConformance(ChannelConformance):
    """The additional contract of channels whose receivers each get everything."""

    def test_receivers_at_different_speeds_all_get_everything(self, make: Make):
        ends = make(RING_BYTES, 4)
        chance = random.Random(7)
        received: list[list[bytes]] = [[] for _ in ends.receivers]
        sent: list[bytes] = []
        while len(sent) < 400 // self.stride:
            content = payload(len(sent), chance.randrange(ends.max_frame_bytes + 1))
            if send(ends.sender, content) is Outcome.SENT:
                sent.append(content)
            for index, receiver in enumerate(ends.receivers):
                if chance.random() < 1 / (index + 1):
                    got = receive(receiver)
                    received[index] += [] if got is None else [got]
        for index, receiver in enumerate(ends.receivers):
            received[index] += receive_all(receiver)
            assert received[index] == sent

    def test_the_slowest_receiver_blocks_the_sender(self, make: Make):
        ends = make(RING_BYTES, 3)
        sent = fill(ends.sender, 300)
        receive_all(ends.receivers[0])
        receive_all(ends.receivers[2])
        assert send(ends.sender, bytes(300)) is Outcome.BACK_PRESSURED
        first, second, third = ends.sender.statistics().lag_bytes
        assert (first, third) == (0, 0) and second
        assert receive_all(ends.receivers[1]) == sent
        assert send(ends.sender, bytes(300)) is Outcome.SENT

    def test_a_closed_receiver_does_not_block_the_sender(self, make: Make):
        ends = make(RING_BYTES, 2)
        fill(ends.sender, 300)
        receive_all(ends.receivers[0])
        ends.receivers[1].close()
        assert send(ends.sender, b"on") is Outcome.SENT
        assert receive_all(ends.receivers[0]) == [b"on"]

    def test_all_receivers_get_all_that_was_sent_before_the_close(self, make: Make):
        ends = make(RING_BYTES, 2)
        sent = fill(ends.sender, 100)
        assert not ends.receivers[0].closed_by_peer
        ends.sender.close()
        for receiver in ends.receivers:
            assert not receiver.closed_by_peer
            assert receive_all(receiver) == sent
            assert receiver.closed_by_peer

    def test_the_sender_learns_that_all_receivers_closed(self, make: Make):
        ends = make(RING_BYTES, 2)
        ends.receivers[0].close()
        assert send(ends.sender, b"x") is Outcome.SENT
        assert not ends.sender.closed_by_peer
        ends.receivers[1].close()
        assert ends.sender.closed_by_peer
        assert send(ends.sender, b"x") is Outcome.CLOSED
        assert ends.sender.ready_to_send(1) is Outcome.CLOSED

    def test_statistics_of_many_count(self, make: Make):
        ends = make(RING_BYTES, 2)
        sent = fill(ends.sender, 300)
        receive(ends.receivers[0])
        sender = ends.sender.statistics()
        first, second = (receiver.statistics() for receiver in ends.receivers)
        assert (sender.frames, sender.payload_bytes) == (len(sent), 300 * len(sent))
        assert (first.frames, first.payload_bytes) == (1, 300)
        assert (second.frames, second.payload_bytes) == (0, 0)
        assert sender.back_pressured == 1
        assert sender.capacity_bytes == RING_BYTES
        assert sender.lag_bytes == (*first.lag_bytes, *second.lag_bytes)
        assert 300 * len(sent) <= (second.lag_bytes[0] or 0) <= RING_BYTES
        ends.receivers[1].close()
        assert ends.sender.statistics().lag_bytes == (*first.lag_bytes, None)
        ends.sender.close()
        assert ends.sender.statistics().frames == len(sent)
        assert zlib.crc32(b"".join(receive_all(ends.receivers[0]))) == zlib.crc32(
            b"".join(sent[1:])
        )


def _pointer_to(address: int):
    import ctypes

    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
