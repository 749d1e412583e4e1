"""A vertex of a multicast tree in a two-phase switch: whom it reads each byte from, and serves.

A pure state machine: the caller passes in messages, ticks and the positions that were read. ::

    PREPARE   new parent: reserve the stream for the child, answer from which byte on
              child: remember the move
    COMMIT    child: read from the old parent up to the cut, then from the new one
    ABORT     keep the old tree; drop the reservation

The vertex's own position decides which parent the next byte comes from, so no byte is lost or read
twice, whenever the messages arrive. The old tree continues carrying bytes during a switch. A child
that has passed the cut before it receives COMMIT changes parents at its present position; the new
parent still holds everything from the cut on. A vertex whose parent has failed reads what its new
parent no longer holds from the source.

The root has no parent but `SourceFloors`: it retains what any vertex may still need, and serves
any vertex that asks (`Fetch`), child or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ..configs.errors import ProtocolError
from .floors import Acknowledgement, SourceFloors, SubtreeAcknowledgements
from .read_plan import ReadPlan, Span
from .served_children import ServedChildren
from .switch_messages import (
    AbortSwitch,
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
        """Begin at position `received` with a parent (None for the root and for a joining vertex).

        A joining vertex gets the last `epoch` used before, so it refuses messages that were meant
        for a failed host of the same name. It begins with what its memory holds, or at the cut of
        its switch if it has no memory. The root has `floors`: see `of` and `root_from`.
        """
        self.name = name
        self.term = 0
        self.epoch = epoch
        """Of the present tree."""
        self.received = received
        """All bytes before it are here; for the root, all that were produced."""
        self.held_from = received
        """The first byte that is still held here (for the root: in its ring or its retention).

        The caller corrects it if it releases less memory than `release` allows.
        """
        self.refused: Counter[str] = Counter()
        """How many messages of an older epoch or term were refused, by reason."""
        self._root = root
        self._plan = ReadPlan(root, parent, received)
        self._served = ServedChildren(children, received, epoch)
        self._floors = floors
        self._prepared: Prepare | None = None
        self._decided = epoch
        self._retiring = False
        self._gone: dict[Vertex, int] = {}
        self._has_reported = True
        self._end: int | None = None
        self._fetched: Span | None = None
        self._acknowledgements = SubtreeAcknowledgements(children, received)

    @classmethod
    def of(cls, name: Vertex, tree: Tree, *, epoch: int = 0, received: int = 0) -> SwitchVertex:
        """Return a vertex, or the root, of a tree in which all have received the same bytes."""
        floors = SourceFloors(tree, epoch, received) if name == tree.root else None
        parent, children = tree.parents.get(name), tree.children[name]
        return cls(name, tree.root, parent, children, epoch=epoch, received=received, floors=floors)

    @classmethod
    def root_from(cls, record: SwitchRecord, term: int, held_from: int, head: int) -> SwitchVertex:
        """Return a root that takes over the ring of a failed one.

        What the failed root retained beyond its ring is lost: all floors are `held_from`, the tail
        of the ring. A vertex that needs earlier bytes is reported as starved. The tree's children
        are served at once; others that still read from the root ask for it. The caller tells the
        coordinator, too (`SwitchCoordinator.root_restarted`), before or after.
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
        if record.phase is SwitchPhase.COMMITTING:
            begins = {move.vertex: max(held_from, move.reserve_at) for move in record.moves}
            vertex._served.serve_from(begins)
        vertex._drop_failed(record.gone, record.epoch)
        return vertex

    # --- bytes ------------------------------------------------------------------------------

    @property
    def reading(self) -> Span | None:
        """Where the next byte is read from; None for the root, and while no parent can serve it."""
        spans = self._plan.spans
        if not spans or (spans[0].parent in self._gone and not spans[0].is_gap):
            return None
        return spans[0]

    @property
    def limit(self) -> int | None:
        """The byte at which `reading` ends; None: it has no end."""
        return self._plan.limit

    @property
    def children(self) -> frozenset[Vertex]:
        """The vertices that read from here, or may still do so."""
        return self._served.names

    @property
    def serves(self) -> dict[Vertex, int]:
        """From which byte on the stream is kept, by child; includes children that are to come."""
        return self._served.positions

    @property
    def upward(self) -> frozenset[Vertex]:
        """All hosts that links are needed to: parents now and soon, and those being left."""
        found = self._plan.parents
        for move in self._prepared.moves if self._prepared is not None else ():
            if move.vertex == self.name and move.new_parent is not None:
                found.add(move.new_parent)
        return frozenset(found)

    @property
    def gone(self) -> Mapping[Vertex, int]:
        """The failed hosts that have not come back, with the last epoch that reported each."""
        return self._gone

    @property
    def settled(self) -> bool:
        """Whether no switch is under way here."""
        is_reading_steadily = not self._plan.leaving and not self._plan.is_switching
        return self._prepared is None and is_reading_steadily and self._has_reported

    @property
    def parent(self) -> Vertex | None:
        """The parent in the present tree, which gets the acknowledgement of the subtree."""
        return self._plan.last_parent

    @property
    def acknowledgement(self) -> Acknowledgement:
        """The bytes that the whole subtree has received, this vertex included."""
        return self._acknowledgements.combined(self.epoch, self.received)

    def acknowledged(self, child: Vertex, acknowledgement: Acknowledgement) -> None:
        """Take a child's subtree acknowledgement, which may be late or repeated."""
        if self._floors is not None:
            self._floors.acknowledge(child, acknowledgement)
        else:
            self._acknowledgements.acknowledge(child, acknowledgement)

    @property
    def retain_from(self) -> int:
        """The root's: the first byte that it must still be able to send. ValueError elsewhere."""
        if self._floors is None:
            msg = f"{self.name!r} is not the root"
            raise ValueError(msg)
        return self._floors.floor(self.received)

    @property
    def floors(self) -> SourceFloors | None:
        """What the root retains, by vertex; None for all other vertices."""
        return self._floors

    @property
    def floor(self) -> int:
        """The first byte that must be kept for a child, or for a child that is to come."""
        retained = self.received if self._floors is None else self.retain_from
        return min([self.received, retained, *self.serves.values()])

    def produce(self, nbytes: int) -> None:
        """Count bytes that the source has produced; ValueError unless this is the root."""
        if self.name != self._root:
            msg = f"{self.name!r} is not the root"
            raise ValueError(msg)
        self.received += nbytes

    def read(self, parent: Vertex, begin: int, end: int) -> list[AddressedMessage]:
        """Count the bytes [begin, end) from a parent; ProtocolError unless they come next.

        They may go beyond `limit`: all parents hold the same bytes, and the vertex changes parents
        at the position that it has reached.
        """
        span = self.reading
        is_next = span is not None and span.parent == parent and begin == self.received
        if not is_next or end < begin:
            msg = f"{self.name!r}: [{begin}, {end}) from {parent!r}, expected from {span}"
            raise ProtocolError(msg)
        return self.arrived(end)

    def arrived(self, position: int) -> list[AddressedMessage]:
        """Record that all bytes before a position are here, from any parent."""
        self.received = max(self.received, position)
        return self._settle()

    def ended(self, position: int) -> list[AddressedMessage]:
        """Record that the stream ends at a position: a cut beyond the end is passed there."""
        self._end = position
        return self._settle()

    def child_read(self, child: Vertex, position: int) -> None:
        """Record that a child has all bytes before a position; a lower position is ignored."""
        self._served.has_read(child, position)

    def starved(self, child: Vertex, position: int) -> list[AddressedMessage]:
        """Report that a child needs bytes that are no longer held here."""
        report = Starved(self.term, self.epoch, self.name, child, position, self.held_from)
        return [AddressedMessage(None, report)]

    # --- messages ---------------------------------------------------------------------------

    def receive(self, message: Message) -> list[AddressedMessage]:
        """Take a message, which may be a repetition, and return the answers."""
        if not isinstance(message, (Leave, Left, Fetch)):
            # Messages between vertices are judged by epoch: one may not know the new term yet.
            if message.term < self.term:
                return self._refuse("term")
            self.term = message.term
        match message:
            case Prepare():
                return self._prepare(message)
            case Commit():
                return self._commit(message)
            case AbortSwitch():
                return self._abort(message)
            case Gone():
                return self._take_failures(message)
            case Fetch():
                return self._serve_fetch(message)
            case Leave():
                self._served.leave(message.vertex, message.epoch, message.position)
                answer = AddressedMessage(
                    message.vertex, Left(message.term, message.epoch, self.name)
                )
                return [answer, *self._settle()]
            case Left():
                self._plan.left(message.parent, message.epoch)
                return self._settle()
        return []

    def tick(self) -> list[AddressedMessage]:
        """Repeat what was not answered."""
        out = [self._leave(parent) for parent in self._plan.leaving]
        span = self.reading
        if span is not None and span.parent == self._root:
            # A root that took over from a failed one knows only the children in the tree.
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
            # One switch at a time: the outcome of the prepared one must be known first.
            return [self._cannot(message, f"epoch {held.epoch} is prepared")]
        if held is None:
            for move in message.moves:
                if self._joins_anew(move) and self.held_from > move.reserve_at:
                    return [self._cannot(message, f"what it needs is before {self.held_from}")]
            self._prepared = message
            if self._floors is not None:
                begins = {one.vertex: max(self.held_from, one.reserve_at) for one in message.moves}
                self._floors.pin(begins, message.epoch)
            self._served.reserved = {
                move.vertex: max(self.held_from, move.reserve_at)
                for move in message.moves
                if move.new_parent == self.name
            }
        reserved = tuple(self._served.reserved.items())
        return [AddressedMessage(None, Ready(message.term, message.epoch, self.name, reserved))]

    def _joins_anew(self, move: PlannedMove) -> bool:
        """Return whether no other vertex could serve what is not held here from `reserve_at` on."""
        if move.old_parent is not None or self._floors is None:
            return False
        return move.vertex not in self._floors and move.reserve_at > 0

    def _cannot(self, message: Message, reason: str) -> AddressedMessage:
        return AddressedMessage(None, Refused(message.term, message.epoch, self.name, reason))

    def _commit(self, message: Commit) -> list[AddressedMessage]:
        if message.epoch < self._decided:
            return self._refuse("epoch")
        if message.epoch > self._decided:  # else COMMIT has come before, and asks for an answer
            self._adopt(message)
        self._has_reported = False
        return self._settle(is_asked=True)

    def _adopt(self, message: Commit) -> None:
        """Take over the tree of a switch that is decided."""
        self._decided = self.epoch = message.epoch
        moves = {move.vertex: move for move in message.moves}
        # A host that COMMIT no longer lists as failed has come back; this vertex may have missed
        # that if it was away itself.
        self._gone = {
            vertex: epoch
            for vertex, epoch in self._gone.items()
            if vertex in message.gone or epoch >= message.epoch
        }
        self._drop_failed(message.gone, message.epoch)
        self._adopt_children(moves, message.epoch)
        self._prepared, self._served.reserved = None, {}
        self._adopt_floors(message, moves)
        if self._plan.is_switching:
            # A switch follows an unfinished one only if a host has failed: the former parent may
            # starve, or wait for this vertex in a circle. The source never does.
            self._read_along(self._gap(), self._plan.spans[-1])
        if self.name in moves:
            self._move(moves[self.name])

    def _adopt_children(self, moves: Mapping[Vertex, PlannedMove], epoch: int) -> None:
        """Serve the new children from the cut on.

        Also one that was a child before: what it has not read then comes from its old parent, or
        from the source. Keeping that as well could block the way to the cut. A root that has taken
        over since PREPARE has reserved nothing, but has lost nothing either.
        """
        for child, move in moves.items():
            if move.new_parent == self.name and child not in self._gone:
                begin = max(self._served.reserved.get(child, self.held_from), move.reserve_at)
                self._served.serve(child, begin, epoch)

    def _adopt_floors(self, message: Commit, moves: Mapping[Vertex, PlannedMove]) -> None:
        """Count acknowledgements along the new tree."""
        if self._floors is not None:
            begins = {vertex: move.reserve_at for vertex, move in moves.items()}
            self._floors.adopt(message.tree, message.epoch, begins, message.absent)
            return
        enter = {
            vertex: move.reserve_at
            for vertex, move in moves.items()
            if move.new_parent == self.name
        }
        # A failed child counts until the tree is repaired: it stands for those below it.
        self._acknowledgements.adopt(moves, enter)

    def _move(self, move: PlannedMove) -> None:
        if move.new_parent is None:
            self._retiring = True
            return
        if move.old_parent is not None:
            spans = self._plan.spans
            last = spans[-1].begin if spans else 0
            begin = max(move.reserve_at, self.received, last)
            self._read_along(*spans, Span(move.new_parent, begin))
            return
        span = Span(move.new_parent, max(move.reserve_at, self.received))
        if move.reserve_at > self.received:
            self._read_along(self._gap(), span)
        else:
            self._read_along(span)

    def _read_along(self, *spans: Span) -> None:
        self._plan.follow(spans, self.epoch, self._gone)

    def _gap(self) -> Span:
        return self._plan.gap(self.received)

    def _abort(self, message: AbortSwitch) -> list[AddressedMessage]:
        if message.epoch < self._decided or message.epoch == self.epoch:
            return self._refuse("epoch")
        self._decided = message.epoch
        if self._prepared is not None and self._prepared.epoch <= message.epoch:
            # Otherwise ABORT is a late repetition, and the next switch is prepared already.
            if self._floors is not None:
                self._floors.abandon(self._prepared.epoch)
            self._prepared, self._served.reserved = None, {}
        return [AddressedMessage(None, Done(message.term, message.epoch, self.name, finished=True))]

    def _take_failures(self, message: Gone) -> list[AddressedMessage]:
        if message.epoch < self._decided:
            return self._refuse("epoch")
        self._drop_failed(message.gone, message.epoch)
        known = frozenset(self._gone)
        informed = Informed(message.term, message.epoch, self.name, known)
        return [AddressedMessage(None, informed), *self._settle()]

    def _drop_failed(self, gone: frozenset[Vertex], epoch: int) -> None:
        """Drop the state of failed vertices, and wait for none; the source fills the gaps."""
        for vertex in gone:
            self._gone[vertex] = max(epoch, self._gone.get(vertex, epoch))
            self._plan.leaving.pop(vertex, None)
            self._served.drop_failed(vertex, epoch)

    def _serve_fetch(self, message: Fetch) -> list[AddressedMessage]:
        """Let a vertex read what the root holds, until it sends LEAVE."""
        child = message.vertex
        is_served = self._floors is not None and child not in self._gone
        if is_served and self._served.fetch(child, message.position, message.epoch, self.held_from):
            return []
        return self._refuse("fetch")

    def _leave(self, parent: Vertex) -> AddressedMessage:
        # A retiring vertex will not fetch again at its position.
        void = self.received + self._retiring
        return AddressedMessage(
            parent, Leave(self.term, self._plan.leaving[parent], self.name, void)
        )

    def _fetch(self) -> AddressedMessage:
        return AddressedMessage(self._root, Fetch(self.term, self.epoch, self.name, self.received))

    def _settle(self, *, is_asked: bool = False) -> list[AddressedMessage]:
        """Change parents where that is due, and return messages about it.

        `is_asked`: the coordinator waits for an answer, even if the switch is not finished here.
        """
        leaving_before = set(self._plan.leaving)
        self._pass_cuts()
        if self._plan.is_switching and self._plan.spans[0].parent in self._gone:
            self._read_along(self._gap(), *self._plan.spans[1:])
        if self._retiring and not self._served:
            self._read_along()
        farewells = [self._leave(one) for one in self._plan.leaving if one not in leaving_before]
        return [*farewells, *self._fetch_new_gap(), *self._report(is_asked)]

    def _pass_cuts(self) -> None:
        """Read from the next parent once the cut, or the end of the stream, is reached."""
        has_ended = self._end is not None and self.received >= self._end
        plan = self._plan
        while plan.is_switching and (has_ended or plan.spans[1].begin <= self.received):
            self._read_along(*plan.spans[1:])

    def _fetch_new_gap(self) -> list[AddressedMessage]:
        """Ask the root for a gap that it was not asked for yet; `tick` repeats that."""
        span = self.reading
        if span is None or not span.is_gap or span == self._fetched:
            return []
        self._fetched = span
        return [self._fetch()]

    def _report(self, is_asked: bool) -> list[AddressedMessage]:
        """Tell the coordinator that this vertex has finished, or when asked that it has not."""
        if self._has_reported:
            return []
        is_retiring = self._retiring and bool(self._plan.spans)
        finished = not (self._plan.leaving or self._plan.is_switching or is_retiring)
        self._has_reported = finished
        if not (is_asked or finished):
            return []
        return [AddressedMessage(None, Done(self.term, self.epoch, self.name, finished))]
