"""The receiving end of a custom transport, as a channel: one for all senders of an edge.

A channel with many senders: the frames of each come in order, those of several in the order in
which they were completed. `stream` is that of the last frame. A frame of one message is read in
place: the message is released to the operator when the last view of it is gone. A larger frame is
put together in memory of its own, and its messages are released at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..channel import ChannelStatistics, Frame, ReceivingEnd, check_held_views
from ..clock import Clock
from ..doorbell import Doorbell
from ..segment import Bytes
from .calls import OperatorCalls
from .message_header import HEADER_BYTES, MessageHeader, read_header
from .operators import Buffer, Receiver, Transport, TransportContext


@dataclass
class _Incoming:
    """What was received of one stream.

    Attributes:
        sender: its sender's worker.
        doorbell: the sender's, rung when a message of it was released; None if on another host.
        number: of the next message.
        parts: the frame that is being put together; empty between frames.
        filled: bytes of it so far.
        ended: whether the stream's last message was received.
    """

    sender: int
    doorbell: Doorbell | None
    number: int = 0
    parts: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    filled: int = 0
    ended: bool = False


@dataclass(frozen=True)
class _Taken:
    """A message that is not released yet; its frame, unless that is a copy."""

    buffer: Buffer
    doorbell: Doorbell | None
    frame: Frame | None

    @property
    def is_free(self) -> bool:
        """Whether no view of it is alive."""
        if self.frame is None:
            return True
        return self.frame.view is not None and self.frame.view() is None


class CustomReceivingEnd(ReceivingEnd):
    """One receiver operator; `senders` are the worker, and the doorbell, after each stream."""

    def __init__(
        self,
        transport: Transport,
        context: TransportContext,
        senders: Mapping[int, tuple[int, Doorbell | None]],
        max_frame_bytes: int,
        *,
        held_fraction: float = 0.5,
        clock: Clock,
    ) -> None:
        self._call = OperatorCalls(context, clock, mutex=transport.mutex)
        self._operator: Receiver = self._call.outside_of_the_loop(transport.receiver)
        if not isinstance(self._operator, Receiver):
            self._call.blame(f"is {self._operator!r}: derive it from whale.transports.Receiver")
        self._context = context
        self._streams = {stream: _Incoming(*sender) for stream, sender in senders.items()}
        self._max_frame_bytes = max_frame_bytes
        self._capacity = context.queue_length * context.message_bytes
        self._held_limit = int(held_fraction * self._capacity)
        # Oldest first. A sender has at most as many messages under way as its queue holds.
        self._taken: deque[_Taken] = deque(maxlen=len(senders) * context.queue_length)
        self._next: Frame | None = None
        self._next_stream = -1
        self._position = self._held_bytes = 0
        self._frames = self._payload_bytes = 0
        self._opened = self._closed = False
        self.stream = -1
        """The stream of the frame that `get` returned last."""
        self.stale = 0
        """Messages of earlier attempts, which were dropped."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self._call.name

    def open(self) -> None:
        """Do nothing: `listen` opens it."""

    def listen(self) -> Any:
        """Open the operator; return the address for its senders. Raises TransportError."""
        self._opened = True  # closed even if it fails half-way
        return self._call.outside_of_the_loop(self._operator.open, self._context)

    def available(self) -> bool:
        """See `Channel.available`."""
        if self._closed:
            return False
        self._reclaim()
        return self._held_bytes > self._held_limit or self._receive_frame()

    def get(self) -> Frame | None:
        """See `Channel.get`; also raises TransportError for bytes that no sender sent."""
        if self._closed:
            return None
        self._check_held()
        if not self._receive_frame():
            return None
        frame, self._next, self.stream = self._next, None, self._next_stream
        assert frame is not None
        self._frames += 1
        self._payload_bytes += frame.data.size
        return frame

    def release_buffer(self, frame: Frame) -> None:
        """See `Channel.release_buffer`."""
        if self._closed:
            return
        frame.release()
        self._held_bytes += frame.size
        self._reclaim()

    def _receive_frame(self) -> bool:
        """Receive messages until the next frame is complete; return whether it is."""
        for _ in range(self._context.queue_length):
            if self._next is not None:
                return True
            if not self._take():
                return False
        return self._next is not None

    def _take(self) -> bool:
        """Take one message from the operator; return whether there was one."""
        try:
            if not self._call.answer("available", self._operator.available):
                return False
            buffer = self._call(self._operator.get)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            raise self._call.gone(error) from error
        if buffer is None:
            return False
        if len(self._taken) == self._taken.maxlen:
            self._call.blame(f"gave more messages than its queues hold, {len(self._taken):,}")
        memory = self._bytes_of(buffer)
        header = read_header(memory)
        if header is not None and header.attempt < self._context.attempt:
            self.stale += 1
            taken = _Taken(buffer, None, None)
        else:
            header, incoming = self._checked(header, len(memory))
            taken = _Taken(buffer, incoming.doorbell, self._add_message(incoming, header, memory))
        self._taken.append(taken)
        if taken.frame is None:
            self._held_bytes += self._context.message_bytes
            self._reclaim()
        return True

    def _bytes_of(self, buffer: Buffer) -> memoryview:
        try:
            return memoryview(buffer).toreadonly().cast("B")
        except TypeError:
            kind = type(buffer).__name__
            self._call.blame(f"has get() that returns {kind}: return bytes, or one piece of memory")

    def _checked(
        self, header: MessageHeader | None, nbytes: int
    ) -> tuple[MessageHeader, _Incoming]:
        """Return the header and its stream, if the message is the stream's next one."""
        if header is None or header.attempt != self._context.attempt:
            self._call.blame(f"got {nbytes:,} bytes that no sender of this job sent")
        incoming = self._streams.get(header.stream)
        if incoming is None:
            self._call.blame(f"got a message of stream {header.stream}, which goes elsewhere")
        source = f"from worker {incoming.sender}"
        if header.number != incoming.number:
            lost = "lost" if header.number > incoming.number else "repeated or reordered"
            self._call.blame(
                f"{lost} messages {source}: number {header.number} came where {incoming.number} "
                f"was due"
            )
        if header.length != nbytes - HEADER_BYTES:
            self._call.blame(
                f"got {nbytes:,} bytes of a message {source} of {header.length + HEADER_BYTES:,}"
            )
        return header, incoming

    def _add_message(
        self, incoming: _Incoming, header: MessageHeader, memory: memoryview
    ) -> Frame | None:
        """Add a message's bytes to its frame; return the frame if it is this one message."""
        incoming.number += 1
        if header.is_last:
            incoming.ended = True
            return None
        damaged = header.offset != incoming.filled or header.frame > self._max_frame_bytes
        if damaged or header.offset + header.length > header.frame:
            self._call.blame(f"changed a message from worker {incoming.sender}")
        if header.length == header.frame:
            # An array made of a memoryview has it as its base, not another array: it is the root
            # of all views of the frame.
            data = np.frombuffer(memory, np.uint8, header.length, HEADER_BYTES)
            return self._complete(header, data, self._context.message_bytes)
        if not incoming.filled:
            incoming.parts = np.empty(header.frame, np.uint8)
        end = header.offset + header.length
        incoming.parts[header.offset : end] = np.frombuffer(memory, np.uint8, -1, HEADER_BYTES)
        incoming.filled = end % header.frame
        if end == header.frame:
            incoming.parts.flags.writeable = False
            self._complete(header, np.frombuffer(incoming.parts.data, np.uint8), 0)
        return None

    def _complete(self, header: MessageHeader, data: Bytes, claims: int) -> Frame:
        """Make a frame the next one to `get`; it claims that many bytes of the queue."""
        position = self._position
        self._position += claims
        self._next, self._next_stream = Frame(data, position, self._position), header.stream
        return self._next

    def _reclaim(self) -> None:
        """Release the oldest messages of which no view is alive."""
        taken = self._taken
        while taken and taken[0].is_free:
            oldest = taken.popleft()
            self._held_bytes -= self._context.message_bytes
            with suppress(ConnectionError):  # a sender that has left needs no room
                self._call(self._operator.release_buffer, oldest.buffer)
            if oldest.doorbell is not None:
                oldest.doorbell.ring()

    def _check_held(self) -> None:
        if self._held_bytes > self._held_limit:
            check_held_views(self._still_held_bytes, self._held_limit, self._capacity, "queue")

    def _still_held_bytes(self) -> int:
        self._reclaim()
        return self._held_bytes

    @property
    def closed_by_peer(self) -> bool:
        """Whether every sender has closed and every frame has been received."""
        ended = all(incoming.ended for incoming in self._streams.values())
        return not self._closed and ended and self._next is None

    def missing(self, sent: Mapping[int, int]) -> tuple[int, int, int] | None:
        """Return the first sender that sent more messages than were received; `sent` by stream.

        As (worker, messages sent, messages received); None if all were received.
        """
        for stream, count in sent.items():
            incoming = self._streams.get(stream)
            if incoming is not None and incoming.number < count:
                return incoming.sender, count, incoming.number
        return None

    @property
    def messages(self) -> int:
        """How many messages of this attempt were received."""
        return sum(incoming.number for incoming in self._streams.values())

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        return ChannelStatistics(
            frames=self._frames,
            payload_bytes=self._payload_bytes,
            back_pressured=0,
            capacity_bytes=self._capacity,
            lag_bytes=(len(self._taken) * self._context.message_bytes,),
            held_bytes=self._held_bytes,
        )

    @property
    def busy_ns(self) -> int:
        """Time spent in the operator so far."""
        return self._call.busy_ns

    def operator_statistics(self) -> Mapping[str, int]:
        """Return the operator's own counters; callable from any thread."""
        return self._call.statistics(self._operator)

    def close(self) -> None:
        """Close the operator, which then frees the messages that were not released."""
        if self._closed:
            return
        self._closed = True
        self._taken.clear()
        self._next = None
        if self._opened:
            self._call.close(self._operator)
