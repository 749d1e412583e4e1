"""How a job is spread over the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ray

from ...configs.settings import Settings
from ...plan.requests import ClusterNode


def cluster_nodes() -> list[ClusterNode]:
    """Return the nodes with processors, this process's node first; at least that one."""
    here = ray.get_runtime_context().get_node_id()
    found = [
        ClusterNode(
            node["NodeID"],
            int(node["Resources"].get("CPU", 0)),
            node["Resources"],
            node.get("NodeManagerAddress", ""),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    usable = [node for node in found if node.cpus > 0 or node.id == here]
    usable = [node for node in usable if node.cpus > 0] or usable
    return sorted(usable, key=lambda node: (node.id != here, node.id))


def spread_over(nodes: Sequence[ClusterNode], settings: Settings, workers: int | None) -> Settings:
    """Return the settings of a job on these nodes.

    Without `runtime.hosts` there is one host per node, unless there are fewer workers; on several
    nodes a job without a number of workers has one for each processor.
    """
    runtime = settings.runtime
    count = workers or runtime.workers
    if runtime.hosts:
        return settings
    if len(nodes) > 1 and not count:
        count = sum(node.cpus for node in nodes)
        settings = settings.with_overrides({"runtime.workers": count})
    hosts = max(1, min(len(nodes), count))
    return settings.with_overrides({"runtime.hosts": hosts})


def places_of_hosts(nodes: Sequence[ClusterNode], hosts: int) -> list[ClusterNode]:
    """Return for each host its node, and how many of the node's processors are its own.

    Several hosts may share a node, in blocks; their processors then add up to the node's.
    """
    used = nodes[:hosts]
    node_of = [host * len(used) // hosts for host in range(hosts)]
    return [
        replace(
            used[node], cpus=(used[node].cpus + host - node_of.index(node)) // node_of.count(node)
        )
        for host, node in enumerate(node_of)
    ]
