"""What is simulated: the costs of a slice, the hosts, the tree, the queue. Plain values, checked.

A host serves one slice at a time, in order. The source's host serializes the slice (t_s), other
hosts receive it; then the host sends it to its children one after another. Each child takes t_d:
the greater of the processor's and the link's time. If a slice finds its host idle, a
wake-up comes before and a settling time after it. Slices that arrived during the host's last *turn*
are sent together; each turn has a cost per child, too. In this project's runtime the source's
worker serializes and its host's relay sends, in two processes: there t_s is `produce_s`, and
`serialize_s` is 0.
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
"""Most destinations of one simulation; more would take many minutes and too much memory."""
SOURCE = 0
"""The source's host; destinations are 1 to n."""


@dataclass(frozen=True)
class SliceCosts:
    """What one slice costs, in seconds."""

    serialize_s: float
    """Once per slice, by the process that serves the source's queue: t_s."""
    send_s: float
    """Processor time per child; t_d where the link is not slower."""
    receive_s: float = 0.0
    """At each destination, before the slice is forwarded."""
    process_s: float = 0.0
    """At each destination's worker, after the slice was received; in parallel with the host's
    sending.
    """
    turn_s: float = 0.0
    """Additional cost per child, once for all slices that are sent in one turn."""
    wake_s: float = 0.0
    """Additional wake-up cost of a slice that finds its host idle."""
    settle_s: float = 0.0
    """Additional cost after such a slice was sent: acknowledgements, going to sleep."""
    produce_s: float = 0.0
    """By the source's worker, in parallel with its host's sending, before the slice is in the
    queue.
    """
    worker_wake_s: float = 0.0
    """Additional cost of a slice that finds a worker idle: the source's or a destination's."""
    delay_s: float = 0.0
    """Network delay from one host to the next, also of acknowledgements."""
    occupancy_s: float = 0.0
    """How long the slice occupies the sender's link, for each child: bytes / bandwidth."""
    burst_s: float = 0.0
    """What an idle link sends at once, as time: a token bucket's depth / bandwidth."""
    control_s: float = 1e-3
    """Delay of a control message, from the controller to a host or between hosts."""

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid time, and for a slice that costs its sender nothing."""
        for name, value in dataclasses.asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                msg = f"{name}={value}: a cost must be a finite number of seconds, 0 or more"
                raise UsageError(msg)
        if self.per_child_s <= 0:
            msg = "send_s=0 on a link without limit: a slice must cost its sender something"
            raise UsageError(msg)

    @property
    def per_child_s(self) -> float:
        """t_d: the cost of a child to its parent when slices do not wait."""
        return max(self.send_s + self.turn_s, self.occupancy_s)

    @property
    def sender(self) -> Costs:
        """The sender's costs within long turns, for multicast/out_degree.py."""
        return Costs(self.serialize_s, max(self.send_s, self.occupancy_s))

    def rate_max_slices_per_s(self, tree: Tree) -> float:
        """Return the highest rate of a tree; the slowest host or worker bounds it."""
        costs = self.sender
        degrees = {len(found) for vertex, found in tree.children.items() if vertex != tree.root}
        inner = self.receive_s + max(degrees) * costs.send_s
        root = costs.per_slice_s(len(tree.children[tree.root]))
        return 1.0 / max(root, inner, self.process_s, self.produce_s)


@dataclass(frozen=True)
class Scenario:
    """One source, its destinations, and the route of the stream."""

    destinations: int
    """Number of destination hosts, not counting the source's own."""
    costs: SliceCosts
    route: RouteName = "non-blocking"
    degree: int = 0
    """The maximum out-degree of a non-blocking tree; 0: adjusted by the monitor."""
    queue_slices: int = QUEUE_SLICES_MAX
    """Q: slices in each host's ring."""
    fixed: SliceCosts | None = None
    """The part of the costs that does not depend on a slice's weight; None: slices have no weights.
    """
    settings: MulticastSettings = dataclasses.field(default_factory=MulticastSettings)
    """Settings of the monitor, which adjusts a non-blocking tree."""

    def __post_init__(self) -> None:
        """Raise UsageError for a scenario that cannot be simulated."""
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
        """Return the initial tree, with out-degree `degree` if it adjusts itself."""
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
