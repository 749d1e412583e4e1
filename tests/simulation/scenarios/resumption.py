"""Two hosts whose link is cut, silent, lossy, repeating and out of order: all streams resume.

Streams go in both directions, beside control messages. Every reader must get
every byte once and in order, and the senders must learn of it once the link is healthy again.
"""

from __future__ import annotations

from tests.simulation.scenarios.cluster import Cluster
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator

KIB = 1 << 10


def play(simulation: Simulator) -> None:
    """Run a seed."""
    cluster = Cluster(simulation, "ab")
    chance = cluster.chance_of("resumption")
    ring_bytes = chance.choice((4 * KIB, 8 * KIB, 64 * KIB))
    nbytes = chance.choice((0, 16 * KIB, 96 * KIB))
    if chance.random() < 0.03:  # frames so large that a link cuts them in pieces
        ring_bytes, nbytes = 2048 * KIB, 3000 * KIB
    streams = chance.choice((1, 2, 4))
    for stream in range(streams):
        # The first one makes b dial a; otherwise nothing could flow.
        root, child = ("a", "b") if stream == 0 or chance.random() < 0.6 else ("b", "a")
        leaving = (child,) if stream and chance.random() < 0.1 else ()
        cluster.stream(stream, root, {child: root}, ring_bytes, nbytes, leaving=leaving)
    cluster.talk("a", "b", (chance.choice((0, 30)), chance.choice((0, 30))))
    cluster.run_through_storm([("a", "b")])


SCENARIO = Scenario("resumption", play)
