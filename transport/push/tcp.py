"""Both ends of a push channel between hosts, each of which keeps its endpoint going.

Where a relay polls the endpoint, its workers use the plain ends of channel.py, and never know that
the other side is on another host. Here the ends themselves poll, so that bytes and credits flow
while they are used; a side that makes no calls must poll by itself.
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
    """The sending end: it writes into an outlet's slots, which a link empties.

    The endpoint stays its owner's.
    """

    def __init__(
        self,
        endpoint: TcpEndpoint,
        host: str,
        channel: int,
        layout: PushLayout,
        doorbell: Doorbell | None = None,
    ) -> None:
        """Be the sender of push channel `channel` to `host`, whose receiver has the same layout.

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
        """Whether the receiver has got everything, the end included, or wants nothing more."""
        self._endpoint.poll()
        return self._outlet.delivered

    def open(self) -> None:
        """Do nothing: what is sent before the link stands waits in the slots."""

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
        """Say that nothing follows; what has been sent goes on its way as long as links do."""
        self._sender.close()
        self._endpoint.poll()


class TcpPushReceivingEnd(ReceivingEnd):
    """The receiving end: a link fills its slots. The endpoint stays its owner's."""

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
        """Be the receiver of push channel `channel` from `host`; before the link to it stands.

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
        """Do nothing: what comes before the first call waits in the slots."""

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
        """Stop receiving: the sender learns it as long as links do."""
        self._receiver.close()
        self._endpoint.poll()
