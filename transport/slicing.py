"""Stream slicing: how many rows are sent together.

A transfer buffer is sent when it holds MMS bytes, for throughput, or when its oldest rows have
waited WTL, for latency. A stream may have a batch of its own instead, of so many rows: a slice is
then due at that many, too, and is sent in pieces of at most as many. Nothing else cuts a slice.
The limits may change at any time, from another thread, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from .slice_limits import SliceLimits
from .wire.batch import Batch


class StreamSlicer:
    """The transfer buffer of one producer and edge; pure, the time is passed in.

    Not bounded by itself: its owner calls `take` as soon as `ready`, and calls no operator that
    adds rows while the slice taken last has not found room in a channel.
    """

    def __init__(self, mms_bytes: int, wtl_ns: int, batch_rows: int | None = None) -> None:
        """Start empty; slices are due at `mms_bytes`, or `wtl_ns` after their first rows.

        With `batch_rows` they are due at that many rows, too, see `pieces`.
        """
        self._mms_bytes = mms_bytes
        self._batch_rows = batch_rows
        self._limits = SliceLimits(wtl_ns, batch_rows)
        self._pending_rows = 0
        self._pending: list[Batch] = []
        self._first_ns = 0
        self._not_owned_from = 0
        self.pending_bytes = 0
        """Bytes of the waiting rows."""

    @property
    def limits(self) -> SliceLimits:
        """When a slice is due."""
        return self._limits

    def limit(self, limits: SliceLimits) -> None:
        """Change when a slice is due; callable from any thread.

        Pieces never become smaller than the stream's own batch: rows that came together are not
        worth a message each.
        """
        self._limits = limits

    def add(self, batch: Batch, now_ns: int) -> None:
        """Append rows; they may be views of received memory until the next `own`."""
        if batch.num_rows == 0:
            return
        if not self._pending:
            self._first_ns = now_ns
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.pending_bytes += batch.nbytes

    def own(self) -> None:
        """Copy rows that are views of received memory, before that memory is released."""
        for index in range(self._not_owned_from, len(self._pending)):
            batch = self._pending[index]
            if not batch.owned:
                copied = self._pending[index] = batch.copy()
                self.pending_bytes += copied.nbytes - batch.nbytes
        self._not_owned_from = len(self._pending)

    def ready(self, now_ns: int) -> bool:
        """Return whether a slice is due."""
        if not self._pending:
            return False
        limits = self._limits  # read once: another thread may change them
        return (
            self.pending_bytes >= self._mms_bytes
            or now_ns >= self._first_ns + limits.wtl_ns
            or (limits.due_rows is not None and self._pending_rows >= limits.due_rows)
        )

    @property
    def deadline_ns(self) -> int | None:
        """When the oldest rows will have waited long enough; None while nothing waits."""
        return self._first_ns + self._limits.wtl_ns if self._pending else None

    def take(self) -> Batch | None:
        """Return waiting rows as one batch, in order; None if there are none.

        What comes behind a slice's worth of rows stays, as do rows of other columns than the first
        ones: take again, until there are none. So large batches that had to wait are not joined.
        """
        pending = self._pending
        if not pending:
            return None
        if len(pending) == 1:
            self._pending = []
            self._not_owned_from = self._pending_rows = self.pending_bytes = 0
            return pending[0]
        names, size, alike = pending[0].schema.names, pending[0].nbytes, 1
        while alike < len(pending) and size < self._mms_bytes:
            if pending[alike].schema.names != names:
                break
            size += pending[alike].nbytes
            alike += 1
        taken = pending[:alike]
        del pending[:alike]
        self._not_owned_from = max(0, self._not_owned_from - alike)
        self._pending_rows -= sum(one.num_rows for one in taken)
        self.pending_bytes -= size
        return taken[0] if alike == 1 else Batch.concat(taken)

    def pieces(self, batch: Batch) -> Iterator[Batch]:
        """Yield the rows of a slice as views, each of as many rows as a message may have."""
        size = self._batch_rows
        if size is not None:
            size = max(size, self._limits.due_rows or 0)
        if size is None or batch.num_rows <= size:
            yield batch
            return
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, start + size)
