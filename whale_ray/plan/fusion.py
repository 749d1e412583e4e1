"""Operator fusion: cut a logical plan into stages, and resolve the parallelism of each operator.

The rule: **an operator joins the stage of its upstream operator if there is no grouping between
them and both have the same parallelism**, since every row then stays with its instance. Several
operators may be fused after one (a tree). Every other connection is an edge, with its reason.

A process always follows a grouping, so it is always the head of its stage. An operator that is
fused after a per-worker process takes the rows of all local instances at once; only stateless
operators and sinks are ever fused there.

An operator that reads a union reads several streams, over one edge each, so it is the head of its
stage, too. A side input is always an edge, and does not keep its operator from being fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

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
from .lateness import policy_after_idleness
from .logical import Input, LogicalPlan, OperatorKind, OperatorNode
from .physical import Edge
from .unions import streams_of, united_streams

DEFAULT_SOURCE_PARALLELISM = 1
"""One reader keeps the order of its input; the user must ask for more."""

_REASONS: Mapping[type[Grouping], str] = {
    Key: "each row goes to the instance of its key",
    All: "every row goes to every instance",
    Shuffle: "rows are spread over all instances",
    LocalOrShuffle: "rows are spread over the local instances",
    Global: "all rows go to one instance",
    Direct: "a column names each row's instance",
    Custom: "a function chooses each row's instance",
}


@dataclass(frozen=True)
class FusedOperators:
    """The operators of a stage, before its instances are placed."""

    operators: tuple[str, ...]
    parallelism: int
    per_worker: bool


@dataclass(frozen=True)
class StageGraph:
    """The stages and the edges between them; `Edge.source_stage` is an index into `stages`."""

    stages: tuple[FusedOperators, ...]
    edges: tuple[Edge, ...]
    links: tuple[dict[str, tuple[str | int, ...]], ...]
    """For each stage: what follows each of its operators, see `Stage.links`."""


def resolve_parallelism(logical: LogicalPlan, workers: int) -> dict[str, int]:
    """Return the parallelism (number of instances) of each operator, by operator id.

    A parallelism that the user set is kept. The defaults are: 1 for a source and for an operator
    after `global_()`; the number of workers for a process and for a stateless operator after a
    grouping; that of the upstream operator for a sink and for an ungrouped operator; the largest of
    its streams' for a union.
    """
    resolved: dict[str, int] = {}
    for node in logical.nodes:
        resolved[node.id] = node.parallelism or _default_parallelism(node, resolved, workers)
    return resolved


def _default_parallelism(node: OperatorNode, resolved: dict[str, int], workers: int) -> int:
    if node.kind is OperatorKind.SOURCE:
        return DEFAULT_SOURCE_PARALLELISM
    if node.kind is OperatorKind.UNION:
        return max(resolved[feed.upstream] for feed in node.inputs)
    groupings = [feed.grouping for feed in node.inputs]
    if any(isinstance(grouping, Global) for grouping in groupings):
        return 1
    ungrouped = all(isinstance(feed.grouping, Forward) for feed in node.stream_inputs)
    if node.kind is OperatorKind.SINK or (ungrouped and not node.kind.is_stateful):
        return resolved[node.inputs[0].upstream]
    return workers


@dataclass(frozen=True)
class _Feed:
    """A stream that an operator reads, with the grouping that distributes its rows."""

    stream: Input
    grouping: Grouping
    """The effective one, which may differ from the user's."""
    reason: str
    """Why the two operators cannot be fused; empty if they can."""
    first_source: int
    """See `Edge.first_source`."""
    timed: bool
    """Whether the rows have event times."""
    is_side_input: bool
    """Whether it is read beside the operator's stream."""


def _feeds(
    logical: LogicalPlan,
    node: OperatorNode,
    parallelism: Mapping[str, int],
    united: Mapping[str, tuple[Input, ...]],
    per_worker: Set[str],
) -> tuple[_Feed, ...]:
    """Return the streams that an operator reads, each stream of a union separately.

    Args:
        logical: the plan as the user wrote it.
        node: the operator.
        parallelism: the number of instances of each operator, by id.
        united: the streams of each union, by its id.
        per_worker: the operators that send the rows of all of a worker's instances together.
    """
    feeds = []
    for feed in node.inputs:
        union = feed.upstream if feed.upstream in united else ""
        timed = logical.node(feed.upstream).has_event_time
        first_source = 0
        for stream in streams_of(feed, united):
            count = parallelism[stream.upstream]
            grouping, reason = _effective_grouping(stream, count, parallelism[node.id])
            if union and isinstance(grouping, Forward) and stream.upstream in per_worker:
                grouping = LocalOrShuffle()
            if union:
                reason = reason or "several streams come together"
                reason += f", through union {union!r}"
            beside = feed in node.side_inputs
            feeds.append(_Feed(stream, grouping, reason, first_source, timed, beside))
            first_source += count
    return tuple(feeds)


