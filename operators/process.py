"""Stateful operators: the base classes of users' own processes.

An instance is one object of a `Process` or `CoProcess` class. The worker calls it from one thread
only, so it needs no lock; its state is in `self`::

    class LatestRows(whale.Process):
        def open(self, context):
            self.latest = {}

        def on_row(self, row, out):
            self.latest[row["vehicle_id"]] = dict(row)

        def close(self, out):
            out.emit_rows(list(self.latest.values()))

Define `on_row` to process single rows, or `on_batch` to process columns, which is faster.

Batches are read-only. A batch from another worker is a view of shared memory that is only valid
during the call: to keep it, keep `batch.copy()`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ..configs.errors import UsageError
from .instance_context import InstanceContext

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Schema
    from .rows import Row

__all__ = [
    "CoProcess",
    "InputOrder",
    "InstanceContext",
    "Output",
    "Process",
    "call_method",
    "common_time",
    "gives_rows",
    "instead_of_returning",
    "merged_runs",
]

RowCall: TypeAlias = "Callable[[Row, Output], object]"

InputOrder: TypeAlias = Literal["event time", "arrival"]
"""The order in which an operator takes its rows: by event time, or as they arrive."""


class Output(ABC):
    """Receives the results of an instance; valid only during the call it is passed to.

    Attributes:
        time_ns: the event time (int64 ns since 1970) of rows that are emitted without one.
            It is set before every call: to the row's time in `on_row`, to the time of a batch
            whose rows all have the same, to the watermark in `on_watermark`, to a time just after
            it in `on_deadline` and `close`, otherwise to None. A process may set it, too.
        instances: the instances that the rows of this call are for: all that the object serves, or
            one of them, see `Process.one_by_one`.
    """

    time_ns: int | None = None
    instances: tuple[int, ...] = ()

    @abstractmethod
    def emit(
        self,
        batch: Batch | Mapping[str, Any],
        times: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Emit rows.

        Args:
            batch: a `Batch`, or a mapping of column name → array, list or `Column`, equally long.
            times: event time of each row, int64 ns since 1970, shape (num_rows,); if left
                out, the batch's own times, else `time_ns` for all.

        Raises:
            TopologyError: a later operator needs event times, and there are none: the rows of the
                current batch have different ones, so the process must choose.
        """

    @abstractmethod
    def emit_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Emit rows, each a mapping of column name → value; all with the same names."""

    def emit_row(self, **values: Any) -> None:
        """Emit one row: `out.emit_row(request_id=7, distance_m=12.5)`."""
        self.emit_rows((values,))

    @abstractmethod
    def emit_to(
        self,
        output: str,
        rows: Batch | Mapping[str, Any] | Sequence[Mapping[str, Any]],
        times: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Emit rows on one of the operator's `outputs`: `out.emit_to("late", batch)`.

        Args:
            output: the name of the output.
            rows: as for `emit`, or as for `emit_rows`.
            times: as for `emit`; not for a sequence of rows, which all have `time_ns`.

        Raises:
            UsageError: the operator has no output of that name.
            TopologyError: as for `emit`.
        """


