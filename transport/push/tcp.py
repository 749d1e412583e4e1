"""Both ends of a push channel between hosts; each polls its endpoint.

If a relay polls the endpoint, its workers use the ends of channel.py, as within a host. Here the
ends themselves poll with each call, so that bytes and credits move while they are used; a side that
makes no calls must poll by itself.
"""

from __future__ import annotations

from ..channel import ChannelStatistics, Encode, Frame, Outcome, ReceivingEnd, SendingEnd
from ..doorbell import Doorbell
from ..segment import Segment
from ..tcp.endpoint import TcpEndpoint
from .channel import PushReceivingEnd
from .layout import PushLayout
from .wire import PushInlet, PushOutlet


class TcpPushSendingEnd(SendingEnd):
    """The sending end: it writes into the slots of an outlet, which a link sends.

    It does not close the endpoint.
    """

    def __init__(
        self,
        endpoint: TcpEndpoint,
        host: str,
        channel: int,
        layout: PushLayout,
        doorbell: Doorbell | None = None,
    ) -> None:
        """Create the sender of push channel `channel` to `host`, with the receiver's layout.

        `doorbell` is rung when there are credits. Raises ResourceError without memory for slots.
        """
        label = f"push-{channel}"
        self._outlet = PushOutlet.create("tcp", label, layout, doorbell, kind="private")
        self._sender = self._outlet.sending_end()
        self._endpoint = endpoint
        endpoint.push_source(host, channel, self._outlet)

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload that `put` takes."""
        return self._sender.max_frame_bytes

    @property
    def delivered(self) -> bool:
        """Whether the receiver has received everything, the end included, or wants no more."""
        self._endpoint.poll()
        return self._outlet.delivered

    def open(self) -> None:
        """Do nothing: messages sent before the link is up wait in the slots."""

    def ready_to_send(self, nbytes: int) -> Outcome:
        """See `Channel.ready_to_send`."""
        self._endpoint.poll()
        return self._sender.ready_to_send(nbytes)

    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """See `Channel.put`."""
        self._endpoint.poll()  # for credits
        outcome = self._sender.put(nbytes, encode)
        if outcome is Outcome.SENT:
            self._endpoint.poll()
        return outcome

    @property
    def closed_by_peer(self) -> bool:
        """See `Channel.closed_by_peer`."""
        self._endpoint.poll()
        return self._sender.closed_by_peer

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        self._endpoint.poll()
        return self._sender.statistics()

    def close(self) -> None:
        """End the stream; the link still sends the messages in the slots while it is polled."""
        self._sender.close()
        self._endpoint.poll()


class TcpPushReceivingEnd(ReceivingEnd):
    """The receiving end: a link fills its slots. It does not close the endpoint."""

    def __init__(
        self,
        endpoint: TcpEndpoint,
        host: str,
        channel: int,
        layout: PushLayout,
        doorbell: Doorbell | None = None,
        *,
        poison_released: bool = False,
        held_fraction: float = 0.5,
    ) -> None:
        """Create the receiver of push channel `channel` from `host`, before the link to it is up.

        `doorbell` is rung when a message has come. Raises ResourceError without memory for slots.
        """
        segment = Segment.create(layout.total_bytes, f"push-{channel}", "tcp", "private")
        self._receiver = PushReceivingEnd(
            segment, layout, poison_released=poison_released, held_fraction=held_fraction
        )
        self._inlet = PushInlet(segment.share(), doorbell)
        self._endpoint = endpoint
        endpoint.push_sink(host, channel, self._inlet)

    def open(self) -> None:
        """Do nothing: messages received before the first call wait in the slots."""

    def available(self) -> bool:
        """See `Channel.available`."""
        if self._receiver.available():
            return True
        self._endpoint.poll()
        return self._receiver.available()

    def get(self) -> Frame | None:
        """See `Channel.get`."""
        frame = self._receiver.get()
        if frame is None:
            self._endpoint.poll()
            frame = self._receiver.get()
        return frame

    def release_buffer(self, frame: Frame) -> None:
        """See `Channel.release_buffer`."""
        self._receiver.release_buffer(frame)
        self._endpoint.poll()

    @property
    def closed_by_peer(self) -> bool:
        """See `Channel.closed_by_peer`."""
        self._endpoint.poll()
        return self._receiver.closed_by_peer

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        self._endpoint.poll()
        return self._receiver.statistics()

    def close(self) -> None:
        """Stop receiving; the link still reports that to the sender while it is polled."""
        self._receiver.close()
        self._endpoint.poll()
