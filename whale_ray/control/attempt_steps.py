"""The steps of an attempt: which one its members take, and what they have returned from it."""

from __future__ import annotations

from .controller_events import StepResult

STEPS = ("open", "link", "connect", "run", "stage")
"""What every worker does in an attempt, in this order; methods of `Worker`."""

REJOIN = "rejoin"
"""What a relay does that replaces a failed one: all steps before `run` at once."""

_TAKE_RESULTS = ("link", "connect")
"""The steps that take what the step before them returned on all members."""


class AttemptSteps:
    """All members take a step together: the next one begins when all have returned."""

    def __init__(self, workers: int, relays: int) -> None:
        self._workers = range(workers)
        self._relays = range(workers, workers + relays)
        self._results: dict[int, StepResult] = {}
        self.index = 0
        """Of the present step in `STEPS`."""
        self.arguments: tuple[object, ...] = ()
        """Of the present step."""
        self.exchanged: tuple[tuple[StepResult, ...], ...] = ()
        """What members have made for each other in this attempt: boards, then ring offers."""

    @property
    def method(self) -> str:
        """The name of the present step."""
        return STEPS[self.index]

    @property
    def missing(self) -> set[int]:
        """The members that have not returned from the present step."""
        return {*self._workers, *self._relays} - self._results.keys()

    @property
    def is_complete(self) -> bool:
        """Whether all members have returned from the present step."""
        return not self.missing

    @property
    def have_workers_returned(self) -> bool:
        """Whether all workers have returned from the present step."""
        return all(worker in self._results for worker in self._workers)

    @property
    def results(self) -> tuple[StepResult, ...]:
        """What the members returned, in their order; only once the step is complete."""
        return tuple(self._results[member] for member in (*self._workers, *self._relays))

    def begin(self, index: int, arguments: tuple[object, ...] = ()) -> None:
        """Begin a step. Relays have no output, so they take no part in `stage`."""
        self.index, self.arguments = index, arguments
        self._results = dict.fromkeys(self._relays) if self.method == "stage" else {}

    def advance(self) -> None:
        """Begin the step after a complete one."""
        takes_results = STEPS[self.index + 1] in _TAKE_RESULTS
        arguments = (self.results,) if takes_results else ()
        self.exchanged += arguments
        self.begin(self.index + 1, arguments)

    def take(self, member: int, result: StepResult) -> None:
        """Record what a member returned from the present step."""
        self._results[member] = result

    def do_without(self, member: int) -> None:
        """Do not wait for a member in the present step."""
        self._results.setdefault(member, None)

    def wait_for(self, member: int) -> None:
        """Wait for a member in the present step, even if an earlier process has returned."""
        self._results.pop(member, None)

    def replace_offer(self, relay: int, offer: StepResult) -> None:
        """Record that a relay was replaced by one with another offer."""
        boards, offers = self.exchanged
        self.exchanged = (boards, (*offers[:relay], offer, *offers[relay + 1 :]))
