"""Senders and receivers of users' transports, as a worker's loop runs them.

A sender is a channel of the edge writers that feed it; the loop makes it send what had to wait. A
receiver is polled once a turn for all senders of its edge, and hands each frame to the edge reader
of its stream, which calls the operator.

A stream that has come to the marker of an epoch waits for the others, which come through the same
receiver: it must continue receiving. So frames after the marker are copied and kept meanwhile, up
to `KEPT_BYTES_MAX`. If there are more, the stage gives the epoch up; a checkpoint is tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ..configs.errors import HeldViewsError, TransportError
from ..tasks.edge_reader import EdgeReader
from ..tasks.edge_writer import EdgeWriter
from ..transport.channel import Frame
from ..transport.custom.receiving import CustomReceivingEnd
from ..transport.custom.sending import CustomSendingEnd
from ..transport.segment import Bytes
from ..transport.wire.header import HEADER_BYTES

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""How much a receiver keeps of streams that wait for the markers of others."""

_KEPT_FRAMES_MAX = KEPT_BYTES_MAX // HEADER_BYTES + 1


class SenderOperator:
    """A sender in the worker's loop; its stream ends when all `writers` that feed it are done."""

    def __init__(self, channel: CustomSendingEnd, writers: Sequence[EdgeWriter]) -> None:
        self._channel = channel
        self._writers = tuple(writers)
        self.stage = self._writers[0].edge.source_stage

    def available(self) -> bool:
        """Return False: only `poll` finds out whether something can be sent."""
        return False

    def poll(self, now_ns: int) -> bool:
        """Send what waits; return whether anything was sent. Raises TransportGoneError."""
        channel = self._channel
        if not channel.ended and all(writer.done for writer in self._writers):
            channel.finish()
        sent = channel.waits and channel.pump()
        channel.check_alive()
        return sent

    def check_alive(self) -> None:
        """Do nothing: `poll` checks it at every turn."""


class ReceiverOperator:
    """A receiver in the worker's loop, for all senders of one edge to this worker.

    `readers` are the streams' edge readers; `silence_ns` is how long messages may take that were
    sent by a sender that has ended.
    """

    def __init__(
        self,
        channel: CustomReceivingEnd,
        readers: Mapping[int, EdgeReader],
        silence_ns: int,
    ) -> None:
        self._channel = channel
        self._readers = dict(readers)
        self._first = next(iter(self._readers.values()))  # all feed the same tasks
        self.stage = self._first.stage
        self._silence_ns = silence_ns
        self._sent: dict[int, int] = {}
        self._now_ns = 0
        self._silent_since_ns: int | None = None
        self._received = -1
        self._kept: dict[int, deque[Bytes]] = {}  # by stream; none is empty
        self._kept_bytes = 0

    def available(self) -> bool:
        """Whether a frame waits and nothing keeps it from being taken."""
        if self._first.blocked_by:
            return False
        return self._released is not None or self._channel.available()

    @property
    def _released(self) -> int | None:
        """A stream of which frames are kept, and which waits no more; None if there is none."""
        return next((one for one in self._kept if not self._readers[one].held), None)

    def poll(self, now_ns: int) -> bool:
        """Take one frame if there is one; return whether there was. Raises TransportError."""
        self._now_ns = now_ns
        if self._first.blocked_by:
            return False
        released = self._released  # its frames come before those that it sends now
        if released is not None:
            self._take_kept(released)
            return True
        try:
            frame = self._channel.get() if self._channel.available() else None
        except HeldViewsError as error:
            raise self._first.naming_target(error) from error
        if frame is None:
            return False
        reader = self._readers[self._channel.stream]
        if reader.held:
            self._keep(frame)
        else:
            reader.take(frame, now_ns)
        return True

    def _keep(self, frame: Frame) -> None:
        """Copy a frame of a stream that waits; give the epoch up if there are too many."""
        stream = self._channel.stream
        data = frame.data.copy()
        self._channel.release_buffer(frame)
        self._kept.setdefault(stream, deque(maxlen=_KEPT_FRAMES_MAX)).append(data)
        self._kept_bytes += data.nbytes
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._readers[stream].give_up_epoch(
                f"{self._channel.name} had to keep more than {KEPT_BYTES_MAX:,} bytes behind"
                " the marker of one sender while others had not sent theirs"
            )

    def _take_kept(self, stream: int) -> None:
        frames = self._kept[stream]
        data = frames.popleft()
        if not frames:
            del self._kept[stream]
        self._kept_bytes -= data.nbytes
        self._readers[stream].take_bytes(data, self._now_ns)

    def expect(self, sent: Mapping[int, int]) -> None:
        """Learn how many messages each ended stream has; callable from any thread."""
        self._sent = {**self._sent, **sent}

    def check_alive(self) -> None:
        """Raise TransportError if the transport has lost messages of a sender that has ended."""
        if self._first.blocked_by:
            self._silent_since_ns = None
            return
        missing = self._channel.missing(self._sent)
        if missing is None and self._kept:
            return  # their ends may be among the frames that are kept
        if missing is None:
            for reader in self._readers.values():
                reader.check_alive()
            return
        worker, sent, received = missing
        if self._silent_since_ns is None or received != self._received:
            self._silent_since_ns, self._received = self._now_ns, received
        if self._now_ns - self._silent_since_ns < self._silence_ns:
            return
        msg = (
            f"{self._channel.name} lost messages: worker {worker} sent {sent:,} and has ended, "
            f"{received:,} came, and none for {self._silence_ns / 1e9:g} s"
        )
        raise TransportError(msg)
