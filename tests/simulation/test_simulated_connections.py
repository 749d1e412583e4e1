"""Connections: complete and in order until they break, and both ends learn of it as modelled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.connections import (
    Arrived,
    Connected,
    Connection,
    ConnectionModel,
    CutEffect,
    Disconnected,
)
from tests.simulation.network import LinkModel
from tests.simulation.simulator import Action, Actions, Dial, HangUp, Simulator, Transmit

MS = 1_000_000
LINK = LinkModel(delay_ns=MS)


class Diary:
    """A node that records its events; the test acts from outside."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []
        self.connection: Connection | None = None
        self.received: list[object] = []

    def start(self, now_ns: int) -> Actions:
        return ()

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        match message:
            case Connected(connection):
                self.connection = connection
                self.notes.append((now_ns // MS, "connected"))
            case Disconnected(_, reason):
                self.notes.append((now_ns // MS, reason))
            case Arrived(_, content):
                self.received.append(content)
        return ()

    def tick(self, now_ns: int) -> Actions:
        return ()


class Pair:
    """Nodes a, which has dialled, and b."""

    def __init__(self, model: ConnectionModel, link: LinkModel = LINK, seed: int = 1) -> None:
        self.simulation = Simulator(seed, link=link, connection=model)
        for name in "ab":
            self.simulation.add(name, Diary)
        self.run(0)

    def node(self, name: str) -> Diary:
        node = self.simulation.node(name)
        assert isinstance(node, Diary)
        return node

    def act(self, name: str, action: Action) -> None:
        self.simulation._carry_out(self.simulation._seats[name], [action])

    def run(self, until_ms: int | None = None) -> None:
        self.simulation.run(until_ns=None if until_ms is None else until_ms * MS)

    def up(self) -> Connection:
        self.act("a", Dial("b"))
        self.run(2)
        connection = self.node("a").connection
        assert connection is not None
        return connection

    def send(self, name: str, connection: Connection, *messages: object) -> None:
        for message in messages:
            self.act(name, Transmit(connection, message, 100))


def test_both_ends_learn_of_the_connection_and_of_its_end():
    pair = Pair(ConnectionModel())
    connection = pair.up()
    pair.send("a", connection, 1, 2)
    pair.act("a", HangUp(connection))
    pair.send("b", connection, "too late")
    pair.run()
    assert pair.node("a").notes == [(2, "connected")]
    assert pair.node("b").notes == [(1, "connected"), (3, "the peer hung up")]
    assert (pair.node("a").received, pair.node("b").received) == ([], [1, 2])
    counts = pair.simulation.connections.counts
    assert (counts.messages, counts.delivered, counts.lost) == (3, 2, 1)


def test_jitter_does_not_disturb_the_order_and_the_links_faults_do_not_reach_messages():
    link = LinkModel(jitter_ns=5 * MS, in_order=False, loss=0.3, duplication=0.3, reordering=0.3)
    pair = Pair(ConnectionModel(), link)
    pair.act("a", Dial("b"))
    pair.run()
    connection = pair.node("a").connection
    assert connection is not None
    pair.send("a", connection, *range(200))
    pair.run()
    assert pair.node("b").received == list(range(200))


def test_faulty_connections_lose_double_and_reorder_messages():
    link = LinkModel(reorder_ns=5 * MS, loss=0.1, duplication=0.1, reordering=0.1)
    pair = Pair(ConnectionModel(faulty=True), link)
    pair.act("a", Dial("b"))
    pair.run()
    connection = pair.node("a").connection
    assert connection is not None
    pair.send("a", connection, *range(1_000))
    pair.run()
    received = pair.node("b").received
    counts = pair.simulation.connections.counts
    assert received != sorted(received)
    assert len(received) == 1_000 - counts.lost + counts.duplicated == counts.delivered
    assert 50 < counts.lost < 150 and 50 < counts.duplicated < 150
    assert connection.room("a") == 1 << 20


@pytest.mark.parametrize(
    ("effect", "told_ms"), [(CutEffect.RESET, 2), (CutEffect.SILENT, 32), (CutEffect.STALL, 32)]
)
def test_a_cut_that_lasts_breaks_the_connection_and_loses_what_is_in_flight(effect, told_ms):
    pair = Pair(ConnectionModel(effect, silence_ns=30 * MS))
    connection = pair.up()
    pair.send("a", connection, "in flight")
    pair.simulation.network.cut("a", "b", both=False)
    pair.send("b", connection, "into the cut")
    pair.run()
    for name in "ab":
        assert pair.node(name).notes[-1] == (told_ms, "the link is cut")
    # On a stalled connection, the direction that was not cut still delivers its messages.
    carried = effect is CutEffect.STALL
    assert pair.node("a").received == (["into the cut"] if carried else [])
    assert pair.node("b").received == []
    counts = pair.simulation.connections.counts
    assert (counts.broken, counts.lost) == (1, 2 - carried)


def test_a_short_cut_only_stalls_and_the_order_stays():
    pair = Pair(ConnectionModel(CutEffect.STALL, silence_ns=30 * MS))
    connection = pair.up()
    pair.send("a", connection, 0, 1)
    pair.simulation.network.cut_for("a", "b", 20 * MS)
    pair.send("a", connection, 2, 3)
    assert connection.room("a") == (1 << 20) - 400
    pair.run(21)
    pair.send("a", connection, 4)
    assert pair.node("b").received == []
    pair.run()
    assert pair.node("b").received == [0, 1, 2, 3, 4]
    assert pair.node("b").notes == [(1, "connected")]
    assert connection.room("a") == 1 << 20


def test_a_silent_cut_breaks_the_connection_even_if_it_heals_before_anybody_notices():
    pair = Pair(ConnectionModel(CutEffect.SILENT, silence_ns=30 * MS))
    connection = pair.up()
    pair.simulation.network.cut_for("a", "b", 5 * MS)
    pair.run(10)
    pair.send("a", connection, "lost")
    pair.run()
    assert pair.node("b").received == []
    assert pair.node("b").notes == [(1, "connected"), (32, "the link is cut")]


@pytest.mark.parametrize(("loud", "told_ms"), [(True, 3), (False, 32)])
def test_the_peer_learns_of_a_crash_at_once_or_after_a_silence(loud, told_ms):
    pair = Pair(ConnectionModel(silence_ns=30 * MS))
    connection = pair.up()
    before = pair.node("b")
    pair.simulation.crash_for("b", 5 * MS, loud=loud)
    pair.send("a", connection, "lost")
    pair.run()
    assert pair.node("a").notes == [(2, "connected"), (told_ms, "the peer crashed")]
    assert pair.node("b") is not before
    assert pair.node("b").notes == [] == pair.node("b").received


def test_a_dead_host_refuses_and_a_cut_one_does_not_answer():
    pair = Pair(ConnectionModel(silence_ns=30 * MS))
    pair.simulation.crash("b")
    pair.act("a", Dial("b"))
    pair.run()
    assert pair.node("a").notes == [(2, "refused")]
    pair.simulation.restart("b")
    pair.simulation.network.cut("a", "b")
    pair.act("a", Dial("b"))
    pair.run()
    assert pair.node("a").notes[-1] == (32, "no answer")
    assert pair.simulation.connections.counts.broken == 2


def test_a_successor_does_not_hear_of_the_end_of_connections_that_it_never_had():
    pair = Pair(ConnectionModel(effect=CutEffect.SILENT, silence_ns=50 * MS))
    pair.up()
    pair.simulation.network.cut("a", "b")
    pair.simulation.crash_for("a", 5 * MS)
    pair.run(100)
    assert pair.node("a").notes == []
    assert pair.node("b").notes == [(1, "connected"), (52, "the link is cut")]


def test_a_node_that_dialled_and_died_does_not_connect_its_successor():
    pair = Pair(ConnectionModel())
    pair.act("a", Dial("b"))
    pair.simulation.crash("a")
    pair.simulation.restart("a")
    pair.run()
    assert pair.node("a").notes == [] == pair.node("b").notes


def blows(seed: int, pair: Pair) -> Iterator[None]:
    """Disturb the pair at random, in small steps."""
    chance = pair.simulation.chance
    for _ in range(20):
        kind = chance.randrange(4)
        if kind == 0:
            pair.simulation.network.cut_for("a", "b", chance.randrange(60 * MS))
        elif kind == 1:
            pair.simulation.crash_for(chance.choice("ab"), chance.randrange(20 * MS))
        elif kind == 2:
            pair.act("a", Dial("b")) if pair.simulation.node("a") else None
        yield


@given(
    seed=st.integers(0, 1 << 32),
    effect=st.sampled_from(CutEffect),
    faulty=st.booleans(),
)
def test_every_message_on_a_connection_is_accounted_for(seed, effect, faulty):
    link = LinkModel(delay_ns=MS, jitter_ns=MS, loss=0.1, duplication=0.1, reordering=0.1)
    model = ConnectionModel(effect, silence_ns=30 * MS, faulty=faulty)
    pair = Pair(model, link, seed)
    number, chance = 0, pair.simulation.chance
    for _ in blows(seed, pair):
        for name in "ab":
            node = pair.simulation.node(name)
            if isinstance(node, Diary) and node.connection is not None:
                pair.send(name, node.connection, *range(number, number + 5))
                number += 5
        pair.run(pair.simulation.clock.now_ns // MS + 1 + chance.randrange(10))
    pair.run()
    counts = pair.simulation.connections.counts
    assert counts.messages == number
    held = sum(
        len(pipe.held) + len(pipe.arrived)
        for connection in pair.simulation.connections.open()
        for pipe in connection.pipes.values()
    )
    assert counts.delivered + counts.lost + held == counts.messages + counts.duplicated
    assert held == 0
