"""Two-phase switches in a small world: messages are lost, doubled and reordered, hosts die.

In the end all have the whole stream, and the tree is the one that the coordinator decided on.
"""

from __future__ import annotations

import pytest

from tests.whale_ray.multicast.small_world import PATIENCE_TICKS, play
from whale_ray.configs.errors import ProtocolError
from whale_ray.multicast.floors import Acknowledgement, SourceFloors
from whale_ray.multicast.read_plan import Span
from whale_ray.multicast.switch_messages import (
    AbortSwitch,
    AddressedMessage,
    Commit,
    Done,
    Fetch,
    Gone,
    Leave,
    Left,
    Message,
    PlannedMove,
    Prepare,
    Ready,
    Refused,
    Starved,
)
from whale_ray.multicast.switch_protocol import SwitchCoordinator, SwitchPhase, SwitchRecord
from whale_ray.multicast.switch_vertex import SwitchVertex
from whale_ray.multicast.switching import Switch, change_degree, leave, reshape
from whale_ray.multicast.trees import Tree, chain, non_blocking_tree, star

SEEDS = 150


def play_all(seeds: range, *, forgets: bool = False) -> int:
    """Return how many lives ended since the source had forgotten what somebody needed."""
    failures = 0
    for seed in seeds:
        try:
            failures += bool(play(seed, forgets=forgets).coordinator.failure)
        except (AssertionError, ProtocolError) as error:
            raise AssertionError(f"replay: play({seed}): {error}") from error
    return failures


