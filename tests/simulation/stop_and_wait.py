"""A toy protocol for tests of the simulator: one message at a time, sent again until acknowledged.

The correct receiver drops messages that it has; the broken one does not check, which only matters
when a message is doubled or its acknowledgement lost. Found by `python -m tests.simulation replay
FILE:NAME`.
"""

from __future__ import annotations

from tests.simulation.network import LinkModel
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Actions, Send, Simulator, WakeAt

MESSAGES = 20
RESEND_NS = 1_000_000


class Sender:
    """Sends 0, 1, 2, …, each until it is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = 0

    def start(self, now_ns: int) -> Actions:
        return self.tick(now_ns)

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        if message == self.acknowledged:
            self.acknowledged += 1
            return self.tick(now_ns)
        return ()

    def tick(self, now_ns: int) -> Actions:
        if self.acknowledged < MESSAGES:
            yield Send("receiver", self.acknowledged, 100)
            yield WakeAt(now_ns + RESEND_NS)


class Receiver:
    """Collects messages and acknowledges them."""

    def __init__(self, drops_duplicates: bool) -> None:
        self.received: list[object] = []
        self._drops_duplicates = drops_duplicates

    def start(self, now_ns: int) -> Actions:
        return ()

    def receive(self, sender: str, message: object, now_ns: int) -> Actions:
        if not (self._drops_duplicates and message in self.received):
            self.received.append(message)
        return [Send(sender, message, 10)]

    def tick(self, now_ns: int) -> Actions:
        return ()


def set_up(simulation: Simulator, *, drops_duplicates: bool) -> tuple[Sender, Receiver]:
    """Add both nodes to a faulty network."""
    model = LinkModel(jitter_ns=100_000, loss=0.05, duplication=0.05, reordering=0.05)
    simulation.network.set_all_models(model)
    sender, receiver = Sender(), Receiver(drops_duplicates)
    simulation.add("receiver", lambda: receiver)
    simulation.add("sender", lambda: sender)
    return sender, receiver


def play(simulation: Simulator, *, drops_duplicates: bool) -> None:
    """Everything must arrive once and in order."""
    _, receiver = set_up(simulation, drops_duplicates=drops_duplicates)
    simulation.run(until_ns=10_000_000_000)
    assert receiver.received == list(range(MESSAGES))


SOUND = Scenario(f"{__file__}:SOUND", lambda simulation: play(simulation, drops_duplicates=True))
BROKEN = Scenario(f"{__file__}:BROKEN", lambda simulation: play(simulation, drops_duplicates=False))
