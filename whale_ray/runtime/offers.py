"""What members of a job tell each other before they begin: where their rings are."""

from __future__ import annotations

from dataclasses import dataclass

from ..transport.shm import RingHandle


@dataclass(frozen=True)
class RingOffer:
    """What a member made for the others of its host, and a relay for the other hosts.

    Attributes:
        rings: the rings, or mirrors of rings, that it writes, by ring id.
        address: where a relay listens: IP address and port.
    """

    rings: dict[int, RingHandle]
    address: tuple[str, int] | None = None
