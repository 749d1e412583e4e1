"""How the rows of a slice become messages in the rings of an edge, and for whom each message is.

Each grouping but `All` sends a row to one instance: `KeyedAddressing` sorts the rows of a slice by
instance and puts those of each consuming worker into its ring, with a list of instances in the
message. An all-grouped edge is worker-oriented (Whale 3.5): a slice is one message in one ring that
all workers read, without a list. The other way to address such an edge, which is there to compare
with, is a strategy beside these (instance_oriented.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError, JobError
from ..configs.settings import DECLARATIONS
from ..plan.physical import Edge
from ..state.keys import stable_partition
from ..transport.ring_layout import capacity_for, max_frame_bytes_of
from ..transport.wire import codec
from ..transport.wire.batch import Batch
from .partitioner import Partitioner
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
        """Go on with the row numbers of another strategy of the same producer and edge."""
        for queue in self.queues:
            queue.sequence = other.queues[0].sequence

    def _enqueue(self, queues: Sequence[RingQueue], piece: Piece, watermark_ns: int) -> None:
        """Queue the same rows for some rings; halve them until each frame fits the smallest."""
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


class KeyedAddressing(AddressingStrategy):
    """Each row for the instance that a partitioner chooses, of `parallelism`; a ring per worker."""

    def __init__(
        self,
        edge: Edge,
        rings: Iterable[OutRing],
        partitioner: Partitioner,
        parallelism: int,
        *,
        with_times: bool,
    ) -> None:
        super().__init__(edge, rings, with_times=with_times)
        self._partitioner = partitioner
        self._parallelism = parallelism

    def queue_slice(self, batch: Batch, watermark_ns: int) -> None:
        """See `AddressingStrategy.queue_slice`."""
        try:
            batch, instances, dropped = self._partitioner(batch)
        except InputError as error:
            msg = f"after operator {self._edge.source_operator!r}: {error}"
            raise InputError(msg) from error
        self.rows_dropped += dropped
        if batch.num_rows == 0:
            return
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
        assert piece.indices is not None
        return codec.gather_size(piece.batch, piece.indices, len(ring.instances), self._with_times)

    def _messages(self, piece: Piece, ring: OutRing) -> Iterable[Destinations | None]:
        assert piece.instances is not None
        return (_runs(piece.instances),)


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
