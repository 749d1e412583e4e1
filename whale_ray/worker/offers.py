"""What members of a job tell each other before they begin: where their rings are."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..transport.handles import RingHandle


@dataclass(frozen=True)
class RingOffer:
    """What a member made for the others of its host, and a relay for the other hosts.

    Attributes:
        rings: the rings, or mirrors of rings, that it writes, by ring id.
        address: where a relay listens: IP address and port.
        receivers: the addresses of the worker's receivers of users' transports, by edge, pickled:
            only the senders open them.
    """

    rings: dict[int, RingHandle]
    address: tuple[str, int] | None = None
    receivers: dict[int, bytes] = field(default_factory=dict)
