"""`Stream`: the output of an operator, and the groupings that can be applied to it.

::

    Topology.source ──▶ Stream ──key_by, shuffle, broadcast …──▶ GroupedStream
                          ▲  ▲                                      │   │
                          │  └── map, filter, select, process … ────┘   │ connect
                          └───────────── process ── ConnectedStream ◀───┘

Any number of operators may read a stream, so plans branch and merge again. Each method adds an
operator or a grouping and returns a new stream; it does not change the stream that it is called on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...configs.errors import TopologyError
from ...operators.groupings import (
    All,
    Custom,
    Direct,
    Forward,
    Global,
    Grouping,
    Key,
    LocalOrShuffle,
    Shuffle,
)
from ...plan.logical import LEFT, MAIN, Input, OnBadRows
from . import misuse
from .aggregations import GroupedRows
from .checks import check_choice, check_function, mistake
from .grouped import GroupedStream
from .known import check_columns, kind_of_key
from .readable import ReadableStream
from .registry import Registry
from .unions import add_union, no_stream

if TYPE_CHECKING:
    import numpy.typing as npt

    from ...operators.expressions.expression import Expression
    from ...operators.windows.specifications import WindowSpecification
    from ...transport.wire.batch import Batch


class Stream(ReadableStream):
    """The output of an operator. A grouping sends its rows to instances of the next operator."""

    def __init__(self, registry: Registry, operator_id: str, output: int = MAIN) -> None:
        super().__init__(registry, (operator_id, output), Forward())

    def __repr__(self) -> str:
        name = self._registry.output_name(self._source)
        return f"Stream({name!r} of topology {self._registry.name!r})"

    def side_output(self, name: str) -> Stream:
        """Return another output of the operator whose main output this stream is.

        An operator names its outputs in its class, `Process.outputs`, and emits rows on this one
        by `out.emit_to(name, …)`. Its watermark is the operator's.

        Raises:
            TopologyError: the operator has no other output of that name.
        """
        outputs = self._registry.node(self.id).outputs
        if self._output != MAIN or name not in outputs[1:]:
            raise mistake(self.id, misuse.no_side_output(name, self._output == MAIN, outputs[1:]))
        return Stream(self._registry, self.id, outputs.index(name))

    @property
    def late(self) -> Stream:
        """The rows that came too late for all of their windows: the output "late" of `agg`.

        Raises:
            TopologyError: the operator has no such output.
        """
        return self.side_output("late")

    def union(self, *others: Stream, id: str | None = None) -> Stream:
        """Return a stream with all rows of this stream and of others with equal columns.

        A union has no cost at runtime: an operator that reads it reads each of its streams. The
        rows of one stream keep their order. Rows of different streams are ordered only by event
        time; for equal times the order of the streams here decides. The watermark is the minimum of
        the streams' watermarks.

        Args:
            others: streams of the same topology; their columns have the same names and types, in
                the same order.
            id: the id of the union; by default "union-1" and so on.

        Raises:
            TopologyError: an argument is not such a stream, or the columns differ, as far as they
                are known. Columns that are not known yet are compared while the job runs.
        """
        union_id = self._registry.choose_id("union", id)
        inputs = tuple(self._united(union_id, stream) for stream in (self, *others))
        add_union(self._registry, union_id, inputs)
        return Stream(self._registry, union_id)

    def key_by(self, *columns: str, on_null: OnBadRows = "fail") -> GroupedStream:
        """Send all rows of one key to one instance, in order.

        Args:
            columns: the columns of the key.
            on_null: "fail": a row whose key is null fails the job; "drop": such rows are dropped
                and counted.

        Raises:
            TopologyError: a column is missing, as far as the columns are known.
        """
        check_choice(self.id, "on_null", on_null, ("fail", "drop"))
        return self._grouped(lambda: Key(columns), "key_by", columns, on_null)

    def group_by(self, *columns: str | Expression | WindowSpecification) -> GroupedRows:
        """Group rows by columns and a window, to aggregate each group with `agg`.

        ::

            from whale_ray import functions as F

            counts = bids.group_by(whale.window("date_time", "10 seconds"), "auction").agg(
                F.count().alias("bids"), F.max("price").alias("highest")
            )

        Args:
            columns: names of columns, and at most one of `whale.window`, `whale.session_window` and
                `whale.count_window`. Null is a value like any other.

        Raises:
            TopologyError: a column is missing, as far as the columns are known, or the window is
                not over the event time.
        """
        return GroupedRows(self, columns)

    def shuffle(self) -> GroupedStream:
        """Send every row to one instance, and about equally many rows to each."""
        return self._grouped(Shuffle)

    def broadcast(self) -> GroupedStream:
        """Send every row to **all** instances. It is serialized once, and read in place."""
        return self._grouped(All)

    def global_(self) -> GroupedStream:
        """Send every row to one instance: the next operator has only one."""
        return self._grouped(Global)

    def local_or_shuffle(self) -> GroupedStream:
        """Send rows to instances in the same worker if there are any, else shuffle them."""
        return self._grouped(LocalOrShuffle)

    def direct(self, column: str, *, on_null: OnBadRows = "fail") -> GroupedStream:
        """Send every row to the instance whose number (from 0) is in an integer column.

        Args:
            column: the column's name.
            on_null: "fail": a row with a null there fails the job; "drop": such rows are dropped
                and counted.

        Raises:
            TopologyError: the column is missing or does not hold integers, as far as is known.
        """
        check_choice(self.id, "on_null", on_null, ("fail", "drop"))
        grouped = self._grouped(lambda: Direct(column), "direct", (column,), on_null)
        kind = (self._columns() or {}).get(column)
        if kind is not None and kind_of_key(kind) != "integer":
            raise mistake(self.id, f"direct needs a column of integers, {column!r} is {kind.name}")
        return grouped

    def partition_by(self, function: Callable[[Batch, int], npt.ArrayLike]) -> GroupedStream:
        """Send every row to the instance that a function of yours chooses.

        Args:
            function: (batch, parallelism) → instance numbers from 0, shape (num_rows,).

        Raises:
            TopologyError: the function cannot be called with two arguments.
        """
        takes = ("batch", "parallelism")
        check_function(self.id, "partition_by", function, takes, "instance numbers")
        return self._grouped(lambda: Custom(function))

    def _united(self, union_id: str, stream: object) -> Input:
        """Return a stream as an input of a union, without a grouping.

        Raises:
            TopologyError: it is not an ungrouped stream of this topology.
        """
        if not isinstance(stream, ReadableStream):
            raise no_stream(union_id, stream)
        if not isinstance(stream, Stream):
            raise mistake(
                union_id,
                misuse.grouped_before_union(repr(stream.id), stream._grouping.describe()),
            )
        if stream._registry is not self._registry:
            raise mistake(
                union_id,
                f"union takes streams of one topology, but {stream.id!r} belongs to another one"
                f" named {stream._registry.name!r}: make all with the same Topology",
            )
        own = None if stream._transport is self._registry.transport else stream._transport
        return Input(stream.id, LEFT, Forward(), transport=own, output=stream._output)

    def _grouped(
        self,
        make: Callable[[], Grouping],
        verb: str = "",
        columns: tuple[str, ...] = (),
        on_null: OnBadRows = "fail",
    ) -> GroupedStream:
        try:
            grouping = make()
        except TopologyError as error:
            raise mistake(self.id, str(error)) from None
        check_columns(self.id, verb, columns, self._columns())
        return GroupedStream(self, grouping, on_null)

    def _output_of(self, operator_id: str) -> Stream:
        return Stream(self._registry, operator_id)

    if not TYPE_CHECKING:  # hidden from type checkers, which then report a missing attribute

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_ungrouped(name)
            if text:
                raise mistake(self.id, text)
            columns = () if name.startswith("_") else self._columns() or ()
            raise AttributeError(misuse.other_name("Stream", name, columns))
