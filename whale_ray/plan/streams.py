"""The streams of a plan: its rings with their writers, readers and hosts.

A relay receives only this part of the plan, which contains no code or object of the user's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..multicast.trees import Tree
from .hosts import HostLayout


@dataclass(frozen=True)
class RingSpec:
    """One ring: written by one worker, read by one or (all grouping) several workers.

    Readers on other hosts read a mirror of it (hosts.py).
    """

    id: int
    """The number of the stream in the header of each of its messages."""
    edge: int
    producer_worker: int
    consumer_workers: tuple[int, ...]
    capacity_bytes: int
    """0 until the rings are sized."""
    per_instance: bool = False
    """Whether it belongs to instance-oriented addressing, the baseline that addresses a message to
    one instance: the seam by which `TaskBuilder` and `ReaderBuilder` choose the strategy of an
    broadcast edge. Only a job with `runtime.addressing: instance-oriented` has such rings."""


@dataclass(frozen=True)
class CustomStream:
    """A stream by a user's transport: one sender, and the receiver that it sends to."""

    id: int
    """The number of the stream in the header of each of its messages; no ring has it."""
    edge: int
    producer_worker: int
    consumer_worker: int


@dataclass(frozen=True)
class StreamPlan:
    """The rings of a job, with their writers and readers.

    *Members* are the processes that execute the steps of an attempt: the workers, then the relays
    of the hosts, if there are several hosts.
    """

    workers: int
    rings: tuple[RingSpec, ...]
    """`rings[i].id == i`."""
    hosts: HostLayout

    @property
    def ring_bytes_total(self) -> int:
        """The memory of all rings and their mirrors, in bytes."""
        return sum(ring.capacity_bytes * (1 + self.mirrors_of(ring)) for ring in self.rings)

    @property
    def relays(self) -> int:
        """How many relays there are: one per host, none if there is a single host."""
        return self.hosts.count if self.hosts.count > 1 else 0

    @property
    def members(self) -> int:
        """How many members there are."""
        return self.workers + self.relays

    def relay_of(self, host: int) -> int:
        """Return the number of a host's relay among the members."""
        return self.workers + host

    def host_of(self, member: int) -> int:
        """Return the host of a worker or relay."""
        return self.hosts.of_worker[member] if member < self.workers else member - self.workers

    def member_name(self, member: int) -> str:
        """Return the name of a worker or relay in messages."""
        if member < self.workers:
            return f"worker {member}"
        return f"relay of {self.hosts.names[member - self.workers]}"

    def rings_of_edge(self, edge_id: int) -> tuple[RingSpec, ...]:
        """Return the rings of an edge."""
        return tuple(ring for ring in self.rings if ring.edge == edge_id)

    def rings_of_producer(self, worker: int) -> tuple[RingSpec, ...]:
        """Return the rings that `worker` creates and writes."""
        return tuple(ring for ring in self.rings if ring.producer_worker == worker)

    def rings_of_consumer(self, worker: int) -> tuple[RingSpec, ...]:
        """Return the rings that `worker` reads, on its own host or as a mirror."""
        return tuple(ring for ring in self.rings if worker in ring.consumer_workers)

    def origin_of(self, ring: RingSpec) -> int:
        """Return the host on which a ring is written."""
        return self.hosts.of_worker[ring.producer_worker]

    def writer_on(self, ring: RingSpec, host: int) -> int:
        """Return the member that writes a ring on a host: its producer, else the host's relay."""
        is_origin = self.origin_of(ring) == host
        return ring.producer_worker if is_origin else self.relay_of(host)

    def owner_on(self, ring: RingSpec, host: int) -> int:
        """Return the worker whose memory holds a ring on a host: its producer, or the host's first.

        Relays own no rings, so that a relay that died can be replaced.
        """
        is_origin = self.origin_of(ring) == host
        return ring.producer_worker if is_origin else self.hosts.workers_on(host)[0]

    def mirrors_on(self, host: int) -> tuple[RingSpec, ...]:
        """Return the rings of other hosts that workers of this one read."""
        return tuple(ring for ring in self.rings if host in self.tree_of(ring).parents)

    def members_reading(self, ring: RingSpec, host: int) -> tuple[int, ...]:
        """Return the members that read a ring, or its mirror, on a host, by reader index.

        Workers come first, ascending, then the relay if it may forward the stream to other hosts.
        """
        local = tuple(w for w in ring.consumer_workers if self.hosts.of_worker[w] == host)
        forwards = self.is_multicast(ring) or bool(self.children_of(ring, host))
        return (*local, self.relay_of(host)) if forwards else local

    def is_multicast(self, ring: RingSpec) -> bool:
        """Return whether a ring's bytes go to several hosts, along a tree that may change."""
        return len(self.tree_of(ring).joined) > 1

    def tree_of(self, ring: RingSpec) -> Tree:
        """Return the initial tree of hosts along which a ring's bytes travel."""
        return self.hosts.tree(self.origin_of(ring), self.hosts.hosts_of(ring.consumer_workers))

    def parents_of(self, ring: RingSpec) -> dict[int, int]:
        """Return the parent of each host that has a mirror of a ring, on the stream's route."""
        return {int(child): int(parent) for child, parent in self.tree_of(ring).parents.items()}

    def children_of(self, ring: RingSpec, host: int) -> tuple[int, ...]:
        """Return the hosts to which the relay of `host` initially forwards a ring's bytes."""
        return tuple(map(int, self.tree_of(ring).children.get(host, ())))

    def mirrors_of(self, ring: RingSpec) -> int:
        """Return how many mirrors a ring has."""
        return len(self.parents_of(ring))
