"""What can be done with the output of an operator, grouped or not: transform it, or end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from ...operators.groupings import Grouping
from ...plan.logical import LEFT, Input, OnBadRows, OperatorKind, OperatorNode
from . import misuse
from .checks import mistake
from .endpoints import check_sink, check_transport
from .functions import ColumnFunction
from .known import KnownColumns
from .locations import caller_location
from .registry import Registry
from .sink_handle import SinkHandle
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

    from ...operators.expressions.expression import Expression
    from ...operators.rows import Row
    from ...operators.sinks.base import Sink
    from ...operators.transforms import Transform
    from ...transport.custom.operators import Transport
    from ...transport.wire.batch import Batch
    from .known import SchemaLike
    from .streams import Stream

    Columns = Batch | Mapping[str, Any]
    Made = Columns | tuple[Columns, npt.ArrayLike] | None


class Readable:
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

    if not TYPE_CHECKING:  # a type checker knows that a stream is no container

        def __getitem__(self, key: object) -> Any:
            raise mistake(self.id, misuse.subscript(key))

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
        return self._output_of(operator_id)

    def _output_of(self, operator_id: str) -> Stream:
        from .streams import Stream  # a stream is readable, and what is read makes a stream

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
