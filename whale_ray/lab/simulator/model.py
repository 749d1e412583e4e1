"""What is simulated: the costs of a slice, the hosts, the tree, the queue. Plain values, checked.

A host serves one slice at a time, in order. Serving means, on the source's host, to serialize the
slice (t_s), on another to receive it; then to send it to the children one after another, each of
which takes t_d: the processor's time for it or the link's, whichever is greater (DESIGN 6). A slice
that finds its host idle costs a wake-up before and some settling after; slices that have gathered
since the host began its last *turn* are sent together, and each child costs something once per
turn, too. In this project's runtime the source's worker serializes and its host's relay sends, in
two processes: there t_s is `produce_s`, and `serialize_s` is 0.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...configs.errors import UsageError
from ...configs.settings import MulticastSettings
from ...multicast.out_degree import QUEUE_SLICES_MAX, Costs, affordable_degree, binomial_degree
from ...multicast.trees import Tree, binomial_tree, chain, non_blocking_tree, star

RouteName: TypeAlias = Literal["non-blocking", "star", "chain", "binomial"]
ROUTES: tuple[RouteName, ...] = ("non-blocking", "star", "chain", "binomial")
HOSTS_MAX = 100_000
"""Destinations of one simulation: beyond, a run takes more than minutes and memory runs short."""
SOURCE = 0
"""The source's host; destinations are 1 to n."""


@dataclass(frozen=True)
class SliceCosts:
    """What one slice costs, in seconds."""

    serialize_s: float
    """Once, by whom the source's queue is served: t_s."""
    send_s: float
    """Processor time per child; t_d where the link is not slower."""
    receive_s: float = 0.0
    """At each destination, before it is passed on."""
    process_s: float = 0.0
    """At each destination's worker, after it was received; beside the host's sending."""
    turn_s: float = 0.0
    """More per child, once for all slices that are sent in one turn."""
    wake_s: float = 0.0
    """More for a slice that finds its host idle, before anything else."""
    settle_s: float = 0.0
    """More for such a slice, when all is sent: acknowledgements, falling asleep."""
    produce_s: float = 0.0
    """By the source's worker, beside its host's sending, before the slice is in the queue."""
    worker_wake_s: float = 0.0
    """More for a slice that finds a worker idle: the source's, or a destination's."""
    delay_s: float = 0.0
    """From one host to the next, when nobody is in the way; also of acknowledgements."""
    occupancy_s: float = 0.0
    """How long the slice keeps the sender's link busy, for each child: bytes / bandwidth."""
    burst_s: float = 0.0
    """What an idle link carries at once, as time: a token bucket's depth / bandwidth."""
    control_s: float = 1e-3
    """From the controller to a host, or from host to host: a control message."""

    def __post_init__(self) -> None:
        """Raise UsageError for what is no time, and for a slice that costs its sender nothing."""
        for name, value in dataclasses.asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                msg = f"{name}={value}: a cost must be a finite number of seconds, 0 or more"
                raise UsageError(msg)
        if self.per_child_s <= 0:
            msg = "send_s=0 on a link without limit: a slice must cost its sender something"
            raise UsageError(msg)

    @property
    def per_child_s(self) -> float:
        """t_d: what a child costs its parent when slices do not wait."""
        return max(self.send_s + self.turn_s, self.occupancy_s)

    @property
    def sender(self) -> Costs:
        """What the out-degree is computed from (multicast/out_degree.py), within long turns."""
        return Costs(self.serialize_s, max(self.send_s, self.occupancy_s))

    def rate_max_slices_per_s(self, tree: Tree) -> float:
        """Return what a tree carries at most: the slowest of all hosts and workers bounds it."""
        costs = self.sender
        degrees = {len(found) for vertex, found in tree.children.items() if vertex != tree.root}
        inner = self.receive_s + max(degrees) * costs.send_s
        root = costs.per_slice_s(len(tree.children[tree.root]))
        return 1.0 / max(root, inner, self.process_s, self.produce_s)


@dataclass(frozen=True)
class Scenario:
    """One source, its destinations, and how the stream gets there."""

    destinations: int
    """How many hosts the stream goes to, beside the source's own."""
    costs: SliceCosts
    route: RouteName = "non-blocking"
    degree: int = 0
    """The maximum out-degree of a non-blocking tree; 0: adjusted by the monitor."""
    queue_slices: int = QUEUE_SLICES_MAX
    """Q: what each host's ring holds."""
    fixed: SliceCosts | None = None
    """What of the costs a slice has whatever its weight; None: slices have no weights."""
    settings: MulticastSettings = dataclasses.field(default_factory=MulticastSettings)
    """When and how far a non-blocking tree adjusts itself."""

    def __post_init__(self) -> None:
        """Raise UsageError for what cannot be simulated."""
        if not 2 <= self.destinations <= HOSTS_MAX:
            msg = (
                f"{self.destinations} destinations: one-to-many needs 2 or more, and no more than "
                f"{HOSTS_MAX:,} are simulated"
            )
            raise UsageError(msg)
        if self.route not in ROUTES:
            msg = f"route {self.route!r} is not known; there are {', '.join(ROUTES)}"
            raise UsageError(msg)
        if not 0 <= self.degree <= 1024:
            msg = f"an out-degree of {self.degree}: it must be 1 to 1024, or 0 to adjust itself"
            raise UsageError(msg)
        if self.degree and self.route != "non-blocking":
            msg = f"an out-degree of {self.degree} means nothing with route {self.route}"
            raise UsageError(msg)
        if not 1 <= self.queue_slices <= QUEUE_SLICES_MAX:
            msg = f"a queue of {self.queue_slices} slices: it must hold 1 to {QUEUE_SLICES_MAX:,}"
            raise UsageError(msg)

    @property
    def adjusts(self) -> bool:
        """Whether the monitor changes the tree while slices flow."""
        return self.route == "non-blocking" and self.degree == 0

    @property
    def names(self) -> range:
        """The destinations, in the order in which they join."""
        return range(1, self.destinations + 1)

    def tree(self, degree: int = 0) -> Tree:
        """Return the tree to begin with; `degree` is the first of one that adjusts itself."""
        if self.route == "star":
            return star(SOURCE, self.names)
        if self.route == "chain":
            return chain(SOURCE, self.names)
        if self.route == "binomial":
            return binomial_tree(SOURCE, self.names)
        cap = self.degree or degree or binomial_degree(self.destinations)
        return non_blocking_tree(SOURCE, self.names, cap)

    def affordable_degree(self, rate_slices_per_s: float) -> int:
        """Return d* for a rate known beforehand, as the monitor would choose it."""
        target = self.settings.queue_target_fraction * self.queue_slices
        found = affordable_degree(rate_slices_per_s, self.costs.sender, target, self.destinations)
        return found.degree
