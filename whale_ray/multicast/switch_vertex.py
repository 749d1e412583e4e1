"""A vertex in a two-phase switch: which parent it reads each byte from, what it keeps for whom.

Pure; the driver hands in messages, ticks and what was read. ::

    PREPARE   new parent: reserve the stream from the cut on for the child    child: take note
    COMMIT    child: read on from the old parent up to the cut, then from the new one
    ABORT     all as before; the reservation is dropped

A vertex knows by its own position from whom the next byte comes, so no byte is lost or read twice,
whenever the messages arrive. The old tree flows on meanwhile: a child that has passed the cut when
it hears COMMIT changes where it stands, and the new parent still has all that from the cut on.
A vertex whose parent has died reads what its new parent no longer holds from the source (DESIGN 6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from ..configs.errors import ProtocolError
from .floors import Acknowledgement, SubtreeAcknowledgements
from .switch_messages import (
    Abort,
    Commit,
    Done,
    Gone,
    Informed,
    Leave,
    Left,
    Message,
    Outgoing,
    PlannedMove,
    Prepare,
    Ready,
    Refused,
)
from .trees import Vertex


@dataclass(frozen=True)
class Span:
    """A part of the stream and who it is read from."""

    parent: Vertex
    begin: int
    """First byte; the span ends where the next one begins."""
    is_gap: bool = False
    """Read from what the source retains, not from its ring."""


@dataclass
class _Edge:
    tail: int
    """The child has read all before it."""
    epoch: int
    """Of the tree that the edge came with."""


class SwitchVertex:
    """One vertex of one stream's tree, the root among them."""

    def __init__(
        self,
        name: Vertex,
        root: Vertex,
        parent: Vertex | None,
        children: Collection[Vertex] = (),
        *,
        epoch: int = 0,
        received: int = 0,
    ) -> None:
        """Begin at a position with a parent (None for the root and for one that joins).

        One that joins begins at the cut of its switch, with the last `epoch` used before: what was
        meant for a host of its name that has died is older, and refused.
        """
        self.name = name
        self.term = 0
        self.epoch = epoch
        """Of the present tree."""
        self.received = received
        """All bytes before it are here; for the root, all that were produced."""
        self.held_from = received
        """The first byte that is still here."""
        self.refused: Counter[str] = Counter()
        """Messages that came too late, by kind."""
        self._root = root
        self._spans = [] if parent is None else [Span(parent, received)]
        self._children = {child: _Edge(received, epoch) for child in children}
        self._prepared: Prepare | None = None
        self._reserved: dict[Vertex, int] = {}
        self._decided = epoch
        self._leaving: dict[Vertex, int] = {}
        self._retiring = False
        self._gone: dict[Vertex, int] = {}
        self._has_told = True
        self._acknowledgements = SubtreeAcknowledgements(children, received)

    # --- bytes ------------------------------------------------------------------------------

    @property
    def reading(self) -> Span | None:
        """Who the next byte is read from; None for the root, and where nobody can serve it."""
        if not self._spans or (self._spans[0].parent in self._gone and not self._spans[0].is_gap):
            return None
        return self._spans[0]

    @property
    def limit(self) -> int | None:
        """Up to which byte that is so; None: without end."""
        return self._spans[1].begin if len(self._spans) > 1 else None

    @property
    def children(self) -> frozenset[Vertex]:
        """Who reads from here, or may still."""
        return frozenset(self._children)

    @property
    def parent(self) -> Vertex | None:
        """The parent in the present tree, whom the subtree's acknowledgement goes to."""
        return self._spans[-1].parent if self._spans else None

    @property
    def acknowledgement(self) -> Acknowledgement:
        """How far all of the subtree below have come, this vertex included."""
        return self._acknowledgements.combined(self.epoch, self.received)

    def acknowledged(self, child: Vertex, told: Acknowledgement) -> None:
        """Take a child's subtree acknowledgement, maybe late or twice."""
        self._acknowledgements.heard(child, told)

    @property
    def floor(self) -> int:
        """The first byte that must be kept: for a child, or for one that is reserved for."""
        tails = [edge.tail for edge in self._children.values()]
        return min([self.received, *tails, *self._reserved.values()])

    def release(self) -> None:
        """Give back all that nobody needs: the ring's tail moves to the floor."""
        self.held_from = max(self.held_from, self.floor)

    def produce(self, nbytes: int) -> None:
        """Take note that the source made more; the root's only. ValueError elsewhere."""
        if self.name != self._root:
            msg = f"{self.name!r} is not the root"
            raise ValueError(msg)
        self.received += nbytes

    def read(self, parent: Vertex, begin: int, end: int) -> list[Outgoing]:
        """Take note that bytes came from a parent. ProtocolError unless they are what is next."""
        span = self.reading
        is_next = span is not None and span.parent == parent and begin == self.received
        if not is_next or end < begin or (self.limit is not None and end > self.limit):
            msg = f"{self.name!r}: [{begin}, {end}) from {parent!r}, expected from {span}"
            raise ProtocolError(msg)
        self.received = end
        return self._settle()

    def child_read(self, child: Vertex, position: int) -> None:
        """Take note that a child has all before a position; positions that fell are ignored."""
        edge = self._children.get(child)
        if edge is not None:
            edge.tail = max(edge.tail, position)
        elif child in self._reserved:
            # It has heard COMMIT before us, and reads already.
            self._reserved[child] = max(self._reserved[child], position)

    # --- messages ---------------------------------------------------------------------------

    def receive(self, message: Message) -> list[Outgoing]:
        """Take a message, maybe for the second time, and return the answers."""
        if not isinstance(message, (Leave, Left)):
            # Between vertices the epoch alone decides: one of them may not know the new term yet.
            if message.term < self.term:
                return self._refuse("term")
            self.term = message.term
        match message:
            case Prepare():
                return self._prepare(message)
            case Commit():
                return self._commit(message)
            case Abort():
                return self._abort(message)
            case Gone():
                return self._lose(message)
            case Leave():
                edge = self._children.get(message.vertex)
                if edge is not None and edge.epoch < message.epoch:
                    del self._children[message.vertex]
                answer = Outgoing(message.vertex, Left(message.term, message.epoch, self.name))
                return [answer, *self._settle()]
            case Left():
                if self._leaving.get(message.parent, -1) <= message.epoch:
                    self._leaving.pop(message.parent, None)
                return self._settle()
        return []

    def tick(self) -> list[Outgoing]:
        """Say again what was not answered."""
        return [self._leave(parent) for parent in self._leaving]

    def _refuse(self, what: str) -> list[Outgoing]:
        self.refused[what] += 1
        return []

    def _prepare(self, message: Prepare) -> list[Outgoing]:
        if message.epoch <= self._decided:
            return self._refuse("epoch")
        held = self._prepared
        if held is not None and held.epoch != message.epoch:
            # One switch at a time: how that one ends must be known first.
            return [self._cannot(message, f"epoch {held.epoch} is prepared")]
        if held is None:
            for move in message.moves:
                is_exact = move.old_parent is not None and move.new_parent == self.name
                if is_exact and self.held_from > move.reserve_at:
                    return [self._cannot(message, f"the cut is behind {self.held_from}")]
            self._prepared = message
            self._reserved = {
                move.vertex: max(self.held_from, move.reserve_at)
                for move in message.moves
                if move.new_parent == self.name
            }
        reserved = tuple(self._reserved.items())
        return [Outgoing(None, Ready(message.term, message.epoch, self.name, reserved))]

    def _cannot(self, message: Message, reason: str) -> Outgoing:
        return Outgoing(None, Refused(message.term, message.epoch, self.name, reason))

    def _commit(self, message: Commit) -> list[Outgoing]:
        if message.epoch < self._decided:
            return self._refuse("epoch")
        if message.epoch > self._decided:
            self._decided = self.epoch = message.epoch
            moved = {one.vertex: one for one in message.moves}
            for vertex in moved:
                if self._gone.get(vertex, message.epoch) < message.epoch:
                    del self._gone[vertex]  # it has come back
            self._forget(message.gone, message.epoch)
            for child, position in self._reserved.items():
                edge = self._children.get(child)
                tail = position if edge is None else min(edge.tail, position)
                if child not in self._gone:
                    self._children[child] = _Edge(tail, message.epoch)
            self._prepared, self._reserved = None, {}
            enter = {v: one.reserve_at for v, one in moved.items() if one.new_parent == self.name}
            # A dead child counts until the tree is repaired: it stands for those below it.
            self._acknowledgements.adopt(moved, enter)
            if len(self._spans) > 1:
                # A switch follows an unfinished one only if a host has died: the former parent may
                # starve, or wait for us in a circle. The source never does.
                *former, last = self._spans
                for span in former:
                    self._depart(span, last.parent)
                self._spans = [Span(self._root, self.received, is_gap=True), last]
            for move in message.moves:
                if move.vertex == self.name:
                    self._move(move, message.epoch)
        self._has_told = False
        return self._settle(is_asked=True)

    def _move(self, move: PlannedMove, cut: int) -> None:
        if move.new_parent is None:
            self._retiring = True
            return
        self._leaving.pop(move.new_parent, None)
        if move.old_parent is not None:
            last = self._spans[-1].begin if self._spans else 0
            self._spans.append(Span(move.new_parent, max(cut, self.received, last)))
            return
        for span in self._spans:
            self._depart(span, move.new_parent)
        self._spans = [Span(move.new_parent, max(move.reserve_at, self.received))]
        if move.reserve_at > self.received:
            self._spans.insert(0, Span(self._root, self.received, is_gap=True))

    def _abort(self, message: Abort) -> list[Outgoing]:
        if message.epoch < self._decided or message.epoch == self.epoch:
            return self._refuse("epoch")
        self._decided = message.epoch
        if self._prepared is not None and self._prepared.epoch <= message.epoch:
            # Else this is a late repetition, and the next switch is prepared already.
            self._prepared, self._reserved = None, {}
        return [Outgoing(None, Done(message.term, message.epoch, self.name, finished=True))]

    def _lose(self, message: Gone) -> list[Outgoing]:
        if message.epoch < self._decided:
            return self._refuse("epoch")
        self._forget(message.gone, message.epoch)
        known = frozenset(self._gone)
        informed = Informed(message.term, message.epoch, self.name, known)
        return [Outgoing(None, informed), *self._settle()]

    def _forget(self, gone: frozenset[Vertex], epoch: int) -> None:
        """Keep nothing for the dead, wait for none; what one was to send comes from the source."""
        for vertex in gone:
            self._gone[vertex] = max(epoch, self._gone.get(vertex, epoch))
            self._leaving.pop(vertex, None)
            edge = self._children.get(vertex)
            if edge is not None and edge.epoch <= epoch:
                del self._children[vertex]

    def _depart(self, span: Span, new_parent: Vertex | None) -> None:
        if not span.is_gap and span.parent not in self._gone and span.parent != new_parent:
            self._leaving[span.parent] = self.epoch

    def _leave(self, parent: Vertex) -> Outgoing:
        return Outgoing(parent, Leave(self.term, self._leaving[parent], self.name))

    def _settle(self, *, is_asked: bool = False) -> list[Outgoing]:
        """Change parents if that is due; tell how far it has come if asked, or at the end."""
        known = set(self._leaving)
        while len(self._spans) > 1 and self._spans[1].begin <= self.received:
            self._depart(self._spans.pop(0), self._spans[0].parent)
        if len(self._spans) > 1 and self._spans[0].parent in self._gone:
            self._spans[0] = Span(self._root, self.received, is_gap=True)
        if self._retiring and not self._children:
            for span in self._spans:
                self._depart(span, None)
            self._spans = []
        out = [self._leave(parent) for parent in self._leaving if parent not in known]
        if not self._has_told:
            waits = self._leaving or len(self._spans) > 1 or (self._retiring and self._spans)
            self._has_told = not waits
            if is_asked or not waits:
                done = Done(self.term, self.epoch, self.name, finished=not waits)
                out.append(Outgoing(None, done))
        return out