class Process:
    """An operator with one input.

    With event-time ordering (the default where the stream has event times) batches arrive in
    event-time order, and no row earlier than the last watermark follows it.
    """

    per_worker: ClassVar[bool] = False
    """If true, one object serves all instances of a worker. It is called once per slice with the
    rows of all of them, which suits operators on columns."""

    one_by_one: ClassVar[bool] = False
    """If true, a `per_worker` object is called once for each instance where instance-oriented
    addressing sends the same rows to every instance; `out.instances` is then that instance. If
    false, it is called once for all. With event-time ordering it is always called once."""

    outputs: ClassVar[tuple[str, ...]] = ("main",)
    """The names of the outputs. The first one is the stream that `process` returns, the others are
    read by `stream.side_output(name)` and written by `out.emit_to(name, …)`. Rows for an output
    that no operator reads are counted and discarded."""

    schemas: Mapping[str, Schema] = MappingProxyType({})
    """As `schema`, for the other outputs, by name."""

    takes_late_rows: ClassVar[bool] = False
    """Whether the operator accepts rows whose event time its watermark has passed already. Only
    such an operator may follow a source with `on_late="pass"`."""

    late_outputs: ClassVar[tuple[str, ...]] = ()
    """The outputs on which the operator may emit rows behind its watermark."""

    input_order: ClassVar[InputOrder | None] = None
    """The order in which the operator gets its rows unless `process(event_time_order=…)` sets
    another: "event time", "arrival", or None: by event time if its streams have event times."""

    declared_state: ClassVar[tuple[str, ...]] = ()
    """A description of the state per key that is kept in the worker's state memory, for `explain`.
    If empty, the state is the object itself."""

    def open(self, context: InstanceContext) -> None:
        """Prepare the instance; called once, before any row."""

    schema: Schema | None = None
    """The columns of rows that are emitted one by one, needed if a column begins with nulls and for
    an output without rows. An attribute of the class, or of the object before it is opened."""

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Process the next rows, all at once. The default calls `on_row` for each."""
        _each_row(self.on_row, batch, out)

    def on_row(self, row: Row, out: Output) -> None:
        """Process one row: `row["name"]` or `row.name`."""
        msg = f"{type(self).__name__} lacks {self.missing()}"
        raise NotImplementedError(msg)

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """React to a watermark: all rows with event time ≤ `watermark_ns` (ns) have arrived."""

    def deadline_ns(self) -> int | None:
        """Return when to call `on_deadline`, in ns since 1970 by `context.clock.wall_ns()`.

        None: at no time. The worker asks after every call of the object, and sleeps until then.
        """
        return None

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """React to the processing time: `now_ns` (ns since 1970) has reached `deadline_ns`.

        Move the deadline: this is called again until `deadline_ns` is later than now. It is no
        longer called once the input has ended: finish in `close`.
        """

    def close(self, out: Output) -> None:
        """Send what is left; called once, after the last row of a run that did not fail."""

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return what is kept for the keys of some virtual nodes, as rows; keep it all the same.

        A class that keeps state of its own defines it together with `load`, so that this state can
        be saved, and moved to other instances, by virtual node. It is called between two other
        calls.

        Every row has the key columns, with the names and types of the rows received: by the hash
        of the key its virtual node is found again (`context.nodes_of`). Batches may differ in
        their columns, and an empty one may say no more than what columns there are. They are
        loaded in their order.

        Args:
            nodes: ascending, int64 (n,), from 0 to `context.virtual_nodes` − 1.
        """
        msg = f"{type(self).__name__} has no dump: its state moves whole"
        raise NotImplementedError(msg)

    def load(self, batch: Batch) -> None:
        """Take rows that `dump` of another instance returned, for keys of which there are none yet.

        It is called after `open`, also between later calls; the batch may be kept.
        """
        msg = f"{type(self).__name__} has no load: its state moves whole"
        raise NotImplementedError(msg)

    @classmethod
    def missing(cls) -> str | None:
        """Return what the class must still define, in words, or None if it is complete."""
        complete = cls.on_batch is not Process.on_batch or cls.on_row is not Process.on_row
        return None if complete else "on_batch or on_row"


