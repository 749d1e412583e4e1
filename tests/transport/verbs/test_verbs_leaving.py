"""Children that leave, come back or are lost while much is being written to them.

Over pretended devices, one of whose queue pairs stands still for a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.transport.links import RING_BYTES, STREAM, Hosts, Source, Target
from tests.transport.test_tcp_moves import ROOT, Tree, linked
from tests.transport.verbs.conftest import machine_of
from tests.transport.verbs.fabric import WRITE, Pair, Work
from whale_ray.transport.links.link import LinkBrokenError, Role
from whale_ray.transport.links.link_header import FRAME_ALIGNMENT
from whale_ray.transport.verbs import payload_sender
from whale_ray.transport.verbs.connection import VerbsConnection
from whale_ray.transport.verbs.payload_sender import COPY, WAIT

pytestmark = pytest.mark.usefixtures("no_leaks")

MESSAGE_BYTES = 4096
"""Several of them fill a ring, as large messages fill a large one."""


@pytest.fixture
def stalled(monkeypatch) -> set[int]:
    """Return the numbers of queue pairs that carry nothing out: a test adds some, or clears it."""
    found: set[int] = set()
    run = Pair.run

    def unless_stalled(pair: Pair, most: int) -> None:
        if pair.qp_num not in found:
            run(pair, most)

    monkeypatch.setattr(Pair, "run", unless_stalled)
    return found


@pytest.fixture
def hosts(monkeypatch) -> Iterator[Hosts]:
    monkeypatch.setattr(payload_sender, "_AHEAD_BYTES", 2 * MESSAGE_BYTES)
    made = machine_of("pretended").hosts(verbs_data="write")
    yield made
    made.close()


def link_to(hosts: Hosts, parent: str, child: str) -> VerbsConnection:
    connection: Any = hosts.endpoints[parent]._links[child, Role.CHILD]
    assert isinstance(connection, VerbsConnection)
    assert connection.link is not None
    connection.link.turns.message_bytes = MESSAGE_BYTES
    return connection


def number_of(connection: VerbsConnection) -> int:
    return connection._pair._pair.qp_num


def writes_of(connection: VerbsConnection, monkeypatch) -> list[int]:
    """Return the bytes of each WRITE that the connection posts from now on."""
    written: list[int] = []
    post = Pair.post_send

    def watched(pair: Pair, work: Work) -> None:
        if pair.qp_num == number_of(connection) and work.opcode == WRITE:
            written.append(work.sg_list.length)
        post(pair, work)

    monkeypatch.setattr(Pair, "post_send", watched)
    return written


@pytest.mark.parametrize("returns", [False, True], ids=["leaves", "leaves and comes back"])
def test_pending_writes_are_dropped_once_the_child_has_left(hosts, stalled, monkeypatch, returns):
    """It has another parent by then, whose bytes are in the same places, a lap later."""
    linked(hosts, [ROOT, "a", "b", "c"])
    tree = Tree(hosts, ["a", "b", "c"], 600)
    tree.build()
    hosts.until(lambda: hosts.up(*hosts.endpoints))
    tree.offers["a"].admit("d", 0)  # it has not subscribed yet, so "a" releases nothing of its ring
    tree.offers["b"].admit("c", 0)
    assert tree.move("c", "a")
    outgoing = tree.offers["a"].outgoing["c"]
    hosts.until(lambda: outgoing.sender.subscribed_now)
    connection = link_to(hosts, "a", "c")
    number = outgoing.number
    stalled.add(number_of(connection))
    hosts.until(lambda: connection.unsent, tree.step)
    decisions: list[tuple[int, int]] = []
    decide = payload_sender.PayloadSender.decide

    def watched(sender: payload_sender.PayloadSender, *said: Any) -> int:
        decision = decide(sender, *said)
        if sender is connection._payload_sender:
            decisions.append((said[-1], decision))
        return decision

    monkeypatch.setattr(payload_sender.PayloadSender, "decide", watched)
    written = writes_of(connection, monkeypatch)
    assert tree.move("c", "b")
    if returns:  # both messages arrive together
        assert tree.move("c", "a")
    hosts.until(lambda: (number, COPY) in decisions)
    assert outgoing.sender.subscribed_now == returns
    tree.offers["a"].dismiss("d")
    stalled.clear()
    hosts.until(lambda: tree.over, tree.step)
    tree.check()
    assert {decision for of, decision in decisions if of == number} == {WAIT, COPY}
    assert bool(written) == returns


FRAMES = 400


class Leaving:
    """A parent and two children, to one of which its WRITEs stand still; that one has left."""

    def __init__(self, hosts: Hosts, stalled: set[int]) -> None:
        self.hosts = hosts
        hosts.add("parent")
        self.source = Source(FRAMES, lambda _: 3000)
        self.offer = hosts.endpoints["parent"].offer(STREAM, self.source.tap, dynamic=True)
        self.targets: dict[str, Target] = {}
        for name in ("leaves", "stays"):
            hosts.add(name, listens=False)
            hosts.dial(name, "parent")
            self.offer.admit(name, 0)
            self.targets[name] = Target()
            hosts.endpoints[name].subscribe(STREAM, self.targets[name].mirror, "parent")
        hosts.until(lambda: hosts.up("leaves", "stays"))
        while hosts.poll(5):
            pass
        self.connection = link_to(hosts, "parent", "leaves")
        stalled.add(number_of(self.connection))
        self.outgoing = self.offer.outgoing["leaves"]
        hosts.until(lambda: self.outgoing.sender.sent > 0, lambda: self.source.step(until=1))
        self.leave()

    def leave(self) -> None:
        self.hosts.endpoints["leaves"].move(STREAM, None)
        self.hosts.until(lambda: not self.outgoing.sender.subscribed_now)
        self.offer.dismiss("leaves")

    def step(self) -> None:
        self.source.step()
        self.targets["stays"].step()

    def fill(self) -> None:
        """Let all else happen until nothing can."""
        while self.hosts.poll(20):
            self.step()


def test_a_child_that_is_lost_while_it_is_written_to_holds_the_ring_no_more(hosts, stalled):
    leaving = Leaving(hosts, stalled)
    leaving.fill()
    assert leaving.outgoing.written_from == 0
    assert leaving.source.tap.released == 0, "it is being read yet"
    assert leaving.source.sent < FRAMES
    hosts.endpoints["parent"]._manager._break(
        leaving.connection, LinkBrokenError("it does not answer", "verbs"), 0
    )
    hosts.until(lambda: leaving.targets["stays"].over, leaving.step)
    assert leaving.targets["stays"].received == leaving.source.all


def test_a_child_that_comes_back_further_on_waits_for_what_is_being_written(hosts, stalled):
    """What is under way is one piece of the ring.

    Else, were the child to leave once more, nobody would know which bytes are still being read.
    """
    leaving = Leaving(hosts, stalled)
    pair: Any = leaving.connection._pair._pair

    def writes() -> int:
        return sum(posted.opcode == WRITE for posted in pair.sends)

    assert writes() == 1
    leaving.offer.admit("leaves", FRAME_ALIGNMENT)
    assert leaving.connection.link is not None
    number, begin = 1, FRAME_ALIGNMENT
    leaving.connection.link.peer.subscribed(
        STREAM, begin, begin + RING_BYTES, RING_BYTES, number
    )  # as if the child's message had arrived
    leaving.fill()
    assert writes() == 1
    assert leaving.connection.unsent
    assert leaving.outgoing.written_from == 0
    stalled.clear()
    hosts.until(lambda: not leaving.connection.unsent)
    hosts.until(lambda: leaving.outgoing.written_from != 0)
