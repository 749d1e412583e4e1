"""Topologies as `tspec` files: what is importable, an expression, or simulated.

A file names operators by import path, with plain arguments, so code that stands nowhere (a lambda,
a class of a notebook, a source over a table in memory) cannot be written. What a file lacks is
refused, with the operator.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NoReturn

from ..configs.errors import UsageError
from ..configs.units import NS_PER_US
from ..operators.event_time import EventTime
from ..operators.groupings import All, Forward, Global, Key, Shuffle
from ..operators.joins.asof_join import AsOfJoin
from ..operators.joins.deduplication import Deduplication
from ..operators.joins.join import Join
from ..operators.joins.table_join import TableJoin
from ..operators.transforms import (
    FilterColumns,
    FilterExpression,
    FilterRows,
    FlatMapBatches,
    FlatMapRows,
    MapBatches,
    MapExpressions,
    MapRows,
)
from ..operators.windows.aggregation import Aggregation
from ..operators.windows.durations import describe_ns
from ..operators.windows.top_n import TopN
from ..plan.logical import CHANGES, MAIN, TABLE, Input, LogicalPlan, OperatorKind, OperatorNode
from .arguments import import_path, is_marked, named_arguments, plain, schema_types
from .credentials import refuse_credentials
from .endpoints import sink_of, source_of
from .expression_texts import aggregates_text, columns_text, condition_text, window_text
from .simulated import SimulatedProcess
from .specification import SIMULATED, InputSpec, OperatorSpec, SpecGrouping, SpecKind, TopologySpec

__all__ = ["spec_of"]

_KEEP_NULLS = (
    *(SpecKind.AGG, SpecKind.TOP_N, SpecKind.JOIN, SpecKind.JOIN_ASOF),
    SpecKind.DROP_DUPLICATES,
)
"""Kinds for which null is a key like any other."""

_Made = tuple[SpecKind, str, dict[str, Any]]
"""What an operator is: its kind, its import path or expressions, its other fields."""


def spec_of(logical: LogicalPlan) -> TopologySpec:
    """Return a topology as a specification, from which `build_topology` makes an equal one.

    Raises:
        UsageError: an operator is of a kind, or made of something, that a file cannot have.
    """
    operators = tuple(
        _operator(logical, node) for node in logical.nodes if node.kind is not OperatorKind.UNION
    )
    return TopologySpec(logical.name, operators)


def _refuse(node: OperatorNode, reason: str) -> NoReturn:
    where = f" ({node.location})" if node.location else ""
    msg = f"operator {node.id!r}{where} cannot be written as a tspec file: {reason}"
    raise UsageError(msg)


def _operator(logical: LogicalPlan, node: OperatorNode) -> OperatorSpec:
    if node.request is not None:
        _refuse(node, "such files have no resources of Ray")
    try:
        kind, what, more = _made_of(node)
    except UsageError as error:
        _refuse(node, str(error))
    return OperatorSpec(
        node.id,
        kind,
        what,
        inputs=tuple(_inputs(logical, node, kind)),
        dop=node.parallelism,
        batch_rows=_batch_rows(logical, node),
        **more,
    )


def _batch_rows(logical: LogicalPlan, node: OperatorNode) -> int | None:
    """Return the batch of all that read an operator, directly or in a union."""
    batches = {feed.batch_rows for _, feed in logical.consumers(node.id)}
    if len(batches) > 1:
        _refuse(node, "its readers have batches of different sizes")
    return next(iter(batches), None)


def _inputs(logical: LogicalPlan, node: OperatorNode, kind: SpecKind) -> Iterable[InputSpec]:
    for place, feed in enumerate(node.inputs):
        grouping, by = _grouping(node, feed, kind)
        on_null = feed.on_null_key if feed.on_null_key == "drop" else "fail"
        side = 0 if kind.inputs_max is None else place
        for stream in _streams(logical, feed):
            if stream.transport is not None:
                _refuse(node, "such files have no transports of users")
            output = logical.node(stream.upstream).outputs[stream.output]
            named = "" if stream.output == MAIN else output
            yield InputSpec(stream.upstream, grouping, by, output=named, on_null=on_null, side=side)


def _streams(logical: LogicalPlan, feed: Input) -> Iterable[Input]:
    """Return what an input reads: one output, or those of a union, and of unions in it."""
    upstream = logical.node(feed.upstream)
    if upstream.kind is not OperatorKind.UNION:
        yield feed
        return
    for one in upstream.inputs:
        yield from _streams(logical, one)


def _grouping(
    node: OperatorNode, feed: Input, kind: SpecKind
) -> tuple[SpecGrouping, tuple[str, ...]]:
    keys: tuple[str, ...] = ()
    if isinstance(node.payload, TableJoin) and feed.port != CHANGES:
        keys = node.payload.right_keys if feed.port == TABLE else node.payload.left_keys
    match feed.grouping:
        case Forward():
            return SpecGrouping.FORWARD, keys
        case Shuffle():
            return SpecGrouping.SHUFFLE, ()
        case All():
            return SpecGrouping.ALL, keys
        case Global():
            return SpecGrouping.GLOBAL, ()
        case Key(columns=columns):
            if feed.on_null_key == "keep" and kind not in _KEEP_NULLS:
                _refuse(node, "in such files rows without a key fail, or are dropped")
            return SpecGrouping.KEY, tuple(columns)
    _refuse(node, f"such files have no grouping {feed.grouping.describe()!r}")


def _made_of(node: OperatorNode) -> _Made:
    payload: Any = node.payload
    match node.kind:
        case OperatorKind.SOURCE:
            what, more = source_of(payload)
            return SpecKind.SOURCE, what, {**more, **_event_time(node)}
        case OperatorKind.SINK:
            return (SpecKind.SINK, *sink_of(payload))
        case OperatorKind.TRANSFORM:
            return _transform(payload)
        case OperatorKind.PROCESS if isinstance(payload, Aggregation):
            return _aggregation(payload)
        case OperatorKind.PROCESS if isinstance(payload, TopN):
            ranked = {"n": payload.n, **({"with_ties": True} if payload.with_ties else {})}
            window = {} if payload.window is None else {"window": window_text(payload.window)}
            return SpecKind.TOP_N, payload.by, {"arguments": {**ranked, **window}}
        case OperatorKind.CO_PROCESS if isinstance(payload, Join):
            given = {"within": window_text(payload.within)}
            if payload.allowed_lateness_ns:
                given["allowed_lateness"] = describe_ns(payload.allowed_lateness_ns)
            return SpecKind.JOIN, payload.how, {"arguments": given}
        case OperatorKind.CO_PROCESS if isinstance(payload, AsOfJoin):
            return SpecKind.JOIN_ASOF, payload.how, {"arguments": _next_to(payload)}
        case OperatorKind.TABLE_JOIN:
            deletes = payload.delete_when
            given = {} if deletes is None else {"delete_when": condition_text(deletes)}
            return SpecKind.JOIN_TABLE, payload.how, {"arguments": given}
        case OperatorKind.PROCESS if isinstance(payload, Deduplication):
            return SpecKind.DROP_DUPLICATES, describe_ns(payload.within_ns), {}
        case OperatorKind.PROCESS | OperatorKind.CO_PROCESS if node.verb == "process":
            return _process(node)
    msg = f"such files have no {node.verb.replace('_', ' ')}"
    raise UsageError(msg)


def _next_to(join: AsOfJoin) -> dict[str, Any]:
    """Return the arguments of an as-of join, without what goes without saying."""
    given: dict[str, Any] = {} if join.strategy == "backward" else {"strategy": join.strategy}
    if join.tolerance_ns is not None:
        given["tolerance"] = describe_ns(join.tolerance_ns)
    return given if join.exact_matches else {**given, "allow_exact_matches": False}


def _process(node: OperatorNode) -> _Made:
    payload: Any = node.payload
    kind = SpecKind.PROCESS if node.kind is OperatorKind.PROCESS else SpecKind.CO_PROCESS
    more: dict[str, Any] = {}
    if node.order_reason.startswith("event_time_order="):  # as the user said
        more["event_time_order"] = node.event_time_order
    match payload:
        case functools.partial(func=func) if func is SimulatedProcess:
            ppt_ns, each_ns, fan_out, row_bytes = payload.args
            costs = {"ppt_us": ppt_ns / NS_PER_US, "ppt_each_us": each_ns / NS_PER_US}
            more |= {**costs, "fan_out": fan_out, "row_bytes": row_bytes}
            return kind, SIMULATED, more
        case functools.partial():
            more["arguments"] = plain(named_arguments(payload))
            refuse_credentials(more["arguments"])
            return kind, import_path(payload.func), more
    return kind, import_path(payload), more


def _event_time(node: OperatorNode) -> dict[str, Any]:
    """Return how a source assigns event times, without what goes without saying."""
    found: dict[str, Any] = {}
    assigned = node.event_time
    on_bad_rows = getattr(node.payload, "on_bad_rows", None)
    if assigned is not None:
        on_bad_rows = assigned.on_null
        found["event_time"] = {
            one.name: getattr(assigned, one.name)
            for one in fields(EventTime)
            if one.name not in ("on_null",) and getattr(assigned, one.name) != one.default
        }
    if on_bad_rows == "drop":
        found["on_bad_rows"] = on_bad_rows
    return found


def _aggregation(asked: Aggregation) -> _Made:
    given: dict[str, Any] = {}
    if asked.window is not None:
        given["window"] = window_text(asked.window)
    windowed = asked.window is not None or asked.within_windows
    if asked.output_mode != ("append" if windowed else "update"):
        given["output_mode"] = asked.output_mode
    if asked.trigger_ns is not None:
        given["trigger"] = describe_ns(asked.trigger_ns)
    if asked.allowed_lateness_ns:
        given["allowed_lateness"] = describe_ns(asked.allowed_lateness_ns)
    if asked.way is not None:
        given["aggregation"] = asked.way
    return SpecKind.AGG, aggregates_text(asked.aggregates), {"arguments": given}


def _transform(payload: Any) -> _Made:
    match payload:
        case FilterExpression():
            return SpecKind.FILTER, condition_text(payload.condition), {}
        case MapExpressions(keeps=False):
            return SpecKind.SELECT, columns_text(payload.expressions.items()), {}
        case MapExpressions() if len(payload.expressions) == 1:
            return SpecKind.WITH_COLUMN, columns_text(payload.expressions.items()), {}
        case FilterRows() | FilterColumns():
            return _of_function(SpecKind.FILTER, payload)
        case MapRows() | MapBatches():
            return _of_function(SpecKind.MAP, payload)
        case FlatMapRows() | FlatMapBatches():
            return _of_function(SpecKind.FLAT_MAP, payload)
    msg = f"such files have no {payload.describe():.60}"
    raise UsageError(msg)


def _of_function(kind: SpecKind, payload: Any) -> _Made:
    given: dict[str, Any] = {}
    if payload.declared is not None:
        given["schema"] = schema_types(payload.declared)
    on_columns = isinstance(payload, FilterColumns | MapBatches | FlatMapBatches)
    if on_columns and not is_marked(payload.function):
        given["columns"] = True
    what = import_path(payload.function)
    return kind, what, {"arguments": given} if given else {}
