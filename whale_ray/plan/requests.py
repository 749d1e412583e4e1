"""Ray resources that instances of operators request, and the sums that workers reserve.

Instances share worker actors, so an actor reserves the sum of its instances' requests. Ray accepts
fractions of a GPU (or a similar device) only below one, so larger sums are rounded up.
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
class ResourceRequest:
    """The resources of one instance, by Ray's names: "CPU", "GPU" or custom ones."""

    amounts: tuple[tuple[str, float], ...]

    def describe(self) -> str:
        """Return it as text: "2 CPU, 1 GPU"."""
        return describe_amounts(dict(self.amounts))


@dataclass(frozen=True)
class ClusterNode:
    """A node of the Ray cluster that can run workers, or the part of a node that is one host's.

    Attributes:
        id: Ray's id of the node.
        cpus: its processors, or the host's part of them.
        resources: the total resources of the node, by name.
        address: its IP address.
    """

    id: str
    cpus: int
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    address: str = ""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, to explain which of its resources a job would reserve.

    Attributes:
        places: the node of each host.
        worker_cpus: the processors that a worker reserves if no instance requests any.
        free: the free resources of each node, by its id.
    """

    places: tuple[ClusterNode, ...]
    worker_cpus: float
    free: Mapping[str, Mapping[str, float]] = field(hash=False)


def describe_amounts(amounts: Mapping[str, float]) -> str:
    """Return amounts as text, without those that are 0; "nothing" if all are 0."""
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
    """Return the resources that each worker's actor reserves.

    Args:
        plan: the physical plan.
        default_cpus: the processors of a worker if none of its instances requests any.
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
    """Return the total resources that the workers of each host reserve."""
    return [
        add_up(demands[worker] for worker in plan.hosts.workers_on(host))
        for host in range(plan.hosts.count)
    ]


def node_demands(
    plan: PhysicalPlan, demands: list[dict[str, float]], nodes: Iterable[ClusterNode]
) -> dict[str, dict[str, float]]:
    """Return the total resources of each node's workers, by its id; `nodes[host]` is its node."""
    by_node: dict[str, dict[str, float]] = {}
    for node, demand in zip(nodes, host_demands(plan, demands), strict=True):
        by_node[node.id] = add_up([by_node.get(node.id, {}), demand])
    return by_node


def _whole(name: str, amount: float) -> float:
    if name in _WHOLE_BEYOND_ONE and amount > 1:
        return float(math.ceil(amount))
    return amount
