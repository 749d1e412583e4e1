"""The coordinator of two-phase switches: from one tree to the next, or back.

A pure state machine: the caller passes in messages and ticks, and sends what is returned. ::

    STABLE ──begin──► PREPARING ──all are ready──► COMMITTING ──all have moved──► STABLE, new tree
                          │ refused, too late, a host failed
                          └──────────────────────► ABORTING ──all know──────────► STABLE, old tree

Unanswered messages are repeated with every tick, and receivers accept repetitions. The caller
writes `record` down **before** it sends what a call returned: a successor with a higher term
finishes from it what was decided, and aborts what was not. Writing must fail for an older term.

A host that fails while a decided switch is carried out is not waited for. In that case, and while a
failed host is expected back, the switch ends as soon as all living hosts have received the
decision, although some may not have moved: their parents may starve them until the next switch
repairs the tree. A host whose relay was replaced joins again, from the first byte that its memory
does not hold. The root's own relay may be replaced, too: `root_restarted`.

The root takes part in every switch: it pins the floors of all that move before anybody moves.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from .switch_messages import (
    AbortSwitch,
    AddressedMessage,
    Commit,
    Done,
    Gone,
    Informed,
    Message,
    PlannedMove,
    Prepare,
    Ready,
    Refused,
    Starved,
    StatusMessage,
)
from .switching import Switch
from .trees import Tree, Vertex


class SwitchPhase(enum.Enum):
    """Where a switch stands."""

    STABLE = "stable"
    PREPARING = "preparing"
    COMMITTING = "committing"
    ABORTING = "aborting"


@dataclass(frozen=True)
class SwitchRecord:
    """What a coordinator's successor needs."""

    tree: Tree
    """The tree in force: while COMMITTING, already the new one."""
    epoch: int = 0
    """Its epoch."""
    last_epoch: int = 0
    """The highest epoch used so far; beyond `epoch` if that switch was aborted, or is prepared."""
    phase: SwitchPhase = SwitchPhase.STABLE
    next_tree: Tree | None = None
    """While PREPARING: the tree that is to follow."""
    moves: tuple[PlannedMove, ...] = ()
    """Those of the switch under way."""
    concerned: frozenset[Vertex] = frozenset()
    """The living hosts in the switch: those asked to prepare; while COMMITTING, all."""
    gone: frozenset[Vertex] = frozenset()
    """Failed hosts that have not come back."""
    absent: frozenset[Vertex] = frozenset()
    """Those that failed in the tree and are expected back; their floors are kept."""
    returning: frozenset[Vertex] = frozenset()
    """Those that come back with the switch that is PREPARING."""
    leaving: frozenset[Vertex] = frozenset()
    """Hosts that are no longer in the tree but still serve vertices that have not moved yet."""


