"""From tree to tree: Fig. 8, caps, minimal moves by brute force, hosts that join, leave and die."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.multicast.switching import change_degree, join, leave, reshape
from whale_ray.multicast.trees import (
    Move,
    Tree,
    chain,
    least_depth,
    non_blocking_tree,
    star,
)

sizes = st.integers(0, 60)
degrees = st.integers(1, 7)


def non_blocking(n: int, degree: int) -> Tree:
    return non_blocking_tree(0, range(1, n + 1), degree)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw any tree at all."""
    n = draw(sizes)
    parents = [draw(st.integers(0, child - 1)) for child in range(1, n + 1)]
    return Tree(0, tuple(zip(parents, range(1, n + 1), strict=True)), tuple(range(1, n + 1)))


def surplus_of(tree: Tree, degree: int, caps: dict | None = None) -> int:
    return sum(
        max(0, len(found) - cap_of(vertex, degree, caps or {}))
        for vertex, found in tree.children.items()
    )


def cap_of(vertex: int, degree: int, caps: dict) -> int:
    return min(degree, caps.get(vertex, degree))


all_caps = st.dictionaries(st.integers(0, 60), st.integers(1, 4))
"""Some vertices' own caps, by number."""


def test_figure_8a():
    """d* 3→2: T3-1 leaves S for T2-1."""
    switch = change_degree(non_blocking(7, 3), 2)
    assert switch.moves == (Move(4, 0, 2),)
    assert switch.after.children[2] == (6, 4) and switch.after.depth == 4


def test_figure_8b():
    """d* 2→3: T4-1 leaves T2-1 for S."""
    switch = change_degree(non_blocking(7, 2), 3)
    assert switch.moves == (Move(7, 2, 0),)
    assert switch.after.children[0] == (1, 2, 7) and switch.after.depth == 3


def test_it_moves_no_more_edges_than_the_published_code():
    """That moves 10 of 29 (3→2), 24 of 29 (1→3), 27 of 59 (2→3) and 31 of 59 (3→1)."""
    counts = [
        len(change_degree(non_blocking(n, before), after).moves)
        for n, before, after in ((29, 3, 2), (29, 1, 3), (59, 2, 3), (59, 3, 1))
    ]
    assert counts == [6, 7, 6, 31]


@given(trees(), degrees)
def test_after_a_scale_down_the_cap_holds_and_only_the_surplus_has_moved(tree, degree):
    surplus = surplus_of(tree, degree)
    switch = change_degree(tree, degree)
    assert switch.after.degree <= degree and switch.after.joined == tree.joined
    if surplus:
        assert len(switch.moves) == surplus
    for move in switch.moves if surplus else ():
        assert move.vertex in tree.children[move.old_parent][degree:]


@given(trees(), degrees)
def test_after_a_scale_up_the_tree_is_as_shallow_as_algorithm_1(tree, degree):
    if surplus_of(tree, degree):
        return
    switch = change_degree(tree, degree)
    least = least_depth(len(tree.joined), degree)
    assert switch.after.degree <= degree
    assert switch.after.depth == min(tree.depth, least)
    too_deep = sum(layer > least for layer in tree.layers.values())
    assert len(switch.moves) <= too_deep
    assert all(switch.after.layers[one] <= tree.layers[one] for one in tree.vertices)


@given(sizes, degrees, degrees)
def test_from_one_algorithm_1_tree_to_another(n, before, after):
    switch = change_degree(non_blocking(n, before), after)
    assert len(switch.moves) <= n
    if after >= before:
        assert switch.after.depth == least_depth(n, after)


@given(trees(), degrees)
def test_the_same_degree_again_moves_nothing(tree, degree):
    once = change_degree(tree, degree).after
    twice = change_degree(once, degree).after
    assert change_degree(twice, degree).moves == ()


# --- minimal moves, by brute force -------------------------------------------------------------


def layers_of(children: dict, count: int) -> dict | None:
    layers, listed = {0: 0}, [0]
    for vertex in listed:
        for place, child in enumerate(children[vertex], 1):
            if child in layers:
                return None
            layers[child] = layers[vertex] + place
            listed.append(child)
    return layers if len(layers) == count else None


def serves(tree: Tree, moved: dict, degree: int, depth: int | None, caps: dict) -> bool:
    """Tell whether these new parents, in some order of connecting, keep the cap and the depth."""
    kept = {
        vertex: [child for child in found if child not in moved]
        for vertex, found in tree.children.items()
    }
    new: dict = {}
    for child, parent in moved.items():
        new.setdefault(parent, []).append(child)
    for vertex, found in kept.items():
        if len(found) + len(new.get(vertex, ())) > cap_of(vertex, degree, caps):
            return False
    for orders in itertools.product(*(itertools.permutations(found) for found in new.values())):
        children = dict(kept)
        for parent, order in zip(new, orders, strict=True):
            children[parent] = kept[parent] + list(order)
        layers = layers_of(children, len(tree))
        if layers and (depth is None or max(layers.values()) <= depth):
            return True
    return False


