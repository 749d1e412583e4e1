"""Topologies as `tspec` files: what is importable, an expression, or simulated.

A file names operators by import path, with plain arguments, so code that stands nowhere (a lambda,
a class of a notebook, a source over a table in memory) cannot be written. It has no event times,
and the transforms of its language are filters. What it lacks is refused, with the operator.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ..api.topology.functions import ColumnFunction
from ..configs.errors import UsageError
from ..operators.expressions.expression import ColumnReference, FunctionCall, Literal
from ..operators.groupings import All, Forward, Global, Key, Shuffle
from ..operators.sinks.collect import CollectSink
from ..operators.sinks.each import EachBatch
from ..operators.sinks.files import FileSink
from ..operators.sinks.formats import ParquetFormat
from ..operators.sources.parquet_files import ParquetSource
from ..operators.sources.poisson_rate import PoissonSource
from ..operators.transforms import FilterExpression
from ..plan.logical import MAIN, Input, LogicalPlan, OperatorKind, OperatorNode
from .simulated import BusyBatches, SimulatedProcess, SimulatedRows
from .specification import SIMULATED, InputSpec, OperatorSpec, SpecGrouping, SpecKind, TopologySpec

if TYPE_CHECKING:
    from ..operators.expressions.expression import Expression

__all__ = ["condition_text", "spec_of"]

_NS_PER_US = 1_000.0
_KINDS = {
    OperatorKind.SOURCE: SpecKind.SOURCE,
    OperatorKind.PROCESS: SpecKind.PROCESS,
    OperatorKind.TRANSFORM: SpecKind.FILTER,
    OperatorKind.SINK: SpecKind.SINK,
}
_BINARY = {
    "arithmetic.add": "+",
    "arithmetic.subtract": "-",
    "arithmetic.multiply": "*",
    "arithmetic.divide": "/",
    "arithmetic.remainder": "%",
    "comparisons.equal": "==",
    "comparisons.not_equal": "!=",
    "comparisons.less": "<",
    "comparisons.less_equal": "<=",
    "comparisons.greater": ">",
    "comparisons.greater_equal": ">=",
    "comparisons.logical_and": "and",
    "comparisons.logical_or": "or",
}
_UNARY = {"arithmetic.negative": "-", "comparisons.logical_not": "not "}


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
    kind = _KINDS.get(node.kind)
    if kind is None:
        _refuse(node, f"it has sources, processes, filters and sinks, and no {node.kind}")
    if node.event_time is not None:
        _refuse(node, "it has no event times")
    if len(node.outputs) > 1:
        _refuse(node, "its operators have one output")
    what, more = _made_of(node)
    dop = node.parallelism
    if kind is SpecKind.FILTER:
        if dop not in (None, logical.node(node.inputs[0].upstream).parallelism):
            _refuse(node, "a filter has the parallelism of what it reads")
        dop = None
    return OperatorSpec(
        node.id,
        kind,
        what,
        inputs=tuple(_inputs(logical, node)),
        dop=dop or (1 if kind is SpecKind.SOURCE else None),
        batch_rows=_batch_rows(logical, node),
        **more,
    )


def _batch_rows(logical: LogicalPlan, node: OperatorNode) -> int | None:
    """Return the batch of all that read an operator."""
    batches = {feed.batch_rows for _, feed in logical.consumers(node.id)}
    if len(batches) > 1:
        _refuse(node, "its readers have batches of different sizes")
    return next(iter(batches), None)


def _inputs(logical: LogicalPlan, node: OperatorNode) -> Iterable[InputSpec]:
    for feed in node.inputs:
        upstream = logical.node(feed.upstream)
        if feed.transport is not None:
            _refuse(node, "it has no transports of users")
        if feed.output != MAIN:
            _refuse(node, "it reads an output beside the main one")
        grouping, by = _grouping(node, feed)
        if upstream.kind is not OperatorKind.UNION:
            yield InputSpec(feed.upstream, grouping, by)
            continue
        if node.kind is not OperatorKind.PROCESS:
            _refuse(node, "only a process reads several streams")
        for stream in upstream.inputs:
            yield InputSpec(stream.upstream, grouping, by)


def _grouping(node: OperatorNode, feed: Input) -> tuple[SpecGrouping, tuple[str, ...]]:
    match feed.grouping:
        case Forward():
            return SpecGrouping.FORWARD, ()
        case Shuffle():
            return SpecGrouping.SHUFFLE, ()
        case All():
            return SpecGrouping.ALL, ()
        case Global():
            return SpecGrouping.GLOBAL, ()
        case Key(columns=columns):
            if feed.on_null_key != "fail":
                _refuse(node, f"rows without a key fail there, and do not {feed.on_null_key}")
            return SpecGrouping.KEY, tuple(columns)
    _refuse(node, f"it has no grouping {feed.grouping.describe()!r}")


def _made_of(node: OperatorNode) -> tuple[str, dict[str, Any]]:
    """Return the import path or expression of an operator, and its other fields."""
    payload: Any = node.payload
    match payload:
        case FilterExpression():
            try:
                return condition_text(payload.condition), {}
            except UsageError as error:
                _refuse(node, str(error))
        case PoissonSource(columns=SimulatedRows() as rows):
            costs = {"ppt_us": rows.ppt_ns / _NS_PER_US, "row_bytes": rows.row_bytes}
            return SIMULATED, {**costs, "rate_per_s": payload.rate_per_s, "rows": payload.limit}
        case functools.partial(func=func) if func is SimulatedProcess:
            ppt_ns, each_ns, fan_out, row_bytes = payload.args
            return SIMULATED, {
                "ppt_us": ppt_ns / _NS_PER_US,
                "ppt_each_us": each_ns / _NS_PER_US,
                "fan_out": fan_out,
                "row_bytes": row_bytes,
            }
        case EachBatch(function=ColumnFunction(function=BusyBatches(ppt_ns=ppt_ns))):
            return SIMULATED, {"ppt_us": ppt_ns / _NS_PER_US}
        case functools.partial() if not payload.args:
            return _path_of(node, payload.func), {"arguments": _plain(node, payload.keywords)}
    if node.kind is OperatorKind.PROCESS:
        return _path_of(node, payload), {}
    if node.kind is OperatorKind.TRANSFORM:
        _refuse(node, f"of transforms it has filters by expressions, and no {node.verb}")
    return _source_or_sink(node, payload)


def _source_or_sink(node: OperatorNode, payload: Any) -> tuple[str, dict[str, Any]]:
    match payload:
        case ParquetSource():
            columns = None if payload.columns is None else list(payload.columns)
            given: dict[str, Any] = {"path": list(payload.paths.absolute), "columns": columns}
            return "whale_ray.sources:parquet", {"arguments": given}
        case FileSink(format=ParquetFormat(compression=compression), folder=folder):
            given = {
                "path": folder.path,
                "overwrite": folder.overwrite,
                "compression": compression,
            }
            return "whale_ray.sinks:parquet", {"arguments": given}
        case CollectSink(max_bytes=max_bytes):
            return "whale_ray.sinks:collect", {"arguments": {"max_bytes": max_bytes}}
    if type(payload).__module__.startswith("whale_ray.") or not is_dataclass(payload):
        _refuse(node, "it has Parquet files, collected rows, and dataclasses of your own modules")
    given = {one.name: getattr(payload, one.name) for one in fields(payload) if one.init}
    return _path_of(node, type(payload)), {"arguments": _plain(node, given)}


def _path_of(node: OperatorNode, made: Any) -> str:
    """Return the import path of a class or function, having imported it."""
    module, name = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        found = None
    if found is not made or module.startswith("__"):
        _refuse(node, f"{name or made!r} cannot be imported; put it into a module of your own")
    return f"{module}:{name}"


def _plain(node: OperatorNode, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as YAML has them."""
    for name, value in given.items():
        if not _is_plain(value):
            _refuse(node, f"its argument {name} is {value!r:.60}, and no plain value")
    return {name: _unfrozen(value) for name, value in given.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _unfrozen(value: Any) -> Any:
    return [_unfrozen(one) for one in value] if isinstance(value, list | tuple) else value


def condition_text(expression: Expression) -> str:
    """Return a condition as `parse_condition` takes it.

    Raises:
        UsageError: it uses more than columns, constants, comparisons, arithmetic, and, or, not.
    """
    match expression:
        case ColumnReference(name=name) if name.isidentifier():
            return name
        case Literal(constant=bool() | int() | float() | str() as constant):
            return repr(constant)
        case FunctionCall(kernel=kernel, arguments=(one,)) if kernel in _UNARY:
            return f"({_UNARY[kernel]}{condition_text(one)})"
        case FunctionCall(kernel=kernel, arguments=(left, right)) if kernel in _BINARY:
            return f"({condition_text(left)} {_BINARY[kernel]} {condition_text(right)})"
    msg = f"{expression} is more than columns, constants, comparisons, arithmetic, and, or, not"
    raise UsageError(msg)
