"""The methods that streams with and without a grouping share: stateless ones, `sink` and `via`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from ...operators.groupings import Grouping
from ...plan.logical import (
    LEFT,
    Input,
    OnBadRows,
    OperatorKind,
    OperatorNode,
    OutputKey,
)
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
    from ...operators.sources.text_source import SchemaLike
    from ...operators.transforms import Transform
    from ...transport.custom.operators import Transport
    from ...transport.wire.batch import Batch
    from .streams import Stream

    Columns = Batch | Mapping[str, Any]
    Made = Columns | tuple[Columns, npt.ArrayLike] | None


class ReadableStream(ABC):
    """The output of an operator, with the grouping that distributes its rows."""

    def __init__(
        self,
        registry: Registry,
        upstream: OutputKey,
        grouping: Grouping,
        on_null_key: OnBadRows = "fail",
        transport: Transport | None = None,
    ) -> None:
        self._registry = registry
        self._source = upstream
        self._upstream, self._output = upstream
        self._grouping = grouping
        self._on_null_key = on_null_key
        self._transport = transport or registry.transport
        self._batch_rows: int | None = None

    @property
    def id(self) -> str:
        """The id of the operator whose output this is."""
        return self._upstream

    def via(self, transport: Transport) -> Self:
        """Return this stream with a transport of your own for rows between processes.

        Args:
            transport: a `whale.transports.Transport`. It is used only by operators that read the
                returned stream.

        Raises:
            TopologyError: `transport` is not a transport. If no operator reads the returned stream,
                the error is raised when the topology is planned.
        """
        check_transport(f"operator {self.id!r}: via", transport)
        self._registry.note_transport(self.id, transport, caller_location())
        stream = object.__new__(type(self))
        vars(stream).update(vars(self), _transport=transport)
        return stream

    def in_batches_of(self, rows: int) -> Self:
        """Return this stream with batches of at most so many rows, instead of slices by bytes.

        A batch is sent as soon as it has that many rows, or its first has waited for
        `transport.wtl_ms`. Without this call, `transport.mms_bytes` decides how much is sent
        together, which suits most streams. `whale-ray optimize` computes the smallest batches with
        which an operator keeps up (Aeolus, equation 4).

        Args:
            rows: at least 1. It counts for operators that read the returned stream.

        Raises:
            TopologyError: `rows` is not a whole number of at least 1.
        """
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise mistake(self.id, f"in_batches_of({rows!r}): a batch has a whole number of rows")
        stream = object.__new__(type(self))
        vars(stream).update(vars(self), _batch_rows=rows)
        return stream

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
            function: row → mapping of column name → value; or a function marked with
                `whale.columns`: batch → `Batch` or mapping of column name → array, with as many
                rows.
            id: the id of the operator; by default "map-1" and so on.
            schema: the columns of the output, as whale's or Arrow's schema, or name → type; by
                default inferred from its first rows.
            parallelism: the number of instances; by default as many as upstream, and one per
                worker after a grouping.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
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
        """Keep the rows for which a condition holds.

        Args:
            condition: an expression, `whale.col("lat_e5") > 0`, for which null counts as false; or
                row → bool, and nothing else: None fails the job; or a function marked with
                `whale.columns`: batch → booleans, shape (num_rows,).
            id: the id of the operator; by default "filter-1" and so on.
            parallelism: the number of instances; by default as many as upstream, and one per
                worker after a grouping.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
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
        """Turn every row into any number of rows, each with the event time of its input row.

        Args:
            function: row → iterable of mappings, such as a generator, or None; or a function marked
                with `whale.columns`: batch → `Batch`, mapping of column name → array, a pair of
                either and the index of each output row's input row (integers, shape (output
                rows,)), or None.
            id: the id of the operator; by default "flat-map-1" and so on.
            schema: the columns of the output, as whale's or Arrow's schema, or name → type; by
                default inferred from its first rows.
            parallelism: the number of instances; by default as many as upstream, and one per
                worker after a grouping.

        Raises:
            TopologyError: an argument is not valid; the message says how to correct it.
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
        """Write the stream to a sink: `sink(whale.sinks.parquet("out/"), id="out")`.

        `job.results(id)` returns what the sink has published.

        Args:
            sink: one of `whale.sinks`.
            id: the id of the operator; by default "sink-1" and so on.
            parallelism: the number of instances; by default as many as upstream.

        Raises:
            TopologyError: `sink` is not a sink, or another sink writes to the same folder.
        """
        operator_id = self._registry.choose_id("sink", id)
        check_sink(operator_id, sink, self._registry.nodes)
        self._add(operator_id, "sink", OperatorKind.SINK, sink, parallelism, None)
        return SinkHandle(self._registry, operator_id)

    if not TYPE_CHECKING:  # hidden from type checkers, which then report a wrong subscript

        def __getitem__(self, key: object) -> Any:
            raise mistake(self.id, misuse.subscript(key))

    def _columns(self) -> KnownColumns | None:
        return self._registry.columns(self._source)

    def _input(self, port: int = LEFT) -> Input:
        return Input(
            self._upstream,
            port,
            self._grouping,
            self._on_null_key,
            self._transport,
            self._output,
            self._batch_rows,
        )

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

    @abstractmethod
    def _output_of(self, operator_id: str) -> Stream:
        """Return the main output of an operator of the same topology."""

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
