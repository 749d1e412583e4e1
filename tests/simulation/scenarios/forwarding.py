"""Relays that forward streams along a star, a chain or a random tree of 3 to 6 hosts.

Links are cut and healed, wires are faulty, some readers are slow and some leave early. Every reader
that stays must get all of the producer's bytes, once and in order; nothing but rings may fill up;
and all streams must end once the links have healed. Relays do not die in this scenario: their rings
would die with them, and the job would start a new attempt.
"""

from __future__ import annotations

import random

from tests.simulation.scenarios.cluster import Cluster
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator

KIB = 1 << 10


def play(simulation: Simulator) -> None:
    """Run a seed."""
    chance = random.Random(f"{simulation.seed}/forwarding")
    names = [f"h{number}" for number in range(chance.randrange(3, 7))]
    cluster = Cluster(simulation, names)
    pairs: set[tuple[str, str]] = set()
    for stream in range(chance.choice((1, 1, 2))):
        root = chance.choice(names)
        others = [name for name in names if name != root]
        parents = draw_tree(chance, root, others)
        leaving = [name for name in others if chance.random() < 0.1]
        ring_bytes = chance.choice((4 * KIB, 8 * KIB, 32 * KIB))
        nbytes = chance.choice((4 * KIB, 16 * KIB, 64 * KIB))
        cluster.stream(stream, root, parents, ring_bytes, nbytes, leaving=leaving)
        pairs.update(parents.items())
    cluster.run_through_storm(sorted(pairs))


def draw_tree(chance: random.Random, root: str, others: list[str]) -> dict[str, str]:
    """Draw the parent of each host: a star, a chain or a random tree."""
    kind = chance.choice(("star", "chain", "tree"))
    placed = [root]
    parents: dict[str, str] = {}
    for name in chance.sample(others, len(others)):
        if kind == "star":
            parents[name] = root
        elif kind == "chain":
            parents[name] = placed[-1]
        else:
            parents[name] = chance.choice(placed)
        placed.append(name)
    return parents


SCENARIO = Scenario("forwarding", play)
