"""READ: a child fetches payloads out of its parent's ring, several at a time, in order.

A FETCH names a DATA message whose bytes are still the parent's. They are READ ahead of their turn,
straight to where they belong in the mirror, as far as they were granted; the link hears of each
message only when its bytes are here and everything before it was taken. Whatever does not fit the
expected course (a stream that has moved, bytes that are here already) waits for its turn, where the
link says what becomes of it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ...configs.errors import ResourceError
from ..links.attached import Incoming
from ..links.link import Link, LinkBrokenError
from ..links.messages import DATA, LinkHeader, decode
from .frames import ITEMS_MAX, Memory
from .queue_pair import QueuePair, Request
from .regions import Regions

_AHEAD_BYTES: Final = 8 << 20
"""Under way at a time, the last message not counted."""
_REFILL_BYTES: Final = _AHEAD_BYTES // 2
"""Nothing more is asked for as long as more than this is under way: requests come in bursts, which
the device finds behind others. One that it begins at once is begun on the processor of whoever
posts, by soft-RoCE, beside what goes on elsewhere, and bytes then come out of order and again."""


class Fetch:
    """One message to be fetched, then another: they are used again and again."""

    __slots__ = ("message", "number", "source", "waits")

    message: LinkHeader
    source: _Source

    def __init__(self) -> None:
        """Be none yet."""
        self.number = -1
        """Of the last request that fetches it; −1 before."""
        self.waits = True
        """Whether nobody has looked yet if it can be fetched."""


class _Source:
    """What is under way of one stream, and between which places."""

    __slots__ = (
        "fenced",
        "incoming",
        "local",
        "mask",
        "reached",
        "remote",
        "request",
        "rkey",
        "under_way",
    )

    def __init__(self, incoming: Incoming, memory: Memory, request: Request) -> None:
        self.incoming = incoming
        self.request = request
        self.mask = memory.capacity - 1
        self.local = incoming.mirror.data_address
        self.reached = 0  # up to where bytes are asked for, while any are under way
        self.under_way = 0  # messages
        self.fenced: list[Incoming] = []
        self.lies_at(memory)

    def lies_at(self, memory: Memory) -> None:
        """Take note of where the parent's ring is."""
        self.remote = memory.address
        self.rkey = memory.rkey


