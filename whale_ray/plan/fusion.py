"""Cut a logical plan into stages: decide how often each operator runs and which run as one.

The rule is one sentence: **an operator joins the stage of the one before it when the user put no
grouping between them and both run equally often**, for then every row stays with its instance. One
operator may be followed by several fused ones (a tree). Everything else is an edge, and says why.

A process always follows a grouping, so it is always the head of its stage; what is fused behind a
per-worker process takes rows of all local instances at once, which only stateless operators and
sinks ever do.

What reads a union reads several streams, over an edge each, so it is the head of its stage, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

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
from .logical import Input, LogicalPlan, OperatorKind, OperatorNode
from .physical import Edge
from .unions import streams_of, united_streams

DEFAULT_SOURCE_PARALLELISM = 1
"""One reader keeps the order of its input; more must be asked for."""

_WHERE_ROWS_GO: Mapping[type[Grouping], str] = {
    Key: "each row goes to the instance of its key",
    All: "every row goes to every instance",
    Shuffle: "rows are spread over all instances",
    LocalOrShuffle: "rows are spread over the instances at hand",
    Global: "all rows go to one instance",
    Direct: "each row names its instance",
    Custom: "a function names each row's instance",
}


@dataclass(frozen=True)
class Fused:
    """Operators that run as one, before they are placed."""

    operators: tuple[str, ...]
    parallelism: int
    per_worker: bool


@dataclass(frozen=True)
class StageGraph:
    """The stages and the edges between them; `Edge.source_stage` counts in `stages`."""

    stages: tuple[Fused, ...]
    edges: tuple[Edge, ...]
    links: tuple[dict[str, tuple[str | int, ...]], ...]
    """For each stage what follows each of its operators, see `Stage.links`."""


def resolve_parallelism(logical: LogicalPlan, workers: int) -> dict[str, int]:
    """Return how often each operator runs, by operator id.

    What the user wrote comes first. Else: a source runs once, whatever follows `global_()` once,
    a process once per worker, a sink and everything ungrouped as often as what feeds it, and a
    stateless operator behind a grouping once per worker. A union counts as often as the most
    parallel of its streams runs.
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
    ungrouped = all(isinstance(grouping, Forward) for grouping in groupings)
    if node.kind is OperatorKind.SINK or (ungrouped and not node.kind.is_stateful):
        return resolved[node.inputs[0].upstream]
    return workers


@dataclass(frozen=True)
class _Feed:
    """A stream that an operator reads, and how its rows get there."""

    stream: Input
    grouping: Grouping
    """The one that rows really take."""
    reason: str
    """Why they cannot stay where they are; empty if they can."""
    first_source: int
    timed: bool
    """Whether the rows have event times there."""


def _feeds(
    logical: LogicalPlan,
    node: OperatorNode,
    parallelism: Mapping[str, int],
    united: Mapping[str, tuple[Input, ...]],
    at_once: Set[str],
) -> tuple[_Feed, ...]:
    """Return what an operator reads, each stream of a union by itself.

    Operators in `at_once` send the rows of all of a worker's instances as one.
    """
    feeds = []
    for feed in node.inputs:
        union = feed.upstream if feed.upstream in united else ""
        timed = logical.node(feed.upstream).has_event_time
        first_source = 0
        for stream in streams_of(feed, united):
            count = parallelism[stream.upstream]
            grouping, reason = _grouping_on_the_way(stream, count, parallelism[node.id])
            if union and isinstance(grouping, Forward) and stream.upstream in at_once:
                grouping = LocalOrShuffle()
            if union:
                reason = reason or "several streams come together"
                reason += f", through union {union!r}"
            feeds.append(_Feed(stream, grouping, reason, first_source, timed))
            first_source += count
    return tuple(feeds)


def _grouping_on_the_way(
    feed: Input, source_parallelism: int, target_parallelism: int
) -> tuple[Grouping, str]:
    """Return the grouping that rows really take, and why they cannot stay where they are.

    The reason is empty if they can.
    """
    if not isinstance(feed.grouping, Forward):
        return feed.grouping, _WHERE_ROWS_GO[type(feed.grouping)]
    if source_parallelism == target_parallelism:
        return feed.grouping, ""
    change = f"parallelism changes from {source_parallelism} to {target_parallelism}"
    return LocalOrShuffle(), change


def operators_that_see_time(logical: LogicalPlan) -> frozenset[str]:
    """Return the operators whose rows need event times: processes, and all that lead to one."""
    seeing: set[str] = set()
    for node in reversed(logical.nodes):
        if node.kind.is_stateful or node.id in seeing:
            seeing.add(node.id)
            seeing.update(feed.upstream for feed in node.inputs)
    return frozenset(seeing)


def fuse(logical: LogicalPlan, parallelism: dict[str, int]) -> StageGraph:
    """Cut a logical plan into stages and edges.

    Args:
        logical: the plan as the user wrote it.
        parallelism: how often each operator runs, by operator id.
    """
    stage_of: dict[str, int] = {}
    members: list[list[str]] = []
    links: list[dict[str, list[str | int]]] = []
    edges: list[Edge] = []
    seeing = operators_that_see_time(logical)
    united = united_streams(logical)
    at_once: set[str] = set()
    for node in logical.nodes:
        if node.id in united:
            continue
        feeds = _feeds(logical, node, parallelism, united, at_once)
        if feeds and not any(feed.reason for feed in feeds):
            stage = stage_of[node.inputs[0].upstream]
            links[stage][node.inputs[0].upstream].append(node.id)
            members[stage].append(node.id)
        else:
            stage = len(members)
            members.append([node.id])
            links.append({})
        stage_of[node.id] = stage
        if logical.node(members[stage][0]).per_worker:
            at_once.add(node.id)
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
                    carries_time=feed.timed and node.id in seeing,
                    ordered=node.event_time_order,
                    on_null_key=feed.stream.on_null_key,
                    reason=feed.reason,
                    transport=feed.stream.transport,
                    first_source=feed.first_source,
                )
            )
    return StageGraph(
        stages=tuple(
            Fused(tuple(ids), parallelism[ids[0]], logical.node(ids[0]).per_worker)
            for ids in members
        ),
        edges=tuple(edges),
        links=tuple({key: tuple(after) for key, after in stage.items()} for stage in links),
    )
