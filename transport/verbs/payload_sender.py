"""What a parent does with the payload of a DATA message: lend it, write it, or copy it.

    read    the child fetches it out of the ring            FETCH
    write   it is written from the ring into the mirror     PLACED
    send    it is copied into letters                       BYTES

Only bytes of the ring can be lent or written, and only if ring and mirror are registered: what
lies in retention, and the streams of a host that may lock too little memory, go by letters.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ...configs.errors import ResourceError
from ..links.link import Link
from ..links.outgoing import Outgoing
from ..mirror import RingTap
from .equipment import Data
from .frames import FETCH, PLACED, ROOM_KEPT, Memory
from .queue_pair import QueuePair, Request
from .regions import Regions

_AHEAD_BYTES: Final = 6 << 20
"""Written and not known to have arrived, the last message not counted: more hides no latency, and
whoever waits for room in its ring, and not for this, sleeps longer than it must."""
COPY: Final = 0
WAIT: Final = -1
Decision: TypeAlias = int
"""What to do with a payload: FETCH or PLACED, as letters say it, or COPY, or WAIT. Plain numbers,
since an enumeration finds its members, and their values, slowly."""


class _Target:
    """A stream that is lent or written: from where and to where, and how many requests do so."""

    __slots__ = (
        "local", "mask", "outgoing", "remote", "request", "rkey", "stop", "tap", "under_way"
    )  # fmt: skip

    def __init__(self, outgoing: Outgoing, mirror: Memory, request: Request | None) -> None:
        self.outgoing = outgoing
        self.tap = outgoing.offer.tap
        self.mask = mirror.capacity - 1
        self.local = self.tap.data_address
        self.remote = mirror.address
        self.rkey = mirror.rkey
        self.request = request
        """None if it is lent."""
        self.under_way = 0
        self.stop = 0
        """Where the last request ends: those under way follow one another."""


class PayloadSender:
    """The streams of a parent, as one queue pair carries them."""

    def __init__(self, pair: QueuePair, regions: Regions, data: Data) -> None:
        """Lend nothing yet."""
        self._pair = pair
        self._regions = regions
        self._lends = data is Data.READ
        self._copies = data is Data.SEND
        self._posted_max = pair.sends_max - ROOM_KEPT - 2
        self._targets: dict[int, _Target] = {}
        self._told: dict[int, RingTap] = {}
        # What is under way, oldest first, in places that go round: the number of the last request,
        # how many bytes and where they end, and whose they are.
        places = pair.sends_max
        self._numbers = [0] * places
        self._lengths = [0] * places
        self._stops = [0] * places
        self._whose: list[_Target | None] = [None] * places
        self._begun = 0
        self._settled = 0
        self._bytes = 0
        self._mirrors: dict[int, Memory] = {}

    def lies_at(self, mirror: Memory) -> None:
        """Take note of where the child's mirror of a stream is."""
        self._mirrors[mirror.stream] = mirror
        target = self._targets.get(mirror.stream)
        if target is not None and mirror.capacity == target.tap.capacity:
            target.remote, target.rkey = mirror.address, mirror.rkey
        elif target is not None:
            self._forget(mirror.stream)

    def memory_to_tell(self, link: Link, stream: int) -> Memory | None:
        """Return where the ring of `stream` lies if the child must know and was not told."""
        if not self._lends or stream not in self._mirrors:
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

    def decide(self, link: Link, stream: int, start: int, nbytes: int, number: int) -> Decision:
        """Say what to do with a payload, and do it if it is to be written.

        `number`: of the subscription that it answers. One that was given up meanwhile goes by
        letters, for the child to drop: its mirror may be filled by another parent by now.
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
            return FETCH
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
        return PLACED

    def _note(self, target: _Target, start: int, nbytes: int) -> None:
        """Remember what is being written."""
        place = self._begun % len(self._numbers)
        self._begun += 1
        self._numbers[place] = self._pair.posted - 1
        self._stops[place] = start + nbytes
        self._lengths[place] = nbytes
        self._bytes += nbytes
        self._whose[place] = target
        if not target.under_way:
            target.outgoing.written_from = start
        target.under_way += 1
        target.stop = start + nbytes

    def _open(self, link: Link, stream: int, outgoing: Outgoing | None) -> _Target | None:
        """Return from where and to where a stream is sent; None if it must be copied."""
        mirror = self._mirrors.get(stream)
        if mirror is None or outgoing is None or self._copies:
            return None
        tap, device = outgoing.offer.tap, self._pair.device
        if mirror.capacity != tap.capacity:
            return None
        request = None
        if not self._lends:
            try:
                region = self._regions.of(
                    tap, tap.data_address, tap.capacity, 0, f"the ring of stream {stream}"
                )
            except ResourceError as error:
                self._give_up(link, stream, error)
                return None
            request = Request(device, device.library.WRITE, region.lkey)
        self._forget(stream)
        self._targets[stream] = target = _Target(outgoing, mirror, request)
        return target

    def _forget(self, stream: int) -> None:
        target = self._targets.pop(stream, None)
        if target is not None and target.request is not None:
            target.request.close()

    def _give_up(self, link: Link, stream: int, error: ResourceError) -> None:
        """Send the stream by letters from now on, and say why."""
        self._mirrors.pop(stream, None)
        self._forget(stream)
        link.peer.failed("verbs: not registered", str(error))

    def settle(self) -> None:
        """Take note of what the peer has by now of all that was written."""
        completed, numbers = self._pair.completed, self._numbers
        settled, begun = self._settled, self._begun
        while settled < begun:
            place = settled % len(numbers)
            if numbers[place] >= completed:
                break
            settled += 1
            target = self._whose[place]
            assert target is not None, "what is under way is somebody's"
            target.under_way -= 1
            outgoing = target.outgoing
            self._bytes -= self._lengths[place]
            outgoing.written_from = self._stops[place] if target.under_way else None
            if outgoing.gone or not outgoing.admitted:
                outgoing.offer.release()
        self._settled = settled

    def close(self) -> None:
        """Forget everything; after the queue pair was closed."""
        for number in range(self._settled, self._begun):
            target = self._whose[number % len(self._whose)]
            assert target is not None, "what is under way is somebody's"
            target.outgoing.written_from = None
        self._settled = self._begun
        for stream in tuple(self._targets):
            self._forget(stream)
