"""The members of a job, which take the steps of an attempt: workers and relays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..metrics.counters import MemberCounters
from ..transport.clock import SystemClock
from .envelope import Envelope, unseal, unseal_for_relay

if TYPE_CHECKING:
    from ..relay.relay import Tell

LOCAL_ADDRESS = "127.0.0.1"
"""The address of a relay whose peers are all on its machine."""


class Member(Protocol):
    """What fleets need of a worker or relay; steps (`attempt_steps.STEPS`) are called by name."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def attempt(self) -> int:
        """The attempt that it is in; −1 before the first."""

    def abort(self, attempt: int) -> None:
        """End the attempt at the next turn of the step under way."""

    def counters(self) -> MemberCounters:
        """Return its counters."""

    def close(self) -> None:
        """Release everything."""


def make_member(
    index: int,
    envelope: Envelope,
    address: str = LOCAL_ADDRESS,
    tell: Tell | None = None,
) -> Member:
    """Return member `index` of the job in `envelope`; a relay listens at `address`.

    `tell` sends what a member tells the controller unasked. Raises JobError if the envelope cannot
    be unpickled here.
    """
    clock = SystemClock()
    if index >= envelope.workers:
        from ..relay.relay import Relay

        return Relay(index, unseal_for_relay(envelope), clock, address, tell)
    from ..worker.worker import Worker  # relays do not load what operators need

    return Worker(index, unseal(envelope), clock, tell)
