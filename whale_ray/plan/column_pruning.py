"""Column pruning: a source reads only the columns that some operator downstream needs.

The columns that are needed are found from the sinks back to the sources. A sink needs all, and so
does whatever hands rows to code of the user's; expressions, aggregates, keys and joins with a table
say what they need (`columns_needed` of a payload). No result changes by it. (Spark's rule
ColumnPruning, with which it pushes projections down into Parquet.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..operators.groupings import Custom, Direct, Grouping, Key
from ..operators.needed_columns import ALL, Needed, both
from .logical import LogicalPlan, OperatorKind, OperatorNode, OutputKey

if TYPE_CHECKING:
    from ..operators.joins.table_join import TableJoin
    from ..operators.sources.base import Source

__all__ = ["prune_columns"]


def prune_columns(logical: LogicalPlan) -> LogicalPlan:
    """Return the plan with sources that read no column that nobody needs."""
    needed: dict[OutputKey, Needed] = {
        key: frozenset() for node in logical.nodes for key in node.output_keys
    }
    for node in reversed(logical.nodes):
        by_output = {
            name: needed[key] for name, key in zip(node.outputs, node.output_keys, strict=True)
        }
        for feed, columns in zip(node.inputs, _of_inputs(node, by_output), strict=True):
            both_needed = both(columns, _of_grouping(feed.grouping))
            needed[feed.source] = both(needed[feed.source], both_needed)
    return replace(
        logical,
        nodes=tuple(_pruned(node, needed[node.output_keys[0]]) for node in logical.nodes),
    )


def _of_inputs(node: OperatorNode, by_output: Mapping[str, Needed]) -> tuple[Needed, ...]:
    """Return which columns of each input an operator needs for those of its outputs."""
    tell = None if isinstance(node.payload, type) else getattr(node.payload, "columns_needed", None)
    main = by_output[node.outputs[0]]
    match node.kind:
        case OperatorKind.TRANSFORM if tell is not None:
            return (tell(main),)
        case OperatorKind.PROCESS if tell is not None:
            return (tell(by_output),)
        case OperatorKind.TABLE_JOIN if tell is not None:
            stream, table = tell(main)
            return (stream, table, *[ALL] * (len(node.inputs) - 2))
        case _:
            return (ALL,) * len(node.inputs)


def _of_grouping(grouping: Grouping) -> Needed:
    """Return which columns are needed to find the instance of a row."""
    if isinstance(grouping, Key):
        return frozenset(grouping.columns)
    if isinstance(grouping, Direct):
        return frozenset({grouping.column})
    return ALL if isinstance(grouping, Custom) else frozenset()


def _pruned(node: OperatorNode, needed: Needed) -> OperatorNode:
    """Return a source that reads what is needed, or a join that knows what it is of its table."""
    match node.kind:
        case OperatorKind.TABLE_JOIN:
            return replace(node, payload=cast("TableJoin", node.payload).with_result_needed(needed))
        case OperatorKind.SOURCE if needed is not None:
            columns = needed if node.event_time is None else needed | {node.event_time.column}
            return replace(node, payload=cast("Source", node.payload).with_columns_needed(columns))
        case _:
            return node
