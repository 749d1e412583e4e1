"""What the source retains: labels of epochs, pins, late and repeated acknowledgements."""

from __future__ import annotations

from whale_ray.multicast.floors import Acknowledgement, SourceFloors, SubtreeAcknowledgements
from whale_ray.multicast.switching import change_degree
from whale_ray.multicast.trees import chain, non_blocking_tree


def test_a_subtree_is_as_far_and_as_new_as_its_last():
    known = SubtreeAcknowledgements(["a", "b"], 0)
    assert known.combined(0, 50) == Acknowledgement(-1, 0)
    known.acknowledge("a", Acknowledgement(0, 40))
    known.acknowledge("b", Acknowledgement(7, 30))
    known.acknowledge("b", Acknowledgement(7, 20))
    known.acknowledge("stranger", Acknowledgement(0, 1))
    assert known.combined(7, 50) == Acknowledgement(0, 30)
    known.acknowledge("a", Acknowledgement(7, 60))
    known.acknowledge("a", Acknowledgement(0, 90))
    assert known.combined(7, 50) == Acknowledgement(7, 30)
    known.adopt(["b"], {"c": 45})
    assert known.combined(9, 50) == Acknowledgement(-1, 45)


def test_in_a_new_epoch_a_subtree_may_be_less_far():
    known = SubtreeAcknowledgements(["a"], 0)
    known.acknowledge("a", Acknowledgement(0, 40))
    known.acknowledge("a", Acknowledgement(7, 10))
    assert known.combined(7, 50) == Acknowledgement(7, 10)


def test_a_pin_holds_until_the_new_epoch_is_acknowledged():
    before = non_blocking_tree(0, range(1, 8), 3)
    after = change_degree(before, 2).after
    floors = SourceFloors(before, 0, 0)
    for child in (1, 2, 4):
        floors.acknowledge(child, Acknowledgement(0, 30))
    floors.pin({4: 0}, 100)
    for child in (1, 2, 4):
        floors.acknowledge(child, Acknowledgement(0, 60))
    assert (floors.floor(99), floors.of(4), floors.of(2)) == (30, 30, 60)
    floors.adopt(after, 100)
    floors.acknowledge(2, Acknowledgement(0, 90))
    assert (floors.of(4), floors.pinned) == (30, {4})
    floors.acknowledge(2, Acknowledgement(100, 80))
    assert (floors.of(4), floors.of(2), floors.pinned) == (80, 80, frozenset())


def test_an_abort_lifts_the_pins_of_its_switch_alone():
    floors = SourceFloors(chain(0, [1, 2]), 0, 0)
    floors.pin({1: 0, 2: 0}, 100)
    floors.pin({2: 0}, 200)
    floors.abandon(100)
    floors.acknowledge(1, Acknowledgement(0, 60))
    assert (floors.of(1), floors.of(2), floors.pinned) == (60, 0, {2})


def test_floors_of_hosts_that_leave_and_join():
    floors = SourceFloors(chain(0, [1, 2]), 0, 0)
    floors.adopt(chain(0, [1, 3]), 50, {3: 50})
    assert (floors.of(1), floors.of(3), floors.floor(99)) == (0, 50, 0)
    floors.acknowledge(3, Acknowledgement(50, 90))
    assert floors.of(3) == 50
    floors.acknowledge(1, Acknowledgement(50, 90))
    assert floors.floor(99) == 90
