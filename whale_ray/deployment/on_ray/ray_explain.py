"""Explains a topology as Ray's cluster would run it; starts nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping

import ray

from ...configs.settings import Settings
from ...plan.explain import explain
from ...plan.explanation import Explanation
from ...plan.logical import LogicalPlan
from ...plan.requests import CPU, Cluster, ClusterNode
from ...ray_bridge.addresses import resolve_address
from ...ray_bridge.session import LOGICAL_CPUS_MIN, connect_ray
from .ray_nodes import cluster_nodes, places_of_hosts, spread_over


def ray_runs(address: str | None) -> bool:
    """Tell whether a job would join a Ray that runs; raises UsageError for a wrong address."""
    return ray.is_initialized() or resolve_address(address) is not None


def explain_on_ray(
    logical: LogicalPlan, settings: Settings, workers: int | None, address: str | None
) -> Explanation:
    """Return the plan for the cluster that `submit` would join, or the Ray that it would start.

    Raises:
        UsageError: the address is not one.
        ResourceError: no Ray answers there, or it has not what operators ask for.
    """
    if not ray_runs(address):
        cpus = max(os.cpu_count() or 1, LOGICAL_CPUS_MIN)
        node = ClusterNode("", cpus, {CPU: float(cpus)}, "a new Ray on this machine")
        return _explain(logical, settings, workers, [node], 0.0, {"": node.resources})
    with connect_ray(address) as session:
        free = ray._private.state.available_resources_per_node()
        return _explain(logical, settings, workers, cluster_nodes(), session.worker_cpus, free)


def _explain(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None,
    nodes: list[ClusterNode],
    worker_cpus: float,
    free: Mapping[str, Mapping[str, float]],
) -> Explanation:
    settings = spread_over(nodes, settings, workers)
    places = places_of_hosts(nodes, settings.runtime.hosts)
    return explain(logical, settings, workers, cluster=Cluster(tuple(places), worker_cpus, free))
