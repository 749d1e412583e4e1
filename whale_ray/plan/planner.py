"""Turn a logical plan into a physical one.

Partial aggregates are put in, operators fused, instances placed, rings planned and fitted into
memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..configs.errors import TopologyError
from ..operators.groupings import Key
from ..state.owners import Owners
from .custom_transports import plan_custom_streams
from .fusion import fuse, resolve_parallelism
from .hosts import assign_hosts
from .late_merge import choose_aggregations, with_partial_aggregates
from .logical import LogicalPlan, OperatorKind
from .memory import FreeMemory, memory_for_rings
from .physical import PhysicalPlan, Stage
from .placement import StageRequest, fit_requests, place
from .requests import ClusterNode
from .rings import plan_rings, size_rings

if TYPE_CHECKING:
    from ..configs.settings import Settings


def worker_count(settings: Settings, workers: int | None = None) -> int:
    """Return the number of workers of a job: the argument, else the setting, else one per core.

    Raises:
        SettingsError: the number is outside the range of the setting runtime.workers.
    """
    if workers is not None:
        settings = settings.with_overrides({"runtime.workers": workers})
    if settings.runtime.workers:
        return settings.runtime.workers
    return max(len(os.sched_getaffinity(0)), settings.runtime.hosts)


def check_workers(settings: Settings, workers: int | None) -> None:
    """Check that there is a worker for each host, and one that runs more than sources.

    Raises:
        SettingsError: there are too few workers.
    """
    runtime = settings.runtime
    count = worker_count(settings, workers)
    assign_hosts(runtime.hosts, count, runtime.route, (), settings.multicast.out_degree)
    place((), count, (), runtime.source_workers)


def plan(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None = None,
    *,
    nodes: Sequence[ClusterNode] = (),
    memory: Callable[[Settings], FreeMemory] = memory_for_rings,
) -> PhysicalPlan:
    """Return the physical plan of a topology, ready to run.

    Args:
        logical: the topology.
        settings: the budget and size of rings, the number of virtual nodes and of workers.
        workers: the number of workers; None: as in the settings, 0: one per core.
        nodes: the Ray node of each host; without them all hosts get equally many workers, and
            resource requests of operators are ignored.
        memory: returns how much memory is free for rings.

    Raises:
        TopologyError: the parallelism of an operator exceeds the number of virtual nodes.
        SettingsError: there are fewer workers than hosts, or all workers are for sources.
        ResourceError: the rings do not fit into the memory budget, or Ray lacks resources that
            operators request.
    """
    return size_rings(plan_unsized(logical, settings, workers, nodes), settings, memory(settings))


def plan_unsized(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None = None,
    nodes: Sequence[ClusterNode] = (),
) -> PhysicalPlan:
    """Return the physical plan with rings that are not sized yet. Arguments as for `plan`.

    Raises:
        TopologyError: the parallelism of an operator exceeds the number of virtual nodes.
        SettingsError: there are fewer workers than hosts, or all workers are for sources.
        ResourceError: Ray lacks resources that operators request.
    """
    count = worker_count(settings, workers)
    runtime = settings.runtime
    degree = settings.multicast.out_degree
    weights = [node.cpus for node in nodes]
    hosts = assign_hosts(runtime.hosts, count, runtime.route, weights, degree)
    per_instance = runtime.addressing == "instance-oriented"
    logical = with_partial_aggregates(logical, choose_aggregations(logical, settings, count))
    parallelism = resolve_parallelism(logical, count)
    _check_virtual_nodes(logical, parallelism, settings.runtime.virtual_nodes)
    graph = fuse(logical, parallelism)
    placed = place(
        [fused.parallelism for fused in graph.stages],
        count,
        [logical.node(fused.operators[0]).kind is OperatorKind.SOURCE for fused in graph.stages],
        runtime.source_workers,
    )
    if nodes:
        requests = [
            StageRequest(fused.operators[0], number, request)
            for number, fused in enumerate(graph.stages)
            for request in [logical.node(fused.operators[0]).request]
            if request is not None
        ]
        eligible = range(runtime.source_workers, count)
        placed = fit_requests(placed, requests, hosts.of_worker, nodes, eligible)
    keyed = {edge.target_stage for edge in graph.edges if isinstance(edge.grouping, Key)}
    stages = tuple(
        Stage(
            id=number,
            operators=fused.operators,
            parallelism=fused.parallelism,
            instance_worker=placed[number],
            per_worker=fused.per_worker,
            links=graph.links[number],
            owners=Owners.even(runtime.virtual_nodes, fused.parallelism)
            if number in keyed
            else None,
        )
        for number, fused in enumerate(graph.stages)
    )
    rings = plan_rings(stages, graph.edges, per_instance=per_instance)
    return PhysicalPlan(
        name=logical.name,
        workers=count,
        stages=stages,
        edges=graph.edges,
        rings=rings,
        custom_streams=plan_custom_streams(
            stages, graph.edges, len(rings), per_instance=per_instance
        ),
        logical=logical,
        hosts=hosts,
    )


def _check_virtual_nodes(
    logical: LogicalPlan, parallelism: dict[str, int], virtual_nodes: int
) -> None:
    for node in logical.nodes:
        keyed = any(isinstance(feed.grouping, Key) for feed in node.inputs)
        if keyed and parallelism[node.id] > virtual_nodes:
            msg = (
                f"operator {node.id!r} has parallelism {parallelism[node.id]}, but keys are spread"
                f" over {virtual_nodes} virtual nodes: lower its parallelism or raise the setting"
                f" runtime.virtual_nodes"
            )
            raise TopologyError(msg)
