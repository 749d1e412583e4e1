"""Gives stages of a planned topology another parallelism, before it is planned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..configs.errors import UsageError
from ..operators.arguments import check_type
from ..optimizer.decisions import Decides, OptimizerDecision
from .logical import LogicalPlan
from .physical import PhysicalPlan

__all__ = ["rescale_decisions", "rescaled"]


def rescaled(planned: PhysicalPlan, parallelism: Mapping[str, int]) -> LogicalPlan:
    """Return the topology of a plan with another parallelism of some stages.

    Args:
        planned: the plan, whose other operators keep what the user has set, or the defaults.
        parallelism: instances by the id of an operator. The operators that are fused with it get
            the same, so that they stay fused.

    Raises:
        UsageError: it is no mapping, no operator has that id, a number is none of instances, or
            two operators of one stage are to have different ones.
    """
    wanted_type = "a mapping of the ids of operators to numbers, such as {'totals': 4}"
    check_type("resume", "parallelism", parallelism, Mapping, wanted_type)
    stage_of = {one: stage for stage in planned.stages for one in stage.operators}
    wanted: dict[str, int] = {}
    for name, count in parallelism.items():
        if name not in stage_of:
            msg = f"no operator {name!r} whose parallelism can change; there are " + ", ".join(
                map(repr, stage_of)
            )
            raise UsageError(msg)
        if type(count) is not int or count < 1:
            msg = f"the parallelism of {name!r} is {count!r}: it is a whole number, 1 or more"
            raise UsageError(msg)
        for fused in stage_of[name].operators:
            if wanted.setdefault(fused, count) != count:
                msg = (
                    f"{name!r} is fused with operators that are to have {wanted[fused]} instances,"
                    f" and cannot have {count}: give them the same parallelism"
                )
                raise UsageError(msg)
    nodes = tuple(
        replace(node, parallelism=wanted.get(node.id, node.parallelism))
        for node in planned.logical.nodes
    )
    return replace(planned.logical, nodes=nodes)


def rescale_decisions(
    before: PhysicalPlan, now: PhysicalPlan, job_id: str, epoch: int
) -> tuple[OptimizerDecision, ...]:
    """Return what changed between two plans of a topology, for the log of the job that goes on.

    Args:
        before: as the job ran that was stopped.
        now: as it goes on.
        job_id: of the job that was stopped.
        epoch: of the checkpoint from which it goes on.
    """
    had = {stage.head: stage.parallelism for stage in before.stages}
    return tuple(
        OptimizerDecision(
            stage.head,
            Decides.DOP,
            stage.parallelism,
            "dop",
            {"dop_before": had[stage.head], "epoch": epoch},
            f"rescaled from {had[stage.head]}: {job_id} was stopped, this job goes on",
        )
        for stage in now.stages
        if had.get(stage.head, stage.parallelism) != stage.parallelism
    )
