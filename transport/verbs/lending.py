"""What a parent does with the payload of a DATA message: lend it, write it, or copy it.

    read    the child fetches it out of the ring            FETCH
    write   it is written from the ring into the mirror     PLACED
    send    it is copied into letters                       BYTES

Only bytes of the ring can be lent or written, and only if ring and mirror are registered: what
lies in retention, and the streams of a host that may lock too little memory, go by letters.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final, NamedTuple

from ...configs.errors import ResourceError
from ..links.link import Link
from ..links.outgoing import Outgoing
from ..mirror import RingTap
from .equipment import Data
from .fetching import ROOM_KEPT
from .letters import FETCH, PLACED, Memory
from .queue_pair import QueuePair, Request
from .regions import Regions


class Decision(enum.Enum):
    """What to do with a payload."""

    COPY = 0
    FETCH = FETCH
    PLACED = PLACED
    WAIT = -1


class _Write(NamedTuple):
    number: int
    start: int
    outgoing: Outgoing


class Lender:
    """The streams of a parent, as one queue pair carries them."""

    def __init__(self, pair: QueuePair, regions: Regions, data: Data) -> None:
        """Lend nothing yet."""
        self._pair = pair
        self._regions = regions
        self._data = data
        self._requests: dict[int, tuple[RingTap, Request]] = {}
        self._told: dict[int, RingTap] = {}
        self._writes: deque[_Write] = deque(maxlen=pair.sends_max)
        self.mirrors: Final[dict[int, Memory]] = {}
        """Where the child's mirrors lie, by stream."""

    def memory_to_tell(self, link: Link, stream: int) -> Memory | None:
        """Return where the ring of `stream` lies if the child must know and was not told."""
        if self._data is not Data.READ or stream not in self.mirrors:
            return None
        outgoing = link.peer.outgoing.get(stream)
        if outgoing is None or self._told.get(stream) is outgoing.offer.tap:
            return None
        tap = self._told[stream] = outgoing.offer.tap
        access = self._pair.device.library.REMOTE_READ
        try:
            region = self._regions.of(
                tap, tap.data_address, tap.capacity, access, f"the ring of stream {stream}"
            )
        except ResourceError as error:
            self._give_up(link, stream, error)
            return None
        return Memory(stream, region.rkey, tap.data_address, tap.capacity)

    def decide(self, link: Link, stream: int, start: int, nbytes: int) -> Decision:
        """Say what to do with a payload, and do it if it is to be written."""
        mirror = self.mirrors.get(stream)
        outgoing = link.peer.outgoing.get(stream)
        if mirror is None or outgoing is None or self._data is Data.SEND:
            return Decision.COPY
        tap = outgoing.offer.tap
        if start < tap.released or tap.closed or mirror.capacity != tap.capacity:
            return Decision.COPY
        if self._data is Data.READ:
            outgoing.fetched_to = start + nbytes
            return Decision.FETCH
        return self._write(link, outgoing, mirror, start, nbytes)

    def _write(
        self, link: Link, outgoing: Outgoing, mirror: Memory, start: int, nbytes: int
    ) -> Decision:
        pair, tap = self._pair, outgoing.offer.tap
        if pair.room <= ROOM_KEPT + 2:
            return Decision.WAIT
        request = self._request(link, outgoing.stream, tap)
        if request is None:
            return Decision.COPY
        offset = start & (tap.capacity - 1)
        first = min(nbytes, tap.capacity - offset)
        ring, remote = tap.data_address, mirror.address
        pair.post(request, ring + offset, first, remote + offset, mirror.rkey, 0)
        if first < nbytes:
            pair.post(request, ring, nbytes - first, remote, mirror.rkey, 0)
        self._writes.append(_Write(pair.posted - 1, start, outgoing))
        if outgoing.written_from is None:
            outgoing.written_from = start
        return Decision.PLACED

    def _request(self, link: Link, stream: int, tap: RingTap) -> Request | None:
        found = self._requests.get(stream)
        if found is not None and found[0] is tap:
            return found[1]
        device = self._pair.device
        try:
            region = self._regions.of(
                tap, tap.data_address, tap.capacity, 0, f"the ring of stream {stream}"
            )
        except ResourceError as error:
            self._give_up(link, stream, error)
            return None
        request = Request(device, device.library.WRITE, region.lkey)
        self._requests[stream] = tap, request
        return request

    def _give_up(self, link: Link, stream: int, error: ResourceError) -> None:
        """Send the stream by letters from now on, and say why."""
        self.mirrors.pop(stream, None)
        link.peer.failed("verbs: not registered", str(error))

    def settle(self) -> None:
        """Take note of what the peer has by now of all that was written."""
        writes, completed = self._writes, self._pair.completed
        while writes and writes[0].number < completed:
            outgoing = writes.popleft().outgoing
            starts = (write.start for write in writes if write.outgoing is outgoing)
            outgoing.written_from = next(starts, None)
            if not outgoing.admitted or outgoing.gone:
                outgoing.offer.release()

    def close(self) -> None:
        """Forget everything; after the queue pair was closed."""
        for write in self._writes:
            write.outgoing.written_from = None
        self._writes.clear()
        for _, request in self._requests.values():
            request.close()
        self._requests.clear()
