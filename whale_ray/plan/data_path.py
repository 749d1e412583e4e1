"""What carries rows from each operator to the next.

::

    fused                    a function call
    memory of each worker    rings that a worker writes and reads itself
    shared memory            rings inside a host
    links between hosts      RDMA verbs or tcp, chosen link by link (transport/verbs/carriers.py)

A user's transport (custom_transports.py) is called by its name.
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
    """How rows get from one operator to the next."""

    source: str
    """The operator's id."""
    target: str
    edge: int | None
    """The edge's number; None where both are fused."""
    inside: str
    """What carries rows inside a host."""
    links: tuple[tuple[int, int], ...] = ()
    """The pairs of hosts, sender first, between which rows travel; ascending."""

    def carried_by(self, between: str) -> str:
        """Return in words what carries the rows; `between` is what does between hosts."""
        if not self.links:
            return self.inside
        return f"{self.inside}; between hosts {between}"


def data_paths(plan: PhysicalPlan, trees: Mapping[int, Tree] | None = None) -> tuple[DataPath, ...]:
    """Return all of a plan, by stage and operator.

    `trees` has the trees of streams, by ring, as far as they are no longer what they began with.
    """
    found = []
    for stage in plan.stages:
        for operator in stage.operators:
            for after in stage.links[operator]:
                if isinstance(after, str):
                    found.append(DataPath(operator, after, None, FUSED))
                else:
                    found.append(_along(plan, after, trees or {}))
    return tuple(found)


def _along(plan: PhysicalPlan, number: int, trees: Mapping[int, Tree]) -> DataPath:
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
    """The RDMA devices of a machine that can serve, as the settings would have it."""

    names: tuple[str, ...]
    why_none: str = ""


def look_for_devices(transport: TransportSettings) -> Devices:
    """Open this machine's RDMA devices, as a relay would, and close them again."""
    import dataclasses

    from ..transport.verbs.carriers import Carriers

    carriers = Carriers(dataclasses.replace(transport, between_hosts="auto"))
    try:
        return Devices(carriers.devices, carriers.why_not)
    finally:
        carriers.close()


def choice_of(transport: TransportSettings, here: Devices) -> str:
    """Return in a few words what a link from this machine to another host is of."""
    verbs = f"verbs {transport.verbs_data.upper()}"
    if transport.between_hosts == "verbs":
        return verbs
    if transport.between_hosts == "tcp" or not here.names:
        return "tcp"
    return f"{verbs}, or tcp to hosts without a device"


def why_so(transport: TransportSettings, here: Devices) -> str:
    """Say by what rule links are of verbs or tcp, and what follows from it on this machine."""
    if transport.between_hosts == "tcp":
        return "links between hosts: tcp, as transport.between_hosts says"
    verbs = f"RDMA verbs, data by {transport.verbs_data.upper()}"
    rule = f"links between hosts: {verbs}"
    if transport.between_hosts == "auto":
        rule += ", where both have a usable device, else tcp"
    if here.names:
        return f"{rule}; this machine has {', '.join(here.names)}"
    return f"{rule}; not from this machine: {here.why_none}"
