"""The counters of one peer, as an immutable record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .peer import Peer, Traffic


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """The counters of one peer, which only grow, and the state of the links to it."""

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
    way: str = ""
    """The same with how payloads are sent, and by which device: "verbs READ on rxe0"."""
    without_verbs: str = ""
    """Why the last link that came to stand is not of verbs, in words; empty if it is, or none
    did."""
    without_verbs_ns: int = 0
    """For how long links have not been of verbs."""
    sent_by_carrier: Mapping[str, int] = field(default_factory=dict)
    """`bytes_sent`, by what carried them."""
    received_by_carrier: Mapping[str, int] = field(default_factory=dict)
    """The same of `bytes_received`."""

    @property
    def fell_back(self) -> bool:
        """Whether verbs have carried a link, and TCP does now."""
        return self.carrier == "tcp" and "verbs" in self.sent_by_carrier


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A host to which no link stands."""

    host: str
    silent_ns: int
    """How long that has been so."""
    why: str
    """The last failure, in words: "connection refused", "it refused: older attempt"."""


class Carrying(Protocol):
    """A connection that carries a link that stands."""

    @property
    def carrier(self) -> str:
        """As of `LinkStatistics`, of one link."""
        ...

    @property
    def way(self) -> str:
        """As of `LinkStatistics`, of one link."""
        ...


class Declined(NamedTuple):
    """Why the last link to a host is not of verbs."""

    why: str = ""
    """In words; empty if it is."""
    since_ns: int = 0
    """Since when links have not been."""


def statistics_of(
    peer: Peer, carrying: Iterable[Carrying], declined: Declined, now_ns: int
) -> LinkStatistics:
    """Return the present counters of `peer`; `carrying` are the connections to it that stand."""
    counters = peer.counters
    traffic = {name: one for name, one in dict(counters.traffic).items() if one != Traffic()}
    sent = {carrier: one.bytes_sent for carrier, one in traffic.items()}
    received = {carrier: one.bytes_received for carrier, one in traffic.items()}
    carriers = {connection.carrier: connection.way for connection in carrying}
    return LinkStatistics(
        host=peer.host,
        up=bool(carriers),
        bytes_sent=sum(sent.values()),
        bytes_received=sum(received.values()),
        messages_sent=sum(one.messages_sent for one in traffic.values()),
        messages_received=sum(one.messages_received for one in traffic.values()),
        connections=counters.connections,
        duplicates=counters.duplicates,
        back_pressured=sum(out.back_pressured for out in peer.outgoing.values()),
        socket_full=counters.socket_full,
        rtt_ns=counters.rtt_ns,
        failures=dict(counters.failures),
        last_failure=counters.last_failure,
        stale=counters.stale,
        carrier=" and ".join(sorted(carriers)),
        way=" and ".join(way for _, way in sorted(carriers.items())),
        without_verbs=declined.why,
        without_verbs_ns=now_ns - declined.since_ns if declined.why else 0,
        sent_by_carrier=sent,
        received_by_carrier=received,
    )
