"""The ends of users' transports in one worker: makes its senders and receivers, and connects them.

Receivers are opened first; their addresses travel with the handles of rings. Then all senders are
opened. Workers of one host ring each other's doorbells. No one rings for a message from another
host, or for one that a transport delivers late: `POLL_NS` bounds the sleep.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence

import cloudpickle

from ..configs.errors import Interrupted, TransportError
from ..metrics.counters import TransportMetrics
from ..plan.assignment import Assignment
from ..plan.physical import PhysicalPlan
from ..plan.streams import CustomStream
from ..transport.clock import Clock
from ..transport.closing import close_all
from ..transport.custom.operators import Transport, TransportContext
from ..transport.custom.receiving import CustomReceivingEnd
from ..transport.custom.sending import CustomSendingEnd
from ..transport.doorbell import Doorbell
from ..transport.ring_layout import max_frame_bytes_of
from .boards import HostBoard

POLL_NS = 1_000_000
"""The longest sleep of a worker with receivers, or with senders that wait for room."""


class CustomTransports:
    """Senders and receivers of worker `worker` for one attempt."""

    def __init__(self, assignment: Assignment, worker: int, attempt: int, clock: Clock) -> None:
        self._plan: PhysicalPlan = assignment.plan
        self._settings = assignment.settings.transport
        self._job_id = assignment.job_id
        self._worker = worker
        self._attempt = attempt
        self._clock = clock
        self.senders: list[tuple[CustomStream, CustomSendingEnd]] = []
        self.receivers: list[tuple[tuple[CustomStream, ...], CustomReceivingEnd]] = []
        self._connected = False

    @property
    def needs_polling(self) -> bool:
        """Whether a message may arrive, or room for one, without a ring of the doorbell."""
        return bool(self.receivers) or any(sender.waits for _, sender in self.senders)

    def make_senders(self, board: HostBoard) -> Iterator[tuple[CustomStream, CustomSendingEnd]]:
        """Make the senders; `connect` opens them."""
        for stream in self._plan.custom_streams:
            if stream.producer_worker == self._worker:
                sender = CustomSendingEnd(
                    self._transport(stream.edge),
                    self._context(stream.edge, stream.producer_worker, stream.consumer_worker),
                    stream.id,
                    self._max_frame_bytes,
                    self._doorbell(board, stream.consumer_worker),
                    clock=self._clock,
                )
                self.senders.append((stream, sender))
                yield stream, sender

    def listen(self, board: HostBoard) -> dict[int, bytes]:
        """Make and open the receivers, one per edge; return their addresses, pickled."""
        addresses: dict[int, bytes] = {}
        for edge in self._plan.edges:
            streams = tuple(
                stream
                for stream in self._plan.custom_streams_of_edge(edge.id)
                if stream.consumer_worker == self._worker
            )
            if not streams:
                continue
            context = self._context(edge.id, None, self._worker)
            producers = {
                stream.id: (stream.producer_worker, self._doorbell(board, stream.producer_worker))
                for stream in streams
            }
            receiver = CustomReceivingEnd(
                self._transport(edge.id),
                context,
                producers,
                self._max_frame_bytes,
                held_fraction=self._settings.held_fraction,
                clock=self._clock,
            )
            self.receivers.append((streams, receiver))
            addresses[edge.id] = _pickled(receiver.listen(), context)
        return addresses

    def connect(self, addresses: Sequence[dict[int, bytes]]) -> None:
        """Open the senders; `addresses` has what `listen` returned on all members."""
        for stream, sender in self.senders:
            address = addresses[stream.consumer_worker][stream.edge]
            sender.connect(pickle.loads(address))  # noqa: S301  # from a worker of our own job
        self._connected = True

    @property
    def ended(self) -> bool:
        """Whether all streams were sent, and received, to their last message.

        A receiver must not close earlier: its senders could lack room for their last messages.
        """
        sent = all(sender.ended for _, sender in self.senders)
        return sent and all(receiver.closed_by_peer for _, receiver in self.receivers)

    def metrics(self) -> tuple[TransportMetrics, ...]:
        """Return the counters of all operators, once they are open; callable from any thread."""
        if not self._connected:
            return ()
        name = {edge.id: edge.transport.name for edge in self._plan.edges if edge.transport}
        sending = (
            TransportMetrics(
                transport=name[stream.edge],
                edge=stream.edge,
                sender=stream.producer_worker,
                receiver=stream.consumer_worker,
                stream=stream.id,
                ended=sender.ended,  # before its messages, which may continue meanwhile
                messages=sender.messages,
                busy_ns=sender.busy_ns,
                counters=sender.statistics(),
                own=sender.operator_statistics(),
            )
            for stream, sender in self.senders
        )
        receiving = (
            TransportMetrics(
                transport=name[streams[0].edge],
                edge=streams[0].edge,
                sender=None,
                receiver=self._worker,
                stream=None,
                messages=receiver.messages,
                ended=receiver.closed_by_peer,
                busy_ns=receiver.busy_ns,
                counters=receiver.statistics(),
                own=receiver.operator_statistics(),
                stale=receiver.stale,
            )
            for streams, receiver in self.receivers
        )
        return (*sending, *receiving)

    def close(self) -> None:
        """Close all operators, whatever some of them raise; then raise the first error."""
        closings: list[Callable[[], None]] = [sender.close for _, sender in self.senders]
        closings += [receiver.close for _, receiver in self.receivers]
        close_all(closings)

    @property
    def _max_frame_bytes(self) -> int:
        """What a frame may take, the same as in a ring that was not made smaller for memory."""
        return max_frame_bytes_of(self._settings.ring_bytes)

    def _transport(self, edge: int) -> Transport:
        transport = self._plan.edges[edge].transport
        assert transport is not None
        return transport

    def _doorbell(self, board: HostBoard, worker: int) -> Doorbell | None:
        near = self._plan.host_of(worker) == self._plan.host_of(self._worker)
        return board.doorbell_of(worker) if near else None

    def _context(self, edge_id: int, sender: int | None, receiver: int) -> TransportContext:
        edge, transport = self._plan.edges[edge_id], self._transport(edge_id)
        senders = tuple(
            stream.producer_worker
            for stream in self._plan.custom_streams_of_edge(edge_id)
            if stream.consumer_worker == receiver
        )
        return TransportContext(
            transport=transport.name,
            job_id=self._job_id,
            attempt=self._attempt,
            edge=edge_id,
            source_operator=edge.source_operator,
            target_operator=edge.target_operator,
            senders=senders,
            sender=sender,
            receiver=receiver,
            message_bytes=transport.message_bytes,
            queue_length=transport.queue_length,
        )


def _pickled(address: object, context: TransportContext) -> bytes:
    try:
        return cloudpickle.dumps(address)
    except Interrupted:
        raise
    except BaseException as error:
        msg = f"{context.describe()} has an address that cannot travel: {address!r}: {error}"
        raise TransportError(msg) from error
