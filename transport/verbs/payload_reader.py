"""A child READs payloads out of its parent's ring, several at a time, in order.

A TO_READ announces a DATA message whose bytes are still in the parent's ring. They are READ before
their turn, straight to their place in the mirror, within the stream's grant. The link gets each
message when its bytes have arrived and all items before it are handled. A message that cannot be
READ ahead (its stream has moved, or its bytes are here already) waits for its turn, and the link
then decides about it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ...configs.errors import ResourceError
from ..links.attached import Incoming
from ..links.link import Link, LinkBrokenError
from ..links.link_header import DATA, LinkHeader, decode
from .frames import ITEMS_MAX, RemoteMemory
from .queue_pair import QueuePair, WorkRequest
from .regions import Regions

_AHEAD_BYTES: Final = 8 << 20
"""Bytes being READ at a time; one message may exceed it."""
_REFILL_BYTES: Final = _AHEAD_BYTES // 2
"""No READ is posted while more bytes than this are being read, so that READs are posted in bursts
and queue up in the device. Soft-RoCE starts a READ that finds an empty queue on the processor of
the posting thread, at the same time as other work of the queue pair elsewhere: packets then arrive
out of order and are sent again."""


class ReadRequest:
    """The READ of one message; the object is reused for other messages."""

    __slots__ = ("message", "number", "source", "untried")

    message: LinkHeader
    source: _ReadStream

    def __init__(self) -> None:
        """Begin without a message."""
        self.number = -1
        """Of the last work request that READs it; −1 before it is posted."""
        self.untried = True
        """Whether `read_ahead` has not yet tried to post it."""


class _ReadStream:
    """The READs under way of one stream, and the addresses of its ring and mirror."""

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

    def __init__(self, incoming: Incoming, memory: RemoteMemory, request: WorkRequest) -> None:
        self.incoming = incoming
        self.request = request
        self.mask = memory.capacity - 1
        self.local = incoming.mirror.data_address
        self.reached = 0  # end of the bytes being read, while there are any
        self.under_way = 0  # messages being read
        self.fenced: list[Incoming] = []
        self.set_remote_memory(memory)

    def set_remote_memory(self, memory: RemoteMemory) -> None:
        """Set the address and key of the parent's ring."""
        self.remote = memory.address
        self.rkey = memory.rkey


class PayloadReader:
    """The READs of one queue pair; their objects are reused, not allocated for each message."""

    def __init__(
        self, pair: QueuePair, regions: Regions, access: int, receive_buffers: int
    ) -> None:
        """ReadRequest into mirrors registered with `access`; so many `frames` may name messages."""
        self._pair = pair
        self._regions = regions
        self._access = access
        self._signaled = pair.device.library.SIGNALED
        self._streams: dict[int, _ReadStream] = {}
        self._waiting: deque[ReadRequest] = deque(maxlen=receive_buffers * ITEMS_MAX)
        self._spare: list[ReadRequest] = []
        self._bytes = 0  # under way
        self._posted_max = pair.sends_max - 1  # a message takes two where the ring ends
        self._rings: dict[int, RemoteMemory] = {}

    def set_remote_memory(self, memory: RemoteMemory) -> None:
        """Set the address and key of the parent's ring of a stream."""
        self._rings[memory.stream] = memory
        source = self._streams.get(memory.stream)
        if source is not None:
            source.set_remote_memory(memory)

    def enqueue(self, header: memoryview) -> ReadRequest:
        """Queue a DATA message by its header; `read_ahead` posts its READs.

        Raises ProtocolError for another message.
        """
        message = decode(header)
        if message.kind != DATA:
            msg = f"a message of kind {message.kind} cannot be READ"
            raise LinkBrokenError(msg, "protocol")
        read = self._spare.pop() if self._spare else ReadRequest()
        read.message, read.number, read.untried = message, -1, True
        self._waiting.append(read)
        return read

    def read_ahead(self, link: Link) -> bool:
        """Post READs of the next messages if few bytes are being read; return whether any was."""
        posted = False
        waiting = self._waiting
        pair, posted_max = self._pair, self._posted_max
        if self._bytes > _REFILL_BYTES or pair.posted - pair.completed > posted_max // 2:
            return False
        while waiting and self._bytes < _AHEAD_BYTES and pair.posted - pair.completed < posted_max:
            read = waiting.popleft()
            if self._post_reads(link, read):
                posted = True
            else:
                read.untried = False
        return posted

    def _post_reads(self, link: Link, read: ReadRequest) -> bool:
        """Post the READs of a message, if its bytes are next in the stream and granted.

        Where the ring ends and begins again, a message takes two READs.
        """
        _, subscription, _, number, start, _, nbytes = read.message
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
        read.number = pair.posted - 1
        read.source = source
        source.reached = stop
        source.under_way += 1
        self._bytes += stop - start
        return True

    def _open(self, number: int, incoming: Incoming | None) -> _ReadStream | None:
        """Return the ring and mirror of a stream, ready to be READ; None if it cannot be."""
        memory = self._rings.get(number)
        if incoming is None or memory is None or memory.capacity != incoming.mirror.capacity:
            return None
        mirror, device = incoming.mirror, self._pair.device
        try:
            region = self._regions.of(
                mirror, mirror.data_address, mirror.capacity, self._access, f"mirror {number}"
            )
        except ResourceError as error:  # unexpected: it was registered before it was announced
            raise LinkBrokenError(str(error), "not registered") from error
        former = self._streams.get(number)
        if former is not None:
            former.request.close()
        request = WorkRequest(device, device.library.READ, region.lkey)
        self._streams[number] = source = _ReadStream(incoming, memory, request)
        return source

    def finish(self, link: Link, read: ReadRequest) -> bool:
        """Pass a message, whose turn it is, to the link; False if its bytes are not here yet.

        A message that was not READ is tried again; if it cannot be READ, the link must have a
        reason to discard it. Raises ProtocolError as the link does.
        """
        number = read.number
        if number >= 0:
            if number >= self._pair.completed:
                return False
            self._bytes -= read.message.length
            source = read.source
            source.under_way -= 1
            if not source.under_way and source.fenced:
                _lift(source)
            link.placed(read.message)
        else:
            pair = self._pair
            may_read = pair.posted - pair.completed < self._posted_max
            if read.untried or not may_read or self._post_reads(link, read):
                return False
            link.begin_with(read.message)
            if not link.wasted:
                stream = read.message.stream
                msg = f"host {link.peer.host!r} offers unexpected bytes of stream {stream}"
                raise LinkBrokenError(msg, "protocol")
            link.end()
        self._spare.append(read)
        return True

    def divert(self, number: int, incoming: Incoming) -> bool:
        """Handle that a stream moves to another parent; return whether READs of it are under way.

        Until they are done, the new parent is granted nothing more, and the old one must keep the
        bytes that they read.
        """
        stream = self._streams.get(number)
        if stream is None or not stream.under_way:
            return False
        incoming.fence()
        stream.fenced.append(incoming)
        return True

    def close(self) -> None:
        """Release everything; after the queue pair was closed."""
        self._waiting.clear()
        for stream in self._streams.values():
            _lift(stream)
            stream.request.close()
        self._streams.clear()


def _lift(stream: _ReadStream) -> None:
    for incoming in stream.fenced:
        incoming.lift()
    stream.fenced.clear()
