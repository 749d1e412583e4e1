"""A transport of operators for tests, over a queue in the process, connected by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.transport.unix_transport import context
from whale_ray.testing import VirtualClock
from whale_ray.transport.clock import Clock
from whale_ray.transport.custom.receiving import CustomReceivingEnd
from whale_ray.transport.custom.sending import CustomSendingEnd
from whale_ray.transports import Receiver, Sender, Transport

MAX_FRAME_BYTES = 4096


class QueueSender(Sender):
    """Puts into a queue that it shares with its receiver; `change` may make something of it."""

    def __init__(self, change: Callable[[bytes], list[bytes]] = lambda message: [message]) -> None:
        self.change = change

    def open(self, context, address):
        self.queue, self.length = address, context.queue_length

    def ready_to_send(self):
        return len(self.queue) < self.length

    def put(self, message):
        self.queue.extend(self.change(bytes(message)))


class QueueReceiver(Receiver):
    def open(self, context):
        self.queue = deque()
        self.out = deque()
        return self.queue

    def available(self):
        return bool(self.queue)

    def get(self):
        self.out.append(self.queue.popleft())
        return self.out[-1]

    def release_buffer(self, buffer):
        assert buffer is self.out.popleft(), "in order, the very object"


def transport(sender: Any = QueueSender, receiver: Any = QueueReceiver, **options) -> Transport:
    return Transport("queue", sender, receiver, **{"message_bytes": 128, **options})


def connected(
    plugged: Transport, senders: int = 1, clock: Clock | None = None, **options
) -> tuple[list[CustomSendingEnd], CustomReceivingEnd]:
    """Return connected senders as streams 0, 1 … and their receiver."""
    clock = clock or VirtualClock()
    streams = {number: (number, None) for number in range(senders)}
    receiver = CustomReceivingEnd(
        plugged,
        context(plugged, None, senders),
        streams,
        MAX_FRAME_BYTES,
        clock=clock,
        **options,
    )
    address = receiver.listen()
    made = [
        CustomSendingEnd(
            plugged, context(plugged, number, senders), number, MAX_FRAME_BYTES, clock=clock
        )
        for number in range(senders)
    ]
    for sender in made:
        sender.connect(address)
    return made, receiver