class CoProcess:
    """An operator with two inputs, `left.connect(right)`.

    With event-time ordering (the default where the streams have event times) the rows of both
    inputs are merged by time; at equal times left comes before right. Define `on_left` and
    `on_right`, or `on_left_row` and `on_right_row` to process single rows; define `on_merged` as
    well, or instead, to process merged rows of both inputs at once.
    """

    per_worker: ClassVar[bool] = False
    """As `Process.per_worker`."""

    one_by_one: ClassVar[bool] = False
    """As `Process.one_by_one`."""

    declared_state: ClassVar[tuple[str, ...]] = ()
    """As `Process.declared_state`."""

    schema: Schema | None = None
    """As `Process.schema`."""

    outputs: ClassVar[tuple[str, ...]] = ("main",)
    """As `Process.outputs`."""

    schemas: Mapping[str, Schema] = MappingProxyType({})
    """As `Process.schemas`."""

    takes_late_rows: ClassVar[bool] = False
    """As `Process.takes_late_rows`."""

    late_outputs: ClassVar[tuple[str, ...]] = ()
    """As `Process.late_outputs`."""

    input_order: ClassVar[InputOrder | None] = None
    """As `Process.input_order`."""

    def open(self, context: InstanceContext) -> None:
        """Prepare the instance; called once, before any row."""

    def on_left(self, batch: Batch, out: Output) -> None:
        """Take the next rows of the left input. The default calls `on_left_row` for each."""
        _each_row(self.on_left_row, batch, out)

    def on_right(self, batch: Batch, out: Output) -> None:
        """Take the next rows of the right input. The default calls `on_right_row` for each."""
        _each_row(self.on_right_row, batch, out)

    def on_left_row(self, row: Row, out: Output) -> None:
        """Take one row of the left input."""
        msg = f"{type(self).__name__} lacks {self.missing()}"
        raise NotImplementedError(msg)

    def on_right_row(self, row: Row, out: Output) -> None:
        """Take one row of the right input."""
        msg = f"{type(self).__name__} lacks {self.missing()}"
        raise NotImplementedError(msg)

    def on_merged(
        self, left: Batch, right: Batch, order: npt.NDArray[np.bool_], out: Output
    ) -> None:
        """Take rows of both inputs, in event-time order.

        Args:
            left: the left rows, in order; may be empty, and without columns before the first row.
            right: the right rows, likewise.
            order: the input of each merged row, shape (left.num_rows + right.num_rows,); False is
                left.
            out: receives the results.

        The default calls `on_left_row` and `on_right_row` in merge order. If the class overrides
        `on_left` or `on_right`, it calls these with runs of rows of one input instead.
        """
        cls = type(self)
        if cls.on_left is CoProcess.on_left and cls.on_right is CoProcess.on_right:
            _each_merged_row((self.on_left_row, self.on_right_row), (left, right), order, out)
            return
        for from_right, start, stop in merged_runs(order):
            run = (right if from_right else left).slice(start, stop)
            out.time_ns = common_time(run)
            call_method(self.on_right if from_right else self.on_left, run, out)

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """React to a watermark: all rows of both inputs with time ≤ `watermark_ns` have arrived."""

    def deadline_ns(self) -> int | None:
        """As `Process.deadline_ns`."""
        return None

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """As `Process.on_deadline`."""

    def close(self, out: Output) -> None:
        """Send what is left; called once, after the last row of a run that did not fail."""

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """As `Process.dump`; every row has the key columns of one of the inputs."""
        msg = f"{type(self).__name__} has no dump: its state moves whole"
        raise NotImplementedError(msg)

    def load(self, batch: Batch) -> None:
        """As `Process.load`."""
        msg = f"{type(self).__name__} has no load: its state moves whole"
        raise NotImplementedError(msg)

    @classmethod
    def takes_sides(cls) -> bool:
        """Return whether the class handles rows of each input, not only merged ones."""
        return not cls._lacking_sides()

    @classmethod
    def missing(cls) -> str | None:
        """Return what the class must still define, in words, or None if it is complete."""
        if cls.on_merged is not CoProcess.on_merged:
            return None
        return " and ".join(cls._lacking_sides()) or None

    @classmethod
    def _lacking_sides(cls) -> list[str]:
        sides = {
            "on_left": (cls.on_left, CoProcess.on_left, cls.on_left_row, CoProcess.on_left_row),
            "on_right": (
                cls.on_right,
                CoProcess.on_right,
                cls.on_right_row,
                CoProcess.on_right_row,
            ),
        }
        return [
            name
            for name, (batch, base_batch, row, base_row) in sides.items()
            if batch is base_batch and row is base_row
        ]


