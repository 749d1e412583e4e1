"""The sending end of a custom transport, as a channel: cuts frames into the sender's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...configs.errors import TransportGoneError
from ..channel import ChannelStatistics, Encode, Outcome, SendingEnd
from ..clock import Clock
from ..doorbell import Doorbell
from ..segment import Bytes
from .calls import OperatorCalls
from .message_header import HEADER_BYTES, MessageHeader, last_header
from .operators import Sender, Transport, TransportContext

_NOT_CONNECTED: Final = "the sender is not connected: call connect() first"


class CustomSendingEnd(SendingEnd):
    """One sender operator, as stream number `stream`.

    A frame that takes several messages is accepted as a whole: messages that the operator has no
    room for wait here, and later frames after them, until `pump` finds room. `doorbell` is the
    receiver's, rung for every message; None if that is on another host.
    """

    def __init__(
        self,
        transport: Transport,
        context: TransportContext,
        stream: int,
        max_frame_bytes: int,
        doorbell: Doorbell | None = None,
        *,
        clock: Clock,
    ) -> None:
        self.max_frame_bytes: Final = max_frame_bytes
        self._call = OperatorCalls(context, clock, mutex=transport.mutex)
        self._operator: Sender = self._call.outside_of_the_loop(transport.sender)
        if not isinstance(self._operator, Sender):
            self._call.blame(f"is {self._operator!r}: derive it from whale.transports.Sender")
        self._context = context
        self._stream = stream
        self._doorbell = doorbell
        self._room = context.message_bytes - HEADER_BYTES
        # A frame, with room for a header before it. The header of each message overwrites the last
        # bytes of the message before, which has been sent by then.
        self._memory: Bytes = np.empty(context.message_bytes, np.uint8)
        self._size = self._offset = 0
        self._waiting = False
        self._number = 0
        self._frames = self._payload_bytes = self._back_pressured = 0
        self._gone: TransportGoneError | None = None
        self._connected = self._finished = self._ended = self._closed = False

    def open(self) -> None:
        """Do nothing: `connect` opens it."""

    def connect(self, address: Any) -> None:
        """Open the operator for a receiver's address; raises TransportError."""
        self._connected = True  # closed even if it fails half-way
        self._call.outside_of_the_loop(self._operator.open, self._context, address)

    def ready_to_send(self, nbytes: int) -> Outcome:
        """See `Channel.ready_to_send`."""
        if self._finished:
            return Outcome.CLOSED
        if nbytes > self.max_frame_bytes:
            return Outcome.TOO_LARGE
        if self._waiting:
            self.pump()
        ready = not self._waiting and self._has_room()
        if self._gone is not None:
            return Outcome.CLOSED
        return Outcome.SENT if ready else Outcome.BACK_PRESSURED

    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """See `Channel.put`."""
        outcome = self.ready_to_send(nbytes)
        if outcome is not Outcome.SENT:
            self._back_pressured += outcome is Outcome.BACK_PRESSURED
            return outcome
        if HEADER_BYTES + nbytes > self._memory.size:
            self._memory = np.empty(HEADER_BYTES + nbytes, np.uint8)
        used = encode(self._memory[HEADER_BYTES : HEADER_BYTES + nbytes])
        if not 0 <= used <= nbytes:
            msg = f"encode used {used} of {nbytes} reserved bytes"
            raise ValueError(msg)
        self._size, self._offset, self._waiting = used, 0, True
        self._frames += 1
        self._payload_bytes += used
        self._put_next()
        self.pump()
        return Outcome.SENT

    def pump(self) -> bool:
        """Send waiting messages while there is room; return whether any was sent."""
        sent = self._number
        while self._waiting and self._has_room():
            if not self._put_next():
                break
        if self._finished and not self._waiting and not self._ended and self._has_room():
            header = last_header(self._stream, self._context.attempt, self._number)
            self._ended = self._put_message(header, 0)
        return self._number > sent

    def _has_room(self) -> bool:
        if self._gone is not None:
            return False
        if not self._connected:
            raise RuntimeError(_NOT_CONNECTED)
        try:
            return self._call.answer("ready_to_send", self._operator.ready_to_send)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            self._lose(error)
            return False

    def _put_next(self) -> bool:
        """Send the next message of the waiting frame."""
        begin = self._offset
        length = min(self._room, self._size - begin)
        header = MessageHeader(
            self._stream, self._context.attempt, length, self._number, self._size, begin
        )
        if not self._put_message(header, begin):
            return False
        self._offset += length
        self._waiting = self._offset < self._size
        return True

    def _put_message(self, header: MessageHeader, at: int) -> bool:
        """Send a message whose header is to be written at byte `at`, before the message's bytes."""
        header.pack_into(self._memory.data, at)
        end = at + HEADER_BYTES + header.length
        try:
            self._call(self._operator.put, self._memory[at:end].data)
        except BlockingIOError:
            return False
        except ConnectionError as error:
            self._lose(error)
            return False
        self._number += 1
        if self._doorbell is not None:
            self._doorbell.ring()
        return True

    def _lose(self, error: ConnectionError) -> None:
        self._gone = self._call.gone(error)
        self._waiting = False

    def check_alive(self) -> None:
        """Raise TransportGoneError if the operator reported that its other side is gone."""
        if self._gone is not None:
            raise self._gone

    @property
    def waits(self) -> bool:
        """Whether messages wait here for room."""
        return self._gone is None and (self._waiting or (self._finished and not self._ended))

    @property
    def ended(self) -> bool:
        """Whether the last message, which ends the stream, was sent."""
        return self._ended

    @property
    def messages(self) -> int:
        """How many messages the operator accepted."""
        return self._number

    @property
    def closed_by_peer(self) -> bool:
        """Whether the operator reports that its other side is gone."""
        if self._closed or self._gone is not None:
            return self._gone is not None and not self._closed
        self._has_room()
        return self._gone is not None

    def finish(self) -> None:
        """End the stream: send the last message, or let `pump` do so if there is no room now."""
        self._finished = True
        if self._connected:
            self.pump()

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`; messages that the receiver holds are not known here."""
        waiting = self._size - self._offset if self._waiting else 0
        return ChannelStatistics(
            frames=self._frames,
            payload_bytes=self._payload_bytes,
            back_pressured=self._back_pressured,
            capacity_bytes=self._context.queue_length * self._context.message_bytes,
            lag_bytes=(None if self._gone is not None else waiting,),
            held_bytes=0,
        )

    @property
    def busy_ns(self) -> int:
        """Time spent in the operator so far."""
        return self._call.busy_ns

    def operator_statistics(self) -> Mapping[str, int]:
        """Return the operator's own counters; callable from any thread."""
        return self._call.statistics(self._operator)

    def close(self) -> None:
        """Close the operator; messages that `finish` and `pump` have not sent are dropped."""
        if self._closed:
            return
        self._closed = self._finished = True
        if self._connected:
            self._call.close(self._operator)
