"""Who takes the steps of an attempt: a worker, or the relay of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..metrics.counters import WorkerSnapshot
from ..transport.clock import Clock, SystemClock
from .envelope import Envelope, unseal, unseal_for_relay

if TYPE_CHECKING:
    from ..relay.relay import Tell

LOCAL_ADDRESS = "127.0.0.1"
"""Where a relay listens whose peers are all on its machine."""


class Member(Protocol):
    """What a fleet asks of a worker or relay; steps (`attempt_steps.STEPS`) are called by name."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def attempt(self) -> int:
        """The attempt that it is in; −1 before the first."""

    def abort(self, attempt: int) -> None:
        """End the attempt as soon as the step under way gets its turn."""

    def snapshot(self) -> WorkerSnapshot:
        """Return its counters."""

    def close(self) -> None:
        """Give back everything."""


def make_member(
    index: int,
    envelope: Envelope,
    address: str = LOCAL_ADDRESS,
    clock: Clock | None = None,
    tell: Tell | None = None,
) -> Member:
    """Return member `index` of the job in `envelope`; a relay listens at `address`.

    `tell` takes what a relay has to say to the controller. Raises JobError if the envelope cannot
    be opened here.
    """
    clock = clock or SystemClock()
    if index >= envelope.workers:
        from ..relay.relay import Relay

        return Relay(index, unseal_for_relay(envelope), clock, address, tell)
    from ..worker.worker import Worker  # a relay does without all that operators need

    return Worker(index, unseal(envelope), clock)
