"""Whom a vertex serves: its children and those to come, each from a byte on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .trees import Vertex


@dataclass
class _Edge:
    tail: int
    """The child has all bytes before it."""
    epoch: int
    """Of the tree with which the edge came."""


class ServedChildren:
    """The children of one vertex, and the reservations of the switch that is prepared."""

    def __init__(self, children: Iterable[Vertex], position: int, epoch: int) -> None:
        """Begin with children that have all bytes before `position`."""
        self._edges = {child: _Edge(position, epoch) for child in children}
        self._void_fetches: dict[Vertex, tuple[int, int]] = {}
        self.reserved: dict[Vertex, int] = {}
        """Children to come: from which byte on the stream is kept for each."""

    def __contains__(self, child: Vertex) -> bool:
        return child in self._edges

    def __len__(self) -> int:
        return len(self._edges)

    @property
    def names(self) -> frozenset[Vertex]:
        """The children, without those to come."""
        return frozenset(self._edges)

    @property
    def positions(self) -> dict[Vertex, int]:
        """From which byte on the stream is kept, by child; includes children to come."""
        found = dict(self.reserved)
        for child, edge in self._edges.items():
            found[child] = min(edge.tail, found.get(child, edge.tail))
        return found

    def has_read(self, child: Vertex, position: int) -> None:
        """Record that a child has all bytes before a position; a lower position is ignored."""
        edge = self._edges.get(child)
        if edge is not None:
            edge.tail = max(edge.tail, position)
        elif child in self.reserved:
            # The child received COMMIT earlier than this vertex, and reads already.
            self.reserved[child] = max(self.reserved[child], position)

    def serve(self, child: Vertex, begin: int, epoch: int) -> None:
        """Serve a child from a byte on, also one that was a child before."""
        self._edges[child] = _Edge(begin, epoch)

    def serve_from(self, positions: Mapping[Vertex, int]) -> None:
        """Move the tails of present children; others are ignored."""
        for child, position in positions.items():
            if child in self._edges:
                self._edges[child].tail = position

    def leave(self, child: Vertex, epoch: int, position: int) -> None:
        """Drop a child that leaves with this epoch; what it fetched before is void."""
        self._void_fetches[child] = (epoch, position)
        self._drop_older(child, epoch)

    def fetch(self, child: Vertex, position: int, epoch: int, held_from: int) -> bool:
        """Serve a vertex that asks for bytes, until it leaves; False if the request is void."""
        if (epoch, position) < self._void_fetches.get(child, (-1, 0)):
            return False
        # The edge is older than the LEAVE that will end it. A position before `held_from` is no
        # error: the vertex may have received more since it sent the message.
        self._edges.setdefault(child, _Edge(max(position, held_from), epoch - 1))
        return True

    def drop_failed(self, child: Vertex, epoch: int) -> None:
        """Drop a child that has failed, unless it came back with a later epoch."""
        self._drop_older(child, epoch + 1)

    def _drop_older(self, child: Vertex, epoch: int) -> None:
        edge = self._edges.get(child)
        if edge is not None and edge.epoch < epoch:
            del self._edges[child]
