"""What carries rows between operators while a job runs, out of its plan and its relays' links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..plan.data_path import data_paths
from ..plan.hosts import host_name
from .relay_metrics import NO_LINK

if TYPE_CHECKING:
    from ..multicast.trees import Tree
    from ..plan.physical import PhysicalPlan
    from .relay_metrics import RelayMetrics


@dataclass(frozen=True)
class EdgeMetrics:
    """What carries rows from one operator to the next.

    Attributes:
        source, target: the operators' ids.
        edge: the edge's number, as `explain` shows it; None where both operators are fused.
        inside: what carries rows inside a host: "fused", "shared memory", "memory of each worker",
            or the name of the user's transport.
        ways: between hosts, how many links are carried by what: "verbs READ on rxe0", "tcp", or
            "no link" for those that do not stand.
    """

    source: str
    target: str
    edge: int | None
    inside: str
    ways: Mapping[str, int] = field(default_factory=dict)

    @property
    def carried_by(self) -> str:
        """The same in words: "shared memory; between hosts tcp (2 links)"."""
        if not self.ways:
            return self.inside
        ways = ", ".join(
            f"{way} ({links} {'link' if links == 1 else 'links'})"
            for way, links in sorted(self.ways.items())
        )
        return f"{self.inside}; between hosts {ways}"


def edge_metrics(
    plan: PhysicalPlan, trees: Mapping[int, Tree], relays: Iterable[RelayMetrics]
) -> tuple[EdgeMetrics, ...]:
    """Return what carries rows between the operators of a plan, in its order.

    `trees` has the present trees of streams, by ring, as far as they have changed.
    """
    ways = {(relay.host, link.host): link.way for relay in relays for link in relay.links}
    return tuple(
        EdgeMetrics(
            path.source,
            path.target,
            path.edge,
            path.inside,
            Counter(
                ways.get((host_name(sender), host_name(receiver)), "") or NO_LINK
                for sender, receiver in path.links
            ),
        )
        for path in data_paths(plan, trees)
    )


def carriers_as_dict(
    edges: Iterable[EdgeMetrics], relays: Iterable[RelayMetrics]
) -> dict[str, Any]:
    """Return what carried rows from operator to operator, and between hosts, as plain data."""
    return {
        "edges": [
            {"from": edge.source, "to": edge.target, "carried_by": edge.carried_by}
            for edge in edges
        ],
        "links": [
            {
                "from": relay.host,
                "to": link.host,
                "carried_by": link.way,
                "sent_bytes": dict(link.sent_by_carrier),
                "received_bytes": dict(link.received_by_carrier),
                "without_verbs": link.without_verbs,
                "without_verbs_s": round(link.without_verbs_ns / 1e9, 3),
                "failures": dict(link.failures),
            }
            for relay in relays
            for link in relay.links
        ],
    }
