"""A push channel over bare datagrams that are lost, doubled and reordered.

No link below it keeps the order or repeats messages: the sender repeats slots whose credits have
not returned, and the receiver repeats its credits. Every message must be received once, whole and
in order, and both ends must learn of the end.
"""

from __future__ import annotations

import random

from tests.simulation.network import LinkModel
from tests.simulation.scenarios.cluster import create_slots
from tests.simulation.scenarios.workload import MS, US, Producer, Reader, draw_load
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Actions, Send, Simulator, WakeAt
from whale_ray.transport.push.layout import PushLayout
from whale_ray.transport.push.wire import PushInlet, PushOutlet

KIB = 1 << 10
_STORM_NS = 200 * MS
_HEALED_NS = 20_000 * MS
_RESEND_NS = 20 * MS


class _Source:
    """The sender's host."""

    def __init__(self, outlet: PushOutlet, producer: Producer) -> None:
        self._outlet = outlet
        self._producer = producer
        self._resend_ns = _RESEND_NS

    def start(self, now_ns: int) -> Actions:
        return self.tick(now_ns)

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        assert isinstance(message, int)
        self._outlet.credited(message)
        return self.tick(now_ns)

    def tick(self, now_ns: int) -> Actions:
        self._producer.step(now_ns)
        if now_ns >= self._resend_ns:
            self._outlet.reconnected()
            self._resend_ns = now_ns + _RESEND_NS
        while (found := self._outlet.next_message()) is not None:
            word, content = found
            yield Send("target", (word, bytes(content)), len(content))
        due_ns = self._resend_ns
        if self._producer.next_ns is not None:
            due_ns = min(due_ns, self._producer.next_ns)
        if not self._outlet.delivered:
            yield WakeAt(due_ns)


class _Target:
    """The receiver's host. It sends its credits when they change, and from time to time."""

    def __init__(self, inlet: PushInlet, reader: Reader) -> None:
        self._inlet = inlet
        self._reader = reader
        self._told = 0
        self._tell_ns = _RESEND_NS

    def start(self, now_ns: int) -> Actions:
        return self.tick(now_ns)

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        assert isinstance(message, tuple)
        word, content = message
        place = self._inlet.writable(word, len(content))
        if place is not None:
            place[:] = content
            self._inlet.arrived(word, len(content))
        return self.tick(now_ns)

    def tick(self, now_ns: int) -> Actions:
        self._reader.step(now_ns)
        word = self._inlet.credits_in_all
        if word != self._told or now_ns >= self._tell_ns:
            self._told = word
            self._tell_ns = now_ns + _RESEND_NS
            yield Send("source", word, 8)
        yield WakeAt(min(self._tell_ns, self._reader.next_ns or self._tell_ns))


def play(simulation: Simulator) -> None:
    """Run a seed."""
    chance = random.Random(f"{simulation.seed}/push")
    layout = PushLayout(chance.choice((2, 3, 8, 16)), chance.choice((128, 512, 4096)))
    load = draw_load(chance, "push", chance.choice((0, KIB, 32 * KIB)), layout.max_frame_bytes)
    end, inlet = create_slots(layout)
    outlet = PushOutlet.create("simulation", "outlet", layout, kind="private")
    leaves = chance.randrange(len(load.sizes) + 1) if chance.random() < 0.1 else None
    reader = Reader(end, load, chance, "target", leaves_after=leaves)
    source = _Source(
        outlet, Producer(outlet.sending_end(), load, chance, may_be_left=leaves is not None)
    )
    target = _Target(inlet, reader)
    simulation.add("target", lambda: target)
    simulation.add("source", lambda: source)
    simulation.network.set_all_models(
        LinkModel(
            delay_ns=chance.choice((10 * US, MS)),
            jitter_ns=chance.choice((0, 100 * US, 3 * MS)),
            loss=chance.choice((0.0, 0.05, 0.3)),
            duplication=chance.choice((0.0, 0.1, 0.5)),
            reordering=chance.choice((0.0, 0.1, 0.5)),
            reorder_ns=chance.choice((100 * US, 50 * MS)),
            in_order=chance.random() < 0.5,
        )
    )
    for _ in range(chance.choice((0, 3))):
        simulation.events.post(
            chance.randrange(_STORM_NS), simulation.network.cut_for, "source", "target", 10 * MS
        )
    simulation.events.post(_STORM_NS, simulation.network.set_all_models, LinkModel())
    simulation.run(until_ns=_HEALED_NS, done=lambda: reader.over and outlet.delivered)


SCENARIO = Scenario("push", play)
