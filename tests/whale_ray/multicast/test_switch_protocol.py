"""Two-phase switches in a small world: messages are lost, doubled and reordered, hosts die.

Every step checks that nobody reads a byte twice, misses one, or asks for one that is gone; in the
end all have the whole stream, and the tree is the one that the coordinator decided on.
"""

from __future__ import annotations

import random

import pytest

from whale_ray.configs.errors import ProtocolError
from whale_ray.multicast.floors import Acknowledgement, SourceFloors
from whale_ray.multicast.switch_messages import (
    Abort,
    Commit,
    Done,
    Leave,
    Message,
    Outgoing,
    PlannedMove,
    Prepare,
    Ready,
    Refused,
)
from whale_ray.multicast.switch_protocol import Phase, SwitchCoordinator, SwitchRecord
from whale_ray.multicast.switch_vertex import Span, SwitchVertex
from whale_ray.multicast.switching import Switch, change_degree, join, leave
from whale_ray.multicast.trees import Tree, chain, non_blocking_tree, star

SEEDS = 300
PATIENCE_TICKS = 6


class World:
    """A coordinator, the vertices of one stream, and the messages between them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        shapes = (star, chain, lambda root, others: non_blocking_tree(root, others, 2))
        tree = self.chance.choice(shapes)(0, range(1, self.chance.randint(2, 9)))
        self.vertices = {
            name: SwitchVertex(name, 0, tree.parents.get(name), tree.children[name])
            for name in tree.vertices
        }
        self.coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
        self.floors = SourceFloors(tree, 0, 0)
        self.degree = 3
        self.bag: list[Outgoing] = []
        self.unnoticed: list[int] = []
        self.outcomes: list[tuple[Phase, Tree]] = []
        self.is_faulty = True

    # --- what happens -----------------------------------------------------------------------

    def send(self, messages: list[Outgoing]) -> None:
        for one in messages:
            copies = self.chance.choice((0, 1, 1, 1, 2)) if self.is_faulty else 1
            self.bag += [one] * copies

    def lead(self, call, *arguments) -> None:
        """Let the coordinator act; the source's floors follow its record."""
        before = self.coordinator.record
        out = call(*arguments)
        self.follow(before)
        self.send(out)

    def follow(self, before: SwitchRecord) -> None:
        record = self.coordinator.record
        if record.last_epoch != before.last_epoch:
            self.floors.pin((move.vertex for move in record.moves), record.last_epoch)
        if record.epoch != before.epoch:
            self.floors.adopt(record.tree, record.epoch)
            self.outcomes.append((Phase.COMMITTING, record.tree))
        was_open = before.phase is Phase.PREPARING or record.last_epoch != before.last_epoch
        if was_open and record.epoch != record.last_epoch and record.phase is not Phase.PREPARING:
            self.floors.abandon(record.last_epoch)
            self.outcomes.append((Phase.ABORTING, record.tree))

    def deliver(self) -> None:
        if not self.bag:
            return
        place = self.chance.randrange(len(self.bag)) if self.is_faulty else 0
        one = self.bag.pop(place)
        if one.to is None:
            self.lead(self.coordinator.receive, one.message)
        elif one.to in self.vertices:
            self.send(self.vertices[one.to].receive(one.message))

    def tick(self) -> None:
        self.lead(self.coordinator.tick)
        for vertex in self.vertices.values():
            self.send(vertex.tick())

    def produce(self) -> None:
        self.vertices[0].produce(self.chance.randint(1, 20))

    def flow(self) -> None:
        vertex = self.chance.choice(list(self.vertices.values()))
        span = vertex.reading
        if span is None or (not span.is_gap and span.parent not in self.vertices):
            return
        parent = self.vertices[span.parent]
        if span.is_gap:
            assert self.floors.of(vertex.name) <= vertex.received, "the source forgot a gap"
        else:
            assert parent.held_from <= vertex.received, f"{parent.name} forgot for {vertex.name}"
        end = min(parent.received, vertex.limit if vertex.limit is not None else 1 << 60)
        if end > vertex.received:
            end = self.chance.randint(vertex.received + 1, end)
            self.send(vertex.read(span.parent, vertex.received, end))
        if not span.is_gap and self.chance.random() < 0.7:
            parent.child_read(vertex.name, vertex.received)

    def release(self) -> None:
        self.chance.choice(list(self.vertices.values())).release()

    def acknowledge(self) -> None:
        vertex = self.chance.choice(list(self.vertices.values()))
        if vertex.parent == 0:
            self.floors.heard(vertex.name, vertex.acknowledgement)
        elif vertex.parent in self.vertices:
            self.vertices[vertex.parent].acknowledged(vertex.name, vertex.acknowledgement)

    def kill(self) -> None:
        names = [name for name in self.vertices if name != 0]
        if len(names) > 1:
            name = self.chance.choice(names)
            del self.vertices[name]
            self.unnoticed.append(name)

    def notice(self) -> None:
        if self.unnoticed:
            self.lead(self.coordinator.lost, self.unnoticed.pop())

    def fail_over(self) -> None:
        """Another coordinator goes on from the record; what the old one sent is still under way."""
        old = self.coordinator
        self.coordinator = SwitchCoordinator(old.term + 1, old.record, PATIENCE_TICKS)
        self.follow(old.record)

    def switch(self) -> None:
        coordinator = self.coordinator
        if coordinator.phase is not Phase.STABLE:
            return
        cut = max(
            coordinator.record.last_epoch + 1, self.vertices[0].received + self.chance.randint(0, 9)
        )
        switch = self.choose()
        orphans = {
            one: self.floors.of(one)
            for dead in coordinator.record.gone & set(coordinator.tree.vertices)
            for one in coordinator.tree.children[dead]
        }
        for name in set(switch.after.joined) - set(switch.before.joined):
            last = coordinator.record.last_epoch
            self.vertices[name] = SwitchVertex(name, 0, None, epoch=last, received=cut)
        self.lead(coordinator.begin, switch, cut, orphans)

    def choose(self) -> Switch:
        tree = self.coordinator.tree
        dead = self.coordinator.record.gone & set(tree.joined)
        if dead:
            return leave(tree, dead, self.degree)
        choice = self.chance.random() if self.is_faulty else 1.0
        known_dead = self.coordinator.record.gone | set(self.unnoticed)
        if choice < 0.2:
            new = max([*tree.vertices, *self.vertices, *known_dead]) + 1
            back = sorted(known_dead - set(tree.vertices) - set(self.unnoticed))
            can_return = back and not self.coordinator.uninformed
            return join(tree, back[0] if can_return else new, self.degree)
        if choice < 0.4 and len(tree) > 3:
            return leave(tree, [self.chance.choice(tree.joined)], self.degree)
        if self.is_faulty:
            self.degree = self.chance.randint(1, 4)
        return change_degree(tree, self.degree)

    # --- a life -----------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        usual = [self.deliver] * 12 + [self.flow] * 12 + [self.release] * 3 + [self.produce] * 2
        usual += [self.acknowledge] * 6 + [self.tick, self.switch]
        for _ in range(steps):
            happens = self.chance.choice(usual)
            if self.chance.random() < 0.004:
                happens = self.chance.choice((self.kill, self.fail_over))
            elif self.unnoticed and self.chance.random() < 0.02:
                happens = self.notice
            happens()
            self.check()

    def check(self) -> None:
        for vertex in self.vertices.values():
            assert vertex.held_from <= vertex.floor, f"{vertex.name} gave back what is needed"
        for name in self.coordinator.tree.joined:
            if name in self.vertices:
                assert self.floors.of(name) <= max(
                    self.vertices[name].received, self.coordinator.record.epoch
                )

    def settle(self) -> None:
        """No more misfortune: repair the tree, end the switch, let the stream flow to its end."""
        self.is_faulty = False
        while self.unnoticed:
            self.notice()
        for _ in range(400):
            dead = self.coordinator.record.gone & set(self.coordinator.tree.vertices)
            if self.coordinator.phase is Phase.STABLE and dead:
                self.switch()
            while self.bag:
                self.deliver()
            if self.vertices[0].received < self.coordinator.record.last_epoch:
                self.produce()
            self.tick()
            while self.bag:
                self.deliver()
            for _ in range(6 * len(self.vertices)):
                self.flow()
                self.acknowledge()
            self.check()
            if self.is_settled():
                return
        raise AssertionError(f"never at rest: {self.coordinator.record}")

    def is_settled(self) -> bool:
        head, tree = self.vertices[0].received, self.coordinator.tree
        is_still = self.coordinator.phase is Phase.STABLE and not self.bag
        if not is_still or self.coordinator.record.gone & set(tree.vertices):
            return False
        has_all = all(self.vertices[name].received == head for name in tree.vertices)
        return has_all and (self.floors.floor == head or len(tree) == 1)


