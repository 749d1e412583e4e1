"""Streams: what the methods of a topology return, and what they can do next.

::

    Topology.source ──▶ Stream ──key_by, shuffle, broadcast …──▶ GroupedStream
                          ▲  ▲                                      │   │
                          │  └── map, filter, select, process … ────┘   │ connect
                          └───────────── process ── ConnectedStream ◀───┘

A `Stream` is the output of one operator. Any number of operators may read it, so plans branch and
meet again; each method adds an operator, or says how rows are spread, and returns a new value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from ..configs.errors import TopologyError
from ..operators.groupings import (
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
from ..plan.logical import LEFT, RIGHT, Input, OnBadRows, OperatorKind, OperatorNode
from . import misuse
from .checks import check_choice, check_function, describe_value, mistake
from .endpoints import check_sink, check_transport
from .functions import ColumnFunction
from .known import KnownColumns, check_columns, kind_of_key
from .locations import caller_location
from .processes import add_process, check_same_key
from .registry import Registry
from .transforms import (
    filter_transform,
    flat_map_transform,
    map_transform,
    select_transform,
    with_column_transform,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..operators.expressions import Expression
    from ..operators.process import CoProcess, Process
    from ..operators.rows import Row
    from ..operators.sinks.base import Sink
    from ..operators.transforms import Transform
    from ..transport.pairs.operators import Transport
    from ..transport.wire.batch import Batch
    from .known import SchemaLike

    Columns = Batch | Mapping[str, Any]
    Made = Columns | tuple[Columns, npt.ArrayLike] | None


class _Readable:
    """The output of an operator and how its rows are spread over the next one."""

    def __init__(
        self,
        registry: Registry,
        upstream: str,
        grouping: Grouping,
        on_null_key: OnBadRows = "fail",
        transport: Transport | None = None,
    ) -> None:
        self._registry = registry
        self._upstream = upstream
        self._grouping = grouping
        self._on_null_key = on_null_key
        self._transport = transport or registry.transport

    @property
    def id(self) -> str:
        """The id of the operator whose output this is."""
        return self._upstream

    def via(self, transport: Transport) -> Self:
        """Carry the rows by a transport of your own, where they go from one process to another.

        Args:
            transport: a `whale.transports.Transport`; it is used by what reads the stream that
                this method returns, and nothing else.

        Raises:
            TopologyError: what was passed is not one; or, of the whole topology, nothing reads
                that stream.
        """
        check_transport(f"operator {self.id!r}: via", transport)
        self._registry.note_transport(self.id, transport, caller_location())
        carried = object.__new__(type(self))
        vars(carried).update(vars(self), _transport=transport)
        return carried

    def map(
        self,
        function: Callable[[Row], Mapping[str, Any]] | ColumnFunction[Columns],
        *,
        id: str | None = None,
        schema: SchemaLike | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn every row into one row.

        Args:
            function: row → mapping of column name → value; or one marked with `whale.columns`:
                batch → `Batch` or mapping of column name → array, with as many rows.
            id: a name for the operator; chosen if left out.
            schema: the columns it makes; else learnt from the first rows and then fixed.
            parallelism: number of instances; as many as upstream if left out.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
        """
        return self._transform(
            "map", id, parallelism, lambda own, _: map_transform(own, function, schema)
        )

    def filter(
        self,
        condition: Expression | Callable[[Row], bool] | ColumnFunction[npt.NDArray[np.bool_]],
        *,
        id: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the rows for which a condition holds; null counts as false.

        Args:
            condition: an expression, `whale.col("lat_e5") > 0`; or row → bool; or a function
                marked with `whale.columns`: batch → booleans, shape (num_rows,).
            id: a name for the operator; chosen if left out.
            parallelism: number of instances; as many as upstream if left out.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
        """
        return self._transform(
            "filter", id, parallelism, lambda own, known: filter_transform(own, condition, known)
        )

    def flat_map(
        self,
        function: Callable[[Row], Iterable[Mapping[str, Any]] | None] | ColumnFunction[Made],
        *,
        id: str | None = None,
        schema: SchemaLike | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn every row into any number of rows, each with its parent's event time.

        Args:
            function: row → iterable of mappings, such as a generator, or None; or one marked with
                `whale.columns`: batch → `Batch`, mapping of column name → array, a pair of either
                and the number of each row's parent (int, shape (rows made,)), or None.
            id: a name for the operator; chosen if left out.
            schema: the columns it makes; else learnt from the first rows and then fixed.
            parallelism: number of instances; as many as upstream if left out.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
        """
        return self._transform(
            "flat_map", id, parallelism, lambda own, _: flat_map_transform(own, function, schema)
        )

    def select(
        self,
        *columns: str | Expression,
        id: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep or compute exactly these columns: `select("id", (col("m") / 1000).alias("km"))`.

        Raises:
            TopologyError: an expression does not fit the columns, as far as they are known.
        """
        return self._transform(
            "select", id, parallelism, lambda own, known: select_transform(own, columns, known)
        )

    def with_column(
        self,
        name: str,
        expression: Expression,
        *,
        id: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Add a column, or replace the one of that name: `with_column("km", col("m") / 1000)`.

        Raises:
            TopologyError: the expression does not fit the columns, as far as they are known.
        """
        return self._transform(
            "with_column",
            id,
            parallelism,
            lambda own, known: with_column_transform(own, name, expression, known),
        )

    def sink(
        self, sink: Sink, *, id: str | None = None, parallelism: int | None = None
    ) -> SinkHandle:
        """Write the stream: `sink(whale.sinks.parquet("out/"), id="out")`.

        The job's result of this sink is `job.results(id)`.

        Raises:
            TopologyError: what was passed is not a sink.
        """
        operator_id = self._registry.choose_id("sink", id)
        check_sink(operator_id, sink, self._registry.nodes)
        self._add(operator_id, "sink", OperatorKind.SINK, sink, parallelism, None)
        return SinkHandle(self._registry, operator_id)

    def _columns(self) -> KnownColumns | None:
        return self._registry.columns(self._upstream)

    def _input(self, port: int = LEFT) -> Input:
        return Input(self._upstream, port, self._grouping, self._on_null_key, self._transport)

    def _transform(
        self,
        verb: str,
        wanted_id: str | None,
        parallelism: int | None,
        make: Callable[[str, KnownColumns | None], tuple[Transform, KnownColumns | None]],
    ) -> Stream:
        operator_id = self._registry.choose_id(verb, wanted_id)
        transform, known = make(operator_id, self._columns())
        self._add(operator_id, verb, OperatorKind.TRANSFORM, transform, parallelism, known)
        return Stream(self._registry, operator_id)

    def _add(
        self,
        operator_id: str,
        verb: str,
        kind: Literal[OperatorKind.TRANSFORM, OperatorKind.SINK],
        payload: Transform | Sink,
        parallelism: int | None,
        known: KnownColumns | None,
    ) -> None:
        node = OperatorNode(
            id=operator_id,
            kind=kind,
            payload=payload,
            inputs=(self._input(),),
            verb=verb,
            parallelism=parallelism,
            has_event_time=self._registry.node(self._upstream).has_event_time,
            location=caller_location(),
        )
        self._registry.add(node, known)


class Stream(_Readable):
    """The output of an operator. Group it to say which instance gets which row."""

    def __init__(self, registry: Registry, operator_id: str) -> None:
        super().__init__(registry, operator_id, Forward())

    def __repr__(self) -> str:
        return f"Stream({self.id!r} of topology {self._registry.name!r})"

    def key_by(self, *columns: str, on_null: OnBadRows = "fail") -> GroupedStream:
        """Send all rows of one key to one instance, in order.

        Args:
            columns: the columns that make the key.
            on_null: "fail" ends the job at a row whose key is null, "drop" leaves such rows out
                and counts them.

        Raises:
            TopologyError: a column is missing, as far as the columns are known.
        """
        check_choice(self.id, "on_null", on_null, ("fail", "drop"))
        return self._grouped(lambda: Key(columns), "key_by", columns, on_null)

    def shuffle(self) -> GroupedStream:
        """Send every row to one instance, so that all get about the same share."""
        return self._grouped(Shuffle)

    def broadcast(self) -> GroupedStream:
        """Send every row to **all** instances; it is encoded once, and read in place."""
        return self._grouped(All)

    def global_(self) -> GroupedStream:
        """Send every row to the one instance of the next operator."""
        return self._grouped(Global)

    def local_or_shuffle(self) -> GroupedStream:
        """Send rows to instances in the same worker where it has any, else shuffle them."""
        return self._grouped(LocalOrShuffle)

    def direct(self, column: str) -> GroupedStream:
        """Send every row to the instance whose number (from 0) stands in an integer column.

        Raises:
            TopologyError: the column is missing or holds no integers, as far as that is known.
        """
        grouped = self._grouped(lambda: Direct(column), "direct", (column,))
        kind = (self._columns() or {}).get(column)
        if kind is not None and kind_of_key(kind) != "integer":
            raise mistake(self.id, f"direct needs a column of integers, {column!r} is {kind.name}")
        return grouped

    def partition_by(self, function: Callable[[Batch, int], npt.ArrayLike]) -> GroupedStream:
        """Send every row to the instance that a function of the user's names.

        Args:
            function: (batch, parallelism) → instance numbers from 0, shape (num_rows,).

        Raises:
            TopologyError: the function cannot be called with two arguments.
        """
        takes = ("batch", "parallelism")
        check_function(self.id, "partition_by", function, takes, "instance numbers")
        return self._grouped(lambda: Custom(function))

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
        return GroupedStream(self._registry, self._upstream, grouping, on_null, self._transport)

    if not TYPE_CHECKING:  # a type checker knows what is missing; everybody else is told the fix

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_ungrouped(name)
            if text:
                raise mistake(self.id, text)
            raise AttributeError(misuse.other_name("Stream", name))


class GroupedStream(_Readable):
    """A stream with a grouping: `process` it, `connect` it, or map it on other instances."""

    def __repr__(self) -> str:
        grouping = self._grouping.describe()
        return f"GroupedStream({self.id!r} of topology {self._registry.name!r}, {grouping})"

    def connect(self, other: GroupedStream) -> ConnectedStream:
        """Let one operator read two streams: this one is its left, `other` its right.

        Raises:
            TopologyError: `other` is no grouped stream of the same topology, or has another key.
        """
        if isinstance(other, Stream):
            raise mistake(
                self.id,
                f"connect needs both streams grouped: call key_by('column') or broadcast() on"
                f" {other.id!r} first",
            )
        if not isinstance(other, GroupedStream):
            raise mistake(
                self.id,
                f"connect takes a grouped stream, such as other.broadcast(), not"
                f" {describe_value(other)}",
            )
        if other._registry is not self._registry:
            raise mistake(
                self.id,
                f"connect joins streams of one topology, but {self.id!r} belongs to"
                f" {self._registry.name!r} and {other.id!r} to another one named"
                f" {other._registry.name!r}: make both with the same Topology",
            )
        check_same_key(self._registry, self._input(LEFT), other._input(RIGHT))
        return ConnectedStream(self, other)

    def process(
        self,
        operator: Callable[[], Process],
        *,
        id: str | None = None,
        parallelism: int | None = None,
        event_time_order: bool | None = None,
    ) -> Stream:
        """Run an operator with state of its own: one object of a `Process` class per instance.

        Args:
            operator: the class, or a function without arguments that makes an object of it.
            id: a name for the operator; chosen if left out.
            parallelism: number of instances; one per worker if left out.
            event_time_order: hand rows over in the order of their event times; if left out, where
                the stream has event times.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
        """
        operator_id = add_process(
            self._registry, (self._input(),), operator, id, parallelism, event_time_order
        )
        return Stream(self._registry, operator_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_grouped(name, self._grouping.describe())
            if text:
                raise mistake(self.id, text)
            raise AttributeError(misuse.other_name("GroupedStream", name))


class ConnectedStream:
    """Two grouped streams that one operator reads: `process` them."""

    def __init__(self, left: GroupedStream, right: GroupedStream) -> None:
        self._left = left
        self._right = right

    def __repr__(self) -> str:
        return f"ConnectedStream(left={self._left!r}, right={self._right!r})"

    def process(
        self,
        operator: Callable[[], CoProcess],
        *,
        id: str | None = None,
        parallelism: int | None = None,
        event_time_order: bool | None = None,
    ) -> Stream:
        """Run an operator with two inputs: one object of a `CoProcess` class per instance.

        Args:
            operator: the class, or a function without arguments that makes an object of it.
            id: a name for the operator; chosen if left out.
            parallelism: number of instances; one per worker if left out.
            event_time_order: merge both streams by event time, left before right where equal; if
                left out, where both have event times.

        Raises:
            TopologyError: what was passed does not fit, and how to mend it.
        """
        registry = self._left._registry
        inputs = (self._left._input(LEFT), self._right._input(RIGHT))
        operator_id = add_process(registry, inputs, operator, id, parallelism, event_time_order)
        return Stream(registry, operator_id)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_connected(name)
            if text:
                raise mistake(self._left.id, text)
            raise AttributeError(misuse.other_name("ConnectedStream", name))


class SinkHandle:
    """The end of a stream; its `id` names the job's result."""

    def __init__(self, registry: Registry, operator_id: str) -> None:
        self._registry = registry
        self._id = operator_id

    @property
    def id(self) -> str:
        """The sink's id, as in `job.results(id)`."""
        return self._id

    def __repr__(self) -> str:
        return f"SinkHandle({self.id!r} of topology {self._registry.name!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_sink(name)
            if text:
                raise mistake(self.id, text)
            raise AttributeError(misuse.other_name("SinkHandle", name))
