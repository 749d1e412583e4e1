"""Turn a logical plan into a physical one: fuse, place, lay the rings, fit them into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..configs.errors import TopologyError
from ..operators.groupings import Key
from .custom_transports import plan_custom_streams
from .fusion import fuse, resolve_parallelism
from .hosts import assign_hosts
from .logical import LogicalPlan, OperatorKind
from .memory import Memory, memory_for_rings
from .physical import PhysicalPlan, Stage
from .placement import Asking, fit_requests, place
from .requests import ClusterNode
from .rings import plan_rings, size_rings

if TYPE_CHECKING:
    from ..configs.settings import Settings


def worker_count(settings: Settings, workers: int | None = None) -> int:
    """Return how many workers a job gets: as asked for, else as the settings say, else the cores.

    Raises:
        SettingsError: the number lies outside the range of the setting runtime.workers.
    """
    if workers is not None:
        settings = settings.with_overrides({"runtime.workers": workers})
    if settings.runtime.workers:
        return settings.runtime.workers
    return max(len(os.sched_getaffinity(0)), settings.runtime.hosts)


def check_workers(settings: Settings, workers: int | None = None) -> None:
    """Look whether there are enough workers for the hosts, and for more than sources.

    Raises:
        SettingsError: there are not.
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
    memory: Callable[[Settings], Memory] = memory_for_rings,
) -> PhysicalPlan:
    """Return the physical plan of a topology, ready to run.

    Args:
        logical: what the user wrote.
        settings: the budget and size of rings, the number of virtual nodes and of workers.
        workers: how many workers; None leaves it to the settings, 0 means one per core.
        nodes: of a Ray cluster, the one of each host; without them all get as many workers, and
            what operators ask Ray for has no bearing.
        memory: tells how much memory is free for rings.

    Raises:
        TopologyError: an operator is more parallel than there are virtual nodes.
        SettingsError: there are fewer workers than hosts, or none but for sources.
        ResourceError: the rings do not fit into the memory budget, or Ray has not what operators
            ask for.
    """
    return size_rings(lay_out(logical, settings, workers, nodes), settings, memory(settings))


def lay_out(
    logical: LogicalPlan,
    settings: Settings,
    workers: int | None = None,
    nodes: Sequence[ClusterNode] = (),
) -> PhysicalPlan:
    """Return the physical plan with rings that are not sized yet; needs no memory. See `plan`.

    Raises:
        TopologyError: an operator is more parallel than there are virtual nodes.
        SettingsError: there are fewer workers than hosts, or none but for sources.
    """
    count = worker_count(settings, workers)
    runtime = settings.runtime
    degree = settings.multicast.out_degree
    weights = [node.cpus for node in nodes]
    hosts = assign_hosts(runtime.hosts, count, runtime.route, weights, degree)
    per_instance = runtime.addressing == "instance-oriented"
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
        asking = [
            Asking(fused.operators[0], number, request)
            for number, fused in enumerate(graph.stages)
            for request in [logical.node(fused.operators[0]).request]
            if request is not None
        ]
        free = range(runtime.source_workers, count)
        placed = fit_requests(placed, asking, hosts.of_worker, nodes, free)
    stages = tuple(
        Stage(
            id=number,
            operators=fused.operators,
            parallelism=fused.parallelism,
            instance_worker=placed[number],
            per_worker=fused.per_worker,
            links=graph.links[number],
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
