"""The controller of a job with checkpoints: restarts that go on, drains that survive, its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.whale_ray.control.test_controller import LIMITS, complete
from whale_ray.configs.errors import AttemptLostError, OutputError
from whale_ray.control.attempt_steps import STEPS
from whale_ray.control.controller import JobController, JobPhase
from whale_ray.control.controller_events import (
    Action,
    CallMember,
    Died,
    Discard,
    End,
    EpochCounted,
    EpochsFailed,
    EpochsOver,
    Publish,
    Raised,
    Respawn,
    Respawned,
    Returned,
    StopRequested,
)

KEPT = replace(LIMITS, has_checkpoints=True)


def running(workers: int = 2) -> JobController:
    controller = JobController(workers, KEPT)
    complete(controller, controller.start(0), "run")
    assert controller.phase is JobPhase.RUNNING
    return controller


def lose_worker(controller: JobController) -> list[Action]:
    """Let worker 0 die and come back while worker 1 aborts; return what follows."""
    controller.handle(Died(0, "signal 9"), 0)
    aborted = Raised(1, controller.attempt, "run", AttemptLostError("aborted"))
    controller.handle(aborted, 0)
    return controller.handle(Respawned(0), 0)


def methods(actions: list[Action]) -> list[str]:
    return [action.method for action in actions if isinstance(action, CallMember)]


def test_nothing_is_staged_before_the_last_checkpoint_counts() -> None:
    controller = running()
    assert controller.handle(Returned(0, 0, "run", None), 0) == []
    assert controller.handle(Returned(1, 0, "run", None), 0) == []
    assert controller.awaits_last_epoch
    assert controller.phase is JobPhase.RUNNING
    actions = controller.handle(EpochsOver(0, stopped=False), 0)
    assert methods(actions) == ["stage", "stage"]
    assert isinstance(complete(controller, actions, "end")[0], Publish)


def test_a_worker_that_dies_behind_its_end_costs_the_attempt() -> None:
    controller = running()
    for worker in (0, 1):
        controller.handle(Returned(worker, 0, "run", None), 0)
    assert controller.handle(Died(0, "signal 9"), 0) == [Respawn(0)]
    actions = controller.handle(Respawned(0), 0)
    assert actions[0] == Discard(0)
    assert methods(actions) == ["open", "open"]
    assert controller.attempt == 1


def test_restarts_are_counted_since_the_last_checkpoint() -> None:
    controller = running()
    for attempt in range(10):
        actions = lose_worker(controller)
        assert methods(actions) == ["open", "open"]
        complete(controller, actions[1:], "run")
        controller.handle(EpochCounted(attempt + 1), 0)
    for _ in range(KEPT.max_restarts):
        complete(controller, lose_worker(controller)[1:], "run")
    controller.handle(Died(0, "signal 9"), 0)
    end = controller.handle(Raised(1, controller.attempt, "run", AttemptLostError("aborted")), 0)[
        -1
    ]
    assert isinstance(end, End)
    assert "restarted 2 times since its last checkpoint (runtime.max_restarts)" in str(end.error)


def test_a_drain_goes_on_in_the_next_attempt() -> None:
    controller = running()
    assert methods(controller.handle(StopRequested(drain=True), 0)) == ["drain", "drain"]
    actions = lose_worker(controller)
    assert controller.draining
    seen: list[str] = []
    for step in STEPS[: STEPS.index("run")]:
        calls = [one for one in actions if isinstance(one, CallMember)]
        assert [call.method for call in calls] == [step, step]
        actions = [
            action
            for call in calls
            for action in controller.handle(Returned(call.member, 1, step, None), 0)
        ]
        seen += methods(actions)
    assert seen[-4:] == ["run", "run", "drain", "drain"]


@pytest.mark.parametrize("loses", [False, True], ids=["at once", "after a restart"])
def test_a_job_ends_behind_its_savepoint(loses: bool) -> None:
    controller = running()
    assert controller.handle(StopRequested(drain=False, savepoint=True), 0) == []
    assert controller.stopping
    if loses:
        complete(controller, lose_worker(controller)[1:], "run")
        assert controller.stopping
    attempt = controller.attempt
    aborts = controller.handle(EpochsOver(attempt, stopped=True), 0)
    assert methods(aborts) == ["abort", "abort"]
    controller.handle(Raised(0, attempt, "run", AttemptLostError("aborted")), 0)
    actions = controller.handle(Raised(1, attempt, "run", AttemptLostError("aborted")), 0)
    assert actions == [Discard(attempt), End("stopped", None)]


def test_a_successor_knows_that_the_savepoint_is_taken() -> None:
    controller = running()
    controller.handle(StopRequested(drain=False, savepoint=True), 0)
    controller.handle(EpochsOver(0, stopped=True), 0)
    successor = JobController(2, KEPT)
    assert methods(successor.resume(controller.progress, 0)) == ["abort", "abort"]
    successor.handle(Raised(0, 0, "run", AttemptLostError("aborted")), 0)
    actions = successor.handle(Raised(1, 0, "run", AttemptLostError("aborted")), 0)
    assert actions[-1] == End("stopped", None)


def test_a_sink_that_cannot_commit_fails_the_job() -> None:
    controller = running()
    error = OutputError("epoch 7 could not be committed: the table is gone")
    assert controller.handle(EpochsFailed(5, error), 0) == []  # of another attempt
    assert methods(controller.handle(EpochsFailed(0, error), 0)) == ["abort", "abort"]
    controller.handle(Raised(0, 0, "run", AttemptLostError("aborted")), 0)
    actions = controller.handle(Raised(1, 0, "run", AttemptLostError("aborted")), 0)
    assert actions[-1] == End("failed", error)