@pytest.mark.parametrize("block", range(10))
def test_every_living_vertex_reads_every_byte_once(block):
    play_all(range(block * SEEDS // 10, (block + 1) * SEEDS // 10))


def test_bytes_that_are_lost_with_the_source_end_in_a_failure_and_never_in_silence():
    """The source's relay dies with what it retained: some vertices continue, others starve."""
    assert 0 < play_all(range(30), forgets=True) < 30


def test_switches_are_committed_and_aborted_in_these_lives():
    """Otherwise the test above would mean nothing."""
    outcomes = [phase for seed in range(15) for phase, _ in play(seed).outcomes]
    assert outcomes.count(SwitchPhase.COMMITTING) > 15
    assert outcomes.count(SwitchPhase.ABORTING) > 15


@pytest.mark.parametrize("removed", ["reservation", "pin", "cut"])
def test_the_world_detects_the_lack_of_each_safeguard(removed, monkeypatch):
    """Without any one of the three, some life within these seeds loses bytes, or never ends."""
    if removed == "reservation":

        def floor(vertex: SwitchVertex) -> int:
            tails = [edge.tail for edge in vertex._served._edges.values()]
            return min([vertex.received, *tails])

        monkeypatch.setattr(SwitchVertex, "floor", property(floor))
    elif removed == "pin":

        def acknowledge(floors: SourceFloors, child: int, acknowledgement: Acknowledgement) -> None:
            for vertex in floors._tree.subtree(child) if child in floors._tree.joined else ():
                floors._floors[vertex] = max(floors._floors[vertex], acknowledgement.position)

        monkeypatch.setattr(SourceFloors, "acknowledge", acknowledge)
    else:
        reserve = SwitchVertex.receive

        def receive(vertex: SwitchVertex, message: Message) -> list[AddressedMessage]:
            out = reserve(vertex, message)
            vertex._served.reserved = {one: at + 50 for one, at in vertex._served.reserved.items()}
            return out

        monkeypatch.setattr(SwitchVertex, "receive", receive)
    with pytest.raises((AssertionError, ProtocolError)):
        play_all(range(150))


# --- one vertex ------------------------------------------------------------------------------

MOVE = PlannedMove("c", "a", "b", 100)
TREE = Tree("S", (("S", "a"), ("S", "b"), ("b", "c")), ("a", "b", "c"))


def child(received: int) -> SwitchVertex:
    vertex = SwitchVertex("c", "S", "a")
    vertex.read("a", 0, received)
    vertex.receive(Prepare(1, 100, (MOVE,)))
    return vertex


def test_a_child_reads_up_to_the_cut_from_the_old_parent_and_then_from_the_new_one():
    vertex = child(40)
    assert vertex.reading == Span("a", 0) and vertex.limit is None
    (done,) = vertex.receive(Commit(1, 100, (MOVE,), frozenset(), frozenset(), TREE))
    assert done == AddressedMessage(None, Done(1, 100, "c", finished=False))
    assert (vertex.reading, vertex.limit) == (Span("a", 0), 100)
    with pytest.raises(ProtocolError):
        vertex.read("b", 40, 50)
    assert vertex.read("a", 40, 100) == [AddressedMessage("a", Leave(1, 100, "c", 100))]
    assert (vertex.reading, vertex.limit) == (Span("b", 100), None)
    assert vertex.tick() == [AddressedMessage("a", Leave(1, 100, "c", 100))]


def test_a_child_that_has_passed_the_cut_changes_where_it_stands():
    vertex = child(130)
    vertex.receive(Commit(1, 100, (MOVE,), frozenset(), frozenset(), TREE))
    assert vertex.reading == Span("b", 130)


def test_after_an_abort_all_is_as_before():
    vertex = child(40)
    assert vertex.receive(AbortSwitch(1, 100)) == [
        AddressedMessage(None, Done(1, 100, "c", finished=True))
    ]
    vertex.read("a", 40, 200)
    assert vertex.receive(Prepare(1, 100, (MOVE,))) == []
    assert (vertex.reading, vertex.epoch, vertex.refused) == (Span("a", 0), 0, {"epoch": 1})


def test_a_new_parent_keeps_the_stream_from_the_cut_on():
    parent = SwitchVertex("b", "S", "S")
    ready = [AddressedMessage(None, Ready(1, 100, "b", (("c", 100),)))]
    assert parent.receive(Prepare(1, 100, (MOVE,))) == ready
    assert parent.receive(Prepare(1, 100, (MOVE,))) == ready
    parent.read("S", 0, 300)
    assert parent.floor == 100
    parent.receive(AbortSwitch(1, 100))
    assert parent.floor == 300


def test_the_cut_is_where_all_new_parents_hold_the_stream():
    """So the stream is there already, and need not flow for a switch to end."""
    tree = star("S", ["a", "b", "c", "d"])
    moved = Tree("S", (("S", "a"), ("S", "b"), ("a", "c"), ("b", "d")), ("a", "b", "c", "d"))
    coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
    said = coordinator.begin(Switch(tree, moved, 2), 0)
    for name, held_from in (("S", 0), ("a", 64), ("b", 320), ("c", 0)):
        vertex = SwitchVertex.of(name, tree)
        vertex.arrived(320)
        vertex.held_from = held_from
        (prepare,) = (one for one in said if one.to == name and isinstance(one.message, Prepare))
        (ready,) = vertex.receive(prepare.message)
        coordinator.receive(ready.message)
    answered = coordinator.receive(Ready(1, 1, "d", ()))
    assert {move.reserve_at for move in coordinator.record.moves} == {320}
    child = SwitchVertex.of("d", tree)
    child.arrived(128)
    (commit,) = (one for one in answered if one.to == "d")
    child.receive(commit.message)
    assert (child.reading, child.limit) == (Span("S", 0), 320)
    assert child.arrived(320)
    assert (child.reading, child.limit) == (Span("b", 320), None)


def test_a_host_that_joins_where_the_stream_is_gone_is_refused():
    root = SwitchVertex.of("S", star("S", ["a"]), received=300)
    joins = PlannedMove("e", None, "S", 100)
    (answer,) = root.receive(Prepare(1, 100, (joins,)))
    assert answer.message == Refused(1, 100, "S", "what it needs is before 300")


def test_messages_of_an_older_term_are_refused():
    vertex = SwitchVertex("c", "S", "a")
    vertex.receive(AbortSwitch(5, 100))
    assert vertex.receive(Commit(4, 200, (MOVE,), frozenset(), frozenset(), TREE)) == []
    assert vertex.refused == {"term": 1} and vertex.epoch == 0


def test_an_orphan_gets_the_gap_from_the_source():
    vertex = child(40)
    orphaned = PlannedMove("c", None, "b", 60)
    vertex.receive(AbortSwitch(1, 100))
    vertex.receive(Commit(1, 200, (orphaned,), frozenset({"a"}), frozenset({"a"}), TREE))
    assert (vertex.reading, vertex.limit) == (Span("S", 40, is_gap=True), 60)
    vertex.read("S", 40, 60)
    assert vertex.reading == Span("b", 60)


def test_bytes_beyond_the_cut_are_taken_from_the_old_parent():
    """They are the same everywhere; the vertex changes where it stands then."""
    vertex = child(40)
    vertex.receive(Commit(1, 100, (MOVE,), frozenset(), frozenset(), TREE))
    assert vertex.upward == {"a", "b"} and not vertex.settled
    vertex.read("a", 40, 130)
    assert (vertex.reading, vertex.limit) == (Span("b", 100), None)
    assert vertex.upward == {"a", "b"}
    vertex.receive(Left(1, 100, "a"))
    assert vertex.upward == {"b"} and vertex.settled


def test_a_stream_that_ends_before_the_cut_has_passed_it():
    vertex = child(40)
    vertex.receive(Commit(1, 100, (MOVE,), frozenset(), frozenset(), TREE))
    assert vertex.ended(60) == []
    assert vertex.arrived(60) == [AddressedMessage("a", Leave(1, 100, "c", 60))]
    assert vertex.receive(Left(1, 100, "a")) == [
        AddressedMessage(None, Done(1, 100, "c", finished=True))
    ]


def test_a_host_that_was_away_learns_who_has_come_back():
    vertex = SwitchVertex("c", "S", None, epoch=100, received=7)
    vertex.receive(Gone(1, 100, frozenset({"b"})))
    moves = (PlannedMove("c", None, "b", 50),)
    vertex.receive(Prepare(1, 300, moves))
    vertex.receive(Commit(1, 300, moves, frozenset(), frozenset(), TREE))
    assert vertex.reading == Span("S", 7, is_gap=True)
    vertex.arrived(50)
    assert vertex.reading == Span("b", 50)


# --- the root --------------------------------------------------------------------------------


def test_the_root_retains_what_a_moving_vertex_may_need():
    root = SwitchVertex.of("S", star("S", ["b", "c"]))
    root.produce(300)
    root.child_read("b", 300)
    root.child_read("c", 300)
    root.acknowledged("b", Acknowledgement(0, 300))
    root.receive(Prepare(1, 400, (PlannedMove("c", "S", "b", 400),)))
    root.acknowledged("c", Acknowledgement(0, 300))
    assert (root.retain_from, root.floor) == (0, 0)
    root.receive(AbortSwitch(1, 400))
    root.acknowledged("c", Acknowledgement(0, 300))
    assert (root.retain_from, root.floor) == (300, 300)


def test_the_root_keeps_the_floor_of_a_host_that_is_expected_back():
    tree = star("S", ["b", "c"])
    root = SwitchVertex.of("S", tree)
    root.produce(300)
    root.acknowledged("b", Acknowledgement(0, 300))
    root.acknowledged("c", Acknowledgement(0, 100))
    gone = frozenset({"c"})
    moves = leave(tree, gone, 2).moves
    planned = tuple(PlannedMove(one.vertex, one.old_parent, None, 400) for one in moves)
    root.receive(Prepare(1, 400, planned))
    root.receive(Commit(1, 400, planned, gone, gone, star("S", ["b"])))
    root.acknowledged("b", Acknowledgement(400, 300))
    assert root.retain_from == 100
    back = (PlannedMove("c", None, "b", 0),)
    root.receive(Prepare(1, 500, back))
    root.receive(Commit(1, 500, back, frozenset(), frozenset(), chain("S", ["b", "c"])))
    root.acknowledged("b", Acknowledgement(500, 250))
    assert root.retain_from == 250


def test_the_root_serves_any_vertex_that_fetches_until_it_leaves():
    root = SwitchVertex.of("S", chain("S", ["a", "c"]))
    root.produce(300)
    root.child_read("a", 300)
    assert root.receive(Fetch(1, 100, "c", 40)) == []
    assert root.serves == {"a": 300, "c": 40}
    assert root.receive(Leave(1, 100, "c", 60)) == [AddressedMessage("c", Left(1, 100, "S"))]
    assert root.serves == {"a": 300}
    root.receive(Fetch(1, 100, "c", 40))  # it arrives after the `Leave` that was sent later
    assert root.serves == {"a": 300} and root.refused == {"fetch": 1}
    root.held_from = 50
    assert root.receive(Fetch(1, 200, "c", 40)) == []  # it may have more by now
    assert root.serves == {"a": 300, "c": 50}
    assert root.starved("c", 40) == [AddressedMessage(None, Starved(0, 0, "S", "c", 40, 50))]


def test_another_root_takes_over_from_the_record():
    tree = chain("S", ["a", "b", "c"])
    coordinator = SwitchCoordinator(3, SwitchRecord(tree), PATIENCE_TICKS)
    coordinator.begin(reshape(tree, star("S", ["a", "b", "c"])), 100)
    prepared = coordinator.record
    for name in ("S", "a", "b", "c"):
        coordinator.receive(Ready(3, 100, name, (("b", 100), ("c", 100)) if name == "S" else ()))
    assert coordinator.phase is SwitchPhase.COMMITTING
    for record in (prepared, coordinator.record):
        root = SwitchVertex.root_from(record, 3, held_from=64, head=90)
        assert (root.received, root.retain_from, root.serves["a"]) == (90, 64, 64)
        commits = {one.to: one.message for one in coordinator.root_restarted()}
        answers = root.receive(commits["S"])
        assert answers == [AddressedMessage(None, Done(3, 100, "S", finished=True))]
        assert (root.epoch, root.serves) == (100, {"a": 64, "b": 100, "c": 100})


def test_a_root_that_restarts_aborts_what_was_prepared():
    tree = chain("S", ["a", "b"])
    coordinator = SwitchCoordinator(3, SwitchRecord(tree), PATIENCE_TICKS)
    coordinator.begin(reshape(tree, star("S", ["a", "b"])), 100)
    root = SwitchVertex.root_from(coordinator.record, 3, held_from=0, head=90)
    said = coordinator.root_restarted()
    assert coordinator.phase is SwitchPhase.ABORTING
    (abort,) = [one.message for one in said if one.to == "S"]
    assert root.receive(abort) == [AddressedMessage(None, Done(3, 100, "S", finished=True))]
    with pytest.raises(ValueError, match="every tree needs it"):
        coordinator.lost("S")


def test_what_is_held_nowhere_fails():
    coordinator = SwitchCoordinator(3, SwitchRecord(chain("S", ["a"])), PATIENCE_TICKS)
    coordinator.receive(Starved(2, 0, "a", "x", 40, 50))
    assert coordinator.failure == ""
    coordinator.receive(Starved(2, 0, "S", "a", 40, 5000))
    assert coordinator.failure == (
        "'a' needs the stream from byte 40 on, but 'S' holds it from byte 5,000 on only"
    )


# --- the coordinator -------------------------------------------------------------------------


def test_switches_that_cannot_begin():
    tree = non_blocking_tree(0, range(1, 8), 3)
    coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
    switch = change_degree(tree, 2)
    assert coordinator.begin(change_degree(tree, 3), 10) == []
    with pytest.raises(ValueError, match="cannot follow"):
        coordinator.begin(change_degree(switch.after, 1), 10)
    assert coordinator.begin(switch, 10)
    with pytest.raises(ValueError, match="preparing"):
        coordinator.begin(switch, 20)
    with pytest.raises(ValueError, match="1 or more"):
        SwitchCoordinator(1, SwitchRecord(tree), 0)


def test_a_switch_that_would_close_a_circle_before_its_cut_is_refused():
    """Host d has died; its child c is to read from b, which reads up to the cut from a, below c."""
    tree = Tree("S", (("S", "d"), ("d", "c"), ("c", "a"), ("a", "b")), ("a", "b", "c", "d"))
    coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
    coordinator.lost("d")
    after = Tree("S", (("S", "b"), ("b", "c"), ("c", "a")), ("a", "b", "c"))
    with pytest.raises(ValueError, match="no way would lead from the root to b, a, c: repair"):
        coordinator.begin(Switch(tree, after, 1), 10, {"c": 0})
    assert coordinator.begin(leave(tree, ["d"], 1), 10, {"c": 0})


def test_a_missing_answer_aborts():
    tree = non_blocking_tree(0, range(1, 8), 3)
    coordinator = SwitchCoordinator(1, SwitchRecord(tree), PATIENCE_TICKS)
    coordinator.begin(change_degree(tree, 2), 10)
    coordinator.receive(Ready(1, 10, 4, ()))
    for _ in range(PATIENCE_TICKS - 1):
        assert {one.to for one in coordinator.tick()} == {0, 2}
    assert {one.to for one in coordinator.tick()} == {0, 2, 4}
    assert (coordinator.phase, coordinator.tree) == (SwitchPhase.ABORTING, tree)
    assert coordinator.aborts == ["not ready in time: 0, 2"]
