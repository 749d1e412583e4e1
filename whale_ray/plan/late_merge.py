"""Late merge: which aggregates are computed before their rows are sent by key, and that rewrite.

::

    partitioned:   filter ──(key)──► aggregate
    late merge:    filter → partial aggregate ──(key)──► aggregate, which merges

The partial aggregate is fused into the upstream stage, and the ordinary edge carries its deltas
(`operators/windows/partial_windows`). That pays where many rows of a producer fall into the same
groups: fewer rows are divided by key, sent, and looked up; and a key that has most of the rows
burdens no single instance. (Slash, sections 3.3.2.2 and 4.4; LightSaber and Grizzly do likewise.)

Likewise rows that cannot be among the first of their window are left out in front of `top_n`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..configs.units import format_bytes
from ..operators.groupings import Forward
from ..operators.windows.aggregation import Aggregation, AggregationWay
from ..operators.windows.grouping import WINDOW_END, WINDOW_START
from ..operators.windows.partial_aggregation import TABLE_BYTES_MAX, PartialAggregation
from ..operators.windows.specifications import CountWindow, SessionWindow, TimeWindow
from ..operators.windows.top_filter import ROWS_MAX, TopFilter
from ..operators.windows.top_n import TopN
from .columns import columns_if_known
from .fusion import resolve_parallelism
from .lateness import policy_after_idleness, sender_of_late_rows
from .logical import LEFT, MAIN, Input, LogicalPlan, OperatorKind, OperatorNode

if TYPE_CHECKING:
    from ..configs.settings import Settings
    from ..transport.wire.types import Schema

__all__ = ["AggregationChoice", "choose_aggregations", "with_partial_aggregates"]

_SHARE_OF_STATE = 2
"""Partial aggregates may take half of a worker's memory for state."""

_ORDER_DEPENDENT = ("first", "last", "collect_list")
_WITH_ROWS: Mapping[str, str] = {
    "join": "rows of both sides must meet",
    "join_asof": "rows of both sides must meet",
    "top_n": "it keeps whole rows",
    "drop_duplicates": "the first row to come counts",
}
"""Why operators that are no aggregates are partitioned, by their verbs."""


@dataclass(frozen=True)
class AggregationChoice:
    """How an operator is computed whose rows belong together by key.

    Attributes:
        operator: its id.
        asked: what the user or the setting asked for; "" for an operator that is no aggregate.
        chosen: how it runs.
        reason: why, as `explain` shows it.
    """

    operator: str
    asked: AggregationWay | Literal[""]
    chosen: Literal["partitioned", "late_merge"]
    reason: str


