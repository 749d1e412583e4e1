"""What the source must still be able to send again: acknowledgements with epochs, pinned floors.

Two counters, apart: a reader's tail frees the ring of the relay that it reads from; the subtree
acknowledgement, handed upward from relay to relay, frees the source's retention buffer (DESIGN 6).
An acknowledgement carries the oldest tree epoch of all that it speaks for: one of the present epoch
is known to include those that moved in that epoch's switch, an older one is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .trees import Tree, Vertex

NEVER = -1
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
        self._of = {child: Acknowledgement(NEVER, position) for child in children}

    def adopt(self, leave: Iterable[Vertex], enter: Mapping[Vertex, int]) -> None:
        """Take over a new tree: who is no longer below, and who is now, from which position on.

        Those that stay keep their label of the older epoch until they speak again: below them, too,
        the tree may have changed.
        """
        for child in leave:
            self._of.pop(child, None)
        for child, position in enter.items():
            self._of[child] = Acknowledgement(NEVER, position)

    def acknowledge(self, child: Vertex, acknowledgement: Acknowledgement) -> None:
        """Take a child's acknowledgement, maybe late or twice; strangers' are ignored."""
        known = self._of.get(child)
        if known is None or acknowledgement.epoch < known.epoch:
            return
        # In a new epoch the subtree may include one that lags behind: the position may fall.
        is_newer = acknowledgement.epoch > known.epoch or acknowledgement.position > known.position
        self._of[child] = acknowledgement if is_newer else known

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
    dead one, can always be filled. A host that has died keeps its floor, too, until it comes back.
    """

    def __init__(
        self, tree: Tree, epoch: int, position: int, absent: Iterable[Vertex] = ()
    ) -> None:
        """Begin with a tree in which all have every byte before `position`.

        `absent`: hosts that have died, and are expected back.
        """
        self._tree = tree
        self._epoch = epoch
        self._floors = dict.fromkeys((*tree.joined, *absent), position)
        self._entering: dict[Vertex, int] = {}  # those who join with the switch that is prepared
        self._pinned: dict[Vertex, int] = {}
        self._latest: dict[Vertex, Acknowledgement] = {}

    def floor(self, head: int) -> int:
        """Return the first byte that may not be forgotten; `head` if nobody needs any before."""
        return min([head, *self._floors.values(), *self._entering.values()])

    def __contains__(self, vertex: Vertex) -> bool:
        """Tell whether anything is kept for a vertex."""
        return vertex in self._floors

    def of(self, vertex: Vertex) -> int:
        """Return the floor of one vertex. KeyError if nothing is kept for it."""
        return self._floors[vertex]

    @property
    def pinned(self) -> frozenset[Vertex]:
        """Whose floors wait for a new epoch."""
        return frozenset(self._pinned)

    def pin(self, positions: Mapping[Vertex, int], epoch: int) -> None:
        """Hold the floors of these until an acknowledgement of `epoch` or later includes them.

        Those who are new begin at their position; that of others is not looked at.
        """
        for vertex, position in positions.items():
            if vertex in self._floors:
                self._pinned[vertex] = max(epoch, self._pinned.get(vertex, epoch))
            else:
                self._entering[vertex] = position

    def abandon(self, epoch: int) -> None:
        """Lift the pins of a switch that was aborted: the old tree's acknowledgements count."""
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

        Who joined unforeseen begins where `begins` says, or with the stream. Those `absent` are
        no longer in it, but are expected back: their floors stay.
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
        """Take the acknowledgement of a child of the root, maybe late, early or twice.

        One of another epoch than the tree's counts for nothing, as it speaks for others than are
        below the child in this tree; that of the next epoch does as soon as it has come.
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
        acknowledgement = self._latest.get(child)
        if acknowledgement is None or acknowledgement.epoch != self._epoch:
            return
        if self._tree.parents.get(child) != self._tree.root:
            return
        for vertex in self._tree.subtree(child):
            if acknowledgement.epoch >= self._pinned.get(vertex, acknowledgement.epoch):
                self._pinned.pop(vertex, None)
                self._floors[vertex] = max(self._floors[vertex], acknowledgement.position)