def can_do_with(
    tree: Tree, moves: int, degree: int, depth: int | None, caps: dict | None = None
) -> bool:
    """Tell whether any tree that differs in so many parents keeps the cap and the depth."""
    for moving in itertools.combinations(tree.joined, moves):
        choices = [[v for v in tree.vertices if v not in (m, tree.parents[m])] for m in moving]
        for parents in itertools.product(*choices):
            moved = dict(zip(moving, parents, strict=True))
            if serves(tree, moved, degree, depth, caps or {}):
                return True
    return False


@pytest.mark.parametrize("n", range(1, 9))
def test_no_fewer_moves_lead_to_the_same(n):
    """Scale-up is to be as shallow as Algorithm 1; scale-down is to keep the cap, no more."""
    shapes = [non_blocking(n, degree) for degree in range(1, 5)] + [star(0, range(1, n + 1))]
    for tree, degree in itertools.product(shapes, range(1, 5)):
        found = len(change_degree(tree, degree).moves)
        is_down = surplus_of(tree, degree) > 0
        depth = None if is_down else least_depth(n, degree)
        # One fewer would be the nearest; brute force beyond three moves takes minutes.
        if 0 < found <= 4:
            assert not can_do_with(tree, found - 1, degree, depth), (tree, degree)


@pytest.mark.parametrize("n", range(1, 9))
def test_no_fewer_moves_lead_to_the_same_under_caps(n):
    """Scale-down from any tree; scale-up from Algorithm 1's, to others that come as far up."""
    chance = random.Random(n)
    for _ in range(60):
        degree = chance.randint(1, 4)
        caps = {vertex: chance.randint(1, 3) for vertex in range(n + 1) if chance.random() < 0.4}
        parents = [chance.randrange(child) for child in range(1, n + 1)]
        edges = tuple(zip(parents, range(1, n + 1), strict=True))
        shapes = [Tree(0, edges, tuple(range(1, n + 1))), non_blocking(n, chance.randint(1, 4))]
        for tree in shapes:
            switch = change_degree(tree, degree, caps)
            found = len(switch.moves)
            is_down = surplus_of(tree, degree, caps) > 0
            if 0 < found <= 3 and (is_down or tree is shapes[1]):
                depth = None if is_down else switch.after.depth
                assert not can_do_with(tree, found - 1, degree, depth, caps), (tree, degree, caps)


# --- caps, and any shape ------------------------------------------------------------------------


@given(trees(), degrees, all_caps)
def test_under_caps_every_vertex_keeps_its_own(tree, degree, caps):
    switch = change_degree(tree, degree, caps)
    assert sorted(switch.after.vertices) == sorted(tree.vertices)
    for vertex, found in switch.after.children.items():
        assert len(found) <= cap_of(vertex, degree, caps)
    surplus = surplus_of(tree, degree, caps)
    if surplus:
        assert len(switch.moves) == surplus
    else:
        assert switch.after.depth <= tree.depth
    again = change_degree(switch.after, degree, caps).after
    assert change_degree(again, degree, caps).moves == ()


@given(sizes, degrees, all_caps)
def test_the_tree_of_algorithm_1_under_caps(n, degree, caps):
    tree = non_blocking_tree(0, range(1, n + 1), degree, caps)
    assert tree.joined == tuple(range(1, n + 1))
    for vertex, found in tree.children.items():
        assert len(found) <= cap_of(vertex, degree, caps)
    if not caps.keys() & set(range(n + 1)):
        assert tree == non_blocking(n, degree)


@given(trees(), degrees, all_caps, st.data())
def test_who_joins_and_who_is_left_alone_respect_caps(tree, degree, caps, data):
    tree = change_degree(tree, degree, caps).after
    joined = join(tree, "new", degree, caps).after
    gone = data.draw(st.sets(st.sampled_from(tree.joined))) if tree.joined else set()
    for after in (joined, leave(tree, gone, degree, caps).after):
        for vertex, found in after.children.items():
            assert len(found) <= cap_of(vertex, degree, caps)


def test_a_cap_below_1_is_refused():
    with pytest.raises(ValueError, match="at most 0 children of 2: it must be 1 or more"):
        change_degree(non_blocking(3, 2), 2, {2: 0})


