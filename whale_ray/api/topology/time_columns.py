"""Where the event times of a stream come from."""

from __future__ import annotations

from ...operators.expressions.expression import Alias, Expression, FunctionCall
from ...operators.joins.asof_join import AsOfJoin
from ...operators.joins.deduplication import Deduplication
from ...operators.joins.join import Join
from ...operators.transforms import MapExpressions
from ...operators.windows.grouping import WINDOW_END, WindowedGrouping
from ...operators.windows.specifications import SessionWindow
from ...plan.logical import MAIN, OperatorKind, OperatorNode, OutputKey
from .registry import Registry

_TYPES_OF_TIMES = ("int", "uint", "timestamp")
"""How the families of types begin in which event times are the same."""
_KEEPING_TIMES = (WindowedGrouping, Join, AsOfJoin, Deduplication)
"""Operators whose results have event times of the rows that they take, or of windows."""


def event_time_columns(registry: Registry, source: OutputKey) -> frozenset[str] | None:
    """Return the columns from which the rows of an output have their event times.

    Those of its sources (of an as-of join: of its left one), whatever has become of the columns;
    `window_end` for results of windows and rows that were joined within windows; None after a
    user's own process, whose rows have the times that it gives them.
    """
    operator_id, output = source
    node = registry.node(operator_id)
    if node.kind is OperatorKind.SOURCE:
        return frozenset() if node.event_time is None else frozenset({node.event_time.column})
    if isinstance(node.payload, WindowedGrouping) and output == MAIN:
        in_time = node.payload.has_window_columns and not node.payload.is_by_clock
        has_end = in_time or node.payload.within_windows
        return frozenset({WINDOW_END}) if has_end else None
    if isinstance(node.payload, Join) and output == MAIN and node.payload.has_window_columns:
        return frozenset({WINDOW_END})
    if node.kind.is_stateful and not isinstance(node.payload, _KEEPING_TIMES):
        return None
    found: set[str] = set()
    timing = node.inputs[:1] if isinstance(node.payload, AsOfJoin) else node.stream_inputs
    for feed in timing:
        columns = event_time_columns(registry, feed.source)
        if columns is None:
            return None
        found |= columns
    return frozenset(found)


def replaced_columns(registry: Registry, source: OutputKey) -> dict[str, str]:
    """Return the columns that an expression has computed since rows have their event times.

    Each with the operator that did. Event times are none of its values, whatever its name: they
    stay as they are.
    """
    operator_id, output = source
    node = registry.node(operator_id)
    if node.kind is OperatorKind.SOURCE or (output == MAIN and _gives_times(node)):
        return {}
    found: dict[str, str] = {}
    for feed in node.stream_inputs:
        found |= replaced_columns(registry, feed.source)
    if isinstance(node.payload, MapExpressions):
        for name, expression in node.payload.expressions.items():
            if not _keeps_times(expression, name):
                found[name] = operator_id
    return found


def _keeps_times(expression: Expression, column: str) -> bool:
    """Return whether an expression is a column, or that in another type of times."""
    while isinstance(expression, Alias):
        expression = expression.expression
    if isinstance(expression, FunctionCall) and expression.kernel == "casts.cast":
        (kind,) = expression.options
        if kind.family.startswith(_TYPES_OF_TIMES):
            (expression,) = expression.arguments
    return expression.plain_column == column


def _gives_times(node: OperatorNode) -> bool:
    """Return whether the rows that an operator makes have event times of their own."""
    if isinstance(node.payload, WindowedGrouping):
        return True
    if isinstance(node.payload, Join):
        return node.payload.has_window_columns
    return node.kind.is_stateful and not isinstance(node.payload, _KEEPING_TIMES)


def are_of_sessions(registry: Registry, source: OutputKey) -> bool:
    """Return whether the rows of an output are results of sessions, or made of such."""
    node = registry.node(source[0])
    if isinstance(node.payload, Join) and node.payload.has_window_columns:
        return isinstance(node.payload.within, SessionWindow)
    if isinstance(node.payload, WindowedGrouping):
        return isinstance(node.payload.window, SessionWindow) or node.payload.of_sessions
    return any(are_of_sessions(registry, feed.source) for feed in node.stream_inputs)


def event_time_zone(registry: Registry, operator_id: str) -> str | None:
    """Return the time zone of the event-time columns, if they all have the same, else None."""
    zones: set[str | None] = set()
    waiting = [operator_id]
    while waiting:
        node = registry.node(waiting.pop())
        waiting += [feed.upstream for feed in node.stream_inputs]
        if node.event_time is not None:
            kind = (registry.columns((node.id, MAIN)) or {}).get(node.event_time.column)
            zones.add(None if kind is None else kind.timezone)
    return zones.pop() if len(zones) == 1 else None
