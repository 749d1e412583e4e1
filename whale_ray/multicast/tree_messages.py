"""What the controller and the relays tell each other about the trees of streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..configs.errors import UsageError
from .switch_messages import Message

Addressing = Literal["worker-oriented", "instance-oriented"]


@dataclass(frozen=True)
class StreamLoad:
    """What a relay that sends a stream counted since it last told; of the monitor's sample.

    Attributes:
        stream: the ring.
        host: the relay's.
        at_ns: when, on the relay's monotonic clock.
        head: bytes that it has, or its source has produced, so far.
        elapsed_ns: the time counted.
        arrived_bytes: produced meanwhile.
        queue_bytes: between the head and the slowest child.
        slice_bytes: of a mean slice; 0 if there was none.
        send_s: per slice and child; None if none was sent.
        capacity_bytes: of the ring.
        link_was_full: whether the way out of the host took no more for a time.
    """

    stream: int
    host: int
    at_ns: int
    head: int
    elapsed_ns: int
    arrived_bytes: int
    queue_bytes: int
    slice_bytes: float
    send_s: float | None
    capacity_bytes: int
    link_was_full: bool = False


@dataclass(frozen=True)
class TreeOrders:
    """To a relay: messages to its vertices, by stream."""

    messages: tuple[tuple[int, Message], ...]


@dataclass(frozen=True)
class Relocated:
    """To the relays: another process is the relay of `host`, and listens at `address`."""

    host: int
    address: tuple[str, int]


@dataclass(frozen=True)
class SetAddressing:
    """To the workers: serialize all-grouped rows once, or once per instance, from now on."""

    addressing: Addressing


@dataclass(frozen=True)
class SendersEnded:
    """To a worker: senders of users' transports have ended; messages of each, by stream."""

    messages: dict[int, int]


def check_addressing(name: Addressing) -> Addressing:
    """Return it; raises UsageError if there is none of that name."""
    if name not in get_args(Addressing):
        known = " or ".join(map(repr, get_args(Addressing)))
        msg = f"there is no addressing {name!r}; use {known}"
        raise UsageError(msg)
    return name


@dataclass(frozen=True)
class TreeNews:
    """From a relay: its vertices' answers, by stream, and how its streams are loaded."""

    answers: tuple[tuple[int, Message], ...] = ()
    loads: tuple[StreamLoad, ...] = ()