@given(trees(), st.randoms(use_true_random=False))
def test_from_any_shape_to_any_other(tree, chance):
    order = list(tree.joined)
    chance.shuffle(order)
    edges = [(chance.choice([0, *order[:place]]), child) for place, child in enumerate(order)]
    after = Tree(0, tuple(edges), tree.joined)
    switch = reshape(tree, after)
    assert (switch.before, switch.after, switch.degree) == (tree, after, max(1, after.degree))
    moved = {move.vertex for move in switch.moves}
    assert moved == {one for one in tree.joined if tree.parents[one] != after.parents[one]}


def test_another_shape_needs_the_same_hosts():
    for other in (star(0, [1]), star(0, [1, 3]), star(9, [1, 2])):
        with pytest.raises(ValueError, match="another shape needs the same hosts"):
            reshape(star(0, [1, 2]), other)


# --- hosts come and go -------------------------------------------------------------------------


@given(trees(), degrees)
def test_a_host_joins_as_a_leaf_and_no_other_moves(tree, degree):
    switch = join(tree, "new", degree)
    (move,) = switch.moves
    assert (move.vertex, move.old_parent) == ("new", None)
    assert len(tree.children[move.new_parent]) < degree
    assert switch.after.joined[-1] == "new" and switch.after.children["new"] == ()
    free = [
        tree.layers[one] + len(tree.children[one]) + 1
        for one in tree.vertices
        if len(tree.children[one]) < degree
    ]
    assert switch.after.layers["new"] == min(free)


@given(sizes, degrees)
def test_joining_one_by_one_makes_algorithm_1s_layers(n, degree):
    tree = non_blocking_tree(0, [], degree)
    for vertex in range(1, n + 1):
        tree = join(tree, vertex, degree).after
    assert dict(tree.layers) == dict(non_blocking(n, degree).layers)


@given(trees().filter(lambda tree: len(tree) > 1), degrees, st.data())
def test_when_a_host_leaves_only_its_children_move(tree, degree, data):
    gone = data.draw(st.sampled_from(tree.joined))
    switch = leave(tree, [gone], degree)
    assert gone not in switch.after.vertices
    assert sorted(switch.after.vertices) == sorted(set(tree.vertices) - {gone})
    *moved, last = switch.moves
    assert last == Move(gone, tree.parents[gone], None)
    assert {move.vertex for move in moved} == set(tree.children[gone])
    for vertex, found in switch.after.children.items():
        assert len(found) <= max(degree, len(tree.children[vertex]))


@given(trees(), degrees, st.data())
def test_several_hosts_may_die_at_once(tree, degree, data):
    gone = data.draw(st.sets(st.sampled_from(tree.joined))) if tree.joined else set()
    switch = leave(tree, gone, degree)
    assert set(switch.after.vertices) == set(tree.vertices) - gone
    orphans = {child for one in gone for child in tree.children[one]} - gone
    assert {move.vertex for move in switch.moves} == orphans | gone


@pytest.mark.parametrize("seed", range(20))
def test_a_long_sequence_of_changes(seed):
    """Hosts come and go and the degree changes: it always spans, and the cap holds in the end."""
    chance = random.Random(seed)
    tree, degree = non_blocking(5, 2), 2
    for step in range(100):
        action = chance.choice(("join", "leave", "degree"))
        if action == "join":
            tree = join(tree, f"new-{step}", degree).after
        elif action == "leave" and tree.joined:
            tree = leave(tree, [chance.choice(tree.joined)], degree).after
        elif action == "degree":
            degree = chance.randint(1, 5)
            tree = change_degree(tree, degree).after
        assert tree.degree <= degree


def test_large_trees_switch_without_delay():
    """10,000 hosts, as in the simulator: neither way is quadratic."""
    tree = non_blocking(10_000, 2)
    wider = change_degree(tree, 3).after
    assert wider.depth == least_depth(10_000, 3)
    assert change_degree(wider, 2).after.degree == 2


@pytest.mark.parametrize("degree", [0, -3])
def test_no_degree_below_1(degree):
    with pytest.raises(ValueError, match="1 or more"):
        change_degree(non_blocking(3, 2), degree)


def test_hosts_that_cannot_join_or_leave():
    tree = chain("S", ["a", "b"])
    with pytest.raises(ValueError, match="'S' cannot leave: it is the source's own host"):
        leave(tree, ["S"], 2)
    with pytest.raises(ValueError, match="'c' cannot leave: it is not in the tree"):
        leave(tree, ["c"], 2)
    with pytest.raises(ValueError, match="'a' cannot join"):
        join(tree, "a", 2)
    assert leave(chain("S", ["a"]), ["a"], 2).after.joined == ()
