"""The push messages and credits of one link; where two links lead to a peer, one of them has all.

The link that push messages go by keeps them until it ends; then another one takes them over, and
everything is sent again that is not known to have arrived. So, when they come by another link than
before, the peer has ended the former one. What is still on its way there must not be received: its
slot may hold another payload by then.
"""

from __future__ import annotations

from collections.abc import Iterator

from .messages import PUSH_BYTES_MAX
from .peer import Peer, PushSink


class Pushes:
    """What one link knows of the push channels to and from its peer."""

    def __init__(self, peer: Peer) -> None:
        """Send nothing yet."""
        self._peer = peer
        self._credits_told: dict[int, int] = {}
        self.superseded = False
        """Whether the peer pushes by another link by now, and so has ended this one."""

    def credits_due(self) -> Iterator[tuple[int, int]]:
        """Yield the channels whose credits have changed, and how many there are in all."""
        for channel, sink in self._peer.push_sinks.items():
            credits_in_all = sink.credits_in_all
            if self._credits_told.get(channel, 0) != credits_in_all:
                self._credits_told[channel] = credits_in_all
                yield channel, credits_in_all

    def due(self, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
        """Yield what is to be sent by this link: channel, slot word, payload.

        About `max_bytes` of each channel. ValueError for a payload of a wrong size.
        """
        peer = self._peer
        if peer.pushes_out is None:
            peer.pushes_out = self
            for source in peer.push_sources.values():
                source.reconnected()
        if peer.pushes_out is not self:
            return
        for channel, source in peer.push_sources.items():
            left = max_bytes
            while left > 0 and (message := source.next_message()) is not None:
                word, payload = message
                if not 1 <= len(payload) <= PUSH_BYTES_MAX:
                    msg = f"a push message of {len(payload):,} bytes"
                    raise ValueError(msg)
                yield channel, word, payload
                left -= len(payload)

    def sink_of(self, channel: int) -> PushSink | None:
        """Return where a push message goes that comes by this link; None for no channel of ours."""
        sink = self._peer.push_sinks.get(channel)
        if sink is not None:
            before, self._peer.pushes_in = self._peer.pushes_in, self
            if isinstance(before, Pushes) and before is not self:
                before.superseded = True
        return sink

    def ended(self) -> None:
        """Take note that the link has ended: another one takes over."""
        peer = self._peer
        if peer.pushes_out is self:
            peer.pushes_out = None
        if peer.pushes_in is self:
            peer.pushes_in = None
