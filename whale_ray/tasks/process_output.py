"""What a process emits: stamped with a time and an origin, and passed on when its call returns.

Operators downstream run only then: their time and their errors must not count as those of the
user's call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..configs.errors import TopologyError, UsageError
from ..metrics.counters import InstanceMetrics
from ..operators.process import CoProcess, Output, Process
from ..plan.logical import MAIN
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema
from .flow import Downstream
from .row_gatherer import RowGatherer

_NO_SIDES: Mapping[str, ProcessOutput] = MappingProxyType({})


class ProcessOutput(Output):
    """The output of one process instance; rows that are emitted one by one are gathered.

    `needs_times` says whether anything downstream uses event times; `columns` are those of what was
    emitted, else the declared ones. `name` is that of a side output, and `sides` are the side
    outputs after the main one: each gathers its own rows, and the main one leads them.
    """

    def __init__(
        self,
        downstream: Downstream,
        metrics: InstanceMetrics,
        needs_times: bool,
        schema: Schema | None,
        name: str = "",
        sides: Mapping[str, ProcessOutput] = _NO_SIDES,
        *,
        bounded: bool,
    ) -> None:
        self._downstream = downstream
        self._metrics = metrics
        self._needs_times = needs_times
        self._rows = RowGatherer(metrics.operator_id, schema, bounded=bounded)
        self._emitted: list[Batch] = []
        self._origin_ns = 0
        self._name = name
        self._by_name = dict(sides)
        self._sides = tuple(self._by_name.values())
        self.columns = schema
        self._of_call = OutputOfCall(self)

    @property
    def columns_of_each(self) -> Mapping[int, Schema]:
        """The columns of each output, as far as they are known, by the output's number."""
        outputs = enumerate((self, *self._sides), MAIN)
        return {number: one.columns for number, one in outputs if one.columns is not None}

    @property
    def waiting_rows(self) -> int:
        """The number of rows that wait until a value tells the types of their columns."""
        return len(self._rows.rows) + sum(side.waiting_rows for side in self._sides)

    def during(self, time_ns: int | None, origin_ns: int) -> OutputOfCall:
        """Stamp rows that are emitted in the block; pass them on if it ends without an error."""
        self.time_ns = None if time_ns in (WATERMARK_NONE, WATERMARK_END) else time_ns
        self._origin_ns = origin_ns
        return self._of_call

    def pass_on(self) -> None:
        """Pass on what was emitted since the last time."""
        self._gather(final=False)
        self._deliver()
        for side in self._sides:
            side._gather(final=False)
            side._deliver()

    def emit(
        self, batch: Batch | Mapping[str, Any], times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """See `Output.emit`."""
        if not isinstance(batch, Batch) and _has_no_rows(batch):
            return
        rows = batch if isinstance(batch, Batch) else Batch.from_pydict(dict(batch))
        if rows.num_rows == 0:
            return
        self._gather(final=True)  # what was emitted row by row before comes before
        if times is None and not rows.has_times:
            time_ns = self._time()
            if time_ns is not None:
                times = np.full(rows.num_rows, time_ns, dtype=np.int64)
        self._add(rows if times is None else rows.with_times(times))

    def emit_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Output.emit_rows`."""
        if rows and self._rows.add_all(rows, self._time()):
            self._gather(final=False)

    def emit_row(self, **values: Any) -> None:
        """See `Output.emit_row`."""
        time_ns = self.time_ns
        if time_ns is None and self._needs_times:
            time_ns = self._time()
        gathered = self._rows
        gathered.rows.append(values)
        gathered.times.append(time_ns)
        if len(gathered.rows) >= gathered.full_at:
            self._gather(final=False)

    def emit_to(
        self,
        output: str,
        rows: Batch | Mapping[str, Any] | Sequence[Mapping[str, Any]],
        times: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """See `Output.emit_to`."""
        side = self._by_name.get(output)
        if side is None:
            raise self._unknown_output(output)
        side.time_ns, side._origin_ns = self.time_ns, self._origin_ns
        if isinstance(rows, (Batch, Mapping)):
            side.emit(rows, times)
        else:
            side.emit_rows(rows)

    def set_input_schemas(self, schemas: Sequence[Schema]) -> None:
        """Take the columns of the inputs: they give types to columns that have no value yet."""
        for output in (self, *self._sides):
            output._rows.inputs = schemas

    def finish(self) -> None:
        """Pass on what was held back until its columns' types were known."""
        for output in (self, *self._sides):
            output._gather(final=True)
            output._deliver()

    def kept(self) -> Mapping[str, Any]:
        """Return what a snapshot keeps of each output, by its name; the main one's is empty."""
        outputs = {"": self, **self._by_name}
        return {
            name: {"columns": one.columns, "gathered": one._rows.kept()}
            for name, one in outputs.items()
        }

    def restore(
        self, dealt: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
    ) -> None:
        """Resume from what outputs kept; see `RowGatherer.restore`."""
        for name, one in {"": self, **self._by_name}.items():
            mine = [kept[name]["gathered"] for kept in dealt if name in kept]
            others = [kept[name] for kept in known if name in kept]
            one._rows.restore(mine, [kept["gathered"] for kept in others])
            columns = (kept["columns"] for kept in others)
            one.columns = one.columns or next(filter(None, columns), None)

    def _gather(self, final: bool) -> None:
        batch = self._rows.take(final)
        if batch is not None:
            self._add(batch)

    def _add(self, rows: Batch) -> None:
        if not rows.origin_ns and self._origin_ns:
            rows = rows.with_origin(self._origin_ns)
        self.columns = rows.schema
        self._emitted.append(rows)

    def _deliver(self) -> None:
        emitted, self._emitted = self._emitted, []
        for rows in emitted:
            if self._name:
                self._metrics.count_side(self._name, rows.num_rows)
            else:
                self._metrics.rows_out += rows.num_rows
            self._downstream.emit(rows)

    def _unknown_output(self, output: str) -> UsageError:
        others = " or ".join(map(repr, self._by_name))
        remedy = f"it has {others}" if others else "declare it in the class, outputs = ('main', …)"
        return UsageError(f"emit_to({output!r}, …): there is no such side output; {remedy}")

    def _time(self) -> int | None:
        if self.time_ns is None and self._needs_times:
            msg = (
                f"operator {self._metrics.operator_id!r} emitted rows without event times while "
                "its input has several, or none yet: pass times=, set out.time_ns, or define the "
                "row method (on_row, on_left_row, on_right_row), whose output takes the row's time"
            )
            raise TopologyError(msg)
        return self.time_ns


class OutputOfCall:
    """The block of a call whose output is passed on when it ends, see `ProcessOutput.during`."""

    def __init__(self, output: ProcessOutput) -> None:
        self._output = output

    def __enter__(self) -> None:
        """Do nothing: `during` has stamped the output."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._output.pass_on()


def make_output(
    process: Process | CoProcess,
    downstreams: Sequence[Downstream],
    metrics: InstanceMetrics,
    needs_times: bool,
    *,
    bounded: bool,
) -> ProcessOutput:
    """Return the outputs of a process, led by the main one; `downstreams` is what follows each."""
    sides = {
        name: ProcessOutput(
            downstream, metrics, needs_times, process.schemas.get(name), name, bounded=bounded
        )
        for name, downstream in zip(process.outputs[1:], downstreams[1:], strict=True)
    }
    return ProcessOutput(
        downstreams[MAIN], metrics, needs_times, process.schema, sides=sides, bounded=bounded
    )


def _has_no_rows(columns: Mapping[str, Any]) -> bool:
    """Return whether all columns are empty; the type of an empty list cannot be inferred."""
    return bool(columns) and all(
        column.shape == (0,)
        if isinstance(column, np.ndarray)
        else isinstance(column, (list, tuple)) and not column
        for column in columns.values()
    )
