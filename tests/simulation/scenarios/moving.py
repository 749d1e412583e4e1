"""Hosts that change their parents at random while they read, and dial and hang up at random.

A stream goes from a root to relays, all of which may serve the moving hosts. These read from one
parent after the other, or from none for a time, possibly with a message half received. They hang up
on parents, dial them again and reject their messages, and a parent may dial them as well. Offers
are made while their subscribers are waiting. Control messages connect hosts
whose links come and go. Every reader must get every byte once and in order, and at the end every
link must be up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.simulation.scenarios.cluster import Cluster
from tests.simulation.scenarios.hosts import SimulatedHost
from tests.simulation.scenarios.workload import MS, Load, Producer, Reader, draw_load
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator
from whale_ray.transport.links.attached import Offer
from whale_ray.transport.mirror import MirrorRing, RingTap
from whale_ray.transport.ring import RingProducer
from whale_ray.transport.ring_layout import RingLayout
from whale_ray.transport.segment import Segment

STREAM = 0
ROOT = "root"
KIB = 1 << 10
_RESTLESS_NS = (20 * MS, 100 * MS, 300 * MS)
"""How long hosts move and hang up; then each stays where it is and dials all parents."""
_KEEP_NS = 2 * MS
"""How often a parent gives back what nobody may need."""


class Moving:
    """Makes its host read from one parent after the other."""

    def __init__(
        self, host: SimulatedHost, parents: Sequence[str], until_ns: int, chance: random.Random
    ) -> None:
        """Move among `parents` until `until_ns`."""
        self._host = host
        self._parents = parents
        self._until_ns = until_ns
        self._chance = chance
        self._pause_ns = chance.choice((2 * MS, 20 * MS))
        self._dialled = set(parents)
        self.next_ns: int | None = 0

    def step(self, now_ns: int) -> None:
        """Move, hang up, dial or reject, at random."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        if now_ns >= self._until_ns:
            self._settle()
            return
        self.next_ns = now_ns + 1 + self._chance.randrange(self._pause_ns)
        host, other = self._host, self._chance.choice(self._parents)
        kind = self._chance.random()
        if kind < 0.5:
            self._move(other)
        elif kind < 0.6:
            host.move(STREAM, None)
        elif kind < 0.75 and not host.peer(other).incoming:
            host.undial(other)
            self._dialled.discard(other)
        elif kind < 0.9:
            self._dial(other)
        elif kind < 0.93:
            host.reject(other, "it is said at random")

    def _dial(self, parent: str) -> None:
        self._host.dial(parent)
        self._dialled.add(parent)

    def _move(self, parent: str) -> None:
        if parent not in self._dialled:
            self._dial(parent)
        self._host.move(STREAM, parent)

    def _settle(self) -> None:
        for parent in self._parents:
            self._dial(parent)
        if self._host.neighbours.incoming[STREAM].parent is None:
            self._move(self._chance.choice(self._parents))
        self.next_ns = None


class Serving:
    """Makes a parent offer the stream late, and keep what the moving hosts may still need."""

    def __init__(
        self, host: SimulatedHost, tap: RingTap, fixed: Sequence[str], moving: Sequence[Moving]
    ) -> None:
        """Offer `tap` to the relays `fixed`, and to the hosts that move."""
        self._host = host
        self._tap = tap
        self._fixed = fixed
        self._moving = [one._host for one in moving]
        self._offer: Offer | None = None
        self.next_ns: int | None = 0

    def step(self, now_ns: int) -> None:
        """Offer the stream first; then release the bytes that no moving host can need."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        self.next_ns = now_ns + _KEEP_NS
        offer = self._offer
        if offer is None:
            children = (*self._fixed, *(child.name for child in self._moving))
            offer = self._offer = self._host.offer(STREAM, self._tap, children, dynamic=True)
        for child in self._moving:
            incoming = child.neighbours.incoming[STREAM]
            if incoming.parent != self._host.name:
                offer.readmit(child.name, incoming.received)


class Dialling:
    """Makes a host dial another and hang up, so that there are two links at times."""

    def __init__(
        self, host: SimulatedHost, other: str, until_ns: int, chance: random.Random
    ) -> None:
        """Dial `other` from time to time until `until_ns`, and permanently from then on."""
        self._host = host
        self._other = other
        self._until_ns = until_ns
        self._chance = chance
        self.next_ns: int | None = chance.randrange(20 * MS)

    def step(self, now_ns: int) -> None:
        """Dial or hang up."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        self.next_ns = now_ns + 1 + self._chance.randrange(30 * MS)
        if now_ns >= self._until_ns:
            self.next_ns = None
            self._host.dial(self._other)
        elif self._chance.random() < 0.5:
            self._host.dial(self._other)
        else:
            self._host.undial(self._other)