def _effective_grouping(
    feed: Input, source_parallelism: int, target_parallelism: int
) -> tuple[Grouping, str]:
    """Return the effective grouping of an input, and why its operators cannot be fused.

    The reason is empty if they can.
    """
    if not isinstance(feed.grouping, Forward):
        return feed.grouping, _REASONS[type(feed.grouping)]
    if source_parallelism == target_parallelism:
        return feed.grouping, ""
    change = f"parallelism changes from {source_parallelism} to {target_parallelism}"
    return LocalOrShuffle(), change


def operators_needing_time(logical: LogicalPlan) -> frozenset[str]:
    """Return the operators whose rows need event times: processes, and all upstream of one."""
    needing: set[str] = set()
    for node in reversed(logical.nodes):
        if node.kind.is_stateful or node.id in needing:
            needing.add(node.id)
            needing.update(feed.upstream for feed in node.stream_inputs)
    return frozenset(needing)


def fuse(logical: LogicalPlan, parallelism: dict[str, int]) -> StageGraph:
    """Cut a logical plan into stages and edges.

    Args:
        logical: the plan as the user wrote it.
        parallelism: the number of instances of each operator, by operator id.
    """
    stage_of: dict[str, int] = {}
    members: list[list[str]] = []
    links: list[dict[str, list[str | int]]] = []
    edges: list[Edge] = []
    needing_time = operators_needing_time(logical)
    united = united_streams(logical)
    per_worker: set[str] = set()
    for node in logical.nodes:
        if node.id in united:
            continue
        feeds = _feeds(logical, node, parallelism, united, per_worker)
        if feeds and not any(feed.reason for feed in feeds if not feed.is_side_input):
            stage = stage_of[node.inputs[0].upstream]
            links[stage][node.inputs[0].upstream].append(node.id)
            members[stage].append(node.id)
        else:
            stage = len(members)
            members.append([node.id])
            links.append({})
        stage_of[node.id] = stage
        if logical.node(members[stage][0]).per_worker:
            per_worker.add(node.id)
        links[stage][node.id] = []
        for feed in feeds:
            if not feed.reason:
                continue
            source_stage = stage_of[feed.stream.upstream]
            links[source_stage][feed.stream.upstream].append(len(edges))
            edges.append(
                Edge(
                    id=len(edges),
                    source_operator=feed.stream.upstream,
                    target_operator=node.id,
                    source_stage=source_stage,
                    target_stage=stage,
                    port=feed.stream.port,
                    grouping=feed.grouping,
                    carries_time=feed.timed and node.id in needing_time and not feed.is_side_input,
                    ordered=node.event_time_order,
                    on_null_key=feed.stream.on_null_key,
                    reason=feed.reason,
                    transport=feed.stream.transport,
                    first_source=feed.first_source,
                    on_late=policy_after_idleness(logical, feed.stream.source),
                    source_output=feed.stream.output,
                    is_side_input=feed.is_side_input,
                    batch_rows=feed.stream.batch_rows,
                )
            )
    graph = StageGraph(
        stages=tuple(
            FusedOperators(tuple(ids), parallelism[ids[0]], logical.node(ids[0]).per_worker)
            for ids in members
        ),
        edges=tuple(edges),
        links=tuple({key: tuple(after) for key, after in stage.items()} for stage in links),
    )
    return _upstream_first(graph)


def _upstream_first(graph: StageGraph) -> StageGraph:
    """Return the stages in an order in which each comes after all that feed it.

    That is their order already, but where a side input feeds an operator that is fused after the
    head of an earlier stage.
    """
    feeding: dict[int, set[int]] = {number: set() for number in range(len(graph.stages))}
    for edge in graph.edges:
        feeding[edge.target_stage].add(edge.source_stage)
    order: list[int] = []
    while feeding:
        first = next(number for number, others in feeding.items() if not others & feeding.keys())
        order.append(first)
        del feeding[first]
    place = {number: position for position, number in enumerate(order)}
    return StageGraph(
        stages=tuple(graph.stages[number] for number in order),
        edges=tuple(
            replace(
                edge,
                source_stage=place[edge.source_stage],
                target_stage=place[edge.target_stage],
            )
            for edge in graph.edges
        ),
        links=tuple(graph.links[number] for number in order),
    )
