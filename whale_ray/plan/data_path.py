"""The data path of each edge: by what means rows get from one operator to the next.

::

    fused                    a function call
    memory of each worker    rings that one worker both writes and reads
    shared memory            rings inside a host
    links between hosts      RDMA verbs or tcp, chosen link by link (transport/verbs/carriers.py)

A user's transport (custom_transports.py) is shown by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..configs.settings import TransportSettings
    from ..multicast.trees import Tree
    from .physical import PhysicalPlan

FUSED = "fused"


@dataclass(frozen=True)
class DataPath:
    """By what means rows get from one operator to the next."""

    source: str
    """The id of the producing operator."""
    target: str
    """The id of the consuming operator."""
    edge: int | None
    """The edge's id; None if both operators are fused."""
    inside: str
    """The means inside a host, in words."""
    links: tuple[tuple[int, int], ...] = ()
    """The pairs of hosts (sender, receiver) between which rows travel; ascending."""

    def describe(self, between_hosts: str) -> str:
        """Return the whole path in words; `between_hosts` names the means between hosts."""
        if not self.links:
            return self.inside
        return f"{self.inside}; between hosts {between_hosts}"


def data_paths(plan: PhysicalPlan, trees: Mapping[int, Tree] | None = None) -> tuple[DataPath, ...]:
    """Return the data paths of a plan, ordered by stage and operator.

    Args:
        plan: the physical plan.
        trees: the current multicast tree of each ring whose tree has changed, by ring id.
    """
    found = []
    for stage in plan.stages:
        for operator in stage.operators:
            for after in stage.links[operator]:
                if isinstance(after, str):
                    found.append(DataPath(operator, after, None, FUSED))
                else:
                    found.append(_path_of_edge(plan, after, trees or {}))
    return tuple(found)


def _path_of_edge(plan: PhysicalPlan, number: int, trees: Mapping[int, Tree]) -> DataPath:
    edge, rings = plan.edges[number], plan.rings_of_edge(number)
    inside = "shared memory"
    if all(ring.consumer_workers == (ring.producer_worker,) for ring in rings):
        inside = "memory of each worker"
    if edge.transport is not None and plan.custom_streams_of_edge(number):
        inside = f"{inside} and {edge.transport.name}" if rings else edge.transport.name
    links = set()
    for ring in rings:
        tree = trees[ring.id] if ring.id in trees else plan.tree_of(ring)
        links |= {(int(parent), int(child)) for parent, child in tree.edges}
    return DataPath(
        edge.source_operator, edge.target_operator, number, inside, tuple(sorted(links))
    )


@dataclass(frozen=True)
class Devices:
    """The RDMA devices of this machine that are usable with the settings."""

    names: tuple[str, ...]
    why_none: str = ""
    """Why there is none; empty if there are some."""


def probe_devices(transport: TransportSettings) -> Devices:
    """Open this machine's RDMA devices, as a relay would, and close them again."""
    import dataclasses

    from ..transport.verbs.carriers import Carriers

    carriers = Carriers(dataclasses.replace(transport, between_hosts="auto"))
    try:
        return Devices(carriers.devices, carriers.why_not)
    finally:
        carriers.close()


def describe_link(transport: TransportSettings, devices: Devices) -> str:
    """Return in a few words the transport of a link from this machine to another host."""
    verbs = f"verbs {transport.verbs_data.upper()}"
    if transport.between_hosts == "verbs":
        return verbs
    if transport.between_hosts == "tcp" or not devices.names:
        return "tcp"
    return f"{verbs}, or tcp to hosts without a device"


def describe_link_rule(transport: TransportSettings, devices: Devices) -> str:
    """Return by which rule a link uses verbs or tcp, and the outcome on this machine."""
    if transport.between_hosts == "tcp":
        return "links between hosts: tcp, as transport.between_hosts says"
    verbs = f"RDMA verbs, data by {transport.verbs_data.upper()}"
    rule = f"links between hosts: {verbs}"
    if transport.between_hosts == "auto":
        rule += ", where both have a usable device, else tcp"
    if devices.names:
        return f"{rule}; this machine has {', '.join(devices.names)}"
    return f"{rule}; not from this machine: {devices.why_none}"