class SwitchCoordinator:
    """Leads one stream's tree from epoch to epoch."""

    def __init__(
        self,
        term: int,
        record: SwitchRecord,
        patience_ticks: int,
        name: Callable[[Vertex], str] = repr,
    ) -> None:
        """Begin, or continue from a predecessor's record: `tick` then returns what is to be sent.

        A switch is aborted if not all vertices are ready after `patience_ticks` ticks. ValueError
        if that is below 1. `name` returns what a vertex is called in `failure` and `aborts`.
        """
        if patience_ticks < 1:
            msg = f"patience_ticks={patience_ticks}: it must be 1 or more"
            raise ValueError(msg)
        self.term = term
        self.record = record
        self.aborts: list[str] = []
        """Why the last switches were aborted, at most ten."""
        self.failure = ""
        """Which bytes that a vertex needs are lost; the attempt cannot continue. "" if none are."""
        self._patience_ticks = patience_ticks
        self._name = name
        self._ticks = 0
        self._reserved: dict[Vertex, int] = {}
        self._waiting = set(record.concerned)
        self._unfinished = set(record.concerned)
        self._lost_while_committing = bool(record.gone)
        self._uninformed = self._living() if record.gone else set()
        if record.phase is SwitchPhase.PREPARING:
            self._decide_abort("its coordinator has failed")
        self._end_if_all_done()

    @property
    def phase(self) -> SwitchPhase:
        """Where the switch stands."""
        return self.record.phase

    @property
    def tree(self) -> Tree:
        """The tree in force."""
        return self.record.tree

    @property
    def uninformed(self) -> frozenset[Vertex]:
        """Vertices that may not know of all failed hosts; until all do, no host may come back."""
        return frozenset(self._uninformed)

    def begin(
        self, switch: Switch, cut: int, floors: Mapping[Vertex, int] | None = None
    ) -> list[AddressedMessage]:
        """Begin a switch, with a cut not before `cut`, a slice's boundary.

        COMMIT decides where the cut lies: at the first byte from which on all new parents hold the
        stream. It is not beyond the source's head unless `cut` is, so a source that falls silent
        does not delay the switch. The epoch is the next number, or `cut` if that is higher.

        `floors` has, for every vertex without a living parent, the first byte that the new parent
        keeps for it. 0 means all that the parent still holds (the source sends what is before),
        and is right for orphans and for hosts that come back. The default is `cut`. A switch
        without moves sends nothing.

        Raises ValueError if another switch is under way, if `switch` does not begin with the
        present tree or includes failed hosts (unless they join again, and all vertices know of
        their failure), and for moves that would close a circle before the cut (an orphan below a
        vertex that still reads from the orphan's subtree): such a tree is to be repaired first.
        """
        epoch = max(cut, self.record.last_epoch + 1)
        if self.phase is not SwitchPhase.STABLE or switch.before != self.tree:
            msg = f"epoch {epoch} cannot follow: {self.phase.value}, epoch {self.record.epoch}"
            raise ValueError(msg)
        if not switch.moves:
            return []
        returning = self._returning_with(switch, epoch)
        gone = self.record.gone - returning
        moves = []
        for move in switch.moves:
            old = None if move.old_parent in gone else move.old_parent
            at = cut if old is not None else (floors or {}).get(move.vertex, cut)
            moves.append(PlannedMove(move.vertex, old, move.new_parent, at))
        _check_before_the_cut(switch.after, moves)
        asked = {move.vertex for move in moves if move.vertex not in gone} | {
            move.new_parent for move in moves if move.new_parent is not None
        }
        asked.add(switch.after.root)
        self._ticks = 0
        self._reserved = {}
        self._waiting = set(asked)
        self.record = dataclasses.replace(
            self.record,
            last_epoch=epoch,
            phase=SwitchPhase.PREPARING,
            next_tree=switch.after,
            moves=tuple(moves),
            concerned=frozenset(asked),
            returning=returning,
        )
        status = StatusMessage(self.term, epoch, switch.degree)
        out = [AddressedMessage(vertex, status) for vertex in switch.after.vertices]
        return [*out, *self._pending_messages()]

    def _returning_with(self, switch: Switch, epoch: int) -> frozenset[Vertex]:
        """Return the failed hosts that come back. ValueError if one cannot, or has not."""
        after, before = set(switch.after.vertices), set(switch.before.vertices)
        returning = self.record.gone & (after - before)
        if returning and self._uninformed:
            msg = f"not all know yet of the failure of {sorted(map(str, returning))}"
            raise ValueError(msg)
        if self.record.leaving & after:
            msg = f"{sorted(map(str, self.record.leaving & after))} have not left yet"
            raise ValueError(msg)
        failed = (self.record.gone - returning) & after
        if failed:
            msg = f"epoch {epoch} cannot follow: {sorted(map(str, failed))} have failed"
            raise ValueError(msg)
        return returning

    def receive(self, message: Message) -> list[AddressedMessage]:
        """Take an answer, maybe repeated, and return the messages that follow from it."""
        if isinstance(message, Starved) and message.vertex == self.tree.root:
            # Valid in any term: bytes that the source has dropped do not come back.
            self.failure = (
                f"{self._name(message.child)} needs the stream from byte {message.wanted:,} on, "
                f"but {self._name(message.vertex)} holds it from byte {message.held_from:,} on only"
            )
        if message.term != self.term or message.epoch != self.record.last_epoch:
            return []
        match message:
            case Ready() if self.phase is SwitchPhase.PREPARING:
                self._reserved.update(dict(message.reserved))
                self._waiting.discard(message.vertex)
                return [] if self._waiting else self._decide_commit()
            case Refused() if self.phase is SwitchPhase.PREPARING:
                self._decide_abort(f"{self._name(message.vertex)}: {message.reason}")
                return self._pending_messages()
            case Done() if self.phase in (SwitchPhase.COMMITTING, SwitchPhase.ABORTING):
                self._waiting.discard(message.vertex)
                if message.finished:
                    self._unfinished.discard(message.vertex)
                self._end_if_all_done()
            case Informed() if message.gone >= self.record.gone:
                self._uninformed.discard(message.vertex)
        return []

    def tick(self) -> list[AddressedMessage]:
        """Repeat unanswered messages; abort a switch that not all are ready for in time."""
        self._ticks += 1
        if self.phase is SwitchPhase.PREPARING and self._ticks >= self._patience_ticks:
            late = ", ".join(sorted(map(self._name, self._waiting)))
            self._decide_abort(f"not ready in time: {late}")
        return self._pending_messages()

    def lost(self, vertex: Vertex) -> list[AddressedMessage]:
        """Record that a host has failed; the tree is to be repaired once this switch has ended.

        Raises ValueError for the root: see `root_restarted`.
        """
        record = self.record
        if vertex == record.tree.root:
            msg = f"{vertex!r} is the source's own host: every tree needs it"
            raise ValueError(msg)
        self.record = dataclasses.replace(
            record,
            concerned=record.concerned - {vertex},
            gone=record.gone | {vertex},
            absent=record.absent | ({vertex} & set(record.tree.joined)),
            returning=record.returning - {vertex},
            leaving=record.leaving - {vertex},
        )
        self._lost_while_committing = True
        if self.phase is SwitchPhase.PREPARING:
            self._decide_abort(f"{self._name(vertex)} has failed")
        self._waiting.discard(vertex)
        self._unfinished.discard(vertex)
        self._uninformed = self._living()
        self._end_if_all_done()
        return self._pending_messages()

    def root_restarted(self) -> list[AddressedMessage]:
        """Record that the root's vertex is a new one (`SwitchVertex.root_from` this record).

        A switch that is prepared is aborted; one that was decided is sent to the root again.
        """
        root = self.tree.root
        if self.phase is SwitchPhase.PREPARING:
            self._decide_abort("the relay of the source's host has failed")
        elif self.phase is not SwitchPhase.STABLE:
            self.record = dataclasses.replace(self.record, concerned=self.record.concerned | {root})
            self._waiting.add(root)
            self._unfinished.add(root)
        if self.record.gone:
            self._uninformed.add(root)
        return self._pending_messages()

    def _living(self) -> set[Vertex]:
        members = {*self.tree.vertices, *self.record.concerned, *self.record.leaving}
        return members - self.record.gone

    def _decide_commit(self) -> list[AddressedMessage]:
        after = self.record.next_tree or self.tree
        reserved = {
            move: self._reserved.get(move.vertex, move.reserve_at) for move in self.record.moves
        }
        cut = max((at for move, at in reserved.items() if move.old_parent is not None), default=0)
        moves = tuple(
            dataclasses.replace(move, reserve_at=at if move.old_parent is None else cut)
            for move, at in reserved.items()
        )
        gone = self.record.gone - self.record.returning
        members = {*after.vertices, *self.tree.vertices, *self.record.leaving}
        recipients = members - gone
        self.record = dataclasses.replace(
            self.record,
            tree=after,
            epoch=self.record.last_epoch,
            phase=SwitchPhase.COMMITTING,
            next_tree=None,
            moves=moves,
            concerned=frozenset(recipients),
            gone=gone,
            absent=self.record.absent - self.record.returning,
            returning=frozenset(),
        )
        self._waiting, self._unfinished = set(recipients), set(recipients)
        self._lost_while_committing = False
        return self._pending_messages()

    def _decide_abort(self, reason: str) -> None:
        self.aborts = [*self.aborts[-9:], reason]
        self.record = dataclasses.replace(
            self.record, phase=SwitchPhase.ABORTING, next_tree=None, moves=(), returning=frozenset()
        )
        self._waiting, self._unfinished = set(self.record.concerned), set(self.record.concerned)
        self._end_if_all_done()

    def _end_if_all_done(self) -> None:
        if self.phase not in (SwitchPhase.COMMITTING, SwitchPhase.ABORTING):
            return
        # What is kept for an absent host may have filled ring and retention. Then the stream cannot
        # reach the cut before that host has joined again.
        is_urgent = self._lost_while_committing or self.record.absent
        if self._waiting or (self._unfinished and not is_urgent):
            return
        leaving = self.record.leaving
        if self.phase is SwitchPhase.COMMITTING:
            leaving = frozenset(self._unfinished - set(self.tree.vertices))
        self.record = dataclasses.replace(
            self.record, phase=SwitchPhase.STABLE, moves=(), concerned=frozenset(), leaving=leaving
        )

    def _pending_messages(self) -> list[AddressedMessage]:
        """Return the messages of this phase to all vertices that have not answered."""
        term, epoch, record = self.term, self.record.last_epoch, self.record
        out: list[AddressedMessage] = []
        if record.phase is SwitchPhase.PREPARING:
            for vertex in sorted(self._waiting, key=str):
                mine = record.moves
                if vertex != record.tree.root:
                    mine = tuple(one for one in mine if vertex in (one.vertex, one.new_parent))
                out.append(AddressedMessage(vertex, Prepare(term, epoch, mine)))
        elif record.phase is SwitchPhase.COMMITTING:
            for vertex in sorted(self._waiting | self._unfinished, key=str):
                commit = Commit(term, epoch, record.moves, record.gone, record.absent, record.tree)
                out.append(AddressedMessage(vertex, commit))
        elif record.phase is SwitchPhase.ABORTING:
            aborts = sorted(self._waiting, key=str)
            out = [AddressedMessage(vertex, AbortSwitch(term, epoch)) for vertex in aborts]
        gone = Gone(term, epoch, record.gone)
        return out + [
            AddressedMessage(vertex, gone) for vertex in sorted(self._uninformed, key=str)
        ]


def _check_before_the_cut(after: Tree, moves: Collection[PlannedMove]) -> None:
    """Raise ValueError if vertices could not reach the cut because they would read in a circle.

    From the cut on, all vertices read along the new tree. Before it, vertices that move read from
    their old parents, and those without one already from the new. If both paths lead to the root,
    no vertex starves: of the vertices with the lowest position, the one nearest to the root can
    always read on.
    """
    parents = dict(after.parents)
    for move in moves:
        if move.old_parent is not None:
            parents[move.vertex] = move.old_parent
    connected = {after.root}
    for vertex in after.arrival_order:
        above, path = vertex, dict[Vertex, None]()
        while above not in connected:
            if above in path or above not in parents:
                circle = ", ".join(map(str, path))
                msg = f"before the cut no way would lead from the root to {circle}: repair first"
                raise ValueError(msg)
            path[above] = None
            above = parents[above]
        connected.update(path)
