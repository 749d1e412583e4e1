"""What a host counts of its dealings with another, as an immutable record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .peer import Peer


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """The counters of dealings with one peer; all but `up`, `carrier` and `rtt_ns` only grow."""

    host: str
    """The peer."""
    up: bool
    """Whether a link to it stands now."""
    bytes_sent: int
    """Bytes of messages, their headers included."""
    bytes_received: int
    """The same, received."""
    messages_sent: int
    """Messages of all kinds."""
    messages_received: int
    """The same, received."""
    connections: int
    """Links that came to stand; between hosts that dial each other there are two at a time."""
    duplicates: int
    """Messages that repeated what was there, and were dropped."""
    back_pressured: int
    """Times that bytes of a stream had to wait for a slow reader of the peer."""
    socket_full: int
    """Times that bytes had to wait for the network."""
    rtt_ns: int
    """The last measured time there and back; 0 before the first."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How often links broke or did not come to stand, by reason."""
    last_failure: str = ""
    """Why that happened last, in words; empty if it never did."""
    stale: int = 0
    """Messages of streams that had moved to another parent by then, and were dropped."""
    carrier: str = ""
    """What carries the links that stand: "tcp", "verbs", or both; empty if none stands."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A host to which no link stands."""

    host: str
    silent_ns: int
    """How long that has been so."""
    why: str
    """The last failure, in words: "connection refused", "it refused: older attempt"."""


def statistics_of(peer: Peer, carrier: str) -> LinkStatistics:
    """Return the present counters of `peer`; `carrier` is empty if no link stands."""
    counters = peer.counters
    return LinkStatistics(
        host=peer.host,
        up=bool(carrier),
        bytes_sent=counters.bytes_sent,
        bytes_received=counters.bytes_received,
        messages_sent=counters.messages_sent,
        messages_received=counters.messages_received,
        connections=counters.connections,
        duplicates=counters.duplicates,
        back_pressured=sum(out.back_pressured for out in peer.outgoing.values()),
        socket_full=counters.socket_full,
        rtt_ns=counters.rtt_ns,
        failures=dict(counters.failures),
        last_failure=counters.last_failure,
        stale=counters.stale,
        carrier=carrier,
    )
