"""Push channels over a queue pair: payload and footer in one WRITE into the receiver's slot.

The receiver's host tells where the slots are (SLOTS). A PUSH then needs no copy: its content goes
from the sender's slot to the same place of the same slot over there, and the header follows in a
letter (PLACED), upon which the inlet writes the footer's last word, which the receiver polls. Ends
of channels, and channels whose slots are not registered, go by letters as a whole.

A slot is written only by whoever has the credit for it; what is sent again after a broken link is
the same as before.
"""

from __future__ import annotations

from typing import Final

from ...configs.errors import ResourceError
from ..links.link import Link
from ..push.layout import LAP_BACK
from ..push.wire import PushInlet, PushOutlet
from .equipment import Equipment
from .frames import PLACED, ROOM_KEPT, Slots
from .payload_sender import COPY, WAIT, Decision
from .queue_pair import Request


class Pusher:
    """The push channels of one queue pair, both ways."""

    def __init__(self, equipment: Equipment) -> None:
        """Know of none yet."""
        self._pair = equipment.pair
        self._regions = equipment.regions
        self._told: set[int] = set()
        self._requests: dict[int, tuple[PushOutlet, Request]] = {}
        self.targets: Final[dict[int, Slots]] = {}
        """Where the peer's slots are, by channel."""

    def must_tell(self, link: Link) -> bool:
        """Return whether there are channels of whose slots the peer was not told."""
        return len(self._told) < len(link.peer.push_sinks)

    def slots_to_tell(self, link: Link) -> Slots | None:
        """Return where the slots of the next such channel are; None if there is none."""
        sinks = link.peer.push_sinks
        library = self._pair.device.library
        access = library.LOCAL_WRITE | library.REMOTE_WRITE
        for channel in [channel for channel in sinks if channel not in self._told]:
            self._told.add(channel)
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
            return Slots(channel, region.rkey, address, layout.slots, layout.slot_bytes)
        return None

    def decide(self, link: Link, channel: int, word: int, nbytes: int) -> Decision:
        """Say what to do with the content of a PUSH, and do it if it is to be written."""
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
        return PLACED

    def _request(self, link: Link, channel: int, source: PushOutlet) -> Request | None:
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
        request = Request(device, device.library.WRITE, region.lkey)
        self._requests[channel] = source, request
        return request

    def close(self) -> None:
        """Forget everything; after the queue pair was closed."""
        for _, request in self._requests.values():
            request.close()
        self._requests.clear()
