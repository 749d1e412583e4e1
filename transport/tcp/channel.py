"""A stream between hosts as a channel: a ring here, a mirror there, an endpoint on each side.

The sender's ring is given back only when the receivers' readers have given back their mirrors, so
that the channel holds no more than one ring's capacity, however many hosts receive. Each call
also polls its endpoint; a side that makes no calls must poll by itself, and sleeps on the doorbell
that its endpoint rings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

from ..channel import ChannelStatistics, Encode, Frame, Outcome, ReceivingEnd, SendingEnd
from ..doorbell import Doorbell
from ..links.attached import Offer
from ..mirror import MirrorRing, RingTap
from ..ring import RingProducer
from ..ring_layout import RingLayout
from ..segment import Segment
from .endpoint import TcpEndpoint


class TcpSendingEnd(SendingEnd):
    """The sending end of a stream to other hosts. The endpoint stays its owner's."""

    def __init__(
        self,
        endpoint: TcpEndpoint,
        stream: int,
        ring_bytes: int,
        children: Collection[str],
        doorbell: Doorbell | None = None,
        *,
        poison_released: bool = False,
    ) -> None:
        """Offer `stream` to the hosts `children`; `doorbell` is rung when there is room.

        Raises ResourceError if there is no memory for a ring of `ring_bytes`.
        """
        layout = RingLayout(ring_bytes, 1)
        segment = Segment.create(layout.total_bytes, f"stream-{stream}", "tcp", "private")
        self._producer = RingProducer(segment, layout, poison_released=poison_released)
        tap = RingTap.beside(self._producer, doorbell)
        self._endpoint = endpoint
        self._offer: Final[Offer] = endpoint.offer(stream, tap, children, until="consumed")
        self._back_pressured = 0
        self._closed = False
        self._lag_at_close: tuple[int | None, ...] = ()

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload that `put` takes."""
        return self._producer.max_frame_bytes

    def open(self) -> None:
        """Do nothing: frames may be put before the receivers have connected."""

    def ready_to_send(self, nbytes: int) -> Outcome:
        """See `Channel.ready_to_send`."""
        outcome = self._producer.ready_to_send(nbytes)
        if outcome is Outcome.BACK_PRESSURED and self._endpoint.poll():
            outcome = self._producer.ready_to_send(nbytes)
        return self._counted(outcome)

    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """See `Channel.put`."""
        outcome = self._producer.put(nbytes, encode)
        if outcome is Outcome.BACK_PRESSURED and self._endpoint.poll():
            outcome = self._producer.put(nbytes, encode)
        if outcome is Outcome.SENT:
            self._endpoint.poll()
        return self._counted(outcome)

    def _counted(self, outcome: Outcome) -> Outcome:
        if outcome is Outcome.BACK_PRESSURED:
            self._back_pressured += 1
        return outcome

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`; `lag_bytes` is of the receiving hosts, in order."""
        return dataclasses.replace(
            self._producer.statistics(),
            back_pressured=self._back_pressured,
            lag_bytes=self._lag_at_close if self._closed else self._lags(),
        )

    def _lags(self) -> tuple[int | None, ...]:
        head = self._offer.tap.head
        return tuple(
            None if child.gone else head - child.sender.consumed
            for child in self._offer.outgoing.values()
        )

    @property
    def closed_by_peer(self) -> bool:
        """Whether the readers of every receiving host have closed."""
        return self._producer.closed_by_peer

    @property
    def delivered(self) -> bool:
        """Whether, after `close`, every receiver has everything: the endpoint may be closed."""
        return self._offer.complete

    def close(self) -> None:
        """Send nothing more; the endpoint must be polled until all is `delivered`."""
        if self._closed:
            return
        self._lag_at_close = self._lags()
        self._closed = True
        self._producer.close()
        self._endpoint.poll()


class TcpReceivingEnd(ReceivingEnd):
    """A receiving end of a stream from another host. The endpoint stays its owner's."""

    def __init__(
        self,
        endpoint: TcpEndpoint,
        stream: int,
        ring_bytes: int,
        parent: str,
        doorbell: Doorbell | None = None,
        *,
        held_fraction: float = 0.5,
        poison_released: bool = False,
    ) -> None:
        """Subscribe `stream` at the host `parent`, which the endpoint dials.

        `ring_bytes` is the sender's. Raises ResourceError if there is no memory.
        """
        self._endpoint = endpoint
        self._mirror = MirrorRing.create(
            ring_bytes,
            1,
            "tcp",
            f"stream-{stream}",
            () if doorbell is None else (doorbell,),
            kind="private",
            poison_released=poison_released,
        )
        self._consumer = self._mirror.consumer(0, doorbell, held_fraction=held_fraction)
        self._closed = False
        endpoint.subscribe(stream, self._mirror, parent)

    def open(self) -> None:
        """Do nothing: it is open."""

    def available(self) -> bool:
        """See `Channel.available`."""
        if self._consumer.available():
            return True
        self._endpoint.poll()
        return self._consumer.available()

    def get(self) -> Frame | None:
        """See `Channel.get`."""
        frame = self._consumer.get()
        if frame is None and not self._closed:
            self._endpoint.poll()
            frame = self._consumer.get()
        return frame

    def release_buffer(self, frame: Frame) -> None:
        """See `Channel.release_buffer`."""
        self._consumer.release_buffer(frame)

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        return self._consumer.statistics()

    @property
    def closed_by_peer(self) -> bool:
        """Whether the sender has closed, and every frame was received."""
        return self._consumer.closed_by_peer

    def close(self) -> None:
        """Stop reading: the sender no longer waits for this host."""
        if self._closed:
            return
        self._closed = True
        self._consumer.close()
        self._endpoint.poll()
        self._mirror.close()
