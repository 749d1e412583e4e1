"""One attempt at a job: the step that its members take, whom it waits for, and its new relays."""

from __future__ import annotations

from .attempt_steps import REJOIN, AttemptSteps
from .controller_events import CallMember, RelayBack, Respawn, StepResult
from .relay_repairs import RelayRepairs


class Attempt:
    """Makes the calls of an attempt and keeps who has not answered; it decides nothing."""

    def __init__(self, workers: int, relays: int, repairs_max: int) -> None:
        self.number = 0
        self.members = range(workers + relays)
        self.steps = AttemptSteps(workers, relays)
        self.repairs = RelayRepairs(repairs_max)
        self.busy: set[int] = set()
        """Members whose answer to a call is awaited."""
        self.unspawned: set[int] = set()
        """Members whose new process is awaited."""
        self._workers = workers

    def is_relay(self, member: int) -> bool:
        """Return whether a member is a relay."""
        return member >= self._workers

    @property
    def late(self) -> list[int]:
        """The members that are awaited, as they are named when a deadline has passed."""
        return sorted(self.busy | self.unspawned)

    def open(self) -> list[CallMember]:
        """Begin the first step."""
        self.steps.exchanged = ()
        self.repairs.reset()
        self.steps.begin(0)
        return self.call_members()

    def call_members(self) -> list[CallMember]:
        """Call the present step on all members but those that are being replaced."""
        steps = self.steps
        self.busy = steps.missing - self.repairs.pending
        return [
            CallMember(member, self.number, steps.method, steps.arguments)
            for member in sorted(self.busy)
        ]

    def command(self, name: str) -> list[CallMember]:
        """Send a command to all members that have not answered."""
        return [CallMember(member, self.number, name) for member in sorted(self.busy)]

    def respawn(self, members: set[int]) -> list[Respawn]:
        """Replace the processes of members, whose answers are not awaited any more."""
        self.unspawned |= members
        self.busy -= members
        return [Respawn(member) for member in sorted(members)]

    # --- relays that fail while the job runs ----------------------------------------------------

    def begin_repair(self, relay: int, deadline_ns: int) -> None:
        """Wait for a new relay; all other members continue."""
        self.repairs.begin(relay, deadline_ns)
        self.unspawned.add(relay)
        self.steps.wait_for(relay)

    def call_rejoin(self, relay: int) -> list[CallMember]:
        """Let a new relay take all steps before `run`."""
        self.unspawned.discard(relay)
        self.busy.add(relay)
        return [CallMember(relay, self.number, REJOIN, self.steps.exchanged)]

    def rejoined(self, relay: int, offer: StepResult, now_ns: int) -> list[RelayBack | CallMember]:
        """Let a new relay run."""
        self.repairs.finish(relay, now_ns)
        self.steps.replace_offer(relay, offer)
        self.busy.add(relay)
        return [RelayBack(relay, offer), CallMember(relay, self.number, "run")]

    def do_without(self, relay: int) -> None:
        """Wait no longer for a relay that is not needed any more."""
        self.repairs.do_without(relay)
        self.steps.do_without(relay)
        self.unspawned.discard(relay)
        self.busy.discard(relay)
