"""Hosts with streams and control messages between them, under faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

from tests.simulation.connections import ConnectionModel, CutEffect
from tests.simulation.network import LinkModel, Tail
from tests.simulation.scenarios.hosts import ControlTalk, SimulatedHost
from tests.simulation.scenarios.workload import MS, US, Load, Producer, Reader, draw_load
from tests.simulation.simulator import Simulator
from whale_ray.transport.mirror import MirrorRing, RingTap
from whale_ray.transport.ring import RingProducer
from whale_ray.transport.ring_layout import RingLayout
from whale_ray.transport.segment import Segment

STORMS_NS = (20 * MS, 100 * MS, 400 * MS)
"""How long misfortunes may go on; then everything heals."""
HEALED_NS = 30_000 * MS
"""All must have arrived by then; it is a bound for livelocks, no measure of speed."""
_PENDING_EVENTS_MAX = 20_000


class Cluster:
    """The hosts of a simulation, what they are to deliver, and whether they have."""

    def __init__(self, simulation: Simulator, names: Sequence[str]) -> None:
        """Add a host for each name."""
        self.simulation = simulation
        self.hosts: dict[str, SimulatedHost] = {}
        self._promised: list[tuple[ControlTalk, int]] = []
        for name in names:
            self.hosts[name] = SimulatedHost(name, self.chance_of(name))
            simulation.add(name, partial(self.hosts.__getitem__, name))

    def chance_of(self, what: str) -> random.Random:
        """Return a random generator for one purpose, independent of all others."""
        return random.Random(f"{self.simulation.seed}/{what}")

    # --- traffic ------------------------------------------------------------------------------

    def stream(
        self,
        stream: int,
        root: str,
        parents: Mapping[str, str],
        ring_bytes: int,
        nbytes: int,
        *,
        leaving: Sequence[str] = (),
    ) -> None:
        """Send about `nbytes` from `root` to all hosts in `parents`, by way of their parents.

        The readers of the hosts in `leaving` stop early.
        """
        chance = self.chance_of(f"stream {stream}")
        layout = RingLayout(ring_bytes, 2)
        load = draw_load(chance, f"stream {stream}", nbytes, layout.max_frame_bytes)
        children = {
            name: tuple(child for child, parent in parents.items() if parent == name)
            for name in (root, *parents)
        }
        producer = RingProducer(
            Segment.create(layout.total_bytes, "ring", "simulation", "private"),
            layout,
            poison_released=True,
        )
        tap = RingTap.beside(producer)
        producer.drop_reader(1)
        self.hosts[root].offer(stream, tap, children[root])
        worker = Producer(producer, load, chance, may_be_left=bool(leaving))
        self.hosts[root].producers.append(worker)
        for name, parent in parents.items():
            leaves = chance.randrange(len(load.sizes) + 1) if name in leaving else None
            self._mirror(stream, name, parent, children[name], ring_bytes, load, leaves)

    def _mirror(
        self,
        stream: int,
        name: str,
        parent: str,
        children: tuple[str, ...],
        ring_bytes: int,
        load: Load,
        leaves: int | None,
    ) -> None:
        """Give a host its mirror with one or two readers, and a tap if it has children."""
        host = self.hosts[name]
        chance = self.chance_of(f"{name}/{stream}")
        readers = chance.choice((1, 1, 2))
        mirror = MirrorRing.create(
            ring_bytes,
            readers + bool(children),
            "simulation",
            f"{name}-{stream}",
            kind="private",
            poison_released=True,
        )
        host.subscribe(stream, mirror, parent)
        host.dial(parent)
        for number in range(readers):
            where = f"{name}, reader {number} of stream {stream}"
            end = mirror.consumer(number)
            host.readers.append(Reader(end, load, chance, where, leaves_after=leaves))
        if children:
            host.offer(stream, RingTap.of(mirror, readers), children)

    def talk(self, one: str, other: str, counts: tuple[int, int]) -> None:
        """Exchange the given numbers of control messages, from `one` and from `other`."""
        for name, peer, sends, awaits in (
            (one, other, counts[0], counts[1]),
            (other, one, counts[1], counts[0]),
        ):
            talk = ControlTalk(sends, self.chance_of(f"talk {name} {peer}"))
            self.hosts[name].talks[peer] = talk
            self._promised.append((talk, awaits))

    @property
    def talks_over(self) -> bool:
        """Whether all control messages were sent, and have arrived."""
        return all(talk.over(awaited) for talk, awaited in self._promised)

    @property
    def done(self) -> bool:
        """Whether everything that was sent has arrived, and its senders know."""
        return (
            all(reader.over for host in self.hosts.values() for reader in host.readers)
            and self.talks_over
            and all(host.delivered for host in self.hosts.values())
        )

    # --- the run ---------------------------------------------------------------------------------

    def run_through_storm(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Disturb the links between `pairs` for a time, heal them, and wait until all has arrived.

        Raises SimulationError if it does not, and AssertionError if anything arrives that was not
        sent, or if a queue exceeds its bound.
        """
        simulation, chance = self.simulation, self.chance_of("storm")
        simulation.network.set_all_models(draw_link(chance))
        simulation.connections.model = draw_connection(chance)
        for host in self.hosts.values():
            host.connector.breaks_within = chance.choice((0.0, 0.01))
        storm_ns = chance.choice(STORMS_NS)
        self._plan_cuts(chance, pairs, storm_ns)
        simulation.events.post(storm_ns, self._heal)
        simulation.run(until_ns=storm_ns)
        self._check()
        simulation.run(until_ns=storm_ns + HEALED_NS, done=lambda: self.done)
        self._check()

    def _check(self) -> None:
        check_bounds(self.simulation)
        for host in self.hosts.values():
            known = set(map(id, host.manager.links.values()))
            lost = [end for end in host.connector.carrying if id(end) not in known]
            assert not lost, f"{host.name} keeps {len(lost)} links open that were replaced"

    def _plan_cuts(
        self, chance: random.Random, pairs: Sequence[tuple[str, str]], storm_ns: int
    ) -> None:
        network, post = self.simulation.network, self.simulation.events.post
        for _ in range(chance.choice((0, 2, 10))):
            one, other = chance.choice(pairs)
            one, other = (one, other) if chance.random() < 0.5 else (other, one)
            duration_ns = chance.choice((MS, 20 * MS, 150 * MS))
            call = network.cut_for if chance.random() < 0.7 else self._cut_one_way
            post(chance.randrange(storm_ns), call, one, other, 1 + chance.randrange(duration_ns))
        if chance.random() < 0.3:
            names = list(self.hosts)
            group = chance.sample(names, chance.randrange(1, len(names)))
            start_ns = chance.randrange(storm_ns)
            post(start_ns, network.partition, [group])
            post(start_ns + chance.randrange(storm_ns), network.heal_partition)

    def _cut_one_way(self, one: str, other: str, duration_ns: int) -> None:
        self.simulation.network.cut_for(one, other, duration_ns, both=False)

    def _heal(self) -> None:
        network = self.simulation.network
        network.heal_all()
        network.set_all_models(LinkModel(delay_ns=100 * US, jitter_ns=50 * US))
        self.simulation.connections.model = ConnectionModel()
        for host in self.hosts.values():
            host.connector.breaks_within = 0.0


