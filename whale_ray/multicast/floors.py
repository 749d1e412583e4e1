"""What the source must still be able to send again: acknowledgements with epochs, pinned floors.

Two counters, apart: a reader's tail frees the ring of the relay that it reads from; the subtree
acknowledgement, handed upward from relay to relay, frees the source's retention buffer (DESIGN 6).
An acknowledgement carries the oldest tree epoch of all that it speaks for: one of the present epoch
is known to include those that moved in that epoch's switch, an older one is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .trees import Tree, Vertex

_NEVER = -1
"""Before any epoch: what the label of one that was not heard yet is."""


@dataclass(frozen=True)
class Acknowledgement:
    """All vertices of a subtree of that epoch's tree have every byte before a position."""

    epoch: int
    position: int


class SubtreeAcknowledgements:
    """A vertex's own position and those of the subtrees below it, as one."""

    def __init__(self, children: Iterable[Vertex], position: int) -> None:
        """Begin where all of these children are known to have all before `position`."""
        self._of = {child: Acknowledgement(_NEVER, position) for child in children}

    def adopt(self, leave: Iterable[Vertex], enter: Mapping[Vertex, int]) -> None:
        """Take over a new tree: who is no longer below, and who is now, from which position on.

        Those that stay keep their label of the older epoch until they speak again: below them, too,
        the tree may have changed.
        """
        for child in leave:
            self._of.pop(child, None)
        for child, position in enter.items():
            self._of[child] = Acknowledgement(_NEVER, position)

    def heard(self, child: Vertex, told: Acknowledgement) -> None:
        """Take a child's acknowledgement, maybe late or twice; strangers' are ignored."""
        known = self._of.get(child)
        if known is None or told.epoch < known.epoch:
            return
        # In a new epoch the subtree may include one that lags behind: the position may fall.
        is_newer = told.epoch > known.epoch or told.position > known.position
        self._of[child] = told if is_newer else known

    def combined(self, epoch: int, received: int) -> Acknowledgement:
        """Return the acknowledgement of a vertex that is in `epoch` and has all of `received`."""
        below = self._of.values()
        return Acknowledgement(
            min([epoch, *(one.epoch for one in below)]),
            min([received, *(one.position for one in below)]),
        )


class SourceFloors:
    """The first byte that the source retains, and for whom.

    A vertex that is to move, or has lost its parent, is *pinned*: only an acknowledgement of the
    new epoch that includes it raises its floor again. So a gap between two parents, or behind a
    dead one, can always be filled.
    """

    def __init__(self, tree: Tree, epoch: int, position: int) -> None:
        """Begin with a tree in which all have every byte before `position`."""
        self._tree = tree
        self._epoch = epoch
        self._floors = dict.fromkeys(tree.joined, position)
        self._pinned: dict[Vertex, int] = {}
        self._position = position

    @property
    def floor(self) -> int:
        """All before it may be forgotten."""
        self._position = min(self._floors.values(), default=self._position)
        return self._position

    def of(self, vertex: Vertex) -> int:
        """Return the floor of one vertex. KeyError if it is not in the tree."""
        return self._floors[vertex]

    @property
    def pinned(self) -> frozenset[Vertex]:
        """Whose floors wait for a new epoch."""
        return frozenset(self._pinned)

    def pin(self, vertices: Iterable[Vertex], epoch: int) -> None:
        """Hold the floors of these until an acknowledgement of `epoch` or later includes them."""
        for vertex in vertices:
            if vertex in self._floors:
                self._pinned[vertex] = max(epoch, self._pinned.get(vertex, epoch))

    def abandon(self, epoch: int) -> None:
        """Lift the pins of a switch that was aborted: the old tree's acknowledgements count."""
        self._pinned = {vertex: at for vertex, at in self._pinned.items() if at != epoch}

    def adopt(self, tree: Tree, epoch: int) -> None:
        """Take over the tree of a switch that was decided; hosts that joined begin at its cut."""
        self._tree, self._epoch = tree, epoch
        self._floors = {vertex: self._floors.get(vertex, epoch) for vertex in tree.joined}
        self._pinned = {vertex: at for vertex, at in self._pinned.items() if vertex in self._floors}

    def heard(self, child: Vertex, told: Acknowledgement) -> None:
        """Take the acknowledgement of a child of the root.

        One of an older epoch counts for nothing, as it may not include who moved below the child.
        """
        if told.epoch < self._epoch or self._tree.parents.get(child) != self._tree.root:
            return
        for vertex in self._tree.subtree(child):
            if told.epoch >= self._pinned.get(vertex, told.epoch):
                self._pinned.pop(vertex, None)
                self._floors[vertex] = max(self._floors[vertex], told.position)
