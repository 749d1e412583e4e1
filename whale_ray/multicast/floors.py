"""What the source must be able to send again: acknowledgements with epochs, and pinned floors.

There are two separate counters. A reader's tail frees the ring of the relay that it reads from. The
acknowledgement of a subtree, passed upward from relay to relay, frees the source's retention
buffer. It carries the oldest tree epoch of the vertices that it includes: one of the present epoch
includes the vertices that moved in that epoch's switch, an older one may not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .trees import Tree, Vertex

NEVER = -1
"""The epoch, before any other, of a vertex that has not sent an acknowledgement yet."""


@dataclass(frozen=True)
class Acknowledgement:
    """All vertices of a subtree of that epoch's tree have every byte before a position."""

    epoch: int
    position: int


class SubtreeAcknowledgements:
    """Combines a vertex's own position and those of the subtrees below it."""

    def __init__(self, children: Iterable[Vertex], position: int) -> None:
        """Begin with children that have all bytes before `position`."""
        self._of = {child: Acknowledgement(NEVER, position) for child in children}

    def adopt(self, leave: Iterable[Vertex], enter: Mapping[Vertex, int]) -> None:
        """Take over a new tree: children that leave, and children that enter with their positions.

        The other children keep their older epoch until their next acknowledgement, since the tree
        below them may have changed, too.
        """
        for child in leave:
            self._of.pop(child, None)
        for child, position in enter.items():
            self._of[child] = Acknowledgement(NEVER, position)

    def acknowledge(self, child: Vertex, acknowledgement: Acknowledgement) -> None:
        """Take a child's acknowledgement, which may be late or repeated; others' are ignored."""
        known = self._of.get(child)
        if known is None or acknowledgement.epoch < known.epoch:
            return
        # In a new epoch the subtree may include a vertex that is behind, so the position may fall.
        is_newer = acknowledgement.epoch > known.epoch or acknowledgement.position > known.position
        self._of[child] = acknowledgement if is_newer else known

    def combined(self, epoch: int, received: int) -> Acknowledgement:
        """Return the acknowledgement of a vertex in `epoch` with all bytes before `received`."""
        below = self._of.values()
        return Acknowledgement(
            min([epoch, *(one.epoch for one in below)]),
            min([received, *(one.position for one in below)]),
        )


class SourceFloors:
    """The floor of each vertex: the first byte that the source retains for it.

    A vertex that is to move, or has lost its parent, is *pinned*: only an acknowledgement of the
    new epoch that includes it raises its floor again. So the gap between two parents, or after a
    failed one, can always be filled. A failed host keeps its floor, too, until it comes back.
    """

    def __init__(
        self, tree: Tree, epoch: int, position: int, absent: Iterable[Vertex] = ()
    ) -> None:
        """Begin with a tree in which all vertices have every byte before `position`.

        `absent`: failed hosts that are expected back.
        """
        self._tree = tree
        self._epoch = epoch
        self._floors = dict.fromkeys((*tree.joined, *absent), position)
        self._entering: dict[Vertex, int] = {}  # those that join with the prepared switch
        self._pinned: dict[Vertex, int] = {}
        self._latest: dict[Vertex, Acknowledgement] = {}

    def floor(self, head: int) -> int:
        """Return the first byte that must be kept; `head` if none before it is needed."""
        return min([head, *self._floors.values(), *self._entering.values()])

    def __contains__(self, vertex: Vertex) -> bool:
        """Tell whether anything is kept for a vertex."""
        return vertex in self._floors

    def of(self, vertex: Vertex) -> int:
        """Return the floor of one vertex. KeyError if nothing is kept for it."""
        return self._floors[vertex]

    @property
    def pinned(self) -> frozenset[Vertex]:
        """The vertices whose floors wait for a new epoch."""
        return frozenset(self._pinned)

    def pin(self, positions: Mapping[Vertex, int], epoch: int) -> None:
        """Hold the floors of vertices until an acknowledgement of `epoch` or later includes them.

        New vertices begin at their position; the positions of others are ignored.
        """
        for vertex, position in positions.items():
            if vertex in self._floors:
                self._pinned[vertex] = max(epoch, self._pinned.get(vertex, epoch))
            else:
                self._entering[vertex] = position

    def abandon(self, epoch: int) -> None:
        """Remove the pins of an aborted switch: acknowledgements of the old tree count again."""
        self._pinned = {vertex: at for vertex, at in self._pinned.items() if at != epoch}
        self._entering = {}

    def adopt(
        self,
        tree: Tree,
        epoch: int,
        begins: Mapping[Vertex, int] | None = None,
        absent: Collection[Vertex] = (),
    ) -> None:
        """Take over the tree of a switch that was decided.

        A vertex that was not prepared for begins at `begins`, or at byte 0. Vertices in `absent`
        are no longer in the tree but are expected back, so their floors stay.
        """
        self._tree, self._epoch = tree, epoch
        known = {**(begins or {}), **self._entering, **self._floors}
        away = [vertex for vertex in known if vertex in absent]
        self._floors = {vertex: known.get(vertex, 0) for vertex in (*tree.joined, *away)}
        self._entering = {}
        self._pinned = {vertex: at for vertex, at in self._pinned.items() if vertex in self._floors}
        self._latest = {
            vertex: acknowledgement
            for vertex, acknowledgement in self._latest.items()
            if vertex in self._floors
        }
        for child in tree.children[tree.root]:
            self._apply(child)

    def acknowledge(self, child: Vertex, acknowledgement: Acknowledgement) -> None:
        """Take the acknowledgement of a child of the root; it may be late, early or repeated.

        One of another epoch than the tree's is not applied, since it may include other vertices
        than are below the child in this tree. One of the next epoch is applied with its tree.
        """
        if child not in self._floors and child not in self._entering:
            return
        known = self._latest.get(child)
        if known is None or (acknowledgement.epoch, acknowledgement.position) > (
            known.epoch,
            known.position,
        ):
            self._latest[child] = acknowledgement
        self._apply(child)

    def _apply(self, child: Vertex) -> None:
        """Raise the floors below a child of the root to its newest acknowledgement."""
        acknowledgement = self._latest.get(child)
        if acknowledgement is None or acknowledgement.epoch != self._epoch:
            return
        if self._tree.parents.get(child) != self._tree.root:
            return
        for vertex in self._tree.subtree(child):
            if acknowledgement.epoch >= self._pinned.get(vertex, acknowledgement.epoch):
                self._pinned.pop(vertex, None)
                self._floors[vertex] = max(self._floors[vertex], acknowledgement.position)