def check_bounds(simulation: Simulator) -> None:
    """Check the bound of every queue; that of rings is their size."""
    pending = len(simulation.events)
    assert pending < _PENDING_EVENTS_MAX, f"{pending:,} events wait"
    for connection in simulation.connections.open():
        for name, pipe in connection.pipes.items():
            bound = 2 * connection.window_bytes + (1 << 20)
            assert pipe.pending_bytes < bound, f"{name}: {pipe.pending_bytes:,} bytes wait"


def draw_link(chance: random.Random) -> LinkModel:
    """Draw how links behave during a storm."""
    return LinkModel(
        delay_ns=chance.choice((10 * US, 100 * US, 5 * MS)),
        jitter_ns=chance.choice((0, 50 * US, 2 * MS)),
        tail=chance.choice(tuple(Tail)),
        bytes_per_s=chance.choice((None, None, 2_000_000, 50_000_000)),
        loss=chance.choice((0.0, 0.01, 0.05)),
        duplication=chance.choice((0.0, 0.0, 0.03)),
        reordering=chance.choice((0.0, 0.0, 0.03)),
        reorder_ns=chance.choice((100 * US, 5 * MS)),
    )


def draw_connection(chance: random.Random) -> ConnectionModel:
    """Draw how connections behave during a storm."""
    return ConnectionModel(
        effect=chance.choice(tuple(CutEffect)),
        silence_ns=chance.choice((30 * MS, 200 * MS)),
        window_bytes=chance.choice((4 << 10, 64 << 10, 1 << 20)),
        faulty=chance.random() < 0.7,
    )
