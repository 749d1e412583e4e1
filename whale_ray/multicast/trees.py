"""Multicast trees as frozen values: the non-blocking tree, and the shapes it is compared with.

The vertices are hosts, by name or number. A vertex sends to its children one after another, in the
order in which they were connected, so its i-th child receives a tuple i time units after the
vertex. The time unit in which a vertex receives is its *layer* (Whale 3.2.2: T_{i-j} is the j-th
vertex of layer i). It is not the number of hops: the source's third child is on layer 3, one hop
away.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Vertex: TypeAlias = str | int
"""A host, by its logical name or number."""
Edge: TypeAlias = tuple[Vertex, Vertex]
"""Parent, child."""
Caps: TypeAlias = Mapping[Vertex, int]
"""The highest number of children of some vertices, if lower than that of the others."""

Route = Literal["non-blocking", "star", "chain", "binomial"]
"""The shape of a tree."""

NO_CAPS: Caps = MappingProxyType({})


@dataclass(frozen=True)
class Tree:
    """A tree that spans its vertices; equal to another with the same edges in the same order."""

    root: Vertex
    """The source's host S."""
    edges: tuple[Edge, ...]
    """All edges, each vertex's in the order in which it sends."""
    joined: tuple[Vertex, ...]
    """All other vertices, in the order in which they joined; a switch keeps this order."""

    def __post_init__(self) -> None:
        """Raise ValueError unless every vertex has one parent and descends from the root."""
        if len(set(self.joined)) != len(self.joined) or self.root in self.joined:
            msg = f"a vertex joined twice: {self.root!r}, {self.joined!r}"
            raise ValueError(msg)
        children = [child for _, child in self.edges]
        if len(children) != len(self.joined) or set(children) != set(self.joined):
            msg = f"not one edge to each of {self.joined!r}: {self.edges!r}"
            raise ValueError(msg)
        if len(self.arrival_order) != len(self.joined) + 1:
            lost = sorted(map(str, set(self.joined) - set(self.arrival_order)))
            msg = f"no way from the root to {', '.join(lost)}: {self.edges!r}"
            raise ValueError(msg)

    def __len__(self) -> int:
        return len(self.joined) + 1

    def __reduce__(self) -> tuple[type[Tree], tuple[object, ...]]:
        """Pickle the fields alone: what is cached of them cannot be pickled, and is found again."""
        return Tree, (self.root, self.edges, self.joined)

    @functools.cached_property
    def children(self) -> Mapping[Vertex, tuple[Vertex, ...]]:
        """The children of each vertex, in the order in which it sends to them."""
        lists: dict[Vertex, list[Vertex]] = {vertex: [] for vertex in self.vertices}
        for parent, child in self.edges:
            if parent in lists:  # else __post_init__ finds that nothing leads to the child
                lists[parent].append(child)
        return MappingProxyType({vertex: tuple(found) for vertex, found in lists.items()})

    @functools.cached_property
    def parents(self) -> Mapping[Vertex, Vertex]:
        """The parent of each vertex but the root."""
        return MappingProxyType({child: parent for parent, child in self.edges})

    @property
    def vertices(self) -> tuple[Vertex, ...]:
        """The root, then the others in the order in which they joined."""
        return (self.root, *self.joined)

    @functools.cached_property
    def arrival_order(self) -> tuple[Vertex, ...]:
        """All vertices that descend from the root, each after its parent."""
        found = [self.root]
        for vertex in found:
            found.extend(self.children[vertex])
        return tuple(found)

    @functools.cached_property
    def layers(self) -> Mapping[Vertex, int]:
        """The time unit in which each vertex receives a tuple; 0 for the root."""
        layers = {self.root: 0}
        for vertex in self.arrival_order:
            for place, child in enumerate(self.children[vertex], 1):
                layers[child] = layers[vertex] + place
        return MappingProxyType(layers)

    @functools.cached_property
    def hops(self) -> Mapping[Vertex, int]:
        """The number of edges from the root to each vertex."""
        hops = {self.root: 0}
        for vertex in self.arrival_order:
            for child in self.children[vertex]:
                hops[child] = hops[vertex] + 1
        return MappingProxyType(hops)

    @property
    def depth(self) -> int:
        """The last layer: a multicast takes this many time units."""
        return max(self.layers.values())

    @property
    def degree(self) -> int:
        """The highest out-degree."""
        return max(len(children) for children in self.children.values())

    def subtree(self, vertex: Vertex) -> tuple[Vertex, ...]:
        """Return a vertex and all its descendants, each after its parent."""
        found = [vertex]
        for one in found:
            found.extend(self.children[one])
        return tuple(found)


