"""Push channels over a queue pair: payload and footer in one WRITE into the receiver's slot.

The receiver's host announces the address of its slots (SLOTS). A PUSH then needs no copy: its
content is written from the sender's slot into the same slot of the receiver, and the header follows
in a frame (WRITTEN); then the inlet writes the footer's last word, which the receiver polls. Ends
of channels, and channels whose slots are not registered, are sent in frames as a whole.

A slot is written only with the credit for it; bytes sent again after a broken link are the same as
before.
"""

from __future__ import annotations

from typing import Final

from ...configs.errors import ResourceError
from ..links.link import Link
from ..push.layout import LAP_BACK
from ..push.wire import PushInlet, PushOutlet
from .frames import ROOM_KEPT, WRITTEN, RemoteSlots
from .link_resources import LinkResources
from .payload_sender import COPY, WAIT, Decision
from .queue_pair import WorkRequest


class Pusher:
    """The push channels of one queue pair, both ways."""

    def __init__(self, resources: LinkResources) -> None:
        """Begin without channels."""
        self._pair = resources.pair
        self._regions = resources.regions
        self._announced: set[int] = set()
        self._requests: dict[int, tuple[PushOutlet, WorkRequest]] = {}
        self.targets: Final[dict[int, RemoteSlots]] = {}
        """The addresses of the peer's slots, by channel."""

    def has_unannounced(self, link: Link) -> bool:
        """Return whether there are channels whose slots were not announced to the peer."""
        return len(self._announced) < len(link.peer.push_sinks)

    def slots_to_announce(self, link: Link) -> RemoteSlots | None:
        """Return the address of the slots of the next such channel; None if there is none."""
        sinks = link.peer.push_sinks
        library = self._pair.device.library
        access = library.LOCAL_WRITE | library.REMOTE_WRITE
        for channel in [channel for channel in sinks if channel not in self._announced]:
            self._announced.add(channel)
            sink = sinks[channel]
            if not isinstance(sink, PushInlet):
                continue
            layout, address = sink.layout, sink.data_address
            try:
                region = self._regions.of(
                    sink, address, layout.capacity, access, f"push channel {channel}"
                )
            except ResourceError as error:
                link.peer.failed("verbs: not registered", str(error))
                continue
            return RemoteSlots(channel, region.rkey, address, layout.slots, layout.slot_bytes)
        return None

    def decide(self, link: Link, channel: int, word: int, nbytes: int) -> Decision:
        """Decide how the content of a PUSH is sent, and post its WRITE if it is to be written."""
        target = self.targets.get(channel)
        source = link.peer.push_sources.get(channel)
        if target is None or word & 1 or not isinstance(source, PushOutlet):
            return COPY
        layout = source.layout
        if (layout.slots, layout.slot_bytes) != (target.slots, target.slot_bytes):
            return COPY
        if self._pair.room <= ROOM_KEPT + 2:
            return WAIT
        request = self._request(link, channel, source)
        if request is None:
            return COPY
        slot = (word >> 1) % layout.slots
        offset = (slot + 1) * layout.slot_bytes - LAP_BACK - nbytes
        local, remote = source.data_address + offset, target.address + offset
        self._pair.post(request, local, nbytes, remote, target.rkey, 0)
        return WRITTEN

    def _request(self, link: Link, channel: int, source: PushOutlet) -> WorkRequest | None:
        found = self._requests.get(channel)
        if found is not None:
            return found[1]
        device = self._pair.device
        try:
            region = self._regions.of(
                source, source.data_address, source.layout.capacity, 0, f"push channel {channel}"
            )
        except ResourceError as error:
            del self.targets[channel]
            link.peer.failed("verbs: not registered", str(error))
            return None
        request = WorkRequest(device, device.library.WRITE, region.lkey)
        self._requests[channel] = source, request
        return request

    def close(self) -> None:
        """Release everything; after the queue pair was closed."""
        for _, request in self._requests.values():
            request.close()
        self._requests.clear()
