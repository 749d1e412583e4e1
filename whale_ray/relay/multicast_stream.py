"""A multicast stream at one host: its vertex of the tree decides, its links carry that out.

It has no I/O and no clock of its own; a relay drives it, or the simulator. ::

    coordinator ──receive──► SwitchVertex ──serves──► offer    (who is sent bytes, what is kept)
         ▲                    ▲   │    └──reading──► links.move (who they are read from)
      answers          arrived│   └──Leave, Left, Fetch, Acknowledgement──► other hosts
                         received bytes
"""

from __future__ import annotations

from typing import Final, Protocol

from ..multicast import vertex_wire
from ..multicast.floors import Acknowledgement
from ..multicast.switch_messages import AddressedMessage, Fetch, Leave, Left, Message
from ..multicast.switch_vertex import SwitchVertex
from ..multicast.trees import Vertex
from ..multicast.vertex_wire import VertexMessage
from ..plan.hosts import host_name
from ..transport.channel import Outcome
from ..transport.links.attached import Incoming, Offer

TAG: Final = b"T"
"""The first byte of a control message between vertices."""

_UNSENT_MAX: Final = 64


class StreamLinks(Protocol):
    """What a multicast stream needs of its host's links."""

    def move(self, stream: int, parent: str | None) -> None:
        """Read a stream from another parent from now on."""

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Send a message, once and in order."""


class MulticastStream:
    """One stream at one host."""

    def __init__(
        self,
        number: int,
        vertex: SwitchVertex,
        offer: Offer,
        incoming: Incoming | None,
        links: StreamLinks,
    ) -> None:
        """Join a vertex to its offer and to its incoming bytes, of which the root has none.

        `number` is that of the stream's ring.
        """
        self.id: Final = number
        self.vertex: Final = vertex
        self.offer: Final = offer
        self._incoming = incoming
        self._links = links
        self._served: dict[Vertex, tuple[str, int]] = {}  # child → its name, where it began
        self._parent: Vertex | None = None
        self._acknowledged: tuple[Vertex | None, Acknowledgement | None] = (None, None)
        self._unsent: list[AddressedMessage] = []
        self._returned_failures: dict[Vertex, int] = {}  # by epoch
        self._reported_starved: dict[Vertex, int] = {}  # since the last tick: child → position
        self._sync()

    @property
    def upward(self) -> frozenset[Vertex]:
        """The hosts to which links are needed."""
        return self.vertex.upward

    @property
    def is_switching(self) -> bool:
        """Whether a switch is under way; `turn` is then called as often as bytes move."""
        return bool(self._unsent) or not self.vertex.settled

    @property
    def has_unsent_acknowledgement(self) -> bool:
        """Whether the subtree has received more than the parent was told."""
        parent = self.vertex.parent
        return parent is not None and self._acknowledged != (parent, self.vertex.acknowledgement)

    def new_failures(self) -> set[Vertex]:
        """Return the hosts that were reported as failed since the last call.

        A host is returned again if a later epoch reports it again.
        """
        gone, returned = self.vertex.gone, self._returned_failures
        found = {host for host, epoch in gone.items() if epoch > returned.get(host, -1)}
        self._returned_failures = dict(gone)
        return found

    def receive(self, message: Message) -> list[Message]:
        """Take a message of the coordinator; return the answers to it."""
        answers = self._read_positions()
        self.vertex.held_from = self.offer.held_from
        answers += self._dispatch(self.vertex.receive(message))
        self._sync()
        return answers

    def receive_from(self, host: Vertex, message: VertexMessage) -> list[Message]:
        """Take a message of another host; return messages to the coordinator."""
        if isinstance(message, Acknowledgement):
            self.vertex.acknowledged(host, message)
            return []
        self.vertex.held_from = self.offer.held_from
        answers = self._dispatch(self.vertex.receive(message))
        self._sync()
        return answers

    def turn(self) -> list[Message]:
        """Read the positions of the bytes; change parents where that is due; acknowledge."""
        answers = self._read_positions()
        self._sync()
        self._resend()
        self._acknowledge()
        return answers

    def tick(self) -> list[Message]:
        """Repeat unanswered messages and the acknowledgement: the parent may be a new process."""
        self._acknowledged = (None, None)
        self._reported_starved.clear()
        return self._dispatch(self.vertex.tick())

    def _read_positions(self) -> list[Message]:
        """Tell the vertex how far its children, and the bytes that come in, are."""
        vertex, offer = self.vertex, self.offer
        out: list[AddressedMessage] = []
        for child, (name, _) in self._served.items():
            vertex.child_read(child, offer.position_of(name))
            wanted = offer.starved.get(name)
            if wanted is not None and self._reported_starved.get(child) != wanted:
                self._reported_starved[child] = wanted
                out += vertex.starved(child, wanted)
        if self._incoming is None:
            vertex.produce(offer.head - vertex.received)
            end = offer.tap.finished_at
            if end is not None:
                out += vertex.ended(end)
            return self._dispatch(out)
        # Whole frames only: half a frame cannot be sent on, so no child may begin amid one.
        position = self._incoming.mirror.published
        out += vertex.arrived(position)
        if self._incoming.complete:
            out += vertex.ended(position)
        return self._dispatch(out)

    def _sync(self) -> None:
        """Serve the children, and read from the parent, that the vertex names."""
        vertex = self.vertex
        serves = vertex.serves
        for child, (name, since) in tuple(self._served.items()):
            if child not in serves:
                self.offer.dismiss(name)
                del self._served[child]
            elif since < serves[child] > self.offer.position_of(name):
                # The child begins at a later cut, or has left and comes back there: bytes before
                # that position need not be kept for it.
                self._served[child] = (name, serves[child])
                self.offer.readmit(name, serves[child])
        for child, position in serves.items():
            if child not in self._served:
                name = host_name(int(child))
                self._served[child] = (name, position)
                self.offer.admit(name, position)
        if self._incoming is None:
            self.offer.retain_from(vertex.retain_from)
            return
        reading = vertex.reading
        parent = None if reading is None else reading.parent
        if parent != self._parent:
            self._parent = parent
            self._links.move(self.id, None if parent is None else host_name(int(parent)))

    def _acknowledge(self) -> None:
        parent = self.vertex.parent
        if parent is None:
            return
        acknowledgement = self.vertex.acknowledgement
        if self._acknowledged == (parent, acknowledgement):
            return
        packed = TAG + vertex_wire.pack(self.id, acknowledgement)
        if self._links.send_control(host_name(int(parent)), packed) is Outcome.SENT:
            self._acknowledged = (parent, acknowledgement)

    def _dispatch(self, messages: list[AddressedMessage]) -> list[Message]:
        """Send what is for other hosts; return what is for the coordinator."""
        answers = []
        for one in messages:
            if one.to is None:
                answers.append(one.message)
            elif any(before.to == one.to for before in self._unsent) or not self._send(one):
                if len(self._unsent) < _UNSENT_MAX:
                    self._unsent.append(one)  # else the vertex repeats it with a tick
        return answers

    def _send(self, one: AddressedMessage) -> bool:
        assert one.to is not None
        assert isinstance(one.message, Leave | Left | Fetch)
        packed = TAG + vertex_wire.pack(self.id, one.message)
        return self._links.send_control(host_name(int(one.to)), packed) is Outcome.SENT

    def _resend(self) -> None:
        unsent: list[AddressedMessage] = []
        for one in self._unsent:  # messages to one host stay in order
            if any(before.to == one.to for before in unsent) or not self._send(one):
                unsent.append(one)
        self._unsent = unsent
