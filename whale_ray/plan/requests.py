"""What the instances of an operator ask Ray for, and what that comes to for the workers.

Instances share worker actors, so an actor reserves the sum of what its instances ask for. Ray gives
out such things as whole GPUs only beyond one, so sums of those are rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .physical import PhysicalPlan

CPU = "CPU"
GPU = "GPU"

_WHOLE_BEYOND_ONE = frozenset({GPU, "TPU", "NPU", "HPU", "neuron_cores"})
_DIGITS = 4
"""Ray counts in steps of a ten-thousandth."""


@dataclass(frozen=True)
class Request:
    """What one instance asks for, by Ray's names: "CPU", "GPU", custom ones."""

    amounts: tuple[tuple[str, float], ...]

    def describe(self) -> str:
        """Return it as text: "2 CPU, 1 GPU"."""
        return describe_amounts(dict(self.amounts))


@dataclass(frozen=True)
class ClusterNode:
    """A node of the Ray cluster that can run workers, or a host's part of one.

    Attributes:
        id: Ray's.
        cpus: its processors; of a host's part of a node, those that are the host's.
        resources: all that the node has, by name.
        address: its IP address.
    """

    id: str
    cpus: int
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    address: str = ""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, to explain what a job would take of it.

    Attributes:
        places: of each host, its node.
        worker_cpus: what a worker reserves whose instances do not say.
        free: of each node, what is free of its resources.
    """

    places: tuple[ClusterNode, ...]
    worker_cpus: float
    free: Mapping[str, Mapping[str, float]] = field(hash=False)


def describe_amounts(amounts: Mapping[str, float]) -> str:
    """Return amounts as text, those of nothing left out; "nothing" if that is all."""
    found = [f"{amount:g} {name}" for name, amount in amounts.items() if amount]
    return ", ".join(found) or "nothing"


def add_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of amounts, name by name."""
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = round(total.get(name, 0.0) + amount, _DIGITS)
    return total


def worker_demands(plan: PhysicalPlan, default_cpus: float) -> list[dict[str, float]]:
    """Return what each worker's actor reserves.

    Args:
        plan: the plan; operators without a request ask for nothing.
        default_cpus: of a worker none of whose instances says how many processors it wants.
    """
    demands = []
    for worker in range(plan.workers):
        asked = [
            dict(request.amounts)
            for stage in plan.local_stages(worker)
            for request in [plan.operator(stage.head).request]
            if request is not None
            for _ in plan.instances_on(stage.id, worker)
        ]
        total = add_up(
            [{CPU: 0.0} if any(CPU in one for one in asked) else {CPU: default_cpus}, *asked]
        )
        demands.append({name: _whole(name, amount) for name, amount in total.items()})
    return demands


def host_demands(plan: PhysicalPlan, demands: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return what the workers of each host reserve together."""
    return [
        add_up(demands[worker] for worker in plan.hosts.workers_on(host))
        for host in range(plan.hosts.count)
    ]


def node_demands(
    plan: PhysicalPlan, demands: list[dict[str, float]], nodes: Iterable[ClusterNode]
) -> dict[str, dict[str, float]]:
    """Return what each node's workers reserve together, by its id; `nodes` has one of each host."""
    by_node: dict[str, dict[str, float]] = {}
    for node, demand in zip(nodes, host_demands(plan, demands), strict=True):
        by_node[node.id] = add_up([by_node.get(node.id, {}), demand])
    return by_node


def _whole(name: str, amount: float) -> float:
    if name in _WHOLE_BEYOND_ONE and amount > 1:
        return float(math.ceil(amount))
    return amount