# --- shapes ---------------------------------------------------------------------------------


def check_degrees(degree: int, caps: Caps = NO_CAPS) -> None:
    """Raise ValueError for an out-degree, or a cap, below 1."""
    if degree < 1:
        msg = f"a tree of out-degree {degree}: it must be 1 or more"
        raise ValueError(msg)
    for vertex, cap in caps.items():
        if cap < 1:
            msg = f"at most {cap} children of {vertex!r}: it must be 1 or more"
            raise ValueError(msg)


def non_blocking_tree(
    root: Vertex, destinations: Iterable[Vertex], degree: int, caps: Caps = NO_CAPS
) -> Tree:
    """Return Whale's tree of maximum out-degree d* (Algorithm 1, its return test inside the loop).

    Layer by layer, every vertex with an out-degree below d* takes one new child, in the order of
    joining. As printed, the test stands after that loop, which then makes too many vertices.
    A vertex in `caps` has its own limit. Raises ValueError for a degree or a cap below 1, or a
    destination that is there twice.
    """
    check_degrees(degree, caps)
    joined = tuple(destinations)
    waiting = iter(joined)
    edges: list[Edge] = []
    listed = [root]
    room = {root: min(degree, caps.get(root, degree))}
    open_from = 0
    while len(listed) <= len(joined):
        # No vertex before `open_from` has room: those that joined first are mostly full first.
        while not room[listed[open_from]]:
            open_from += 1
        for vertex in listed[open_from : len(listed)]:
            if room[vertex]:
                child = next(waiting)
                edges.append((vertex, child))
                room[vertex] -= 1
                room[child] = min(degree, caps.get(child, degree))
                listed.append(child)
            if len(listed) > len(joined):
                break
    return Tree(root, tuple(edges), joined)


def star(root: Vertex, destinations: Iterable[Vertex]) -> Tree:
    """Return the tree in which the source sends to all in turn (Storm's sequential multicast)."""
    joined = tuple(destinations)
    return Tree(root, tuple((root, child) for child in joined), joined)


def chain(root: Vertex, destinations: Iterable[Vertex]) -> Tree:
    """Return the tree in which each vertex sends to the next one."""
    joined = tuple(destinations)
    return Tree(root, tuple(itertools.pairwise((root, *joined))), joined)


def binomial_tree(root: Vertex, destinations: Sequence[Vertex]) -> Tree:
    """Return the tree in which all that have a tuple forward it, without a cap (RDMC)."""
    return non_blocking_tree(root, destinations, max(1, len(destinations)))


# --- progress of a multicast ----------------------------------------------------------------


def reached_counts(degree: int) -> Iterator[int]:
    """Yield L(0), L(1), …: how many have a tuple after t time units, the source included (Eq. 7).

    L(t) = 2·L(t-1) for t ≤ d*, else 2·L(t-1) - L(t-d*-1): those that have it and are not yet full
    forward it. Like Algorithm 1 without an n, it never ends. ValueError for a degree below 1.
    """
    check_degrees(degree)
    counts = [1]
    while True:
        yield counts[-1]
        full = counts[-degree - 1] if len(counts) > degree else 0
        counts = [*counts[-degree - 1 :], 2 * counts[-1] - full]


def least_depth(destinations: int, degree: int) -> int:
    """Return the least number of layers that any tree of that out-degree needs: Algorithm 1's."""
    for time_units, reached in enumerate(reached_counts(degree)):
        if reached > destinations:
            return time_units
    raise AssertionError  # reached_counts grows without end


# --- from tree to tree ----------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """One vertex that changes its parent."""

    vertex: Vertex
    old_parent: Vertex | None
    """None for a vertex that was not in the tree."""
    new_parent: Vertex | None
    """None for a vertex that is no longer in the tree."""


def difference(before: Tree, after: Tree) -> tuple[Move, ...]:
    """Return the moves from a tree to another: by arrival, then the vertices that leave."""
    moves = []
    for vertex in [*after.arrival_order[1:], *before.joined]:
        old, new = before.parents.get(vertex), after.parents.get(vertex)
        if old != new and (new is not None or vertex in before.parents):
            moves.append(Move(vertex, old, new))
    return tuple(dict.fromkeys(moves))
