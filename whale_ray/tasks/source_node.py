"""A source's instance as a worker runs it: reads, assigns event time, is aligned with the others.

Sources with event time are aligned: one that is `max_drift_ms` ahead of the slowest waits, so that
what must wait for event time stays small. The slowest always reads, so alignment cannot stop a job.

A source that has had no row for `idle_after_ms` is idle: neither other sources nor the watermarks
of its readers wait for it. The time counts from when its reader first had no row; while it waits
for others, or for room downstream, it is not asked and does not become idle.

If the reader has splits, each of them has a watermark and an idleness of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ..configs.errors import UsageError
from ..operators.event_time import EventTimeAssigner
from ..operators.process import InstanceContext
from ..operators.snapshots import OperatorSnapshot, Position
from ..operators.sources.base import SourceReader
from ..operators.split_event_times import SplitEventTimes
from ..state.epochs.sealed_json import fault_of
from ..state.watermarks import WATERMARK_END, WATERMARK_IDLE, WATERMARK_NONE
from ..transport.wire.batch import Batch
from .flow import Downstream, WatermarkBoard
from .nodes import Node
from .predecessors import Predecessors, has_ended
from .read_size import ReadSize

ALIGNMENT_POLL_NS = 1_000_000
"""How soon a source that waits for slower ones looks again; they do not ring for it."""


class EndedReader(SourceReader):
    """Stands for the input of a source that has ended, in a restored job: it is not read again.

    It says the position that the input had at its end: instances that have not ended go on from the
    positions of all of them, also in the job after this one.
    """

    def __init__(self, position: Position | None) -> None:
        self._position = position

    def read(self, max_rows: int) -> Batch | None:
        """See `SourceReader.read`."""
        return None

    @property
    def finished(self) -> bool:
        """See `SourceReader.finished`."""
        return True

    def position(self) -> Position | None:
        """See `SourceReader.position`."""
        return self._position


class SourceNode(Node):
    """Reads one instance of a source.

    `slot` is its place on the board, None without event time. A source that `reads_to_end` is not
    drained: a table is joined only whole.
    """

    takes_input: ClassVar[bool] = False
    is_polled = True

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        reader: SourceReader,
        output: Downstream,
        assigner: EventTimeAssigner | SplitEventTimes | None,
        slot: int | None,
        read_size: ReadSize,
        max_drift_ns: int,
        *,
        reads_to_end: bool = False,
    ) -> None:
        super().__init__(context, worker)
        self._reader = reader
        self._output = output
        self._assigner = assigner
        self._slot = slot
        self._read_size = read_size
        self._max_drift_ns = max_drift_ns
        self._board: WatermarkBoard | None = None
        self._reads_to_end = reads_to_end
        self._draining = self._suspended = False
        self._waits_for_others = False
        self._ready_at_ns: int | None = None
        self._splits = assigner if isinstance(assigner, SplitEventTimes) else None
        self._idle_after_ns = None  # of splits, each counts for itself
        if isinstance(assigner, EventTimeAssigner):
            self._idle_after_ns = assigner.idle_after_ns
        self._quiet_since_ns: int | None = None
        self._idle = False
        self._rejected: dict[str, int] = {}  # what the reader had rejected when it was last asked

    def join(self, board: WatermarkBoard) -> None:
        """Align on a board."""
        self._board = board

    def drain(self) -> None:
        """Read no more: the next poll ends the source, unless it reads to its end."""
        self._draining = not self._reads_to_end

    def suspend(self) -> None:
        """Read no more, and do not end unless it is drained."""
        self._suspended = True

    def hurry(self, hurries: bool) -> None:
        """See `Node.hurry`."""
        self._read_size.hurries = hurries

    def poll(self, now_ns: int) -> bool:
        """Read and pass on one batch if there is one; return whether anything happened."""
        if self.ended or (self._suspended and not self._draining):
            return False
        waits = self._ready_at_ns is not None and now_ns < self._ready_at_ns
        if waits and not self._draining:
            return self._rest_if_quiet(now_ns)
        if self._draining or self._reader.finished:
            self._stop(now_ns)
            return True
        self._waits_for_others = self._is_ahead()
        if self._waits_for_others:
            self._quiet_since_ns = None
            return False
        return self._read(now_ns) or self._rest_if_quiet(now_ns)

    def due_ns(self, now_ns: int) -> int | None:
        """Return when it may have rows: at once, when its reader says, or when others caught up."""
        if self.ended or (self._suspended and not self._draining):
            return None
        if self._waits_for_others:
            return now_ns + ALIGNMENT_POLL_NS
        due_ns = self._ready_at_ns or now_ns
        if self._idle or self._idle_after_ns is None or self._quiet_since_ns is None:
            return due_ns
        return min(due_ns, self._quiet_since_ns + self._idle_after_ns)

    def update_metrics(self) -> None:
        """Count late and rejected rows, and ask the reader what it tells of its input."""
        if self._assigner is not None:
            self.metrics.rows_late = self._assigner.late_rows
        if not self.ended:
            self._count_rejected()
            with self.guard():
                gauges = self._reader.gauges()
                self.metrics.gauges = {name: dict(parts) for name, parts in gauges.items()}

    def snapshot(self, epoch: int) -> OperatorSnapshot:
        """See `Node.snapshot`: its position, and how far event time has come."""
        kept = super().snapshot(epoch)
        with self.guard():
            position = self._reader.position()
        if position is None and not self.ended:
            msg = (
                f"source {self.context.operator_id!r} says no position, so its job can have no"
                f" checkpoints: give {type(self._reader).__name__} position() and its source"
                " open_at(), or run the job without checkpoints"
            )
            raise UsageError(msg)
        fault = fault_of(position)
        if fault:  # else every checkpoint would fail, and the job could not end
            msg = (
                f"source {self.context.operator_id!r}: {type(self._reader).__name__}.position()"
                f" returned other values than JSON has: {fault}; return int(n), for example, for a"
                " number of numpy's"
            )
            raise UsageError(msg)
        values = {
            **kept.values,
            "event_time": None if self._assigner is None else self._assigner.kept(),
        }
        return replace(kept, position=position, values=values)

    def restore(self, before: Predecessors) -> None:
        """See `Node.restore`; its reader was opened at their positions.

        It is not idle, even if it was: its rows since then are read again, and would be late if
        other sources were read before. So they have as much time to come as at a start.
        """
        super().restore(before)
        kept = [
            one.values["event_time"]
            for one in before.sources
            if one.values["event_time"] is not None and (before.ended or not has_ended(one))
        ]
        if self._assigner is not None and kept:
            self._assigner.restore(kept)
            if before.own is None:  # each is counted by one of those that continue
                self._assigner.late_rows = self.metrics.rows_late

    def resume(self) -> None:
        """See `Node.resume`; other sources see it, too."""
        if self.ended:
            self._publish_watermark(WATERMARK_END)
            self._output.end()
            return
        watermark_ns = self.metrics.watermark_ns
        self._publish_watermark(watermark_ns)
        if watermark_ns > WATERMARK_NONE:
            self._output.advance(watermark_ns)

    def close(self) -> None:
        """Close the reader."""
        with self.guard():
            self._reader.close()

    def _is_ahead(self) -> bool:
        """Whether its watermark is too far ahead of the slowest source's."""
        if self._board is None or self._slot is None:
            return False
        mine = self.metrics.watermark_ns
        if mine == WATERMARK_NONE:
            return False
        others = self._board.min_watermark()
        return mine > others and mine - others > self._max_drift_ns

    def _read(self, now_ns: int) -> bool:
        begun_ns = self._clock.monotonic_ns()
        with self.guard():
            batch = self._reader.read(self._read_size.rows)
        if self._splits is not None:
            splits = dict(self._reader.splits() or {})
            if batch is not None and self._reader.split is not None:
                # It may be the last one of its split, which the reader does not count any more.
                # Without it the watermark could pass these rows.
                splits[self._reader.split] = True
            self._splits.observe(splits, now_ns)
            self._advance(self._splits.watermark_ns)
        if batch is None:
            if self._reader.finished:
                self._end()
                return True
            self._ready_at_ns = self._reader.next_ready_ns()
            if self._quiet_since_ns is None:
                self._quiet_since_ns = now_ns
            return False
        self._ready_at_ns = None
        self._read_size.note(batch)
        self._pass_on(batch, now_ns)
        self._read_size.note_time(batch.num_rows, self._clock.monotonic_ns() - begun_ns)
        return True

    def _stop(self, now_ns: int) -> None:
        """End; rows that the reader has taken and not returned yet are passed on before."""
        self.cut_short = not self._reader.finished
        if self.cut_short:
            with self.guard():
                batch = self._reader.drain()
            if batch is not None:
                self._pass_on(batch, now_ns)
        self._end()

    def _pass_on(self, batch: Batch, now_ns: int) -> None:
        """Pass on rows with their event times, and the watermark after them."""
        self._quiet_since_ns = None
        if self._idle:
            self._end_idleness()
        self.metrics.rows_in += batch.num_rows
        if not batch.origin_ns:
            batch = batch.with_origin(now_ns)
        if self._assigner is not None:
            with self.guard():
                wall_ns = self._clock.wall_ns() if self._assigner.reads_clock else 0
                batch, dropped = self._assign(self._assigner, batch, wall_ns)
            self.metrics.drop(dropped)
        self._columns = batch.schema
        if batch.num_rows:
            self.metrics.rows_out += batch.num_rows
            self._output.emit(batch)
        if self._assigner is not None:
            self._advance(self._assigner.watermark_ns)

    def _assign(
        self, assigner: EventTimeAssigner | SplitEventTimes, batch: Batch, wall_ns: int
    ) -> tuple[Batch, dict[str, int]]:
        if isinstance(assigner, SplitEventTimes):
            split = self._reader.split
            if split is None:
                reader = type(self._reader).__name__
                msg = (
                    f"source {self.context.operator_id!r} has splits, and {reader} does not say of"
                    " which its rows are: let its `split` return the name"
                )
                raise UsageError(msg)
            return assigner.assign(split, batch, wall_ns)
        return assigner.assign(batch, wall_ns)

    def _rest_if_quiet(self, now_ns: int) -> bool:
        """Become idle if there has been no row for long enough; return whether it did."""
        if self._idle or self._quiet_since_ns is None:
            return False
        if self._splits is not None:
            if not self._splits.idle:
                return False
        elif self._idle_after_ns is None or now_ns - self._quiet_since_ns < self._idle_after_ns:
            return False
        self._idle = True
        self._publish_watermark(WATERMARK_IDLE)
        self._output.set_idle(True)
        return True

    def _end_idleness(self) -> None:
        """Take part in the watermark again, before the first row."""
        self._idle = False
        self._publish_watermark(self.metrics.watermark_ns)
        self._output.set_idle(False)

    def _advance(self, watermark_ns: int) -> None:
        if watermark_ns <= self.metrics.watermark_ns:
            return
        self.metrics.watermark_ns = watermark_ns
        self._publish_watermark(watermark_ns)
        self._output.advance(watermark_ns)

    def _count_rejected(self) -> None:
        """Count what the reader, which counts from its start, has rejected since the last time."""
        with self.guard():
            rejected = dict(self._reader.rejected)
        self.metrics.drop(
            {one: rows - self._rejected.get(one, 0) for one, rows in rejected.items()}
        )
        self._rejected = rejected

    def _publish_watermark(self, watermark_ns: int) -> None:
        if self._board is not None and self._slot is not None:
            self._board.set_watermark(self._slot, watermark_ns)

    def _end(self) -> None:
        self.ended = True
        self.metrics.watermark_ns = WATERMARK_END
        self._count_rejected()
        self._publish_watermark(WATERMARK_END)
        self._output.end()
