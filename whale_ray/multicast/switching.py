"""From a tree to the next one by few moves: another out-degree, one host more, one host less.

A move gives one vertex another parent; its own children stay with it. (Whale 3.4, Fig. 8. The
published code builds the whole tree anew, and a step of one degree moves up to half of its edges.)

- **Scale-down** (negative): every vertex beyond the new cap keeps the children that it connected
  first, which have the largest subtrees. One edge moves per surplus child, which is the minimum.
- **Scale-up** (active): vertices move up until the tree is as shallow as Algorithm 1 would make it,
  but not further. These are the leaves that joined last. A vertex whose descendants are too deep as
  well (mostly in a chain) moves instead of them, so that fewer edges move. From a tree of
  Algorithm 1 the number of moves is minimal; from any other tree it may be one or two higher.
- **A host joins** at the best place. **A host leaves or fails**: each of its children moves, which
  is the minimum again.
- **Another shape**: a switch between any two trees of the same hosts moves all that differs.

Some vertices may have lower limits than the rest, because of their own queues: `caps`. Then a
scale-up goes as far as free places allow: no vertex moves down to make place for one that could
serve more children.

A moved vertex takes the place that is reached first; among equals, the one fewest hops from the
source; among these, the one at the parent that joined first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .trees import (
    NO_CAPS,
    Caps,
    Edge,
    Move,
    Tree,
    Vertex,
    check_degrees,
    difference,
    least_depth,
    non_blocking_tree,
)


@dataclass(frozen=True)
class Switch:
    """A tree, the one that follows it, and the moves from one to the other."""

    before: Tree
    after: Tree
    degree: int
    """The highest out-degree in `after`."""

    @property
    def moves(self) -> tuple[Move, ...]:
        """The vertices that change parents, parents before children; those that leave come last."""
        return difference(self.before, self.after)


def change_degree(tree: Tree, degree: int, caps: Caps = NO_CAPS) -> Switch:
    """Return the switch to another highest out-degree; it may have no moves.

    Raises ValueError for a degree or a cap below 1.
    """
    draft = _Draft(tree, degree, caps)
    surplus = [
        child
        for vertex in tree.arrival_order
        for child in tree.children[vertex][min(degree, caps.get(vertex, degree)) :]
    ]
    if surplus:
        draft.place_all(surplus)
    elif caps:
        draft.lift_to(non_blocking_tree(tree.root, tree.joined, degree, caps).depth)
    else:
        draft.lift_to(least_depth(len(tree.joined), degree))
    return Switch(tree, draft.tree(tree.joined), degree)


def reshape(before: Tree, after: Tree) -> Switch:
    """Return the switch from a tree to any other one of the same hosts.

    Raises ValueError if they are not the same, or the source's is another.
    """
    if before.root != after.root or set(before.joined) != set(after.joined):
        msg = f"another shape needs the same hosts: {before.vertices!r}, not {after.vertices!r}"
        raise ValueError(msg)
    return Switch(before, after, max(1, after.degree))


def join(tree: Tree, vertex: Vertex, degree: int, caps: Caps = NO_CAPS) -> Switch:
    """Return the switch by which one more host joins, as a leaf.

    Vertices beyond the cap keep their children and get no more. Raises ValueError for a host that
    is in the tree already, and for a degree or a cap below 1.
    """
    draft = _Draft(tree, degree, caps)
    draft.add(vertex)
    return Switch(tree, draft.tree((*tree.joined, vertex)), degree)


def leave(tree: Tree, vertices: Iterable[Vertex], degree: int, caps: Caps = NO_CAPS) -> Switch:
    """Return the switch around hosts that leave or have failed: only their children move.

    Raises ValueError for the root, for a host that is not in the tree, and for a degree or a cap
    below 1.
    """
    gone = dict.fromkeys(vertices)
    for vertex in gone:
        if vertex not in tree.parents:
            kind = "the source's own host" if vertex == tree.root else "not in the tree"
            msg = f"{vertex!r} cannot leave: it is {kind}"
            raise ValueError(msg)
    draft = _Draft(tree, degree, caps)
    orphans = [child for one in gone for child in tree.children[one] if child not in gone]
    draft.place_all(orphans, gone)
    return Switch(tree, draft.tree([one for one in tree.joined if one not in gone]), degree)


class _Draft:
    """A tree that is being changed, with the layers of its vertices and its free places."""

    def __init__(self, tree: Tree, degree: int, caps: Caps) -> None:
        check_degrees(degree, caps)
        self._root = tree.root
        self._degree = degree
        self._caps = caps
        self._children = {vertex: list(found) for vertex, found in tree.children.items()}
        self._parents: dict[Vertex, Vertex] = dict(tree.parents)
        self._layers: dict[Vertex, int] = dict(tree.layers)
        self._hops: dict[Vertex, int] = dict(tree.hops)
        self._joined = {vertex: place for place, vertex in enumerate(tree.vertices)}
        # A heap. Entries are outdated when a vertex moves or gets a child; `_best` drops them.
        self._free: list[tuple[int, int, int, Vertex]] = []
        for vertex in tree.vertices:
            self._offer(vertex)

    def tree(self, joined: Sequence[Vertex]) -> Tree:
        """Return the tree as it now is."""
        edges: list[Edge] = []
        listed = [self._root]
        for vertex in listed:
            edges.extend((vertex, child) for child in self._children[vertex])
            listed.extend(self._children[vertex])
        return Tree(self._root, tuple(edges), tuple(joined))

    def add(self, vertex: Vertex) -> None:
        """Add a new vertex at the best place."""
        if vertex in self._children:
            msg = f"{vertex!r} cannot join: it is in the tree already"
            raise ValueError(msg)
        self._children[vertex] = []
        self._joined[vertex] = len(self._joined)
        self._attach(vertex, self._best())

    def place_all(self, moving: Sequence[Vertex], gone: Iterable[Vertex] = ()) -> None:
        """Give each of these subtrees another parent: the tallest first, then by order of joining.

        No place below them is offered until they are placed, so no circle can arise. Vertices in
        `gone` are removed first.
        """
        heights = {vertex: self._height(vertex) for vertex in moving}
        for vertex in moving:
            self._detach(vertex)
        for vertex in gone:
            self._detach(vertex)
        for vertex in sorted(moving, key=lambda one: (-heights[one], self._joined[one])):
            self._attach(vertex, self._best())

    def lift_to(self, depth: int) -> None:
        """Move subtrees up until no vertex lies below layer `depth`, by few moves.

        Each move is the one that brings most vertices up to `depth`. Gains only fall while the
        better places are taken, so a gain is computed again only when it leads the heap.
        """
        deep = [vertex for vertex, layer in self._layers.items() if layer > depth]
        movable = {above for vertex in deep for above in self._up_from(vertex)}
        waiting = [self._rank(vertex, depth) for vertex in movable]
        heapq.heapify(waiting)
        while waiting:
            rank = heapq.heappop(waiting)
            vertex = rank[-1]
            now = self._rank(vertex, depth)
            if now != rank:
                if now[0] < 0:
                    heapq.heappush(waiting, now)
            elif now[0] < 0:
                parent = self._best()
                self._detach(vertex)
                self._attach(vertex, parent)

    def _rank(self, vertex: Vertex, depth: int) -> tuple[int, int, int, Vertex]:
        """Return the order of moving: most gain first, then the deepest, then the last-joined."""
        place = self._best()
        rise = self._layers[vertex] - (self._layers[place] + len(self._children[place]) + 1)
        gain = 0
        if rise > 0:
            layers = [self._layers[one] for one in self._below(vertex)]
            gain = sum(depth < layer <= depth + rise for layer in layers)
        return (-gain, -self._layers[vertex], -self._joined[vertex], vertex)

    def _up_from(self, vertex: Vertex) -> list[Vertex]:
        found = []
        while vertex != self._root:
            found.append(vertex)
            vertex = self._parents[vertex]
        return found

    def _below(self, vertex: Vertex) -> list[Vertex]:
        found = [vertex]
        for one in found:
            found.extend(self._children[one])
        return found

    def _height(self, vertex: Vertex) -> int:
        top = self._layers[vertex]
        return max(self._layers[one] for one in self._below(vertex)) - top

    def _place_of(self, vertex: Vertex) -> tuple[int, int, int, Vertex]:
        layer = self._layers[vertex] + len(self._children[vertex]) + 1
        return (layer, self._hops[vertex], self._joined[vertex], vertex)

    def _has_room(self, vertex: Vertex) -> bool:
        cap = min(self._degree, self._caps.get(vertex, self._degree))
        return len(self._children[vertex]) < cap

    def _offer(self, vertex: Vertex) -> None:
        if self._has_room(vertex):
            heapq.heappush(self._free, self._place_of(vertex))

    def _best(self) -> Vertex:
        """Return the vertex at which a new child would be reached first."""
        while True:
            place = self._free[0]
            vertex = place[-1]
            # A vertex without a layer is detached, with all vertices below it.
            if (
                vertex in self._layers
                and self._has_room(vertex)
                and place == self._place_of(vertex)
            ):
                return vertex
            heapq.heappop(self._free)

    def _detach(self, vertex: Vertex) -> None:
        parent = self._parents.pop(vertex)
        for one in self._below(vertex):
            self._layers.pop(one, None)
        self._children[parent].remove(vertex)
        if parent in self._layers:
            self._update_layers(parent)  # the siblings after it move up a layer

    def _attach(self, vertex: Vertex, parent: Vertex) -> None:
        self._parents[vertex] = parent
        self._children[parent].append(vertex)
        self._update_layers(parent)

    def _update_layers(self, parent: Vertex) -> None:
        """Update the layers below a vertex, as far as they change, and offer their places."""
        self._offer(parent)
        listed = [parent]
        for above in listed:
            for place, child in enumerate(self._children[above], 1):
                layer, hops = self._layers[above] + place, self._hops[above] + 1
                if (self._layers.get(child), self._hops.get(child)) != (layer, hops):
                    self._layers[child], self._hops[child] = layer, hops
                    self._offer(child)
                    listed.append(child)
