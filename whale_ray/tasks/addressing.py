"""How the rows of a slice become messages in the rings of an edge, and for whom each message is.

Each grouping but `All` sends a row to one instance: `KeyedAddressing` puts the rows of a slice for
each consuming worker into its ring. Where one object serves all of the worker's instances, they
keep their order, which is mostly that of event time; else they are sorted by instance, with a list
of instances in the message. Rows of a key that can only go to one worker are not even hashed.

A broadcast edge is worker-oriented (Whale 3.5): a slice is one message in one ring that all
workers read, without a list. The other way to address such an edge, which is there to compare with,
is a strategy beside these (instance_oriented.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError, JobError
from ..configs.settings import DECLARATIONS
from ..plan.physical import Edge
from ..state.keys import stable_partition
from ..transport.ring_layout import capacity_for, max_frame_bytes_of
from ..transport.wire import codec
from ..transport.wire.batch import Batch
from .partitioner import Instances, Partitioner, without_null_keys
from .ring_queue import Destinations, OutRing, Piece, RingQueue

_FOR_ALL = (None,)


class AddressingStrategy(ABC):
    """Queues the slices of one producer for the rings of one edge.

    `with_times` says whether messages carry event times.

    Attributes:
        queues: what waits for each ring that it uses.
        rows_dropped: rows left out for a null key.
    """

    def __init__(self, edge: Edge, rings: Iterable[OutRing], *, with_times: bool) -> None:
        self.queues = [RingQueue(ring) for ring in rings]
        self.rows_dropped = 0
        self._edge = edge
        self._with_times = with_times

    @abstractmethod
    def queue_slice(self, batch: Batch, watermark_ns: int) -> None:
        """Queue the rows of a slice, each message with the watermark that was sent before it.

        Raises:
            JobError: a row is larger than a frame may be.
            InputError: a row has no instance that it could go to.
        """

    @abstractmethod
    def _size(self, piece: Piece, ring: OutRing) -> int:
        """Return the bytes of the largest message for a piece in a ring."""

    @abstractmethod
    def _messages(self, piece: Piece, ring: OutRing) -> Iterable[Destinations | None]:
        """Return whom the messages for a piece are for, one item for each message."""

    def continue_from(self, other: AddressingStrategy) -> None:
        """Continue with the row numbers of another strategy of the same producer and edge."""
        for queue in self.queues:
            queue.sequence = other.queues[0].sequence

    def _enqueue(self, queues: Sequence[RingQueue], piece: Piece, watermark_ns: int) -> None:
        """Queue the same rows for some rings; halve them until each frame fits the smallest."""
        ring = queues[0].ring
        if len(queues) > 1:
            ring = min((queue.ring for queue in queues), key=lambda ring: ring.max_frame_bytes)
        size = self._size(piece, ring)
        if size <= ring.max_frame_bytes:
            for queue in queues:
                queue.add(piece, size, watermark_ns, self._messages(piece, queue.ring))
            return
        if piece.rows == 1:
            self._raise_too_large(ring, piece, size)
        for half in piece.halves():
            self._enqueue(queues, half, watermark_ns)

    def _raise_too_large(self, ring: OutRing, piece: Piece, size: int) -> None:
        row = 0 if piece.indices is None else int(piece.indices[0])
        msg = (
            f"operator {self._edge.source_operator!r} emitted a row of {size:,} bytes, but the "
            f"ring to {self._edge.target_operator!r} takes {ring.max_frame_bytes:,} at "
            f"most; {_larger_rings(size)} (row: {piece.batch.preview(row)})"
        )
        raise JobError(msg)


class WorkerOriented(AddressingStrategy):
    """All rows for all instances, serialized once: one message, without a list of instances.

    There is one ring, which all workers read; where a user's transport carries the edge, one sender
    for each worker.
    """

    def queue_slice(self, batch: Batch, watermark_ns: int) -> None:
        """See `AddressingStrategy.queue_slice`."""
        self._enqueue(self.queues, Piece(batch), watermark_ns)

    def _size(self, piece: Piece, ring: OutRing) -> int:
        return codec.message_size(piece.batch, 0, self._with_times)

    def _messages(self, piece: Piece, ring: OutRing) -> Iterable[Destinations | None]:
        return _FOR_ALL


class OneWorker(WorkerOriented):
    """All rows for the only worker that has instances; those with a null in their key are refused.

    `columns` are those of the key.
    """

    def __init__(
        self, edge: Edge, rings: Iterable[OutRing], columns: tuple[str, ...], *, with_times: bool
    ) -> None:
        super().__init__(edge, rings, with_times=with_times)
        self._columns = columns

    def queue_slice(self, batch: Batch, watermark_ns: int) -> None:
        """See `AddressingStrategy.queue_slice`."""
        with _naming_source(self._edge):
            batch, dropped = without_null_keys(self._edge, self._columns, batch)
        self.rows_dropped += dropped
        if batch.num_rows:
            super().queue_slice(batch, watermark_ns)


class KeyedAddressing(AddressingStrategy):
    """Each row for the instance that a partitioner chooses, of `parallelism`; a ring per worker.

    With `together`, the rows of a worker's instances are handed over together there, in one object.
    """

    def __init__(
        self,
        edge: Edge,
        rings: Iterable[OutRing],
        partitioner: Partitioner,
        parallelism: int,
        *,
        together: bool,
        with_times: bool,
    ) -> None:
        super().__init__(edge, rings, with_times=with_times)
        self._partitioner = partitioner
        self._parallelism = parallelism
        self._together = together
        self._ring_of = np.full(parallelism, -1, np.int64)
        for number, queue in enumerate(self.queues):
            self._ring_of[list(queue.ring.instances)] = number

    def queue_slice(self, batch: Batch, watermark_ns: int) -> None:
        """See `AddressingStrategy.queue_slice`."""
        with _naming_source(self._edge):
            batch, instances, dropped = self._partitioner(batch)
        self.rows_dropped += dropped
        if batch.num_rows == 0:
            return
        if self._together:
            self._queue_together(batch, instances, watermark_ns)
        else:
            self._queue_by_instance(batch, instances, watermark_ns)

    def _queue_together(self, batch: Batch, instances: Instances, watermark_ns: int) -> None:
        order, counts = stable_partition(self._ring_of[instances], len(self.queues))
        end = 0
        for queue, count in zip(self.queues, counts.tolist(), strict=True):
            begin, end = end, end + count
            if count == batch.num_rows:
                self._enqueue([queue], Piece(batch), watermark_ns)
            elif count:
                self._enqueue([queue], Piece(batch, order[begin:end]), watermark_ns)

    def _queue_by_instance(self, batch: Batch, instances: Instances, watermark_ns: int) -> None:
        # The rows sorted by instance; the instances of a worker are adjacent, so its rows are, too.
        order, counts = stable_partition(instances, self._parallelism)
        ends = np.cumsum(counts)
        sorted_instances = np.repeat(np.arange(self._parallelism), counts)
        for queue in self.queues:
            first, last = queue.ring.instances[0], queue.ring.instances[-1]
            start, stop = int(ends[first] - counts[first]), int(ends[last])
            if stop > start:
                rows = slice(start, stop)
                piece = Piece(batch, order[rows], sorted_instances[rows])
                self._enqueue([queue], piece, watermark_ns)

    def _size(self, piece: Piece, ring: OutRing) -> int:
        if piece.indices is None:
            return codec.message_size(piece.batch, 0, self._with_times)
        pairs = 0 if piece.instances is None else len(ring.instances)
        return codec.gather_size(piece.batch, piece.indices, pairs, self._with_times)

    def _messages(self, piece: Piece, ring: OutRing) -> Iterable[Destinations | None]:
        return _FOR_ALL if piece.instances is None else (_runs(piece.instances),)


@contextmanager
def _naming_source(edge: Edge) -> Iterator[None]:
    """Say in an error of the input behind which operator it was."""
    try:
        yield
    except InputError as error:
        msg = f"after operator {edge.source_operator!r}: {error}"
        raise InputError(msg) from error


def _runs(instances: npt.NDArray[np.int64]) -> Destinations:
    """Return (instance, row end) of each run of ascending `instances`; uint32 (runs, 2)."""
    ends = np.append(np.flatnonzero(np.diff(instances)) + 1, len(instances))
    return np.stack([instances[ends - 1], ends], axis=1).astype(np.uint32)


def _larger_rings(size: int) -> str:
    """Return what to do for a row of `size` bytes, in values that the settings take."""
    largest = int(DECLARATIONS["transport.ring_bytes"].high or 0)
    needed = capacity_for(size)
    if needed > largest:
        return (
            f"no ring takes more than {max_frame_bytes_of(largest):,}: split it into several rows, "
            "or pass the name of a file that holds it"
        )
    # The second, too: where memory is short, rings become smaller than the first says.
    return f"set transport.ring_bytes and transport.ring_bytes_min to {needed}"
