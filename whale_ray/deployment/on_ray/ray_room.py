"""Reserves resources of Ray for a job's workers, all or none, and says who holds missing ones.

A placement group has a bundle for each host, on the host's node. Ray reserves all bundles or none,
so two jobs that wait never hold half of the resources each.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from ...configs.errors import ResourceError
from ...plan.physical import PhysicalPlan
from ...plan.requests import ClusterNode, add_up, describe_amounts, host_demands, node_demands
from ...transport.clock import Clock, SystemClock

_NAME = "whale-ray:"
_NODE_LABEL = "ray.io/node-id"
_AT_ONCE_S = 1.0
"""Ray needs some time to reserve, and to free what a job held that has just ended."""
_PATIENCE_S = 4.0
_GONE_TIMEOUT_NS = 5_000_000_000
_GONE_POLL_NS = 20_000_000

_log = logging.getLogger(__name__)


class Room:
    """The placement group of a job's workers.

    Attributes:
        demands: of each worker.
    """

    def __init__(
        self,
        job_id: str,
        plan: PhysicalPlan,
        nodes: Sequence[ClusterNode],
        demands: list[dict[str, float]],
        *,
        detached: bool,
    ) -> None:
        """Ask for the resources. Raises ResourceError if the nodes have too few, used or free."""
        self.demands = demands
        self._job_id = job_id
        self._needed = node_demands(plan, demands, nodes)
        _check_total(plan, self._needed, nodes)
        bundles = {
            host: {name: amount for name, amount in demand.items() if amount}
            for host, demand in enumerate(host_demands(plan, demands))
        }
        bundles = {host: bundle for host, bundle in bundles.items() if bundle}
        self._bundle_of_host = {host: number for number, host in enumerate(bundles)}
        self.group: PlacementGroup | None = None
        if bundles:
            self.group = placement_group(
                list(bundles.values()),
                name=f"{_NAME}{job_id}",
                lifetime="detached" if detached else None,
                bundle_label_selector=[{_NODE_LABEL: nodes[host].id} for host in bundles],
            )

    def bundle(self, host: int) -> int | None:
        """Return the number of a host's bundle, None if it has none."""
        return self._bundle_of_host.get(host)

    def take(self, *, queue: bool) -> None:
        """Wait for a limited time until the resources are reserved; log who holds missing ones.

        With `queue`, return even if they are not reserved yet.

        Raises:
            ResourceError: they are not reserved in time, and `queue` is not set.
        """
        if self.group is None or self.group.wait(_AT_ONCE_S):
            return
        _log.warning("job %r waits for room on Ray: %s", self._job_id, self.shortage())
        if queue or self.group.wait(_PATIENCE_S):
            return
        msg = (
            f"Ray cannot place the workers of job {self._job_id!r}: {self.shortage()}; use fewer "
            "--workers, end what holds it (`whale-ray list`, `whale-ray stop`), or let the job "
            "wait with queue=True (--queue)"
        )
        raise ResourceError(msg)

    def shortage(self) -> str:
        """Return which resources are short, and who holds them."""
        free = ray._private.state.available_resources_per_node()
        short: set[str] = set()
        for node, needed in self._needed.items():
            has = free.get(node, {})
            short |= {name for name, amount in needed.items() if amount > has.get(name, 0.0)}
        needed = add_up(self._needed.values())
        short = short or {name for name, amount in needed.items() if amount}
        total = ray.cluster_resources()
        left = add_up(free.get(node, {}) for node in self._needed)
        parts = [
            f"{needed[name]:g} {name} needed, {left.get(name, 0.0):g} of {total.get(name, 0.0):g} "
            "free"
            for name in sorted(short)
        ]
        held = [
            f"{holder} ({describe_amounts(amounts)})"
            for holder, all_amounts in sorted(holders().items())
            if (amounts := {name: n for name, n in all_amounts.items() if name in short})
        ]
        by = f"; held by {', '.join(held)}" if held else ""
        return f"{'; '.join(parts)}{by}"

    def release(self, clock: Clock | None = None) -> None:
        """Free the resources, and wait for Ray a limited time; a second call does nothing."""
        if self.group is not None:
            group, self.group = self.group, None
            give_back(group, clock or SystemClock())


def give_back(group: PlacementGroup, clock: Clock) -> None:
    """Remove a placement group, and wait for a limited time until its resources are free."""
    remove_placement_group(group)
    suffix = f"_{group.id.hex()}"
    until_ns = clock.monotonic_ns() + _GONE_TIMEOUT_NS
    while any(name.endswith(suffix) for name in ray.cluster_resources()):
        if clock.monotonic_ns() >= until_ns:
            return
        clock.sleep_ns(_GONE_POLL_NS)


def holders() -> dict[str, dict[str, float]]:
    """Return which jobs, Spark sessions and others hold resources of Ray, and how much."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for group in placement_group_table().values():
        if group["state"] == "CREATED":
            holder = _holder_of_group(group["name"])
            found.setdefault(holder, []).extend(group["bundles"].values())
    actors: Counter[str] = Counter()
    for actor in _living_actors():
        # Resources of a placement group are counted with the group.
        held = {name: n for name, n in actor.required_resources.items() if "_group_" not in name}
        if any(held.values()):
            holder = _holder_of_actor(actor.class_name)
            actors[holder] += 1
            found.setdefault(holder, []).append(held)
    return {
        f"{actors[holder]} × {holder}" if actors[holder] > 1 else holder: add_up(parts)
        for holder, parts in found.items()
    }


def _holder_of_group(name: str) -> str:
    if name.startswith(_NAME):
        return f"job {name.removeprefix(_NAME)}"
    return f"placement group {name!r}" if name else "a placement group without a name"


def _holder_of_actor(class_name: str) -> str:
    if "raydp" in class_name.lower() or "spark" in class_name.lower():
        return "Spark, until it stops"
    return f"actor {class_name}"


def _living_actors() -> list[Any]:
    from ray.core.generated import gcs_pb2

    accessor = ray._private.state.state._connect_and_get_accessor()
    found = [gcs_pb2.ActorTableData.FromString(one) for one in accessor.get_actor_table(None, None)]
    return [one for one in found if one.state == gcs_pb2.ActorTableData.ALIVE]


def _check_total(
    plan: PhysicalPlan, needed: Mapping[str, Mapping[str, float]], nodes: Sequence[ClusterNode]
) -> None:
    """Raise ResourceError if a node has less in total than its workers reserve."""
    for node in nodes:
        has = {name: node.resources.get(name, 0.0) for name in needed[node.id]}
        if any(amount > has[name] for name, amount in needed[node.id].items()):
            where = f"Ray's node {node.address}" if len(needed) > 1 else "Ray"
            msg = (
                f"Ray cannot place {plan.workers} workers: they need "
                f"{describe_amounts(needed[node.id])}, and {where} has {describe_amounts(has)} in "
                "all; use fewer --workers, ask for less, or start Ray with more"
            )
            raise ResourceError(msg)