def choose_aggregations(
    logical: LogicalPlan, settings: Settings, workers: int
) -> tuple[AggregationChoice, ...]:
    """Return how each aggregate is computed, and each join and the like, which keep rows.

    Args:
        logical: the topology.
        settings: `runtime.aggregation`, and the memory for state.
        workers: how many workers there are.
    """
    parallelism = resolve_parallelism(logical, workers)
    columns = functools.cache(lambda: columns_if_known(logical))  # of files: if need be
    left_bytes = settings.runtime.state_bytes // _SHARE_OF_STATE
    found = []
    for node in logical.nodes:
        if isinstance(node.payload, TopN) and _may_filter(logical, node, node.payload, settings):
            found.append(AggregationChoice(node.id, "", "late_merge", _WHY_FILTERED))
            continue
        if not isinstance(node.payload, Aggregation):
            if node.verb in _WITH_ROWS and node.kind.is_stateful:
                why = _WITH_ROWS[node.verb]
                found.append(AggregationChoice(node.id, "", "partitioned", why))
            continue
        asked = node.payload.way or settings.runtime.aggregation
        reason = _why_partitioned(logical, node, node.payload, asked)
        if not reason and asked == "auto":
            reason = _why_not_unasked(node.payload, columns()[node.inputs[0].source])
        if not reason:
            upstream = node.inputs[0].upstream
            needed = -(-parallelism[upstream] // workers) * TABLE_BYTES_MAX
            if needed > left_bytes:
                reason = _why_memory(needed, left_bytes, settings)
            else:
                left_bytes -= needed
        if reason:
            found.append(AggregationChoice(node.id, asked, "partitioned", reason))
        else:
            found.append(AggregationChoice(node.id, asked, "late_merge", _WHY_MERGED[asked]))
    return tuple(found)


def with_partial_aggregates(
    logical: LogicalPlan, choices: tuple[AggregationChoice, ...]
) -> LogicalPlan:
    """Return the plan with a partial aggregate in front of each that is merged late."""
    merged = {one.operator: one for one in choices if one.chosen == "late_merge"}
    nodes: list[OperatorNode] = []
    for node in logical.nodes:
        choice = merged.get(node.id)
        if choice is None:
            nodes.append(node)
            continue
        partial = _partial(logical, node, measures=choice.asked == "auto")
        feed = replace(node.inputs[0], upstream=partial.id, output=MAIN)
        nodes += [partial, replace(node, inputs=(feed,))]
    return replace(logical, nodes=tuple(nodes))


def _partial(logical: LogicalPlan, node: OperatorNode, *, measures: bool) -> OperatorNode:
    kind: OperatorKind
    payload: PartialAggregation | TopFilter
    if isinstance(node.payload, TopN):
        kind, payload = OperatorKind.TRANSFORM, TopFilter(node.payload)
    else:
        assert isinstance(node.payload, Aggregation)
        keeps_open = policy_after_idleness(logical, node.inputs[0].source) is None
        payload = PartialAggregation(node.payload, measures, node.id, keeps_open)
        kind = OperatorKind.PARTIAL
    feed = node.inputs[0]
    taken = {one.id for one in logical.nodes}
    name = f"{node.id}.partial"
    while name in taken:
        name += "-2"
    return OperatorNode(
        id=name,
        kind=kind,
        payload=payload,
        inputs=(Input(feed.upstream, LEFT, Forward(), output=feed.output),),
        verb=node.verb,
        has_event_time=logical.node(feed.upstream).has_event_time,
        location=node.location,
    )


_WHY_FILTERED = "rows that cannot be among the first are left out before they are sent"
_WHY_MERGED: Mapping[str, str] = {
    "auto": "steps aside where a delta stands for less than 2 rows",
    "late_merge": "as asked for",
}


def _why_partitioned(
    logical: LogicalPlan, node: OperatorNode, asked: Aggregation, way: AggregationWay
) -> str:
    """Return why an aggregate cannot be merged late, or should not; "" if it can."""
    if way == "partitioned":
        return "as asked for"
    window, feed = asked.window, node.inputs[0]
    if isinstance(window, CountWindow):
        return "a count window takes the rows of a key in the order in which they come"
    if isinstance(window, SessionWindow):
        return "where a session ends depends on single rows"
    if asked.is_by_clock:
        return "rows count when they come"
    ordered = next((one for one in asked.aggregates if one.function in _ORDER_DEPENDENT), None)
    if ordered is not None:
        return f"{ordered.function} depends on the order of rows"
    upstream = logical.node(feed.upstream)
    if upstream.kind is OperatorKind.UNION:
        return "it reads a union"
    if upstream.kind is OperatorKind.PARTIAL:
        return "it is merged late already"
    policy = policy_after_idleness(logical, feed.source)
    if policy is not None and (policy != "fail" or not isinstance(window, TimeWindow)):
        return "which rows come too late after their source was idle is told row by row"
    if way == "auto" and asked.output_mode == "update" and asked.trigger_ns is None:
        return "changed rows are emitted after each batch; a trigger allows late merge"
    return ""


def _why_not_unasked(asked: Aggregation, schema: Schema | None) -> str:
    """Return why late merge is not chosen where it need not be; "" if it gives the same bits.

    What has no fixed width leaves with each delta, so that a few deltas may be more bytes than all
    of their rows.
    """
    if schema is None:
        return "its columns are known when rows come"
    for aggregate, accumulator in zip(asked.aggregates, asked.accumulators(schema), strict=True):
        if not accumulator.has_fixed_width:
            return f"{aggregate} keeps values of any size"
        if not accumulator.merges_exactly:
            return f"the last digits of {aggregate} would depend on when deltas leave"
    return ""


def _may_filter(logical: LogicalPlan, node: OperatorNode, asked: TopN, settings: Settings) -> bool:
    """Whether rows that cannot be among the first of their window may be left out before an edge.

    None of them may come too late, since those are a second output. So they must be a source's, and
    not behind its watermark; or the results of windows, of which each comes once, as its window
    ends.
    """
    feed = node.inputs[0]
    if settings.runtime.aggregation == "partitioned" or asked.n > ROWS_MAX:
        return False
    if isinstance(logical.node(feed.upstream).payload, TopFilter):
        return False  # a plan that is planned again has one
    if asked.within_windows:
        if not _are_results_of_windows(logical, feed, asked):
            return False
    elif not _are_of_source(logical, feed, asked):
        return False
    late = sender_of_late_rows(logical, feed.source), policy_after_idleness(logical, feed.source)
    return late == (None, None)


def _are_of_source(logical: LogicalPlan, feed: Input, asked: TopN) -> bool:
    """Whether rows come from a source, and are only told apart by windows of event time."""
    if asked.keys or not isinstance(asked.window, TimeWindow) or asked.window.by_clock:
        return False
    upstream = logical.node(feed.upstream)
    while upstream.kind in (OperatorKind.TRANSFORM, OperatorKind.TABLE_JOIN):
        upstream = logical.node(upstream.inputs[0].upstream)
    return upstream.kind is OperatorKind.SOURCE


def _are_results_of_windows(logical: LogicalPlan, feed: Input, asked: TopN) -> bool:
    """Whether rows are those of an aggregate in windows, and are only told apart by these."""
    made_by = logical.node(feed.upstream).payload
    return (
        isinstance(made_by, Aggregation)
        and isinstance(made_by.window, TimeWindow)
        and not made_by.emits_changes
        and feed.output == MAIN
        and {*asked.keys} <= {WINDOW_START, WINDOW_END}
    )


def _why_memory(needed: int, left: int, settings: Settings) -> str:
    return (
        f"its partial aggregates need {format_bytes(needed)} in each worker, and half of"
        f" runtime.state_bytes ({format_bytes(settings.runtime.state_bytes)}) has"
        f" {format_bytes(left)} left"
    )
