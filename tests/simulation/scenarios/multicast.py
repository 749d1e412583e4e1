"""One stream to many hosts, along a tree that is switched repeatedly while relays die.

Star, chain, binomial and non-blocking trees of 3 to 12 hosts follow each other. The relays of some
hosts, also of the source's, and the controller are killed and replaced. Messages are late, lost,
doubled and out of order, links are cut, readers are slow, sources idle. Every reader of every host
must get all of the producer's bytes, once and in order. The source must keep all bytes that a host
needs, only rings and the retention may fill up, and at the end the tree must be complete and the
last switch finished. In half of the seeds some hosts have sources with watermarks, which the relays
must exchange.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.connections import ConnectionModel
from tests.simulation.network import LinkModel
from tests.simulation.scenarios.cluster import check_bounds, draw_connection, draw_link
from tests.simulation.scenarios.leads import ROUTES, Fleet, Journal, Lead
from tests.simulation.scenarios.relays import CONTROLLER, STREAM, Addresses, HostMemory, Relay
from tests.simulation.scenarios.workload import MS, US, draw_load
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator
from whale_ray.configs.settings import MulticastSettings
from whale_ray.multicast.switch_protocol import SwitchPhase
from whale_ray.multicast.tree_state import (
    TreeState,
)
from whale_ray.plan.hosts import HostLayout, host_name
from whale_ray.plan.streams import RingSpec, StreamPlan
from whale_ray.transport.doorbell import LAST_WATERMARK_NS
from whale_ray.transport.retention import Retention
from whale_ray.transport.ring_layout import RingLayout

KIB = 1 << 10
STORMS_NS = (20 * MS, 50 * MS, 50 * MS, 120 * MS)
HEALED_NS = 5_000 * MS


class Play:
    """One seed."""

    def __init__(self, simulation: Simulator) -> None:
        """Draw the hosts, the stream and its load."""
        self.simulation = simulation
        self.chance = chance = random.Random(f"{simulation.seed}/multicast")
        hosts = chance.choice((3, 3, 4, 4, 5))
        if chance.random() < 0.06:
            hosts = chance.choice((6, 8, 8, 12, 12, 30))
        ring_bytes = chance.choice((4 * KIB, 4 * KIB, 16 * KIB))
        nbytes = chance.choice((4 * KIB, 12 * KIB, 24 * KIB))
        self.storm_ns = chance.choice(STORMS_NS)
        layout = HostLayout(tuple(range(hosts)), chance.choice(ROUTES), chance.choice((0, 1, 2)))
        ring = RingSpec(STREAM, 0, 0, tuple(range(hosts)), ring_bytes)
        self.plan = StreamPlan(hosts, (ring,), layout)
        self.settings = MulticastSettings(patience_ms=chance.choice((60, 400)), dwell_min_ms=0)
        largest = RingLayout(ring_bytes, 2).max_frame_bytes
        load = draw_load(chance, "multicast", nbytes, largest)
        timed = self.chance_of("watermarks")
        slot_hosts = tuple(timed.choices(range(hosts), k=timed.choice((0, 0, 2, 4))))
        self.memories = [
            HostMemory(host, load, ring_bytes, self.chance_of(f"host {host}"), slot_hosts)
            for host in range(hosts)
        ]
        for memory in self.memories:
            memory.publish_watermarks(self.storm_ns, self.chance_of(f"watermarks {memory.host}"))
        self._draw_retention(ring_bytes)
        self.breaks_within = chance.choice((0.0, 0.0, 0.01))
        self.journal = Journal()
        self.fleet = Fleet(simulation, hosts, self._relay, self.chance_of("fleet"))
        simulation.add(CONTROLLER, self._lead)

    def chance_of(self, what: str) -> random.Random:
        """Return a random generator for one purpose, independent of all others."""
        return random.Random(f"{self.simulation.seed}/multicast/{what}")

    def _draw_retention(self, ring_bytes: int) -> None:
        chunk = ring_bytes // 2
        kind = self.chance.choice(("none", "memory", "spill", "spill"))
        if kind == "none":
            return
        memory, spilled = (2 * chunk, 0) if kind == "memory" else (chunk, 8 * chunk)
        self.memories[0].retention = lambda: Retention(
            memory, spilled, ring_bytes, label="simulation", chunk_bytes=chunk
        )

    def _relay(self, host: int, addresses: Addresses, state: TreeState | None) -> Relay:
        tree = self.plan.tree_of(self.plan.rings[0])
        deaths = self.fleet.deaths[host]
        chance = self.chance_of(f"relay {host}/{deaths}")
        relay = Relay(self.memories[host], chance, self.settings, addresses, tree, state)
        relay.connector.breaks_within = self.breaks_within
        return relay

    def _lead(self) -> Lead:
        chance = self.chance_of(f"lead {self.journal.term}")
        return Lead(self.plan, self.settings, self.fleet, self.journal, chance, self.storm_ns)

    # --- faults ---------------------------------------------------------------------------

    def plan_storm(self) -> None:
        """Draw the faults and their times."""
        simulation, chance = self.simulation, self.chance_of("storm")
        simulation.network.set_all_models(draw_link(chance))
        simulation.connections.model = draw_connection(chance)
        hosts = range(self.plan.hosts.count)
        for _ in range(chance.choice((0, 1, 2, 4))):
            self._at(chance, self.fleet.kill, chance.choice(hosts), chance.random() < 0.8)
        if chance.random() < 0.2:
            self._at(chance, self.fleet.kill, 0, True)
        for _ in range(chance.choice((0, 1, 2))):
            duration_ns = 1 + chance.randrange(40 * MS)
            self._at(chance, simulation.crash_for, CONTROLLER, duration_ns)
        self.journal.doomed = chance.choices(tuple(SwitchPhase), k=chance.choice((0, 0, 1, 2)))
        for _ in range(chance.choice((0, 2, 6))):
            one, other = chance.sample(hosts, 2)
            duration_ns = 1 + chance.randrange(chance.choice((MS, 20 * MS, 150 * MS)))
            cut = simulation.network.cut_for
            self._at(chance, cut, host_name(one), host_name(other), duration_ns)
        if chance.random() < 0.2:
            group = [host_name(host) for host in chance.sample(hosts, len(hosts) // 2)]
            start_ns = chance.randrange(self.storm_ns)
            simulation.events.post(start_ns, simulation.network.partition, [group])
        for _ in range(chance.choice((0, 0, 1, 3))):
            self._at(chance, self._idle, 1 + chance.randrange(100 * MS))
        simulation.events.post(self.storm_ns, self._heal)

    def _at(self, chance: random.Random, call: Callable[..., None], *arguments: object) -> None:
        self.simulation.events.post(chance.randrange(self.storm_ns), call, *arguments)

    def _idle(self, duration_ns: int) -> None:
        """Make the source idle for a time."""
        source = self.memories[0].producer
        if source is not None and source.next_ns is not None:
            source.next_ns = max(source.next_ns, self.simulation.clock.now_ns + duration_ns)

    def _heal(self) -> None:
        network = self.simulation.network
        network.heal_all()
        network.set_all_models(LinkModel(delay_ns=100 * US, jitter_ns=50 * US))
        self.simulation.connections.model = ConnectionModel()
        self.breaks_within = 0.0
        for relay in self.relays:
            relay.connector.breaks_within = 0.0

    # --- the end --------------------------------------------------------------------------------

    @property
    def relays(self) -> list[Relay]:
        """The live relays."""
        found = (self.simulation.node(host_name(host)) for host in range(self.plan.hosts.count))
        return [relay for relay in found if isinstance(relay, Relay)]

    @property
    def done(self) -> bool:
        """Whether all hosts have everything and the last switch has ended; or bytes are lost."""
        if self.journal.failure:
            return True
        if not all(reader.over for memory in self.memories for reader in memory.readers):
            return False
        if not self._are_aligned:
            return False
        relays, states = self.relays, self.journal.states
        if len(relays) < self.plan.hosts.count or states is None:
            return False
        record = states[STREAM].record
        if record.phase is not SwitchPhase.STABLE or record.gone or self.journal.away:
            return False
        vertices = [relay.stream.vertex for relay in relays]
        root = vertices[0]
        return root.retain_from == root.received and all(
            vertex.settled
            and vertex.epoch == record.epoch
            and vertex.parent == record.tree.parents.get(vertex.name)
            for vertex in vertices
        )

    @property
    def _are_aligned(self) -> bool:
        """Whether all hosts with sources know the watermarks of all sources."""
        owners = self.memories[0].slot_hosts
        for host in set(owners):
            for slot, owner in enumerate(owners):
                own = self.memories[owner].board.watermark(slot)
                known = self.memories[host].board.watermark(slot)
                assert known <= own, f"host {host} takes source {slot} for further than it is"
                if known < LAST_WATERMARK_NS:
                    return False
        return True

    def run(self) -> None:
        """Run it; raises AssertionError or another error on a failure."""
        self.plan_storm()
        simulation = self.simulation
        try:
            simulation.run(until_ns=self.storm_ns)
            check_bounds(simulation)
            simulation.run(until_ns=self.storm_ns + HEALED_NS, done=lambda: self.done)
            check_bounds(simulation)
        finally:
            self.memories[0].forget()
        if self.journal.failure:
            # Only retained bytes that have left the ring may be lost, with the process that held
            # them.
            assert self.fleet.lost_retention, f"bytes were lost: {self.journal.failure}"


def play(simulation: Simulator) -> None:
    """Run a seed."""
    Play(simulation).run()


SCENARIO = Scenario("multicast", play)