class MovingCluster(Cluster):
    """A cluster with such hosts."""

    def play(self) -> None:
        """Run its seed."""
        chance = self.chance_of("moving")
        relays = [name for name in self.hosts if name.startswith("relay")]
        moving = [name for name in self.hosts if name.startswith("moving")]
        ring_bytes = chance.choice((4 * KIB, 8 * KIB, 32 * KIB))
        nbytes = chance.choice((16 * KIB, 64 * KIB))
        until_ns = chance.choice(_RESTLESS_NS)
        layout = RingLayout(ring_bytes, 2)
        load = draw_load(chance, "moving", nbytes, layout.max_frame_bytes)
        errands = []
        for name in moving:
            self._mirror_at(name, None, ring_bytes, load)
            host = self.hosts[name]
            errand = Moving(host, [ROOT, *relays], until_ns, self.chance_of(f"{name} moves"))
            for parent in (ROOT, *relays):
                host.dial(parent)
            errands.append(errand)
            host.errands.append(errand)
        root_tap = self._root(layout, load)
        self._serve(ROOT, root_tap, relays, errands)
        for name in relays:
            tap = self._mirror_at(name, ROOT, ring_bytes, load)
            self.hosts[name].dial(ROOT)
            self._serve(name, tap, (), errands)
        pairs = [(child, parent) for child in moving for parent in (ROOT, *relays)]
        one, other = chance.choice(pairs)
        self.talk(one, other, (chance.choice((0, 30)), chance.choice((0, 30))))
        if chance.random() < 0.5:
            errand_back = Dialling(self.hosts[other], one, until_ns, self.chance_of("back"))
            self.hosts[other].errands.append(errand_back)
        self.run_through_storm([*pairs, *((name, ROOT) for name in relays)])

    def _root(self, layout: RingLayout, load: Load) -> RingTap:
        segment = Segment.create(layout.total_bytes, "ring", "simulation", "private")
        producer = RingProducer(segment, layout, poison_released=True)
        tap = RingTap.beside(producer)
        producer.drop_reader(1)
        self.hosts[ROOT].producers.append(Producer(producer, load, self.chance_of("producer")))
        return tap

    def _mirror_at(self, name: str, parent: str | None, ring_bytes: int, load: Load) -> RingTap:
        """Give a host its mirror with a reader and, at a relay, a tap."""
        is_relay = parent is not None
        label = f"{name}-{STREAM}"
        mirror = MirrorRing.create(
            ring_bytes, 1 + is_relay, "simulation", label, kind="private", poison_released=True
        )
        host = self.hosts[name]
        host.subscribe(STREAM, mirror, parent)
        reader = Reader(mirror.consumer(0), load, self.chance_of(f"{name} reads"), name)
        host.readers.append(reader)
        return RingTap.of(mirror, 1) if is_relay else None

    def _serve(
        self, name: str, tap: RingTap, fixed: Sequence[str], moving: Sequence[Moving]
    ) -> None:
        serving = Serving(self.hosts[name], tap, fixed, moving)
        serving.next_ns = self.chance_of(f"{name} offers").choice((0, 0, MS, 20 * MS))
        self.hosts[name].errands.append(serving)

    @property
    def done(self) -> bool:
        """Whether all has arrived and every link is up."""
        hosts = self.hosts.values()
        return (
            all(reader.over for host in hosts for reader in host.readers)
            and self.talks_over
            and all(host.linked for host in hosts)
        )


def play(simulation: Simulator) -> None:
    """Run a seed."""
    chance = random.Random(f"{simulation.seed}/moving")
    relays = [f"relay-{number}" for number in range(chance.choice((1, 2)))]
    moving = [f"moving-{number}" for number in range(chance.choice((1, 1, 2)))]
    MovingCluster(simulation, [ROOT, *relays, *moving]).play()


SCENARIO = Scenario("moving", play)
