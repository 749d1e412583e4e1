"""What the coordinator of a switch and the vertices of a tree tell each other (DESIGN 6).

The tree's *epoch* is its number. Epochs only grow, also over switches that were aborted. Every
message carries the coordinator's term and an epoch; receivers refuse older ones. The *cut* is the
position in the stream from which on those that move read along the tree; COMMIT says it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .trees import Tree, Vertex


@dataclass(frozen=True)
class PlannedMove:
    """One vertex that gets another parent at the cut."""

    vertex: Vertex
    old_parent: Vertex | None
    """None: it has none that could serve it up to the cut; it is new, or its parent has died."""
    new_parent: Vertex | None
    """None: it leaves the tree."""
    reserve_at: int
    """From which byte on the new parent is to keep the stream for it; once it is decided, for one
    with an old parent: the cut, the same for all; for others: what the new parent keeps."""


@dataclass(frozen=True)
class Message:
    """What all messages carry."""

    term: int
    """Of the coordinator; a vertex answers with that of the message."""
    epoch: int
    """Of the tree that the message is about."""


@dataclass(frozen=True)
class StatusMessage(Message):
    """To all: a switch begins (Whale 4)."""

    degree: int


@dataclass(frozen=True)
class Prepare(Message):
    """To those that move, to their new parents and to the root: be ready for these moves."""

    moves: tuple[PlannedMove, ...]
    """Those in which the receiver has a part; all, if it is the root, which pins their floors."""


@dataclass(frozen=True)
class Ready(Message):
    """A vertex can do its part; the ACK of PREPARE."""

    vertex: Vertex
    reserved: tuple[tuple[Vertex, int], ...]
    """From which byte on it keeps the stream for each of its new children."""


@dataclass(frozen=True)
class Refused(Message):
    """A vertex cannot do its part."""

    vertex: Vertex
    reason: str


@dataclass(frozen=True)
class Commit(Message):
    """To all: the tree of this epoch is the one."""

    moves: tuple[PlannedMove, ...]
    """All of them, with the cut."""
    gone: frozenset[Vertex]
    """Hosts that have died: nobody waits for them."""
    absent: frozenset[Vertex]
    """Those of them that are expected back: the source keeps what they need."""
    tree: Tree
    """The tree."""


@dataclass(frozen=True)
class Abort(Message):
    """To those that were to prepare: the tree stays as it is."""


@dataclass(frozen=True)
class Gone(Message):
    """To all: these hosts have died; keep nothing for them, and wait for none of them."""

    gone: frozenset[Vertex]


@dataclass(frozen=True)
class Informed(Message):
    """A vertex knows who has died."""

    vertex: Vertex
    gone: frozenset[Vertex]


@dataclass(frozen=True)
class Done(Message):
    """A vertex knows how the switch ended."""

    vertex: Vertex
    finished: bool
    """It reads from its new parent, and its old one knows; True also for those that stay."""


@dataclass(frozen=True)
class Starved(Message):
    """A vertex cannot serve another any more: what that needs next is held nowhere."""

    vertex: Vertex
    child: Vertex
    wanted: int
    """The child's next byte."""
    held_from: int
    """The first byte that is still there."""


@dataclass(frozen=True)
class Fetch(Message):
    """From a vertex to the root: I read from you, although I am no child of yours in the tree."""

    vertex: Vertex
    position: int
    """The first byte that it needs."""


@dataclass(frozen=True)
class Leave(Message):
    """From a vertex to its former parent: keep nothing for me any more."""

    vertex: Vertex
    position: int
    """If it asked for bytes before this one (`Fetch`), that is void."""


@dataclass(frozen=True)
class Left(Message):
    """The former parent's answer."""

    parent: Vertex


@dataclass(frozen=True)
class AddressedMessage:
    """A message to be sent."""

    to: Vertex | None
    """None: to the coordinator."""
    message: Message
