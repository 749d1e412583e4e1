"""What does not change while a job runs: its operators, stages, edges, rings and hosts, as JSON."""

from __future__ import annotations

import os
from typing import Any

from ..metrics.edge_metrics import edge_metrics
from ..plan.assignment import Assignment, job_is_bounded
from ..plan.logical import OperatorNode
from ..plan.physical import PhysicalPlan
from .folders import identity_of

__all__ = ["FORMAT", "describe_job", "running_operators"]

FORMAT = 2
"""Of all files of a run; the page shows no others."""


def describe_job(
    assignment: Assignment, wall_ns: int, ray_dashboard_url: str, *, detached: bool
) -> dict[str, Any]:
    """Return the description of a job that this process leads, which began at `wall_ns`.

    Of one that is `detached`, no driver tells how it ended; `whale-ray list` does.
    """
    plan = assignment.plan
    return {
        "format": FORMAT,
        "id": assignment.job_id,
        "name": plan.name,
        **identity_of(os.getpid()),
        "began_s": wall_ns / 1e9,
        "bounded": job_is_bounded(assignment),
        "checkpoints": assignment.settings.checkpoints.url,
        "ray_dashboard_url": ray_dashboard_url,
        "detached": detached,
        "operators": [_operator(plan, node) for node in running_operators(plan)],
        "stages": [
            {
                "id": stage.id,
                "operators": list(stage.operators),
                "parallelism": stage.parallelism,
                "instance_worker": list(stage.instance_worker),
            }
            for stage in plan.stages
        ],
        "edges": _edges(plan),
        "hosts": list(plan.hosts.names),
        "worker_host": list(plan.hosts.of_worker),
        "rings": [
            {
                "id": ring.id,
                "edge": ring.edge,
                "producer": ring.producer_worker,
                "consumers": list(ring.consumer_workers),
                "capacity_bytes": ring.capacity_bytes,
                "multicast": plan.is_multicast(ring),
            }
            for ring in plan.rings
        ],
    }


def running_operators(plan: PhysicalPlan) -> list[OperatorNode]:
    """Return the operators that stages run: all but unions, whose streams their readers take."""
    ran = {name for stage in plan.stages for name in stage.operators}
    return [node for node in plan.logical.nodes if node.id in ran]


def _operator(plan: PhysicalPlan, node: OperatorNode) -> dict[str, Any]:
    stage = next(stage for stage in plan.stages if node.id in stage.operators)
    return {
        "id": node.id,
        "kind": str(node.kind),
        "verb": node.verb,
        "stage": stage.id,
        "parallelism": stage.parallelism,
        "location": node.location,
        "state": list(node.declared_state),
    }


def _edges(plan: PhysicalPlan) -> list[dict[str, Any]]:
    """Return what joins the operators, those that are fused included."""
    return [
        {
            "id": found.edge,
            "source": found.source,
            "target": found.target,
            "grouping": "" if found.edge is None else plan.edges[found.edge].grouping.describe(),
            "carried_by": found.inside,
            "reason": "" if found.edge is None else plan.edges[found.edge].reason,
        }
        for found in edge_metrics(plan, {}, ())
    ]