class Fetcher:
    """The READs of one queue pair. In the long run nothing is allocated for them."""

    def __init__(self, pair: QueuePair, regions: Regions, access: int, letters: int) -> None:
        """Fetch into mirrors registered with `access`; so many `letters` may name messages."""
        self._pair = pair
        self._regions = regions
        self._access = access
        self._signaled = pair.device.library.SIGNALED
        self._streams: dict[int, _Source] = {}
        self._waiting: deque[Fetch] = deque(maxlen=letters * ITEMS_MAX)
        self._spare: list[Fetch] = []
        self._bytes = 0  # under way
        self._posted_max = pair.sends_max - 1  # a message takes two where the ring ends
        self._rings: dict[int, Memory] = {}

    def lies_at(self, memory: Memory) -> None:
        """Take note of where the parent's ring of a stream is."""
        self._rings[memory.stream] = memory
        source = self._streams.get(memory.stream)
        if source is not None:
            source.lies_at(memory)

    def await_turn(self, header: memoryview) -> Fetch:
        """Take note of the header of a DATA message; `fetch_ahead` asks for it.

        Raises ProtocolError for another message.
        """
        message = decode(header)
        if message.kind != DATA:
            msg = f"a message of kind {message.kind} cannot be fetched"
            raise LinkBrokenError(msg, "protocol")
        fetch = self._spare.pop() if self._spare else Fetch()
        fetch.message, fetch.number, fetch.waits = message, -1, True
        self._waiting.append(fetch)
        return fetch

    def fetch_ahead(self, link: Link) -> bool:
        """Ask for what may be asked for now, if little is under way; return whether any was."""
        asked = False
        waiting = self._waiting
        pair, posted_max = self._pair, self._posted_max
        if self._bytes > _REFILL_BYTES or pair.posted - pair.completed > posted_max // 2:
            return False
        while waiting and self._bytes < _AHEAD_BYTES and pair.posted - pair.completed < posted_max:
            fetch = waiting.popleft()
            if self._ask(link, fetch):
                asked = True
            else:
                fetch.waits = False
        return asked

    def _ask(self, link: Link, fetch: Fetch) -> bool:
        """Post the READs of a message, if its bytes are the next to come and were granted."""
        _, subscription, _, number, start, _, nbytes = fetch.message
        incoming = link.peer.incoming.get(number)
        source = self._streams.get(number)
        if source is None or source.incoming is not incoming:
            source = self._open(number, incoming)
            if source is None:
                return False
        incoming = source.incoming
        if incoming.number != subscription or incoming.left or not incoming.subscribed_now:
            return False
        receiver, stop = incoming.receiver, start + nbytes
        due = source.reached if source.under_way else receiver.received
        if start != due or stop > receiver.granted.limit:
            return False
        offset = start & source.mask
        rest = offset + nbytes - source.mask - 1
        pair = self._pair
        local = source.local
        remote = source.remote
        if rest > 0:
            first = nbytes - rest
            pair.post(
                source.request, local + offset, first, remote + offset, source.rkey, self._signaled
            )
            offset, nbytes = 0, rest
        pair.post(
            source.request, local + offset, nbytes, remote + offset, source.rkey, self._signaled
        )
        fetch.number = pair.posted - 1
        fetch.source = source
        source.reached = stop
        source.under_way += 1
        self._bytes += stop - start
        return True

    def _open(self, number: int, incoming: Incoming | None) -> _Source | None:
        """Return from where and to where a stream is fetched; None if it cannot be."""
        memory = self._rings.get(number)
        if incoming is None or memory is None or memory.capacity != incoming.mirror.capacity:
            return None
        mirror, device = incoming.mirror, self._pair.device
        try:
            region = self._regions.of(
                mirror, mirror.data_address, mirror.capacity, self._access, f"mirror {number}"
            )
        except ResourceError as error:  # it was registered before the peer was told of it
            raise LinkBrokenError(str(error), "not registered") from error
        former = self._streams.get(number)
        if former is not None:
            former.request.close()
        request = Request(device, device.library.READ, region.lkey)
        self._streams[number] = source = _Source(incoming, memory, request)
        return source

    def finish(self, link: Link, fetch: Fetch) -> bool:
        """Hand a message, whose turn it is, to the link; False if its bytes are not here yet.

        Raises ProtocolError as the link does.
        """
        number = fetch.number
        if number >= 0:
            if number >= self._pair.completed:
                return False
            self._bytes -= fetch.message.length
            source = fetch.source
            source.under_way -= 1
            if not source.under_way and source.fenced:
                _lift(source)
            link.placed(fetch.message)
        else:
            pair = self._pair
            may_read = pair.posted - pair.completed < self._posted_max
            if fetch.waits or not may_read or self._ask(link, fetch):
                return False
            link.begin_with(fetch.message)
            if not link.wasted:
                stream = fetch.message.stream
                msg = f"host {link.peer.host!r} offers bytes of stream {stream} out of nowhere"
                raise LinkBrokenError(msg, "protocol")
            link.end()
        self._spare.append(fetch)
        return True

    def divert(self, number: int, incoming: Incoming) -> bool:
        """Take note that a stream moves to another parent; whether READs of it are under way.

        Until they are done, the new parent is granted nothing more, and the old one must keep what
        they read.
        """
        stream = self._streams.get(number)
        if stream is None or not stream.under_way:
            return False
        incoming.fence()
        stream.fenced.append(incoming)
        return True

    def close(self) -> None:
        """Forget everything; after the queue pair was closed."""
        self._waiting.clear()
        for stream in self._streams.values():
            _lift(stream)
            stream.request.close()
        self._streams.clear()


def _lift(stream: _Source) -> None:
    for incoming in stream.fenced:
        incoming.lift()
    stream.fenced.clear()