def play(seed: int) -> World:
    world = World(seed)
    world.live(1200)
    world.settle()
    tree = world.coordinator.tree
    for name in tree.vertices:
        vertex = world.vertices[name]
        assert vertex.epoch == world.coordinator.record.epoch
        assert vertex.parent == tree.parents.get(name)
        assert vertex.children == set(tree.children[name])
        assert vertex.limit is None
    assert not world.floors.pinned
    return world


def play_all(seeds: range) -> None:
    for seed in seeds:
        try:
            play(seed)
        except (AssertionError, ProtocolError) as error:
            raise AssertionError(f"replay: play({seed}): {error}") from error


@pytest.mark.parametrize("block", range(10))
def test_every_living_vertex_reads_every_byte_once(block):
    play_all(range(block * SEEDS // 10, (block + 1) * SEEDS // 10))


def test_switches_are_committed_and_aborted_in_these_lives():
    """Else the test above would show nothing."""
    outcomes = [phase for seed in range(30) for phase, _ in play(seed).outcomes]
    assert outcomes.count(Phase.COMMITTING) > 30
    assert outcomes.count(Phase.ABORTING) > 30


@pytest.mark.parametrize("removed", ["reservation", "pin", "cut"])
def test_the_world_bites(removed, monkeypatch):
    """Without any one of the three, some life within these seeds loses bytes, or never ends."""
    if removed == "reservation":

        def floor(vertex: SwitchVertex) -> int:
            tails = [edge.tail for edge in vertex._children.values()]
            return min([vertex.received, *tails])

        monkeypatch.setattr(SwitchVertex, "floor", property(floor))
    elif removed == "pin":

        def heard(floors: SourceFloors, child: int, told: Acknowledgement) -> None:
            for vertex in floors._tree.subtree(child) if child in floors._floors else ():
                floors._floors[vertex] = max(floors._floors[vertex], told.position)

        monkeypatch.setattr(SourceFloors, "heard", heard)
    else:
        reserve = SwitchVertex.receive

        def receive(vertex: SwitchVertex, message: Message) -> list[Outgoing]:
            out = reserve(vertex, message)
            vertex._reserved = {one: at + 50 for one, at in vertex._reserved.items()}
            return out

        monkeypatch.setattr(SwitchVertex, "receive", receive)
    with pytest.raises((AssertionError, ProtocolError)):
        play_all(range(200))


# --- one vertex ------------------------------------------------------------------------------

MOVE = PlannedMove("c", "a", "b", 100)


def child(received: int) -> SwitchVertex:
    vertex = SwitchVertex("c", "S", "a")
    vertex.read("a", 0, received)
    vertex.receive(Prepare(1, 100, (MOVE,)))
    return vertex


def test_a_child_reads_up_to_the_cut_from_the_old_parent_and_then_from_the_new_one():
    vertex = child(40)
    assert vertex.reading == Span("a", 0) and vertex.limit is None
    (done,) = vertex.receive(Commit(1, 100, (MOVE,), frozenset()))
    assert done == Outgoing(None, Done(1, 100, "c", finished=False))
    assert (vertex.reading, vertex.limit) == (Span("a", 0), 100)
    with pytest.raises(ProtocolError):
        vertex.read("a", 40, 101)
    with pytest.raises(ProtocolError):
        vertex.read("b", 40, 50)
    assert vertex.read("a", 40, 100) == [Outgoing("a", Leave(1, 100, "c"))]
    assert (vertex.reading, vertex.limit) == (Span("b", 100), None)
    assert vertex.tick() == [Outgoing("a", Leave(1, 100, "c"))]


def test_a_child_that_has_passed_the_cut_changes_where_it_stands():
    vertex = child(130)
    vertex.receive(Commit(1, 100, (MOVE,), frozenset()))
    assert vertex.reading == Span("b", 130)


def test_after_an_abort_all_is_as_before():
    vertex = child(40)
    assert vertex.receive(Abort(1, 100)) == [Outgoing(None, Done(1, 100, "c", finished=True))]
    vertex.read("a", 40, 200)
    assert vertex.receive(Prepare(1, 100, (MOVE,))) == []
    assert (vertex.reading, vertex.epoch, vertex.refused) == (Span("a", 0), 0, {"epoch": 1})


def test_a_new_parent_keeps_the_stream_from_the_cut_on():
    parent = SwitchVertex("b", "S", "S")
    ready = [Outgoing(None, Ready(1, 100, "b", (("c", 100),)))]
    assert parent.receive(Prepare(1, 100, (MOVE,))) == ready
    assert parent.receive(Prepare(1, 100, (MOVE,))) == ready
    parent.read("S", 0, 300)
    assert parent.floor == 100
    parent.receive(Abort(1, 100))
    assert parent.floor == 300


def test_a_new_parent_that_has_given_back_the_cut_refuses():
    parent = SwitchVertex("b", "S", "S")
    parent.read("S", 0, 300)
    parent.release()
    (answer,) = parent.receive(Prepare(1, 100, (MOVE,)))
    assert answer.message == Refused(1, 100, "b", "the cut is behind 300")


def test_messages_of_an_older_term_are_refused():
    vertex = SwitchVertex("c", "S", "a")
    vertex.receive(Abort(5, 100))
    assert vertex.receive(Commit(4, 200, (MOVE,), frozenset())) == []
    assert vertex.refused == {"term": 1} and vertex.epoch == 0


def test_an_orphan_gets_the_gap_from_the_source():
    vertex = child(40)
    orphaned = PlannedMove("c", None, "b", 60)
    vertex.receive(Abort(1, 100))
    vertex.receive(Commit(1, 200, (orphaned,), frozenset({"a"})))
    assert (vertex.reading, vertex.limit) == (Span("S", 40, is_gap=True), 60)
    vertex.read("S", 40, 60)
    assert vertex.reading == Span("b", 60)


# --- the coordinator -------------------------------------------------------------------------


def test_what_cannot_begin():
    tree = non_blocking_tree(0, range(1, 8), 3)
    coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
    switch = change_degree(tree, 2)
    assert coordinator.begin(change_degree(tree, 3), 10) == []
    with pytest.raises(ValueError, match="not beyond the last one"):
        coordinator.begin(switch, 0)
    with pytest.raises(ValueError, match="cannot follow"):
        coordinator.begin(change_degree(switch.after, 1), 10)
    assert coordinator.begin(switch, 10)
    with pytest.raises(ValueError, match="preparing"):
        coordinator.begin(switch, 20)
    with pytest.raises(ValueError, match="1 or more"):
        SwitchCoordinator(1, SwitchRecord(tree), 0)


def test_a_missing_answer_aborts():
    tree = non_blocking_tree(0, range(1, 8), 3)
    coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
    coordinator.begin(change_degree(tree, 2), 10)
    coordinator.receive(Ready(1, 10, 4, ()))
    for _ in range(PATIENCE_TICKS - 1):
        assert {one.to for one in coordinator.tick()} == {2}
    assert {one.to for one in coordinator.tick()} == {2, 4}
    assert (coordinator.phase, coordinator.tree) == (Phase.ABORTING, tree)
    assert coordinator.aborts == ["not ready in time: 2"]
