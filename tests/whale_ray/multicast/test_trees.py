"""Multicast trees: the vectors of the design, Algorithm 1 replayed, and what holds for all."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.multicast.out_degree import binomial_degree
from whale_ray.multicast.trees import (
    Move,
    Tree,
    binomial_tree,
    chain,
    difference,
    least_depth,
    non_blocking_tree,
    reached_counts,
    star,
)

sizes = st.integers(0, 200)
degrees = st.integers(1, 10)


def reached(tree: Tree, time_units: int) -> int:
    """Return how many vertices have a tuple after so many time units, the root included."""
    return sum(layer <= time_units for layer in tree.layers.values())


def children_of(tree: Tree) -> dict:
    return {vertex: list(found) for vertex, found in tree.children.items() if found}


def algorithm_1(n: int, degree: int) -> list[tuple[int, int]]:
    """Replay the paper's lines 1-15, numbers for vertices, the test of line 14 after each child."""
    listed, out_degree, edges = [0], {0: 0}, []
    while len(listed) <= n:
        for i in range(len(listed)):
            if out_degree[listed[i]] < degree:
                new = len(listed)
                edges.append((listed[i], new))
                out_degree[listed[i]] += 1
                out_degree[new] = 0
                listed.append(new)
                if len(listed) > n:
                    return edges
    return edges


def test_figure_6():
    """T1-1 = 1; T2-1, T2-2 = 2, 3; T3-1, T3-2, T3-3 = 4, 5, 6; T4-1 = 7, under T2-1."""
    tree = non_blocking_tree(0, range(1, 8), 2)
    assert children_of(tree) == {0: [1, 2], 1: [3, 4], 2: [5, 7], 3: [6]}
    assert dict(tree.layers) == {0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 3, 7: 4}
    assert (tree.depth, tree.degree, len(tree)) == (4, 2, 8)
    assert tree.parents[7] == 2
    assert tree.subtree(2) == (2, 5, 7)
    assert tree.hops[6] == 3


def test_the_published_example_of_15():
    tree = non_blocking_tree("S", range(1, 16), 3)
    assert children_of(tree) == {
        "S": [1, 2, 4],
        1: [3, 5, 8],
        2: [6, 9, 15],
        3: [7, 10],
        4: [11],
        5: [12],
        6: [13],
        7: [14],
    }


def test_reached_counts_of_degree_2():
    assert list(itertools.islice(reached_counts(2), 5)) == [1, 2, 4, 7, 12]
    tree = non_blocking_tree(0, range(1, 12), 2)
    assert [reached(tree, t) for t in range(5)] == [1, 2, 4, 7, 12]


@pytest.mark.parametrize(
    ("n", "depths"), [(7, "74333"), (15, "155544"), (30, "306655"), (100, "1009877")]
)
def test_depths_by_degree(n, depths):
    """For d* of 1, 2, 3, 4 and without a cap, as computed for the published code."""
    trees = [*(non_blocking_tree(0, range(1, n + 1), d) for d in (1, 2, 3, 4))]
    trees.append(binomial_tree(0, range(1, n + 1)))
    assert "".join(str(tree.depth) for tree in trees) == depths


@given(sizes, degrees)
def test_it_is_algorithm_1(n, degree):
    tree = non_blocking_tree(0, range(1, n + 1), degree)
    assert list(tree.edges) == algorithm_1(n, degree)


@given(sizes, degrees)
def test_it_spans_keeps_the_cap_and_fills_layers_in_join_order(n, degree):
    names = [f"host-{number}" for number in range(n + 1)]
    tree = non_blocking_tree(names[0], names[1:], degree)
    assert sorted(tree.arrival_order) == sorted(names)
    assert all(len(found) <= degree for found in tree.children.values())
    layers = [tree.layers[name] for name in names]
    assert layers == sorted(layers)
    counts = itertools.islice(reached_counts(degree), tree.depth + 1)
    assert [reached(tree, t) for t in range(tree.depth + 1)] == [min(c, n + 1) for c in counts]
    assert tree.depth == least_depth(n, degree)


@given(sizes)
def test_the_binomial_degree_caps_nothing(n):
    assert non_blocking_tree(0, range(1, n + 1), binomial_degree(n)) == binomial_tree(
        0, range(1, n + 1)
    )


@given(sizes)
def test_star_and_chain(n):
    one, other = star(0, range(1, n + 1)), chain(0, range(1, n + 1))
    assert one.degree == n and max(one.hops.values()) == min(n, 1)
    assert one.depth == other.depth == n
    assert max(other.hops.values()) == n
    assert other == non_blocking_tree(0, range(1, n + 1), 1)


def test_few_destinations():
    alone = non_blocking_tree("S", [], 3)
    assert (alone.edges, alone.depth, alone.degree, alone.arrival_order) == ((), 0, 0, ("S",))
    assert non_blocking_tree("S", ["a"], 3) == star("S", ["a"]) == chain("S", ["a"])


@pytest.mark.parametrize("degree", [0, -1])
def test_a_degree_below_1_is_refused(degree):
    with pytest.raises(ValueError, match="1 or more"):
        non_blocking_tree(0, [1], degree)
    with pytest.raises(ValueError, match="1 or more"):
        next(reached_counts(degree))


@pytest.mark.parametrize(
    ("edges", "joined"),
    [
        (((0, 1), (0, 1)), (1, 1)),
        (((0, 1),), (1, 2)),
        (((0, 1), (0, 2)), (1,)),
        (((1, 2), (2, 1)), (1, 2)),
        (((0, 1), (9, 2)), (1, 2)),
        (((0, 1), (1, 0)), (1, 0)),
        (((0, 1), (2, 1)), (1, 2)),
    ],
)
def test_what_is_no_tree_is_refused(edges, joined):
    with pytest.raises(ValueError):
        Tree(0, edges, joined)


def test_difference():
    before = Tree(0, ((0, 1), (0, 2), (1, 3)), (1, 2, 3))
    after = Tree(0, ((0, 1), (1, 4), (4, 3)), (1, 3, 4))
    assert difference(before, before) == ()
    assert difference(before, after) == (Move(4, None, 1), Move(3, 1, 4), Move(2, 0, None))


def test_a_tree_can_be_pickled_when_its_children_are_known():
    tree = chain(0, [1, 2])
    assert tree.layers[2] == 2
    assert pickle.loads(pickle.dumps(tree)) == tree
