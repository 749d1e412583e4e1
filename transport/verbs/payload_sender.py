"""How a parent sends the payload of a DATA message: by READ, WRITE or SEND.

    read    the child READs it out of the ring                   TO_READ
    write   the parent WRITEs it from the ring into the mirror   WRITTEN
    send    it is copied into frames                             BYTES

READ and WRITE need bytes that are still in the ring, and a registered ring and mirror. Bytes in
retention, and streams of a host that may lock too little memory, are copied into frames.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ...configs.errors import ResourceError
from ..links.link import Link
from ..links.outgoing import Outgoing
from ..mirror import RingTap
from .frames import ROOM_KEPT, TO_READ, WRITTEN, RemoteMemory
from .link_resources import Data
from .queue_pair import QueuePair, WorkRequest
from .regions import Regions

_AHEAD_BYTES: Final = 6 << 20
"""Bytes of WRITEs under way at a time; one message may exceed it. More would hide no latency, and
the next message would wait for room in the ring instead, which takes longer to be noticed."""
COPY: Final = 0
WAIT: Final = -1
Decision: TypeAlias = int
"""How a payload is sent: TO_READ or WRITTEN, the kind of the frame's item, or COPY, or WAIT. Plain
numbers, since access to the members of an enumeration is slow."""


class _SentStream:
    """A stream sent by READ or WRITE: addresses of its ring and mirror, and WRITEs under way."""

    __slots__ = (
        "local", "mask", "outgoing", "remote", "request", "rkey", "stop", "tap", "under_way"
    )  # fmt: skip

    def __init__(
        self, outgoing: Outgoing, mirror: RemoteMemory, request: WorkRequest | None
    ) -> None:
        self.outgoing = outgoing
        self.tap = outgoing.offer.tap
        self.mask = mirror.capacity - 1
        self.local = self.tap.data_address
        self.remote = mirror.address
        self.rkey = mirror.rkey
        self.request = request
        """None if the child READs."""
        self.under_way = 0
        self.stop = 0
        """End of the last WRITE: those under way follow one another."""


class PayloadSender:
    """The payloads that a parent sends over one queue pair."""

    def __init__(self, pair: QueuePair, regions: Regions, data: Data) -> None:
        """Begin without streams."""
        self._pair = pair
        self._regions = regions
        self._by_read = data is Data.READ
        self._by_send = data is Data.SEND
        self._posted_max = pair.sends_max - ROOM_KEPT - 2
        self._targets: dict[int, _SentStream] = {}
        self._announced: dict[int, RingTap] = {}
        # A ring buffer of the WRITEs under way, oldest first, by message: the number of the last
        # work request, the bytes and where they end, and their stream.
        places = pair.sends_max
        self._numbers = [0] * places
        self._lengths = [0] * places
        self._stops = [0] * places
        self._streams_written: list[_SentStream | None] = [None] * places
        self._begun = 0
        self._settled = 0
        self._bytes = 0
        self._mirrors: dict[int, RemoteMemory] = {}

    def set_remote_memory(self, mirror: RemoteMemory) -> None:
        """Set the address and key of the child's mirror of a stream."""
        self._mirrors[mirror.stream] = mirror
        target = self._targets.get(mirror.stream)
        if target is not None and mirror.capacity == target.tap.capacity:
            target.remote, target.rkey = mirror.address, mirror.rkey
        elif target is not None:
            self._forget(mirror.stream)

    def memory_to_announce(self, link: Link, stream: int) -> RemoteMemory | None:
        """Return the address of the ring of `stream`, if the child needs it and has not got it."""
        if not self._by_read or stream not in self._mirrors:
            return None
        outgoing = link.peer.outgoing.get(stream)
        if outgoing is None or self._announced.get(stream) is outgoing.offer.tap:
            return None
        tap = self._announced[stream] = outgoing.offer.tap
        access = self._pair.device.library.REMOTE_READ
        try:
            region = self._regions.of(
                tap, tap.data_address, tap.capacity, access, f"the ring of stream {stream}"
            )
        except ResourceError as error:
            self._fall_back_to_frames(link, stream, error)
            return None
        return RemoteMemory(stream, region.rkey, tap.data_address, tap.capacity)

    def decide(self, link: Link, stream: int, start: int, nbytes: int, number: int) -> Decision:
        """Decide how a payload is sent, and post its WRITEs if it is to be written.

        `number` is that of the subscription that it answers. If the child has given that up
        meanwhile, the payload is sent in frames, to be discarded: another parent may write into
        the mirror by now.
        """
        outgoing = link.peer.outgoing.get(stream)
        target = self._targets.get(stream)
        if target is None or target.outgoing is not outgoing:
            target = self._open(link, stream, outgoing)
            if target is None:
                return COPY
        tap = target.tap
        if target.outgoing.number != number or start < tap.released or tap.closed:
            return COPY
        request = target.request
        if request is None:
            target.outgoing.fetched_to = start + nbytes
            return TO_READ
        pair = self._pair
        if pair.posted - pair.completed >= self._posted_max or self._bytes >= _AHEAD_BYTES:
            return WAIT
        if target.under_way and start != target.stop:
            return WAIT  # until what was written for an earlier subscription has arrived
        offset = start & target.mask
        local, remote, rkey = target.local, target.remote, target.rkey
        rest = offset + nbytes - target.mask - 1
        if rest <= 0:
            pair.post(request, local + offset, nbytes, remote + offset, rkey, 0)
        else:
            pair.post(request, local + offset, nbytes - rest, remote + offset, rkey, 0)
            pair.post(request, local, rest, remote, rkey, 0)
        self._note(target, start, nbytes)
        return WRITTEN

    def _note(self, target: _SentStream, start: int, nbytes: int) -> None:
        """Record a message that is being written."""
        place = self._begun % len(self._numbers)
        self._begun += 1
        self._numbers[place] = self._pair.posted - 1
        self._stops[place] = start + nbytes
        self._lengths[place] = nbytes
        self._bytes += nbytes
        self._streams_written[place] = target
        if not target.under_way:
            target.outgoing.written_from = start
        target.under_way += 1
        target.stop = start + nbytes

    def _open(self, link: Link, stream: int, outgoing: Outgoing | None) -> _SentStream | None:
        """Return the ring and mirror of a stream; None if it must be copied into frames."""
        mirror = self._mirrors.get(stream)
        if mirror is None or outgoing is None or self._by_send:
            return None
        tap, device = outgoing.offer.tap, self._pair.device
        if mirror.capacity != tap.capacity:
            return None
        request = None
        if not self._by_read:
            try:
                region = self._regions.of(
                    tap, tap.data_address, tap.capacity, 0, f"the ring of stream {stream}"
                )
            except ResourceError as error:
                self._fall_back_to_frames(link, stream, error)
                return None
            request = WorkRequest(device, device.library.WRITE, region.lkey)
        self._forget(stream)
        self._targets[stream] = target = _SentStream(outgoing, mirror, request)
        return target

    def _forget(self, stream: int) -> None:
        target = self._targets.pop(stream, None)
        if target is not None and target.request is not None:
            target.request.close()

    def _fall_back_to_frames(self, link: Link, stream: int, error: ResourceError) -> None:
        """Send the stream in frames from now on, and report the reason."""
        self._mirrors.pop(stream, None)
        self._forget(stream)
        link.peer.failed("verbs: not registered", str(error))

    def settle(self) -> None:
        """Account for the WRITEs that have completed: their bytes are in the peer's mirror."""
        completed, numbers = self._pair.completed, self._numbers
        settled, begun = self._settled, self._begun
        while settled < begun:
            place = settled % len(numbers)
            if numbers[place] >= completed:
                break
            settled += 1
            target = self._streams_written[place]
            assert target is not None, "a WRITE under way belongs to a stream"
            target.under_way -= 1
            outgoing = target.outgoing
            self._bytes -= self._lengths[place]
            outgoing.written_from = self._stops[place] if target.under_way else None
            if outgoing.gone or not outgoing.admitted:
                outgoing.offer.release()
        self._settled = settled

    def close(self) -> None:
        """Release everything; after the queue pair was closed."""
        for number in range(self._settled, self._begun):
            target = self._streams_written[number % len(self._streams_written)]
            assert target is not None, "a WRITE under way belongs to a stream"
            target.outgoing.written_from = None
        self._settled = self._begun
        for stream in tuple(self._targets):
            self._forget(stream)
