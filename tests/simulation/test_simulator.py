"""The simulator: one seed gives one run, crashes lose state, livelocks are failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import stop_and_wait
from tests.simulation.network import LinkModel
from tests.simulation.simulator import Actions, Send, SimulationError, Simulator, WakeAt

ROOT = Path(__file__).parents[2]


class Counter:
    """Counts its ticks, one per microsecond, and its messages."""

    def __init__(self) -> None:
        self.ticks = 0
        self.messages: list[object] = []

    def start(self, now_ns: int) -> Actions:
        return [WakeAt(now_ns + 1_000)]

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        self.messages.append(message)
        return ()

    def tick(self, now_ns: int) -> Actions:
        self.ticks += 1
        return [WakeAt(now_ns + 1_000)]


class Echo:
    """Sends every message back for ever."""

    def __init__(self, first: str | None = None) -> None:
        self._first = first

    def start(self, now_ns: int) -> Actions:
        return [] if self._first is None else [Send(self._first, "ball")]

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        return [Send(sender, message)]

    def tick(self, now_ns: int) -> Actions:
        return ()


def trace_of(seed: int) -> tuple[str, int]:
    simulation = Simulator(seed, trace_events=10_000)
    stop_and_wait.play(simulation, drops_duplicates=True)
    return simulation.trace_text(), simulation.fingerprint


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    assert trace_of(7) == trace_of(7)
    runs = [trace_of(seed) for seed in range(50)]
    assert len({text for text, _ in runs}) == len({mark for _, mark in runs}) == 50


def test_another_process_has_the_same_run_whatever_its_hash_seed():
    program = (
        "from tests.simulation.test_simulator import trace_of;"
        "text, mark = trace_of(7); print(text); print(mark)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "{}\n{}\n".format(*trace_of(7))


def test_a_crash_loses_the_nodes_state_its_ticks_and_what_arrives_meanwhile():
    simulation = Simulator(1, link=LinkModel(delay_ns=10))
    simulation.add("a", Counter)
    simulation.add("b", lambda: Echo("a"))
    simulation.run(until_ns=10_500)
    first = simulation.node("a")
    assert isinstance(first, Counter) and first.ticks == 10 and first.messages == ["ball"]
    simulation.crash_for("a", 5_000)
    assert simulation.node("a") is None
    simulation.network.send("b", "a", "unheard", 1)
    simulation.crash("a")
    simulation.run(until_ns=20_000)
    second = simulation.node("a")
    assert isinstance(second, Counter) and second is not first
    assert (first.ticks, second.ticks, second.messages) == (10, 4, [])
    assert simulation.network.counts().unheard == 1
    simulation.restart("a")
    assert simulation.node("a") is second


def test_a_message_outlives_its_sender():
    simulation = Simulator(1)
    simulation.add("a", Counter)
    simulation.add("b", lambda: Echo("a"))
    simulation.run(until_ns=0)
    simulation.crash("b")
    simulation.run(until_ns=1_000_000)
    node = simulation.node("a")
    assert isinstance(node, Counter) and node.messages == ["ball"]


def test_a_livelock_is_a_failure():
    simulation = Simulator(1, events_max=1_000)
    simulation.add("a", lambda: Echo("b"))
    simulation.add("b", Echo)
    with pytest.raises(SimulationError, match="no end after 1,000 events: a livelock"):
        simulation.run()


def test_a_run_that_misses_its_goal_is_a_failure():
    simulation = Simulator(1)
    simulation.add("a", Counter)
    with pytest.raises(SimulationError, match=r"not done after 0.010 ms: the time is over"):
        simulation.run(until_ns=10_000, done=lambda: False)
    simulation.crash("a")
    with pytest.raises(SimulationError, match="nothing is left to happen"):
        simulation.run(done=lambda: False)
    simulation.run(done=lambda: True)


def test_the_last_wake_at_counts():
    class Changing(Counter):
        def receive(self, sender: str, message: object, now_ns: int) -> Actions:
            return [WakeAt(int(str(message)))]

        def tick(self, now_ns: int) -> Actions:
            self.messages.append(now_ns)
            return ()

    simulation = Simulator(1, link=LinkModel(delay_ns=0))
    simulation.add("a", Changing)
    simulation.run(until_ns=500)
    for time_ns in (700, 600, 900):
        simulation.network.send("b", "a", time_ns, 0)
    simulation.run(until_ns=2_000)
    simulation.network.send("b", "a", 5, 0)  # a time that has passed: it is delivered at once
    simulation.run()
    node = simulation.node("a")
    assert isinstance(node, Changing) and node.messages == [900, 2_000]


def test_an_invalid_action_is_refused():
    class Wrong(Echo):
        def start(self, now_ns: int) -> Actions:
            return ["send"]  # type: ignore[list-item]  # on purpose

    simulation = Simulator(1)
    simulation.add("a", Wrong)
    with pytest.raises(TypeError, match="node 'a' asks for 'send', which is no action"):
        simulation.run()
    with pytest.raises(ValueError, match="there is a node 'a' already"):
        simulation.add("a", Echo)


def test_the_trace_keeps_the_last_events_and_cuts_long_messages():
    simulation = Simulator(1, trace_events=3, events_max=10)
    simulation.add("a", lambda: Echo("b"))
    simulation.add("b", Echo)
    with pytest.raises(SimulationError):
        simulation.run()
    simulation.network.cut("a", "b", both=False)
    simulation.network.send("a", "b", "x" * 1_000, 1)
    head, *lines = simulation.trace_text().splitlines()
    assert head == "the last 3 events of 10:"
    assert [line.split("ms")[1].split()[:4] for line in lines] == [
        ["b", "→", "a", "receive"],
        ["a", "→", "b", "cut"],
        ["a", "→", "b", "cut"],
    ]
    assert lines[-1].endswith("xx…") and len(lines[-1]) < 200


class Gossip:
    """Sends 4 messages a round for 25 rounds."""

    def __init__(self, number: int, nodes: int) -> None:
        self._targets = [f"n{(number * 7 + k * 13 + 1) % nodes}" for k in range(4)]
        self._rounds = 0
        self.received = 0

    def start(self, now_ns: int) -> Actions:
        return [WakeAt(now_ns)]

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        self.received += 1
        return ()

    def tick(self, now_ns: int) -> Actions:
        self._rounds += 1
        actions: list[Send | WakeAt] = [Send(target, self._rounds, 100) for target in self._targets]
        if self._rounds < 25:
            actions.append(WakeAt(now_ns + 1_000_000))
        return actions


@pytest.mark.parametrize(
    "nodes", [100, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.exhaustive])]
)
def test_very_many_nodes_exchange_a_hundred_messages_each(nodes):
    simulation = Simulator(1, link=LinkModel(jitter_ns=10_000, loss=0.001), events_max=10**7)
    for number in range(nodes):
        simulation.add(f"n{number}", lambda number=number: Gossip(number, nodes))
    simulation.run()
    counts = simulation.network.counts()
    assert counts.messages == nodes * 100
    assert counts.delivered + counts.lost == counts.messages
    received = 0
    for number in range(nodes):
        node = simulation.node(f"n{number}")
        assert isinstance(node, Gossip)
        received += node.received
    assert received == counts.delivered
