"""A switch of trees in virtual time, carried out by the protocol's own state machines.

The coordinator and all vertices are the runtime's (multicast/); every message takes the time of a
control message. Positions are slices. The pass over slices (run.py) determines which slice a vertex
reads first from its new parent; the vertex's state machine raises ProtocolError if the protocol
does not allow that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...configs.units import NS_PER_S
from ...multicast.switch_messages import AddressedMessage, Message
from ...multicast.switch_protocol import SwitchCoordinator, SwitchPhase, SwitchRecord
from ...multicast.switch_vertex import SwitchVertex
from ...multicast.switching import Switch
from ...multicast.trees import Vertex
from .clock import EventQueue, SimulatedClock

_PATIENCE_TICKS = 1
_EVENTS_MAX = 1 << 40


@dataclass(frozen=True)
class ParentSwitch:
    """When one vertex changed from its old parent to its new one."""

    heard_s: float
    """When it processed COMMIT, between two slices."""
    first_slice: int
    """The first slice that it read from its new parent."""
    passed_s: float
    """When it had all slices before the cut."""


class SwitchUnderWay:
    """One switch, from the decision until all vertices have changed."""

    def __init__(
        self, switch: Switch, cut: int, began_s: float, control_s: float, record: SwitchRecord
    ) -> None:
        """Begin at slice `cut`, which no vertex has yet, and continue until COMMIT is sent."""
        self.switch = switch
        self.cut = cut
        self.began_s = began_s
        self.moves = {move.vertex: move for move in switch.moves}
        self._control_ns = round(control_s * NS_PER_S)
        self._queue = EventQueue(SimulatedClock(round(began_s * NS_PER_S)))
        self._coordinator = SwitchCoordinator(1, record, _PATIENCE_TICKS)
        before = switch.before
        self._vertices = {
            vertex: SwitchVertex(
                vertex,
                before.root,
                before.parents.get(vertex),
                before.children[vertex],
                epoch=record.epoch,
                received=record.epoch,
            )
            for vertex in before.vertices
        }
        self._commits: dict[Vertex, Message] = {}
        self._send(self._coordinator.begin(switch, cut))
        self._play()
        assert self._coordinator.phase is SwitchPhase.COMMITTING, "no message is lost here"
        self.heard_s = (self._queue.clock.now_ns + self._control_ns) / NS_PER_S
        """When all vertices receive COMMIT."""

    def finish(self, passages: Mapping[Vertex, ParentSwitch]) -> tuple[float, SwitchRecord]:
        """Simulate the rest; return when the coordinator knew that all had changed; its record."""
        for vertex, commit in self._commits.items():
            passage = passages.get(vertex)
            if passage is None:
                self._post(self.heard_s, self._deliver, vertex, commit)
            elif passage.passed_s > passage.heard_s:
                # It receives COMMIT, and reads on from the old parent up to the cut.
                self._post(passage.heard_s, self._deliver, vertex, commit)
                self._post(passage.passed_s, self._read, vertex, self.cut)
            else:
                self._post(passage.heard_s, self._read, vertex, passage.first_slice)
                self._post(passage.heard_s, self._deliver, vertex, commit)
        self._play()
        assert self._coordinator.phase is SwitchPhase.STABLE, "everybody has changed"
        for vertex, move in self.moves.items():
            reading = self._vertices[vertex].reading
            assert reading is not None and reading.parent == move.new_parent
        return self._queue.clock.now_ns / NS_PER_S, self._coordinator.record

    def _post(self, at_s: float, call: object, *arguments: object) -> None:
        assert callable(call)
        self._queue.post(max(round(at_s * NS_PER_S), self._queue.clock.now_ns), call, *arguments)

    def _play(self) -> None:
        self._queue.run(1 << 62, _EVENTS_MAX)

    def _send(self, messages: Iterable[AddressedMessage]) -> None:
        """Send messages, but COMMIT only once each vertex's first slice is known."""
        at_ns = self._queue.clock.now_ns + self._control_ns
        is_decided = self._coordinator.phase is SwitchPhase.COMMITTING
        for one in messages:
            if one.to is None:
                self._queue.post(at_ns, self._answer, one.message)
            elif is_decided and not self._commits:
                self._commits = {each.to: each.message for each in messages if each.to is not None}
                return
            else:
                self._queue.post(at_ns, self._deliver, one.to, one.message)

    def _answer(self, message: Message) -> None:
        self._send(self._coordinator.receive(message))

    def _deliver(self, vertex: Vertex, message: Message) -> None:
        self._send(self._vertices[vertex].receive(message))

    def _read(self, vertex: Vertex, end: int) -> None:
        """Mark all slices before `end` as read from the vertex's old parent."""
        machine = self._vertices[vertex]
        old = self.moves[vertex].old_parent
        assert old is not None
        self._send(machine.read(old, machine.received, end))
