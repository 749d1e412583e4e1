"""A multicast stream at one host: what its vertex of the tree decides, carried out by its links.

No I/O of its own and no clock; the relay drives it, and so does the simulator. ::

    coordinator ──take──► SwitchVertex ──serves──► offer    (who is sent the bytes, what is kept)
         ▲                 ▲   │    └──reading──► lines.move (who they are read from)
      answers       arrived│   └──Leave, Left, Fetch, Acknowledgement──► other hosts
                      received bytes
"""

from __future__ import annotations

from collections.abc import Callable
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

_WAITING_MAX: Final = 64


class Lines(Protocol):
    """What a branch needs of its host's links."""

    def move(self, stream: int, parent: str | None) -> None:
        """Read a stream from another parent from now on."""

    def send_control(self, host: str, message: bytes) -> Outcome:
        """Send a message, once and in order."""


class MulticastStream:
    """One stream at one host."""

    def __init__(
        self,
        stream: int,
        vertex: SwitchVertex,
        offer: Offer,
        incoming: Incoming | None,
        lines: Lines,
        name_of: Callable[[int], str] = host_name,
    ) -> None:
        """Join a vertex to its offer and, but for the root, what comes in."""
        self.stream: Final = stream
        self.vertex: Final = vertex
        self.offer: Final = offer
        self._incoming = incoming
        self._lines = lines
        self._name_of = name_of
        self._served: dict[Vertex, tuple[str, int]] = {}
        self._parent: Vertex | None = None
        self._told: tuple[Vertex | None, Acknowledgement | None] = (None, None)
        self._unsent: list[AddressedMessage] = []
        self._mourned: dict[Vertex, int] = {}
        self._starving: dict[Vertex, int] = {}  # who was said to starve since the last tick, where
        self._sync()

    @property
    def upward(self) -> frozenset[Vertex]:
        """The hosts to which links are needed."""
        return self.vertex.upward

    @property
    def urgent(self) -> bool:
        """Whether a switch is under way: `turn` is to be called as often as bytes move."""
        return bool(self._unsent) or not self.vertex.settled

    @property
    def has_news(self) -> bool:
        """Whether the parent does not know yet how far the subtree is."""
        parent = self.vertex.parent
        return parent is not None and self._told != (parent, self.vertex.acknowledgement)

    def take_deaths(self) -> set[Vertex]:
        """Return the hosts that have died, since this was asked last or maybe once more."""
        gone = self.vertex.gone
        news = {host for host, epoch in gone.items() if epoch > self._mourned.get(host, -1)}
        self._mourned = dict(gone)
        return news

    def take(self, message: Message) -> list[Message]:
        """Take a message of the coordinator; return what it is to know."""
        answers = self._look()
        self.vertex.held_from = self.offer.held_from
        answers += self._deal_with(self.vertex.receive(message))
        self._sync()
        return answers

    def heard(self, host: Vertex, message: VertexMessage) -> list[Message]:
        """Take a message of another host; return what the coordinator is to know."""
        if isinstance(message, Acknowledgement):
            self.vertex.acknowledged(host, message)
            return []
        self.vertex.held_from = self.offer.held_from
        answers = self._deal_with(self.vertex.receive(message))
        self._sync()
        return answers

    def turn(self) -> list[Message]:
        """See how far the bytes have come; change parents where that is due; acknowledge."""
        answers = self._look()
        self._sync()
        self._resend()
        self._acknowledge()
        return answers

    def tick(self) -> list[Message]:
        """Say again what was not answered, and how far the subtree is: parents may be replaced."""
        self._told = (None, None)
        self._starving.clear()
        return self._deal_with(self.vertex.tick())

    def _look(self) -> list[Message]:
        vertex, offer = self.vertex, self.offer
        out: list[AddressedMessage] = []
        for child, (name, _) in self._served.items():
            vertex.child_read(child, offer.position_of(name))
            wanted = offer.starved.get(name)
            if wanted is not None and self._starving.get(child) != wanted:
                self._starving[child] = wanted
                out += vertex.starved(child, wanted)
        if self._incoming is None:
            vertex.produce(offer.head - vertex.received)
            end = offer.tap.finished_at
            if end is not None:
                out += vertex.ended(end)
            return self._deal_with(out)
        # Whole frames only: half of one cannot be sent on, so nobody may be left in its middle.
        position = self._incoming.mirror.published
        out += vertex.arrived(position)
        if self._incoming.complete:
            out += vertex.ended(position)
        return self._deal_with(out)

    def _sync(self) -> None:
        """Have the links do what the vertex says."""
        vertex = self.vertex
        serves = vertex.serves
        for child, (name, since) in tuple(self._served.items()):
            if child not in serves:
                self.offer.dismiss(name)
                del self._served[child]
            elif since < serves[child] > self.offer.position_of(name):
                # One that is to begin at a cut further on, or that left and comes again from there,
                # must not hold what is before.
                self._served[child] = (name, serves[child])
                self.offer.readmit(name, serves[child])
        for child, position in serves.items():
            if child not in self._served:
                name = self._name_of(int(child))
                self._served[child] = (name, position)
                self.offer.admit(name, position)
        if self._incoming is None:
            self.offer.retain_from(vertex.retain_from)
            return
        reading = vertex.reading
        parent = None if reading is None else reading.parent
        if parent != self._parent:
            self._parent = parent
            self._lines.move(self.stream, None if parent is None else self._name_of(int(parent)))

    def _acknowledge(self) -> None:
        parent = self.vertex.parent
        if parent is None:
            return
        told = self.vertex.acknowledgement
        if self._told == (parent, told):
            return
        packed = TAG + vertex_wire.pack(self.stream, told)
        if self._lines.send_control(self._name_of(int(parent)), packed) is Outcome.SENT:
            self._told = (parent, told)

    def _deal_with(self, said: list[AddressedMessage]) -> list[Message]:
        """Send what is for other hosts; return what is for the coordinator."""
        answers = []
        for one in said:
            if one.to is None:
                answers.append(one.message)
            elif any(before.to == one.to for before in self._unsent) or not self._send(one):
                if len(self._unsent) < _WAITING_MAX:
                    self._unsent.append(one)  # the vertex says it again anyway, but later
        return answers

    def _send(self, one: AddressedMessage) -> bool:
        assert one.to is not None
        assert isinstance(one.message, Leave | Left | Fetch)
        packed = TAG + vertex_wire.pack(self.stream, one.message)
        return self._lines.send_control(self._name_of(int(one.to)), packed) is Outcome.SENT

    def _resend(self) -> None:
        unsent: list[AddressedMessage] = []
        for one in self._unsent:  # in order, for each host
            if any(before.to == one.to for before in unsent) or not self._send(one):
                unsent.append(one)
        self._unsent = unsent
