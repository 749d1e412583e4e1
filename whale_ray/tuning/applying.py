"""Puts what the optimizer decided into a topology, or one batch size for all streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..operators.groupings import Custom, Direct, Global

if TYPE_CHECKING:
    from ..optimizer.decisions import Choice
    from ..plan.logical import Input, LogicalPlan, OperatorNode
    from ..plan.physical import PhysicalPlan, Stage

__all__ = ["fixed_dop", "in_batches_of", "in_full_slices", "with_choices"]


def in_batches_of(logical: LogicalPlan, rows: int | None) -> LogicalPlan:
    """Return a topology all of whose streams have batches of so many rows at most.

    With 1 it sends single rows; None is the user's own choice.
    """
    if rows is None:
        return logical
    return _with_inputs(logical, lambda _node, feed: replace(feed, batch_rows=rows))


def in_full_slices(logical: LogicalPlan) -> LogicalPlan:
    """Return a topology none of whose streams has batches of its own: slices are cut by bytes."""
    return _with_inputs(logical, lambda _node, feed: replace(feed, batch_rows=None))


def with_choices(
    logical: LogicalPlan, planned: PhysicalPlan, choices: Mapping[str, Choice]
) -> LogicalPlan:
    """Return a topology with the degrees of parallelism and batches that were decided.

    Args:
        logical: the topology.
        planned: its plan, which tells the stages.
        choices: by the first operator of each stage.
    """
    stage_of = {one: stage for stage in planned.stages for one in stage.operators}

    def batch_of(node: OperatorNode, feed: Input) -> Input:
        sender, reader = stage_of.get(feed.upstream), stage_of.get(node.id)
        if sender is None or sender is reader or sender.head not in choices:
            return feed
        return replace(feed, batch_rows=choices[sender.head].batch_rows or feed.batch_rows)

    changed = _with_inputs(logical, batch_of)
    nodes = []
    for node in changed.nodes:
        stage = stage_of.get(node.id)
        choice = None if stage is None else choices.get(stage.head)
        dop = None if choice is None else choice.dop
        nodes.append(replace(node, parallelism=dop or node.parallelism))
    return replace(changed, nodes=tuple(nodes))


def fixed_dop(planned: PhysicalPlan, stage: Stage) -> int | None:
    """Return the degree of parallelism that a stage must have; None if it may be chosen.

    The user has set it, or its rows name their instances. A source's is never chosen.
    """
    head = planned.operator(stage.head)
    names_instances = any(
        isinstance(edge.grouping, Direct | Custom | Global) for edge in planned.in_edges(stage.id)
    )
    set_by_user = any(planned.operator(one).parallelism for one in stage.operators)
    if not head.inputs or names_instances or set_by_user:
        return stage.parallelism
    return None


def _with_inputs(
    logical: LogicalPlan, change: Callable[[OperatorNode, Input], Input]
) -> LogicalPlan:
    nodes = tuple(
        replace(node, inputs=tuple(change(node, feed) for feed in node.inputs))
        for node in logical.nodes
    )
    return replace(logical, nodes=nodes)
