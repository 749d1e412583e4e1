"""The messages between the controller and the members about streams and their trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..configs.errors import UsageError
from .switch_messages import Message

Addressing = Literal["worker-oriented", "instance-oriented"]


@dataclass(frozen=True)
class StreamLoad:
    """What a relay that sends a stream counted since its last report; input of the monitor.

    Attributes:
        stream: the ring.
        host: the relay's.
        at_ns: time of the report, on the relay's monotonic clock.
        head: bytes of the stream that are at this host so far.
        elapsed_ns: the time since the last report.
        arrived_bytes: by how much `head` has grown in that time.
        queue_bytes: between the head and the slowest child.
        slice_bytes: size of a mean slice; 0 if there was none.
        send_s: time per slice and child; None if none was sent.
        capacity_bytes: of the ring.
        link_was_full: whether a link to a child was full for some of the time.
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
    """To the workers: from now on serialize broadcast rows once, or once per instance."""

    addressing: Addressing


@dataclass(frozen=True)
class SendersEnded:
    """To a worker: senders of custom transports have ended; their message counts, by stream."""

    messages: dict[int, int]


def check_addressing(name: Addressing) -> Addressing:
    """Return it; raises UsageError if there is none of that name."""
    if name not in get_args(Addressing):
        known = " or ".join(map(repr, get_args(Addressing)))
        msg = f"there is no addressing {name!r}; use {known}"
        raise UsageError(msg)
    return name


@dataclass(frozen=True)
class TreeReport:
    """From a relay to the controller: its vertices' answers, by stream, and its streams' loads."""

    answers: tuple[tuple[int, Message], ...] = ()
    loads: tuple[StreamLoad, ...] = ()


@dataclass(frozen=True)
class HostUnreachable:
    """From a relay to the controller: it has not reached `host` for too long; repeated while so.

    The controller decides what follows, since it knows whether that host's relay is being replaced.
    """

    host: int
    reason: str
