"""The transport operators of one worker: how users' senders and receivers are made and joined.

Receivers are opened first and tell their addresses, which travel with the handles of rings; then
all senders are opened. Workers of one host ring each other's doorbells; between hosts, and where
a transport brings messages later than it took them, `POLL_NS` bounds the sleep.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence

import cloudpickle

from ..configs.errors import Interrupted, TransportError
from ..metrics.counters import TransportMetrics
from ..plan.assignment import (
    Assignment,
)
from ..plan.physical import PhysicalPlan
from ..plan.streams import CustomStream
from ..tasks.stage_task import close_all
from ..transport.clock import Clock
from ..transport.custom.operators import Transport, TransportContext
from ..transport.custom.receiving import FanInEnd
from ..transport.custom.sending import PairSendingEnd
from ..transport.doorbell import Doorbell
from ..transport.ring_layout import max_frame_bytes_of
from .boards import HostBoard

POLL_NS = 1_000_000
"""How long a worker sleeps at most whose receivers, or waiting senders, nobody may ring for."""


class PairSet:
    """Senders and receivers of worker `worker` for one attempt."""

    def __init__(self, assignment: Assignment, worker: int, attempt: int, clock: Clock) -> None:
        self._plan: PhysicalPlan = assignment.plan
        self._settings = assignment.settings.transport
        self._job_id = assignment.job_id
        self._worker = worker
        self._attempt = attempt
        self._clock = clock
        self.senders: list[tuple[CustomStream, PairSendingEnd]] = []
        self.receivers: list[tuple[tuple[CustomStream, ...], FanInEnd]] = []
        self._connected = False

    @property
    def needs_polling(self) -> bool:
        """Whether something may come, or go, without anybody ringing for it."""
        return bool(self.receivers) or any(sender.waits for _, sender in self.senders)

    def make_senders(self, board: HostBoard) -> Iterator[tuple[CustomStream, PairSendingEnd]]:
        """Make the senders, which are not open yet."""
        for pair in self._plan.custom_streams:
            if pair.producer_worker == self._worker:
                sender = PairSendingEnd(
                    self._transport(pair.edge),
                    self._context(pair.edge, pair.producer_worker, pair.consumer_worker),
                    pair.id,
                    self._max_frame_bytes,
                    self._doorbell(board, pair.consumer_worker),
                    clock=self._clock,
                )
                self.senders.append((pair, sender))
                yield pair, sender

    def listen(self, board: HostBoard) -> dict[int, bytes]:
        """Make and open the receivers, one per edge; return their addresses, pickled."""
        addresses: dict[int, bytes] = {}
        for edge in self._plan.edges:
            pairs = tuple(
                pair
                for pair in self._plan.custom_streams_of_edge(edge.id)
                if pair.consumer_worker == self._worker
            )
            if not pairs:
                continue
            context = self._context(edge.id, None, self._worker)
            producers = {
                pair.id: (pair.producer_worker, self._doorbell(board, pair.producer_worker))
                for pair in pairs
            }
            receiver = FanInEnd(
                self._transport(edge.id),
                context,
                producers,
                self._max_frame_bytes,
                held_fraction=self._settings.held_fraction,
                clock=self._clock,
            )
            self.receivers.append((pairs, receiver))
            addresses[edge.id] = _pickled(receiver.listen(), context)
        return addresses

    def connect(self, addresses: Sequence[dict[int, bytes]]) -> None:
        """Open the senders; `addresses` has what `listen` returned on all members."""
        for pair, sender in self.senders:
            address = addresses[pair.consumer_worker][pair.edge]
            sender.connect(pickle.loads(address))  # noqa: S301  # from a worker of our own job
        self._connected = True

    @property
    def ended(self) -> bool:
        """Whether all streams were sent, and received, to their last message.

        A receiver that left earlier could leave its senders without room for theirs.
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
                transport=name[pair.edge],
                edge=pair.edge,
                sender=pair.producer_worker,
                receiver=pair.consumer_worker,
                stream=pair.id,
                ended=sender.ended,  # before its messages, which may go on meanwhile
                messages=sender.messages,
                busy_ns=sender.busy_ns,
                counters=sender.statistics(),
                own=sender.operator_statistics(),
            )
            for pair, sender in self.senders
        )
        receiving = (
            TransportMetrics(
                transport=name[pairs[0].edge],
                edge=pairs[0].edge,
                sender=None,
                receiver=self._worker,
                stream=None,
                messages=receiver.messages,
                ended=receiver.closed_by_peer,
                busy_ns=receiver.busy_ns,
                counters=receiver.statistics(),
                own=receiver.operator_statistics(),
            )
            for pairs, receiver in self.receivers
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
            pair.producer_worker
            for pair in self._plan.custom_streams_of_edge(edge_id)
            if pair.consumer_worker == receiver
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
