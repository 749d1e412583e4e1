"""The messages between the coordinator of a switch and the vertices of a tree.

The *epoch* of a tree is its number. Epochs only grow, also over switches that were aborted. Every
message carries the coordinator's term and an epoch; receivers refuse older ones. The *cut* is the
position in the stream from which on vertices that move read along the new tree; COMMIT carries it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .trees import Tree, Vertex


@dataclass(frozen=True)
class PlannedMove:
    """One vertex that changes its parent at the cut."""

    vertex: Vertex
    old_parent: Vertex | None
    """None: no parent can serve it up to the cut, since it is new or its parent has failed."""
    new_parent: Vertex | None
    """None: it leaves the tree."""
    reserve_at: int
    """The first byte that the new parent keeps for it. In a COMMIT: the cut, the same for all
    vertices with an old parent; for others, the first byte that the new parent has reserved."""


@dataclass(frozen=True)
class Message:
    """The fields of all messages."""

    term: int
    """Of the coordinator; an answer has the term of the message that it answers."""
    epoch: int
    """Of the tree that the message is about."""


@dataclass(frozen=True)
class StatusMessage(Message):
    """To all vertices: a switch begins (Whale 4)."""

    degree: int


@dataclass(frozen=True)
class Prepare(Message):
    """To vertices that move, their new parents, and the root: prepare for these moves."""

    moves: tuple[PlannedMove, ...]
    """The moves that concern the receiver; all, if it is the root, which pins their floors."""


@dataclass(frozen=True)
class Ready(Message):
    """A vertex is prepared; the ACK of PREPARE."""

    vertex: Vertex
    reserved: tuple[tuple[Vertex, int], ...]
    """The first byte that it keeps for each of its new children."""


@dataclass(frozen=True)
class Refused(Message):
    """A vertex cannot prepare."""

    vertex: Vertex
    reason: str


@dataclass(frozen=True)
class Commit(Message):
    """To all vertices: the tree of this epoch is in force."""

    moves: tuple[PlannedMove, ...]
    """All moves, with the cut."""
    gone: frozenset[Vertex]
    """Failed hosts; no vertex waits for them."""
    absent: frozenset[Vertex]
    """The failed hosts that are expected back; the source keeps what they need."""
    tree: Tree
    """The new tree."""


@dataclass(frozen=True)
class AbortSwitch(Message):
    """To the vertices that were asked to prepare: the old tree stays in force."""


@dataclass(frozen=True)
class Gone(Message):
    """To all vertices: these hosts have failed; keep nothing for them, and wait for none."""

    gone: frozenset[Vertex]


@dataclass(frozen=True)
class Informed(Message):
    """A vertex has received the list of failed hosts; the answer to `Gone`."""

    vertex: Vertex
    gone: frozenset[Vertex]


@dataclass(frozen=True)
class Done(Message):
    """A vertex has received COMMIT or ABORT."""

    vertex: Vertex
    finished: bool
    """Whether it reads from its new parent and has left the old one; True if it does not move."""


@dataclass(frozen=True)
class Starved(Message):
    """A vertex can no longer serve a child: the child's next byte is not held any more."""

    vertex: Vertex
    child: Vertex
    wanted: int
    """The child's next byte."""
    held_from: int
    """The first byte that the vertex still holds."""


@dataclass(frozen=True)
class Fetch(Message):
    """From a vertex to the root: serve me, although I am not your child in the tree."""

    vertex: Vertex
    position: int
    """The first byte that it needs."""


@dataclass(frozen=True)
class Leave(Message):
    """From a vertex to its former parent: keep nothing for me."""

    vertex: Vertex
    position: int
    """Earlier requests (`Fetch`) for bytes before this one are void."""


@dataclass(frozen=True)
class Left(Message):
    """The former parent's answer to `Leave`."""

    parent: Vertex


@dataclass(frozen=True)
class AddressedMessage:
    """A message and its receiver."""

    to: Vertex | None
    """None: to the coordinator."""
    message: Message
