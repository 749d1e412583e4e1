"""A network of named nodes: directed links with delay, bandwidth and faults, all from one seed.

Messages are opaque objects with a size in bytes, which determines their time on links of limited
bandwidth. Every message that enters a link is counted::

    messages + duplicated = delivered + lost + overflowed + cut + unheard + in flight

A cut or a partition closes links: messages in flight on them are lost, as are those sent until they
heal. Connections, which detect that, are in connections.py.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields

from whale_ray.lab.simulator.clock import EventQueue

SECOND_NS = 1_000_000_000
_TAIL_MAX = 20
"""An exponential delay is cut off at so many times its mean, so that a run ends."""


class Tail(enum.Enum):
    """Distribution of the random delay that is added to a link's least delay."""

    UNIFORM = "uniform"
    """Between 0 and `jitter_ns`."""
    EXPONENTIAL = "exponential"
    """With mean `jitter_ns`: most messages are early, some very late."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Delay, bandwidth and faults of a directed link; by default only a delay of 50 µs."""

    delay_ns: int = 50_000
    """The least delay, nanoseconds from the last byte leaving to the last byte arriving."""
    jitter_ns: int = 0
    """What is added to it at random; see `tail`."""
    tail: Tail = Tail.UNIFORM
    bytes_per_s: int | None = None
    """Bandwidth; messages wait for those before them. None: no message takes any time."""
    queue_bytes: int | None = None
    """How many bytes may wait for the bandwidth; what is beyond is dropped. None: any number."""
    loss: float = 0.0
    """Probability that a message is lost."""
    duplication: float = 0.0
    """Probability that a message arrives twice."""
    reordering: float = 0.0
    """Probability that a message is held back, by up to `reorder_ns`, while others pass it."""
    reorder_ns: int = 1_000_000
    in_order: bool = True
    """Whether messages that are not held back arrive in the order of sending despite jitter."""

    def __post_init__(self) -> None:
        """Check the ranges of the values."""
        chances = (self.loss, self.duplication, self.reordering)
        sizes = (self.delay_ns, self.jitter_ns, self.reorder_ns, self.queue_bytes or 0)
        if not all(0.0 <= one <= 1.0 for one in chances) or min(sizes) < 0:
            msg = f"a probability outside 0 to 1, or a negative time or size: {self}"
            raise ValueError(msg)
        if self.bytes_per_s is not None and self.bytes_per_s < 1:
            msg = f"a link of {self.bytes_per_s} bytes/s carries nothing; cut it instead"
            raise ValueError(msg)


@dataclass(slots=True)
class LinkCounts:
    """Counts of the messages sent over a link, by their fate."""

    messages: int = 0
    """Messages sent."""
    bytes: int = 0
    """Their bytes."""
    delivered: int = 0
    """Messages, duplicates included, that a living node received."""
    lost: int = 0
    """Messages lost at random."""
    overflowed: int = 0
    """Messages that found no place in the link's queue."""
    cut: int = 0
    """Messages sent on a closed link, or in flight on it when it was closed."""
    unheard: int = 0
    """Messages that arrived at a node that had crashed."""
    duplicated: int = 0
    """Messages that were duplicated."""
    reordered: int = 0
    """Messages that were delayed so that others could overtake them."""

    @property
    def in_flight(self) -> int:
        """Messages, duplicates included, that are in flight."""
        gone = self.delivered + self.lost + self.overflowed + self.cut + self.unheard
        return self.messages + self.duplicated - gone

    def add(self, other: LinkCounts) -> None:
        """Add the counts of another link to these."""
        for field in fields(LinkCounts):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Link:
    """One direction between two nodes."""

    __slots__ = (
        "counts",
        "cuts",
        "epoch",
        "free_ns",
        "last_ns",
        "model",
        "open",
        "source",
        "target",
    )

    def __init__(self, source: str, target: str, model: LinkModel) -> None:
        """Create a link that is open and empty; only networks do so."""
        self.source = source
        self.target = target
        self.model = model
        self.counts = LinkCounts()
        self.open = True
        """Whether messages pass."""
        self.cuts = 0
        """Cuts that have not healed; there may be several."""
        self.epoch = 0
        """How often it was closed: a message of an earlier epoch is gone."""
        self.free_ns = 0
        """When the last byte sent so far has left."""
        self.last_ns = 0
        """When the last message that keeps the order arrives."""

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"


