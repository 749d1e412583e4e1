"""A host's relay and its links: rates since earlier counters, and what carries the links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..transport.links.statistics import LinkStatistics
    from .counters import MemberCounters

NO_LINK = "no link"


@dataclass(frozen=True)
class RelayMetrics:
    """A host's relay and its links.

    Attributes:
        sent_bytes_per_s: to all other hosts, since the previous counters.
        links: what `TcpEndpoint` counts, per peer: bytes, messages, breaks by reason, duplicates,
            waiting; and what carries the link, or why RDMA verbs do not.
        refused: connections refused before they said who they are, by reason.
        waits_for: the peers with slow readers: bytes for them had to wait since the previous
            counters.
    """

    host: str
    sent_bytes_per_s: float
    links: tuple[LinkStatistics, ...]
    refused: Mapping[str, int]
    waits_for: tuple[str, ...] = ()

    @property
    def down(self) -> tuple[str, ...]:
        """The peers to which no link stands."""
        return tuple(link.host for link in self.links if not link.up)

    @property
    def fell_back(self) -> tuple[str, ...]:
        """The peers to which verbs have carried a link, and TCP does now."""
        return tuple(link.host for link in self.links if link.fell_back)


def relay_metrics(
    now: MemberCounters, before: MemberCounters | None, since_ns: int | None
) -> RelayMetrics:
    """Return what a relay did since earlier counters, or since it began (monotonic) without any.

    Without either its rate is 0. Peers with slow readers show only against earlier counters.
    """
    earlier = {} if before is None else {link.host: link for link in before.links}
    began_ns = since_ns if before is None else before.at_ns
    sent = sum(link.bytes_sent for link in now.links)
    sent -= sum(link.bytes_sent for link in earlier.values())
    elapsed_ns = 0 if began_ns is None else now.at_ns - began_ns
    waited = {host: link.back_pressured for host, link in earlier.items()}
    waits_for = tuple(
        link.host for link in now.links if link.back_pressured > waited.get(link.host, 0)
    )
    return RelayMetrics(
        host=now.host,
        sent_bytes_per_s=sent / elapsed_ns * 1e9 if elapsed_ns > 0 else 0.0,
        links=now.links,
        refused=now.refused,
        waits_for=() if before is None else waits_for,
    )


def describe_links(relays: Iterable[RelayMetrics]) -> str:
    """Return how many links are carried by what, and why some are not of verbs.

    "2 by verbs READ on rxe0, 4 by tcp (no RDMA device on this machine)": each direction counts.
    """
    links = [link for relay in relays for link in relay.links]
    parts = []
    for way, count in sorted(Counter(link.way or NO_LINK for link in links).items()):
        reasons = sorted({link.without_verbs for link in links if (link.way or NO_LINK) == way})
        why = "; ".join(filter(None, reasons))
        parts.append(f"{count} by {way}" + (f" ({why})" if why else ""))
    return ", ".join(parts)
