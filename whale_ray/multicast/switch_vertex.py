"""A vertex in a two-phase switch: which parent it reads each byte from, what it keeps for whom.

Pure; the driver hands in messages, ticks and what was read. ::

    PREPARE   new parent: reserve the stream for the child, and say from where   child: take note
    COMMIT    child: read on from the old parent up to the cut, then from the new one
    ABORT     all as before; the reservation is dropped

A vertex knows by its own position from whom the next byte comes, so no byte is lost or read twice,
whenever the messages arrive. The old tree flows on meanwhile: a child that has passed the cut when
it hears COMMIT changes where it stands, and the new parent still has all that from the cut on.
A vertex whose parent has died reads what its new parent no longer holds from the source (DESIGN 6).

The root is a vertex without a parent that has `SourceFloors`: it keeps what any vertex may still
need, and serves whoever asks (`Fetch`), child or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..configs.errors import ProtocolError
from .floors import Acknowledgement, SourceFloors, SubtreeAcknowledgements
from .switch_messages import (
    Abort,
    AddressedMessage,
    Commit,
    Done,
    Fetch,
    Gone,
    Informed,
    Leave,
    Left,
    Message,
    PlannedMove,
    Prepare,
    Ready,
    Refused,
    Starved,
)
from .switch_protocol import SwitchPhase, SwitchRecord
from .trees import Tree, Vertex


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
        floors: SourceFloors | None = None,
    ) -> None:
        """Begin at a position with a parent (None for the root and for one that joins).

        One that joins has the last `epoch` used before: what was meant for a host of its name that
        has died is older, and refused. It begins at what its memory holds, or at the cut of its
        switch if it has none. The root has `floors`: see `of` and `root_from`.
        """
        self.name = name
        self.term = 0
        self.epoch = epoch
        """Of the present tree."""
        self.received = received
        """All bytes before it are here; for the root, all that were produced."""
        self.held_from = received
        """The first byte that is still here (for the root: in its ring or what it retains).

        The driver sets it to what is so, if it does not give back all that `release` would.
        """
        self.refused: Counter[str] = Counter()
        """Messages that came too late, by kind."""
        self._root = root
        self._spans = [] if parent is None else [Span(parent, received)]
        self._children = {child: _Edge(received, epoch) for child in children}
        self._floors = floors
        self._prepared: Prepare | None = None
        self._reserved: dict[Vertex, int] = {}
        self._decided = epoch
        self._leaving: dict[Vertex, int] = {}
        self._retiring = False
        self._gone: dict[Vertex, int] = {}
        self._has_told = True
        self._end: int | None = None
        self._fetched: Span | None = None
        self._void: dict[Vertex, tuple[int, int]] = {}
        self._acknowledgements = SubtreeAcknowledgements(children, received)

    @classmethod
    def of(cls, name: Vertex, tree: Tree, *, epoch: int = 0, received: int = 0) -> SwitchVertex:
        """Return a vertex of a tree in which all stand at the same position; the root, too."""
        floors = SourceFloors(tree, epoch, received) if name == tree.root else None
        parent, children = tree.parents.get(name), tree.children[name]
        return cls(name, tree.root, parent, children, epoch=epoch, received=received, floors=floors)

    @classmethod
    def root_from(cls, record: SwitchRecord, term: int, held_from: int, head: int) -> SwitchVertex:
        """Return a root that takes over from one that has died: its ring is still there.

        What the dead one retained beyond its ring is lost: all floors are `held_from`, where the
        ring's tail stands. Whoever needs what is before is starved, and the coordinator is told.
        Children in the tree are its children at once, others that still read from here ask for it.
        Tell the coordinator, too (`SwitchCoordinator.root_restarted`), before or after.
        """
        tree = record.tree
        floors = SourceFloors(tree, record.epoch, held_from, record.absent)
        children = tree.children[tree.root]
        vertex = cls(
            tree.root,
            tree.root,
            None,
            children,
            epoch=record.epoch,
            received=held_from,
            floors=floors,
        )
        vertex.received = head
        vertex.term = term
        if record.phase is not SwitchPhase.PREPARING:  # else it gets its ABORT
            vertex._decided = record.last_epoch
        for move in record.moves if record.phase is SwitchPhase.COMMITTING else ():
            if move.vertex in vertex._children:
                vertex._children[move.vertex].tail = max(held_from, move.reserve_at)
        vertex._forget(record.gone, record.epoch)
        return vertex

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
    def serves(self) -> dict[Vertex, int]:
        """All that the stream is kept for, and from which byte on: children, also those to come."""
        found = dict(self._reserved)
        for child, edge in self._children.items():
            found[child] = min(edge.tail, found.get(child, edge.tail))
        return found

    @property
    def upward(self) -> frozenset[Vertex]:
        """All that links are needed to: those it reads from, now or soon, and those it leaves."""
        found = {span.parent for span in self._spans} | self._leaving.keys()
        for move in self._prepared.moves if self._prepared is not None else ():
            if move.vertex == self.name and move.new_parent is not None:
                found.add(move.new_parent)
        return frozenset(found)

    @property
    def gone(self) -> Mapping[Vertex, int]:
        """The hosts that have died and did not come back, with the last epoch that said so."""
        return self._gone

    @property
    def settled(self) -> bool:
        """Whether nothing of a switch is under way here."""
        is_still = self._prepared is None and not self._leaving and len(self._spans) <= 1
        return is_still and self._has_told

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
        if self._floors is not None:
            self._floors.heard(child, told)
        else:
            self._acknowledgements.heard(child, told)

    @property
    def retain_from(self) -> int:
        """The root's: the first byte that it must still be able to send. ValueError elsewhere."""
        if self._floors is None:
            msg = f"{self.name!r} is not the root"
            raise ValueError(msg)
        return self._floors.floor(self.received)

    @property
    def floors(self) -> SourceFloors | None:
        """What the root keeps for whom; None for all others."""
        return self._floors

    @property
    def floor(self) -> int:
        """The first byte that must be kept: for a child, or for one that is reserved for."""
        retained = self.received if self._floors is None else self.retain_from
        return min([self.received, retained, *self.serves.values()])

    def release(self) -> None:
        """Give back all that nobody needs: the ring's tail moves to the floor."""
        self.held_from = max(self.held_from, self.floor)

    def produce(self, nbytes: int) -> None:
        """Take note that the source made more; the root's only. ValueError elsewhere."""
        if self.name != self._root:
            msg = f"{self.name!r} is not the root"
            raise ValueError(msg)
        self.received += nbytes

    def read(self, parent: Vertex, begin: int, end: int) -> list[AddressedMessage]:
        """Take note that bytes came from a parent. ProtocolError unless they are what is next.

        They may go beyond the `limit`: the bytes are the same everywhere, and it changes parents
        where it stands then.
        """
        span = self.reading
        is_next = span is not None and span.parent == parent and begin == self.received
        if not is_next or end < begin:
            msg = f"{self.name!r}: [{begin}, {end}) from {parent!r}, expected from {span}"
            raise ProtocolError(msg)
        return self.arrived(end)

    def arrived(self, position: int) -> list[AddressedMessage]:
        """Take note that all bytes before a position are here, whoever sent them."""
        self.received = max(self.received, position)
        return self._settle()

    def ended(self, position: int) -> list[AddressedMessage]:
        """Take note that the stream ends at a position: a cut beyond it is passed there."""
        self._end = position
        return self._settle()

    def child_read(self, child: Vertex, position: int) -> None:
        """Take note that a child has all before a position; positions that fell are ignored."""
        edge = self._children.get(child)
        if edge is not None:
            edge.tail = max(edge.tail, position)
        elif child in self._reserved:
            # It has heard COMMIT before us, and reads already.
            self._reserved[child] = max(self._reserved[child], position)

    def starved(self, child: Vertex, position: int) -> list[AddressedMessage]:
        """Take note that a child is to be sent bytes now that are not held here any more."""
        told = Starved(self.term, self.epoch, self.name, child, position, self.held_from)
        return [AddressedMessage(None, told)]

    # --- messages ---------------------------------------------------------------------------

    def receive(self, message: Message) -> list[AddressedMessage]:
        """Take a message, maybe for the second time, and return the answers."""
        if not isinstance(message, (Leave, Left, Fetch)):
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
            case Fetch():
                return self._serve(message)
            case Leave():
                self._void[message.vertex] = (message.epoch, message.position)
                edge = self._children.get(message.vertex)
                if edge is not None and edge.epoch < message.epoch:
                    del self._children[message.vertex]
                answer = AddressedMessage(
                    message.vertex, Left(message.term, message.epoch, self.name)
                )
                return [answer, *self._settle()]
            case Left():
                if self._leaving.get(message.parent, -1) <= message.epoch:
                    self._leaving.pop(message.parent, None)
                return self._settle()
        return []

    def tick(self) -> list[AddressedMessage]:
        """Say again what was not answered."""
        out = [self._leave(parent) for parent in self._leaving]
        span = self.reading
        if span is not None and span.parent == self._root:
            # A root that took over from a dead one knows of the children in the tree alone.
            if span.is_gap or self.limit is not None or self._retiring:
                out.append(self._fetch())
        return out

    def _refuse(self, what: str) -> list[AddressedMessage]:
        self.refused[what] += 1
        return []

    def _prepare(self, message: Prepare) -> list[AddressedMessage]:
        if message.epoch <= self._decided:
            return self._refuse("epoch")
        held = self._prepared
        if held is not None and held.epoch != message.epoch:
            # One switch at a time: how that one ends must be known first.
            return [self._cannot(message, f"epoch {held.epoch} is prepared")]
        if held is None:
            for move in message.moves:
                if self._joins_anew(move) and self.held_from > move.reserve_at:
                    return [self._cannot(message, f"what it needs is before {self.held_from}")]
            self._prepared = message
            if self._floors is not None:
                begins = {one.vertex: max(self.held_from, one.reserve_at) for one in message.moves}
                self._floors.pin(begins, message.epoch)
            self._reserved = {
                move.vertex: max(self.held_from, move.reserve_at)
                for move in message.moves
                if move.new_parent == self.name
            }
        reserved = tuple(self._reserved.items())
        return [AddressedMessage(None, Ready(message.term, message.epoch, self.name, reserved))]

    def _joins_anew(self, move: PlannedMove) -> bool:
        """Tell whether what is not kept here from `reserve_at` on would come from nowhere."""
        if move.old_parent is not None or self._floors is None:
            return False
        return move.vertex not in self._floors and move.reserve_at > 0

    def _cannot(self, message: Message, reason: str) -> AddressedMessage:
        return AddressedMessage(None, Refused(message.term, message.epoch, self.name, reason))

    def _commit(self, message: Commit) -> list[AddressedMessage]:
        if message.epoch < self._decided:
            return self._refuse("epoch")
        if message.epoch > self._decided:
            self._decided = self.epoch = message.epoch
            moved = {one.vertex: one for one in message.moves}
            # Those who are not among the dead any more have come back, maybe unheard by one who
            # was away itself.
            self._gone = {
                vertex: epoch
                for vertex, epoch in self._gone.items()
                if vertex in message.gone or epoch >= message.epoch
            }
            self._forget(message.gone, message.epoch)
            for child, move in moved.items():
                if move.new_parent == self.name and child not in self._gone:
                    # Also where it was a child before: what it has not read then comes from its
                    # old parent, or the source. To keep it as well could block the way to the cut.
                    # A root that has taken over meanwhile has reserved nothing, but lost nothing.
                    begin = self._reserved.get(child, self.held_from)
                    self._children[child] = _Edge(max(begin, move.reserve_at), message.epoch)
            self._prepared, self._reserved = None, {}
            if self._floors is None:
                enter = {
                    v: one.reserve_at for v, one in moved.items() if one.new_parent == self.name
                }
                # A dead child counts until the tree is repaired: it stands for those below it.
                self._acknowledgements.adopt(moved, enter)
            else:
                begins = {vertex: move.reserve_at for vertex, move in moved.items()}
                self._floors.adopt(message.tree, message.epoch, begins, message.absent)
            if len(self._spans) > 1:
                # A switch follows an unfinished one only if a host has died: the former parent may
                # starve, or wait for us in a circle. The source never does.
                gap = Span(self._root, self.received, is_gap=True)
                self._read_along([gap, self._spans[-1]])
            if self.name in moved:
                self._move(moved[self.name])
        self._has_told = False
        return self._settle(is_asked=True)

    def _move(self, move: PlannedMove) -> None:
        if move.new_parent is None:
            self._retiring = True
            return
        if move.old_parent is not None:
            last = self._spans[-1].begin if self._spans else 0
            span = Span(move.new_parent, max(move.reserve_at, self.received, last))
            self._read_along([*self._spans, span])
            return
        spans = [Span(move.new_parent, max(move.reserve_at, self.received))]
        if move.reserve_at > self.received:
            spans.insert(0, Span(self._root, self.received, is_gap=True))
        self._read_along(spans)

    def _read_along(self, spans: list[Span]) -> None:
        """Read as these say from now on; parents that are in none of them any more are left."""
        now = {span.parent for span in spans}
        for span in self._spans:
            if span.parent not in now and span.parent not in self._gone:
                self._leaving[span.parent] = self.epoch
        for parent in now:
            self._leaving.pop(parent, None)
        self._spans = spans

    def _abort(self, message: Abort) -> list[AddressedMessage]:
        if message.epoch < self._decided or message.epoch == self.epoch:
            return self._refuse("epoch")
        self._decided = message.epoch
        if self._prepared is not None and self._prepared.epoch <= message.epoch:
            # Else this is a late repetition, and the next switch is prepared already.
            if self._floors is not None:
                self._floors.abandon(self._prepared.epoch)
            self._prepared, self._reserved = None, {}
        return [AddressedMessage(None, Done(message.term, message.epoch, self.name, finished=True))]

    def _lose(self, message: Gone) -> list[AddressedMessage]:
        if message.epoch < self._decided:
            return self._refuse("epoch")
        self._forget(message.gone, message.epoch)
        known = frozenset(self._gone)
        informed = Informed(message.term, message.epoch, self.name, known)
        return [AddressedMessage(None, informed), *self._settle()]

    def _forget(self, gone: frozenset[Vertex], epoch: int) -> None:
        """Keep nothing for the dead, wait for none; what one was to send comes from the source."""
        for vertex in gone:
            self._gone[vertex] = max(epoch, self._gone.get(vertex, epoch))
            self._leaving.pop(vertex, None)
            edge = self._children.get(vertex)
            if edge is not None and edge.epoch <= epoch:
                del self._children[vertex]

    def _serve(self, message: Fetch) -> list[AddressedMessage]:
        """Let a vertex read what the root holds, until it leaves."""
        child, position = message.vertex, message.position
        void = self._void.get(child, (-1, 0))
        if self._floors is None or child in self._gone or (message.epoch, position) < void:
            return self._refuse("fetch")
        # An older edge than the epoch of the Leave that will end it. That its position lies before
        # what is held means nothing: it may have come further since it said so.
        begin = max(position, self.held_from)
        self._children.setdefault(child, _Edge(begin, message.epoch - 1))
        return []

    def _leave(self, parent: Vertex) -> AddressedMessage:
        # One that retires does not come back where it stands.
        void = self.received + self._retiring
        return AddressedMessage(parent, Leave(self.term, self._leaving[parent], self.name, void))

    def _fetch(self) -> AddressedMessage:
        return AddressedMessage(self._root, Fetch(self.term, self.epoch, self.name, self.received))

    def _settle(self, *, is_asked: bool = False) -> list[AddressedMessage]:
        """Change parents if that is due; tell how far it has come if asked, or at the end."""
        known = set(self._leaving)
        is_over = self._end is not None and self.received >= self._end
        while len(self._spans) > 1 and (is_over or self._spans[1].begin <= self.received):
            self._read_along(self._spans[1:])
        if len(self._spans) > 1 and self._spans[0].parent in self._gone:
            gap = Span(self._root, self.received, is_gap=True)
            self._read_along([gap, *self._spans[1:]])
        if self._retiring and not self._children:
            self._read_along([])
        out = [self._leave(parent) for parent in self._leaving if parent not in known]
        span = self.reading
        if span is not None and span.is_gap and span != self._fetched:
            self._fetched = span
            out.append(self._fetch())
        if not self._has_told:
            waits = self._leaving or len(self._spans) > 1 or (self._retiring and self._spans)
            self._has_told = not waits
            if is_asked or not waits:
                done = Done(self.term, self.epoch, self.name, finished=not waits)
                out.append(AddressedMessage(None, done))
        return out
