"""Two-phase switches in a small world: messages are lost, doubled and reordered, hosts die.

In the end all have the whole stream, and the tree is the one that the coordinator decided on.
"""

from __future__ import annotations

import pytest

from tests.whale_ray.multicast.small_world import PATIENCE_TICKS, play
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
from whale_ray.multicast.switching import change_degree
from whale_ray.multicast.trees import Tree, non_blocking_tree

SEEDS = 300


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
            for vertex in floors._tree.subtree(child) if child in floors._tree.joined else ():
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
    assert done == Outgoing(None, Done(1, 100, "c", finished=False))
    assert (vertex.reading, vertex.limit) == (Span("a", 0), 100)
    with pytest.raises(ProtocolError):
        vertex.read("b", 40, 50)
    assert vertex.read("a", 40, 100) == [Outgoing("a", Leave(1, 100, "c"))]
    assert (vertex.reading, vertex.limit) == (Span("b", 100), None)
    assert vertex.tick() == [Outgoing("a", Leave(1, 100, "c"))]


def test_a_child_that_has_passed_the_cut_changes_where_it_stands():
    vertex = child(130)
    vertex.receive(Commit(1, 100, (MOVE,), frozenset(), frozenset(), TREE))
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
    assert vertex.receive(Commit(4, 200, (MOVE,), frozenset(), frozenset(), TREE)) == []
    assert vertex.refused == {"term": 1} and vertex.epoch == 0


def test_an_orphan_gets_the_gap_from_the_source():
    vertex = child(40)
    orphaned = PlannedMove("c", None, "b", 60)
    vertex.receive(Abort(1, 100))
    vertex.receive(Commit(1, 200, (orphaned,), frozenset({"a"}), frozenset({"a"}), TREE))
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
        assert {one.to for one in coordinator.tick()} == {0, 2}
    assert {one.to for one in coordinator.tick()} == {0, 2, 4}
    assert (coordinator.phase, coordinator.tree) == (Phase.ABORTING, tree)
    assert coordinator.aborts == ["not ready in time: 0, 2"]
