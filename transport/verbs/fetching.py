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

from ..links.attached import Incoming
from ..links.link import Link, LinkBrokenError
from ..links.messages import DATA, decode
from ..mirror import MirrorRing
from .letters import ITEMS_MAX, Memory
from .queue_pair import QueuePair, Request
from .regions import Regions

ROOM_KEPT: Final = 8
"""Requests of a queue pair that are left to letters."""


class Fetch:
    """One message to be fetched."""

    __slots__ = (
        "header",
        "length",
        "number",
        "position",
        "reads",
        "stream",
        "subscription",
        "waits",
    )

    def __init__(self, header: bytes) -> None:
        """Take the header of a DATA message. Raises ProtocolError for another one."""
        message = decode(header)
        if message.kind != DATA:
            msg = f"a message of kind {message.kind} cannot be fetched"
            raise LinkBrokenError(msg, "protocol")
        self.header: Final = header
        self.stream: Final = message.stream
        self.position: Final = message.position
        self.length: Final = message.length
        self.subscription: Final = message.detail
        self.number = -1
        """Of the last request that fetches it; −1 before."""
        self.reads = 0
        self.waits = True
        """Whether nobody has looked yet if it can be fetched."""


class _Stream:
    """What is under way of one stream."""

    __slots__ = ("fenced", "mirror", "reached", "request", "under_way")

    def __init__(self, mirror: MirrorRing, request: Request) -> None:
        self.mirror = mirror
        self.request = request
        self.reached = 0  # up to where bytes are asked for, while any are under way
        self.under_way = 0  # messages
        self.fenced: list[Incoming] = []


class Fetcher:
    """The READs of one queue pair."""

    def __init__(self, pair: QueuePair, regions: Regions, access: int) -> None:
        """Fetch into mirrors registered with `access`."""
        self._pair = pair
        self._regions = regions
        self._access = access
        self._streams: dict[int, _Stream] = {}
        self._waiting: deque[Fetch] = deque(maxlen=pair.receives_max * ITEMS_MAX)
        self._reads = 0
        self.sources: Final[dict[int, Memory]] = {}
        """Where the parent's rings lie, by stream."""

    def await_turn(self, fetch: Fetch) -> None:
        """Take note of a message; `fetch_ahead` asks for it."""
        self._waiting.append(fetch)

    def fetch_ahead(self, link: Link) -> bool:
        """Ask for what may be asked for now; return whether anything was."""
        asked = False
        while self._waiting and self._may_read:
            fetch = self._waiting.popleft()
            fetch.waits = False
            asked |= self._ask(link, fetch)
        return asked

    @property
    def _may_read(self) -> bool:
        return self._reads + 2 <= max(2, self._pair.reads_max) and self._pair.room > ROOM_KEPT

    def _ask(self, link: Link, fetch: Fetch) -> bool:
        """Post the READs of a message, if its bytes are the next to come and were granted."""
        incoming = link.peer.incoming.get(fetch.stream)
        source = self.sources.get(fetch.stream)
        if incoming is None or source is None or incoming.left:
            return False
        if incoming.number != fetch.subscription or not incoming.subscribed_now:
            return False
        receiver, mirror = incoming.receiver, incoming.mirror
        stream = self._stream(fetch.stream, mirror)
        start, stop = fetch.position, fetch.position + fetch.length
        due = stream.reached if stream.under_way else receiver.received
        if start != due or stop > receiver.granted.limit or source.capacity != mirror.capacity:
            return False
        offset = start & (mirror.capacity - 1)
        first = min(fetch.length, mirror.capacity - offset)
        self._read(fetch, stream, source, offset, first)
        if first < fetch.length:
            self._read(fetch, stream, source, 0, fetch.length - first)
        stream.reached = stop
        stream.under_way += 1
        return True

    def _read(
        self, fetch: Fetch, stream: _Stream, source: Memory, offset: int, nbytes: int
    ) -> None:
        pair = self._pair
        fetch.number = pair.posted
        fetch.reads += 1
        self._reads += 1
        pair.post(
            stream.request,
            stream.mirror.data_address + offset,
            nbytes,
            source.address + offset,
            source.rkey,
            pair.device.library.SIGNALED,
        )

    def _stream(self, number: int, mirror: MirrorRing) -> _Stream:
        stream = self._streams.get(number)
        if stream is None or stream.mirror is not mirror:
            device = self._pair.device
            region = self._regions.of(
                mirror, mirror.data_address, mirror.capacity, self._access, f"mirror {number}"
            )
            request = Request(device, device.library.READ, region.lkey)
            stream = self._streams[number] = _Stream(mirror, request)
        return stream

    def finish(self, link: Link, fetch: Fetch) -> bool:
        """Hand a message, whose turn it is, to the link; False if its bytes are not here yet.

        Raises ProtocolError as the link does.
        """
        if fetch.number < 0:
            if fetch.waits or not self._may_read or self._ask(link, fetch):
                return False
            link.begin(fetch.header)
            if not link.wasted:
                msg = (
                    f"host {link.peer.host!r} offers bytes of stream {fetch.stream} out of nowhere"
                )
                raise LinkBrokenError(msg, "protocol")
            link.end()
            return True
        if fetch.number >= self._pair.completed:
            return False
        self._reads -= fetch.reads
        stream = self._streams[fetch.stream]
        stream.under_way -= 1
        if not stream.under_way:
            _lift(stream)
        link.begin(fetch.header)
        link.end()
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


def _lift(stream: _Stream) -> None:
    for incoming in stream.fenced:
        incoming.lift()
    stream.fenced.clear()