def gives_rows(kind: type[Process] | type[CoProcess] | Process | CoProcess) -> bool:
    """Return whether a class defines `dump`, so that its state moves by virtual node."""
    made_class = kind if isinstance(kind, type) else type(kind)
    return made_class.dump not in (Process.dump, CoProcess.dump)


def common_time(batch: Batch) -> int | None:
    """Return the event time that all rows of a batch have; None if it is not the same for all."""
    times = batch.times
    if times is None or len(times) == 0 or times[0] != times[-1]:  # in few batches they are alike
        return None
    if times.min() != times.max():
        return None
    return int(times[0])


def _each_row(call: RowCall, batch: Batch, out: Output) -> None:
    """Call for every row, with the output's time set to the row's; raise RowFailure if it fails."""
    from .rows import fail_at_row, rows_of

    index = 0
    times = repeat(None) if batch.times is None else iter(batch.times.tolist())
    try:
        for time_ns, row in zip(times, rows_of(batch), strict=False):
            if time_ns is not None:
                out.time_ns = time_ns
            if (returned := call(row, out)) is not None:
                check_nothing(call, returned)
            index += 1
    except BaseException as error:  # noqa: BLE001  # it is raised again
        fail_at_row(error, index, batch)


def _each_merged_row(
    calls: tuple[RowCall, RowCall],
    batches: tuple[Batch, Batch],
    order: npt.NDArray[np.bool_],
    out: Output,
) -> None:
    """Call for every row of two inputs in their merge order, as `_each_row` does for one."""
    from .rows import fail_at_row, rows_of

    rows = [rows_of(batch) for batch in batches]
    times = [repeat(None) if b.times is None else iter(b.times.tolist()) for b in batches]
    taken = [0, 0]
    side = False
    try:
        for side in order.tolist():
            out.time_ns = next(times[side])
            if (returned := calls[side](next(rows[side]), out)) is not None:
                check_nothing(calls[side], returned)
            taken[side] += 1
    except BaseException as error:  # noqa: BLE001  # it is raised again
        fail_at_row(error, taken[side], batches[side])


def call_method(method: Callable[..., object], *arguments: object) -> None:
    """Call a user's method; raise UsageError if it returns anything."""
    check_nothing(method, method(*arguments))


def check_nothing(call: Callable[..., object], returned: object) -> None:
    """Refuse a value that a user's method returned, since it would be ignored.

    Raises:
        UsageError: it returned something; the message says what to do instead.
    """
    if returned is None:
        return
    kind = type(returned).__name__
    if inspect.iscoroutine(returned):
        returned.close()  # or Python warns that it was never awaited
    owner = type(getattr(call, "__self__", call)).__name__
    msg = (
        f"{owner}.{call.__name__} returned {'an' if kind[0] in 'aeiou' else 'a'} {kind}, which"
        f" is not used: {instead_of_returning(call.__name__)}"
    )
    raise UsageError(msg)


def instead_of_returning(method: str) -> str:
    """Return what a method should do instead of returning rows."""
    if method == "open":
        return "open prepares the instance and has no rows to send; return nothing"
    return "emit rows with out.emit_row(column=value, …), and return nothing"


def merged_runs(order: npt.NDArray[np.bool_]) -> Iterator[tuple[bool, int, int]]:
    """Cut a merge order into its runs.

    Args:
        order: shape (n,), False = the next left row, True = the next right row.

    Yields:
        (from_right, start, stop): the run takes rows start … stop − 1 of that input.
    """
    import numpy as np

    if len(order) == 0:
        return
    bounds = [0, *(np.flatnonzero(order[1:] != order[:-1]) + 1).tolist(), len(order)]
    taken = [0, 0]
    from_right = bool(order[0])
    for first, last in pairwise(bounds):
        start = taken[from_right]
        stop = taken[from_right] = start + last - first
        yield from_right, start, stop
        from_right = not from_right