Hand = Callable[[str, str, object], bool]
"""Delivers to a node (first) a message from another (second); returns whether it is alive."""
Record = Callable[[str, str, str, object], None]
"""Records an event: kind, source, target, message."""
Watcher = Callable[[Link], None]
"""Called after a link has opened or closed."""


class Network:
    """All links between nodes; a link appears when it is first used."""

    def __init__(
        self,
        events: EventQueue,
        chance: random.Random,
        model: LinkModel,
        hand: Hand,
        record: Record,
    ) -> None:
        """Deliver messages by `events`; all randomness comes from `chance`.

        `model` is that of every link that `set_model` does not change.
        """
        self._events = events
        self._clock = events.clock
        self._chance = chance
        self._draw = chance.random
        self._model = model
        self._hand = hand
        self._record = record
        self._links: dict[tuple[str, str], Link] = {}
        self._group_of: dict[str, int] = {}
        self._egress_bytes_per_s: dict[str, int] = {}
        self._egress_free_ns: dict[str, int] = {}
        self._watchers: list[Watcher] = []

    # --- the links ------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        """Return the link from `source` to `target`."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(source, target, self._model)
            found.open = not self._apart(found)
        return found

    def links(self) -> Iterator[Link]:
        """Yield the links used so far, in the order of first use."""
        yield from self._links.values()

    def set_model(self, source: str, target: str, model: LinkModel, *, both: bool = True) -> None:
        """Change the model of a link from now on, in both directions or in one."""
        for link in self._between(source, target, both):
            link.model = model

    def set_all_models(self, model: LinkModel) -> None:
        """Change the model of all links, also of those that are first used later."""
        self._model = model
        for link in self._links.values():
            link.model = model

    def limit_egress(self, node: str, bytes_per_s: int) -> None:
        """Let all links out of `node` share one network card of that bandwidth."""
        self._egress_bytes_per_s[node] = bytes_per_s

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with every link that opens or closes, after it did."""
        self._watchers.append(watcher)

    def counts(self) -> LinkCounts:
        """Return the counts of all links together."""
        total = LinkCounts()
        for link in self._links.values():
            total.add(link.counts)
        return total

    # --- messages -------------------------------------------------------------------------------

    def send(self, source: str, target: str, message: object, nbytes: int) -> None:
        """Send a message of `nbytes`; it may be lost, duplicated or delayed."""
        link = self._links.get((source, target)) or self.link(source, target)
        counts = link.counts
        counts.messages += 1
        counts.bytes += nbytes
        if not link.open:
            counts.cut += 1
            self._record("cut off", source, target, message)
            return
        model = link.model
        if model.bytes_per_s is None and not self._egress_bytes_per_s:
            departure_ns = self._clock.now_ns
        else:
            departure_ns = self.departure_ns(link, nbytes)
            if self._overflows(link, departure_ns, nbytes):
                counts.overflowed += 1
                self._record("overflow", source, target, message)
                return
            link.free_ns = departure_ns
        if model.loss and self._draw() < model.loss:
            counts.lost += 1
            self._record("lost", source, target, message)
            return
        post, epoch = self._events.post, link.epoch
        post(self.arrival_ns(link, departure_ns), self._arrive, link, epoch, message)
        if model.duplication and self._draw() < model.duplication:
            counts.duplicated += 1
            self._record("duplicate", source, target, message)
            post(self.arrival_ns(link, departure_ns), self._arrive, link, epoch, message)

    def departure_ns(self, link: Link, nbytes: int) -> int:
        """Return when the last of `nbytes` would leave if they were sent now.

        The caller that sends them sets `link.free_ns` to it. The node's network card, if limited,
        is reserved at once.
        """
        now_ns = self._clock.now_ns
        leaves_ns = link.free_ns if link.free_ns > now_ns else now_ns
        if link.model.bytes_per_s is not None:
            leaves_ns += nbytes * SECOND_NS // link.model.bytes_per_s
        card = self._egress_bytes_per_s.get(link.source) if self._egress_bytes_per_s else None
        if card is not None:
            free_ns = max(now_ns, self._egress_free_ns.get(link.source, 0))
            free_ns += nbytes * SECOND_NS // card
            self._egress_free_ns[link.source] = free_ns
            leaves_ns = max(leaves_ns, free_ns)
        return leaves_ns

    def _overflows(self, link: Link, departure_ns: int, nbytes: int) -> bool:
        """Return whether the link's queue would overflow with these bytes."""
        model = link.model
        if model.bytes_per_s is None or model.queue_bytes is None:
            return False
        waiting = (departure_ns - self._clock.now_ns) * model.bytes_per_s // SECOND_NS
        return waiting - nbytes > model.queue_bytes

    def arrival_ns(self, link: Link, departure_ns: int) -> int:
        """Return when a message that leaves at `departure_ns` arrives; drawn at random."""
        model = link.model
        time_ns = departure_ns + model.delay_ns
        if model.jitter_ns:
            if model.tail is Tail.UNIFORM:
                time_ns += int(self._draw() * model.jitter_ns)
            else:
                times = -math.log(1.0 - self._draw())
                time_ns += int(min(times, _TAIL_MAX) * model.jitter_ns)
        if model.reordering and self._draw() < model.reordering:
            link.counts.reordered += 1
            return time_ns + int(self._draw() * model.reorder_ns)
        if model.in_order:
            time_ns = max(time_ns, link.last_ns)
            link.last_ns = time_ns
        return time_ns

    def _arrive(self, link: Link, epoch: int, message: object) -> None:
        if epoch != link.epoch:
            link.counts.cut += 1
            self._record("cut off", link.source, link.target, message)
        elif self._hand(link.target, link.source, message):
            link.counts.delivered += 1
        else:
            link.counts.unheard += 1
            self._record("unheard", link.source, link.target, message)

    # --- cuts and partitions --------------------------------------------------------------------

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Close a link, and by default the reverse one; each cut must be healed."""
        for link in self._between(source, target, both):
            link.cuts += 1
            self._refresh(link)

    def heal(self, source: str, target: str, *, both: bool = True) -> None:
        """Undo one cut; does nothing for a link without cuts."""
        for link in self._between(source, target, both):
            link.cuts = max(0, link.cuts - 1)
            self._refresh(link)

    def cut_for(self, source: str, target: str, duration_ns: int, *, both: bool = True) -> None:
        """Close a link for a time."""
        self.cut(source, target, both=both)
        self._events.post(self._clock.now_ns + duration_ns, self._heal_later, source, target, both)

    def _heal_later(self, source: str, target: str, both: bool) -> None:
        self.heal(source, target, both=both)

    def partition(self, groups: Sequence[Collection[str]]) -> None:
        """Allow messages only within groups; nodes in no group form one more group.

        A later partition replaces this one.
        """
        self._group_of = {name: number for number, group in enumerate(groups) for name in group}
        for link in tuple(self._links.values()):
            self._refresh(link)

    def heal_partition(self) -> None:
        """Remove the partition; cuts stay."""
        self.partition(())

    def heal_all(self) -> None:
        """Undo all cuts and the partition."""
        for link in self._links.values():
            link.cuts = 0
        self.heal_partition()

    def _between(self, source: str, target: str, both: bool) -> tuple[Link, ...]:
        forth = self.link(source, target)
        return (forth, self.link(target, source)) if both else (forth,)

    def _apart(self, link: Link) -> bool:
        group_of = self._group_of
        return bool(group_of) and group_of.get(link.source) != group_of.get(link.target)

    def _refresh(self, link: Link) -> None:
        is_open = link.cuts == 0 and not self._apart(link)
        if is_open == link.open:
            return
        link.open = is_open
        if not is_open:
            link.epoch += 1
            link.free_ns = link.last_ns = 0  # nothing is left in front of later messages
        self._record("heal" if is_open else "cut", link.source, link.target, None)
        for watcher in self._watchers:
            watcher(link)
