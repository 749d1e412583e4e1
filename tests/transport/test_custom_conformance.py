"""A pair of transport operators, over Unix sockets, keeps the contract of channels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.transport.conformance import RING_BYTES, ChannelConformance, Ends, Make
from tests.transport.frames import fill, receive
from tests.transport.unix_transport import context, unix_transport
from whale_ray.testing import VirtualClock
from whale_ray.transport.channel import Frame
from whale_ray.transport.custom.operators import Transport
from whale_ray.transport.custom.receiving import CustomReceivingEnd
from whale_ray.transport.custom.sending import CustomSendingEnd

MESSAGE_BYTES = 256
MAX_FRAME_BYTES = 1016


class LingeringSender(CustomSendingEnd):
    """Whose end waits for room, as at the end of a worker's loop."""

    def close(self) -> None:
        self.finish()


class TurningReceiver(CustomReceivingEnd):
    """Which lets its senders send what waits, as their loops would."""

    senders: tuple[CustomSendingEnd, ...] = ()

    def available(self) -> bool:
        self._turn()
        return super().available()

    def get(self) -> Frame | None:
        self._turn()
        return super().get()

    def _turn(self) -> None:
        for sender in self.senders:
            if sender.waits:
                sender.pump()


def make_pairs(
    stack: contextlib.ExitStack, transport: Transport, senders: int = 1, **options
) -> tuple[list[LingeringSender], TurningReceiver]:
    """Return some senders, as streams 0, 1 …, and the receiver that they share."""
    streams = {number: (number, None) for number in range(senders)}
    receiver = TurningReceiver(
        transport,
        context(transport, None, senders),
        streams,
        MAX_FRAME_BYTES,
        clock=VirtualClock(),
        **options,
    )
    stack.callback(receiver.close)
    address = receiver.listen()
    made = []
    for number in range(senders):
        sender = LingeringSender(
            transport,
            context(transport, number, senders),
            number,
            MAX_FRAME_BYTES,
            clock=VirtualClock(),
        )
        stack.callback(CustomSendingEnd.close, sender)
        sender.connect(address)
        made.append(sender)
    receiver.senders = tuple(made)
    return made, receiver


class TestUnixSockets(ChannelConformance):
    memory = "queue"
    smallest_frame_bytes = MESSAGE_BYTES

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:

            def make(ring_bytes: int, receivers: int, *, held_fraction: float = 0.5) -> Ends:
                assert receivers == 1
                transport = unix_transport(MESSAGE_BYTES, ring_bytes // MESSAGE_BYTES)
                (sender,), receiver = make_pairs(stack, transport, held_fraction=held_fraction)
                return Ends(sender, [receiver], MAX_FRAME_BYTES)

            yield make

    # The memory of received bytes belongs to the user's operator: it is not overwritten.
    test_poison_covers_released_memory_only = None

    def test_statistics_count(self, make: Make):
        """What was given back is known to the operators alone."""
        ends = make(RING_BYTES, 1)
        sent = fill(ends.sender, 300)
        receive(ends.receivers[0])
        sender, receiver = ends.sender.statistics(), ends.receivers[0].statistics()
        assert (sender.frames, sender.payload_bytes) == (len(sent), 300 * len(sent))
        assert (receiver.frames, receiver.payload_bytes) == (1, 300)
        assert sender.back_pressured == 1
        assert sender.capacity_bytes == receiver.capacity_bytes == RING_BYTES
        assert sender.lag_bytes == (0,)
        ends.sender.close()
        assert ends.sender.statistics().frames == len(sent)

    def test_a_receiver_that_closed_has_no_lag(self, make: Make):
        ends = make(RING_BYTES, 1)
        fill(ends.sender, 300)
        ends.receivers[0].close()
        assert ends.sender.closed_by_peer
        assert ends.sender.statistics().lag_bytes == (None,)
