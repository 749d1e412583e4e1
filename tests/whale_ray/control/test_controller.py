"""The controller as a pure state machine: stories first, then random fleets with random deaths."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import (
    AttemptLostError,
    JobError,
    NotInAttemptError,
    OutputError,
    ResourceError,
    WorkerDiedError,
)
from whale_ray.control.attempt_steps import STEPS
from whale_ray.control.controller import JobController, JobPhase
from whale_ray.control.controller_events import (
    Action,
    AttemptLost,
    CallMember,
    Died,
    Discard,
    End,
    Event,
    Publish,
    Published,
    Raised,
    RelayBack,
    RelayLost,
    Respawn,
    Respawned,
    Returned,
    StopRequested,
    Tick,
)
from whale_ray.control.restart_policy import Limits

LIMITS = Limits(
    max_restarts=2,
    start_timeout_ns=100,
    drain_timeout_ns=50,
    kill_grace_ns=10,
    unreachable_after_ns=30,
)


def complete(controller: JobController, actions: list[Action], until: str) -> list[Action]:
    """Let every called worker return, step after step, until `until` is what they are to do."""
    while isinstance(actions[0], CallMember) and actions[0].method != until:
        calls = [action for action in actions if isinstance(action, CallMember)]
        actions = []
        for call in calls:
            event = Returned(call.member, call.attempt, call.method, f"{call.method}-{call.member}")
            actions += controller.handle(event, 0)
    return actions


def test_link_and_connect_get_what_the_step_before_returned_on_all_workers() -> None:
    controller = JobController(2, LIMITS)
    actions = controller.start(0)
    for step in STEPS:
        assert [a.method for a in actions if isinstance(a, CallMember)] == [step, step]
        first, second = (Returned(worker, 0, step, f"{step}-{worker}") for worker in (0, 1))
        assert controller.handle(second, 0) == []
        actions = controller.handle(first, 0)
        if isinstance(actions[0], CallMember):
            takes_results = actions[0].method in ("link", "connect")
            assert actions[0].arguments == (((f"{step}-0", f"{step}-1"),) if takes_results else ())
    assert actions == [Publish(0, ("stage-0", "stage-1"))]
    assert controller.handle(Published(), 0) == [End("finished")]
    assert controller.handle(Died(0, "late"), 0) == []


def test_relays_finish_once_all_workers_have_run() -> None:
    controller = JobController(2, LIMITS, relays=2, names=("a", "b", "relay x", "relay y"))
    actions = complete(controller, controller.start(0), "run")
    assert [a.member for a in actions if isinstance(a, CallMember)] == [0, 1, 2, 3]
    assert controller.handle(Returned(1, 0, "run", None), 0) == []
    finish = [CallMember(relay, 0, "finish") for relay in (2, 3)]
    assert controller.handle(Returned(0, 0, "run", None), 0) == finish
    assert controller.handle(Returned(3, 0, "run", None), 0) == []
    actions = controller.handle(Returned(2, 0, "run", None), 0)
    assert actions == [CallMember(worker, 0, "stage") for worker in (0, 1)], "relays have no output"


def test_a_relay_that_dies_is_named() -> None:
    limits = replace(LIMITS, max_restarts=0, repairs_max=0)
    controller = JobController(1, limits, 2, ("worker 0", "x", "relay y"))
    complete(controller, controller.start(0), "run")
    controller.handle(Died(2, "signal 9"), 0)
    for member in (0, 1):
        actions = controller.handle(Raised(member, 0, "run", JobError("aborted")), 0)
    assert isinstance(actions[-1], End)
    died = "relay y died (signal 9), after 0 relays were replaced (multicast.repairs_max)"
    assert f"{died}; the job is not restarted" in str(actions[-1].error)


def running(relays: int = 2) -> JobController:
    controller = JobController(1, LIMITS, relays)
    complete(controller, controller.start(0), "run")
    return controller


MADE = tuple(tuple(f"{step}-{member}" for member in range(3)) for step in ("open", "link"))


def test_a_relay_that_dies_is_replaced_within_the_attempt() -> None:
    controller = running()
    assert controller.handle(Died(2, "signal 9"), 0) == [RelayLost(2), Respawn(2)]
    assert controller.handle(Respawned(2), 0) == [CallMember(2, 0, "rejoin", MADE)]
    back = controller.handle(Returned(2, 0, "rejoin", "offer"), 0)
    assert back == [RelayBack(2, "offer"), CallMember(2, 0, "run")]
    assert controller.phase is JobPhase.RUNNING
    assert controller.progress.exchanged[1] == ("link-0", "link-1", "offer")
    finish = [CallMember(1, 0, "finish"), CallMember(2, 0, "finish")]
    assert controller.handle(Returned(0, 0, "run", None), 0) == finish


@pytest.mark.parametrize("late", [Respawned(2), Returned(2, 0, "rejoin", "offer")])
def test_a_relay_that_comes_back_after_all_workers_have_ended_is_not_waited_for(
    late: Event,
) -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    if isinstance(late, Returned):
        controller.handle(Respawned(2), 0)
    assert controller.handle(Returned(0, 0, "run", None), 0) == [CallMember(1, 0, "finish")]
    assert controller.handle(late, 0) == []
    assert controller.handle(Returned(1, 0, "run", None), 0) == [CallMember(0, 0, "stage")]


def test_a_worker_that_dies_while_a_relay_is_replaced_makes_the_job_begin_anew() -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    assert controller.handle(Died(0, "signal 9"), 0) == [CallMember(1, 0, "abort"), Respawn(0)]
    controller.handle(Raised(1, 0, "run", JobError("aborted")), 0)
    assert controller.handle(Respawned(0), 0) == []
    assert controller.handle(Respawned(2), 0)[0] == Discard(0)
    assert controller.attempt == 1


def test_a_relay_that_dies_while_it_rejoins_is_replaced_again() -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    controller.handle(Respawned(2), 0)
    assert controller.handle(Died(2, "signal 9"), 0) == [RelayLost(2), Respawn(2)]
    assert controller.handle(Respawned(2), 0) == [CallMember(2, 0, "rejoin", MADE)]


def test_a_successor_can_replace_relays() -> None:
    first = running()
    second = JobController(1, LIMITS, 2)
    second.resume(first.progress, 0)
    second.handle(Died(1, "signal 9"), 0)
    assert second.handle(Respawned(1), 0) == [CallMember(1, 0, "rejoin", MADE)]


def test_a_successor_lets_a_relay_rejoin_that_was_replaced_before() -> None:
    first = running()
    first.handle(Died(2, "signal 9"), 0)
    second = JobController(1, LIMITS, 2)
    second.resume(first.progress, 0)
    unknown = NotInAttemptError("it is in attempt -1")
    actions = second.handle(Raised(2, 0, "run", unknown), 0)
    assert actions == [RelayLost(2), CallMember(2, 0, "rejoin", MADE)]
    back = second.handle(Returned(2, 0, "rejoin", "offer"), 0)
    assert back == [RelayBack(2, "offer"), CallMember(2, 0, "run")]


def test_too_many_dead_relays_make_the_job_begin_anew() -> None:
    controller = JobController(1, replace(LIMITS, repairs_max=1), 1)
    complete(controller, controller.start(0), "run")
    controller.handle(Died(1, "signal 9"), 0)
    assert controller.handle(Died(1, "signal 9"), 0)[-1] == Respawn(1)
    assert controller.phase is JobPhase.RESTARTING


def test_a_death_restarts_all_from_the_start_after_the_others_were_aborted() -> None:
    controller = JobController(3, LIMITS)
    complete(controller, controller.start(0), "run")
    assert controller.handle(Died(1, "signal 9"), 0) == [
        CallMember(0, 0, "abort"),
        CallMember(2, 0, "abort"),
        Respawn(1),
    ]
    assert controller.handle(Raised(0, 0, "run", JobError("aborted")), 0) == []
    assert controller.handle(Respawned(1), 0) == []
    actions = controller.handle(Raised(2, 0, "run", JobError("aborted")), 0)
    assert actions == [Discard(0), *(CallMember(worker, 1, "open") for worker in range(3))]
    assert controller.handle(Returned(0, 0, "run", None), 0) == []  # of the old attempt


def test_the_reason_of_the_last_restart_is_kept_for_a_successor_too() -> None:
    first = JobController(2, LIMITS)
    complete(first, first.start(0), "run")
    assert first.lost == (-1, "")
    first.handle(Died(1, "signal 9"), 0)
    assert first.lost == (0, "worker 1 died (signal 9)")
    second = JobController(2, LIMITS)
    second.resume(first.progress, 0)
    aborted = AttemptLostError("the attempt was aborted")  # as the first controller asked
    second.handle(Raised(0, 0, "run", aborted), 0)
    assert second.lost == (0, "worker 1 died (signal 9)")
    complete(second, second.handle(Raised(1, 0, "run", aborted), 0)[1:], "run")
    second.handle(AttemptLost(1, "bytes are gone"), 0)
    assert second.lost == (1, "bytes are gone")


def test_workers_that_do_not_abort_in_time_are_replaced() -> None:
    controller = JobController(2, LIMITS)
    complete(controller, controller.start(0), "run")
    controller.handle(Died(0, "signal 9"), 0)
    controller.handle(Respawned(0), 0)
    assert controller.handle(Tick(), 9) == []
    assert controller.handle(Tick(), 10) == [Respawn(1)]
    assert controller.handle(Respawned(1), 11)[0] == Discard(0)


def test_a_process_that_takes_longer_than_the_abort_may_still_come_back() -> None:
    controller = JobController(1, LIMITS)
    complete(controller, controller.start(0), "run")
    controller.handle(Died(0, "signal 9"), 0)
    assert controller.handle(Tick(), 10) == []
    assert controller.handle(Tick(), 109) == []
    assert controller.handle(Respawned(0), 109)[0] == Discard(0)


def test_a_process_that_dies_before_it_is_ready_is_replaced_again() -> None:
    controller = JobController(1, LIMITS)
    complete(controller, controller.start(0), "run")
    assert controller.handle(Died(0, "signal 9"), 0) == [Respawn(0)]
    assert controller.handle(Died(0, "exit code 1"), 5) == [Respawn(0)]
    assert controller.handle(Respawned(0), 6)[0] == Discard(0)


def test_a_process_that_does_not_come_back_fails_the_job() -> None:
    controller = JobController(1, LIMITS)
    complete(controller, controller.start(0), "run")
    controller.handle(Died(0, "signal 9"), 0)
    controller.handle(Tick(), 10)
    end = controller.handle(Tick(), 110)[-1]
    assert isinstance(end, End)
    assert str(end.error).startswith("worker 0 did not come back in time")


def test_a_successor_asks_again_for_the_step_that_was_under_way() -> None:
    first = JobController(2, LIMITS)
    complete(first, first.start(0), "run")
    second = JobController(2, LIMITS)
    actions = second.resume(first.progress, 0)
    assert [a.method for a in actions if isinstance(a, CallMember)] == ["run", "run"]
    assert second.phase is JobPhase.RUNNING
    actions = complete(second, actions, "never")
    assert actions == [Publish(0, ("stage-0", "stage-1"))]


def test_a_successor_of_one_that_died_while_publishing_publishes() -> None:
    first = JobController(1, LIMITS)
    complete(first, first.start(0), "never")
    second = JobController(1, LIMITS)
    (again,) = second.resume(first.progress, 0)
    assert isinstance(again, CallMember)
    assert again.method == "stage"
    assert second.handle(Returned(0, 0, "stage", "s"), 0) == [Publish(0, ("s",))]


def test_a_successor_goes_on_draining() -> None:
    first = JobController(1, LIMITS)
    complete(first, first.start(0), "run")
    first.handle(StopRequested(drain=True), 0)
    actions = JobController(1, LIMITS).resume(first.progress, 0)
    assert actions[1] == CallMember(0, 0, "drain")


def test_a_worker_that_lost_the_attempt_makes_the_job_begin_anew() -> None:
    controller = JobController(2, LIMITS)
    complete(controller, controller.start(0), "run")
    lost = AttemptLostError("the worker is in attempt -1")
    assert controller.handle(Raised(0, 0, "run", lost), 0) == [CallMember(1, 0, "abort")]
    actions = controller.handle(Raised(1, 0, "run", lost), 0)
    assert actions == [Discard(0), CallMember(0, 1, "open", ()), CallMember(1, 1, "open", ())]


def test_after_too_many_deaths_the_job_fails() -> None:
    controller = JobController(1, LIMITS)
    actions = controller.start(0)
    for _ in range(LIMITS.max_restarts):
        assert controller.handle(Died(0, "signal 9"), 0) == [Respawn(0)]
        actions = controller.handle(Respawned(0), 0)
    actions = controller.handle(Died(0, "signal 9"), 0)
    assert actions[0] == Discard(LIMITS.max_restarts)
    assert isinstance(actions[1], End)
    assert str(actions[1].error) == (
        "worker 0 died (signal 9); the job is not restarted: "
        "it was restarted 2 times already (runtime.max_restarts)"
    )


def test_a_job_that_cannot_be_replayed_fails_at_the_first_death() -> None:
    limits = replace(LIMITS, restart_refused="source 'feed' cannot be read again")
    controller = JobController(1, limits)
    controller.start(0)
    end = controller.handle(Died(0, "signal 9"), 0)[-1]
    assert isinstance(end, End)
    assert isinstance(end.error, WorkerDiedError)
    assert str(end.error).endswith("not restarted: source 'feed' cannot be read again")


def test_a_failure_aborts_the_others_and_keeps_its_error() -> None:
    controller = JobController(2, LIMITS)
    complete(controller, controller.start(0), "run")
    failure = JobError("division by zero")
    assert controller.handle(Raised(1, 0, "run", failure), 0) == [CallMember(0, 0, "abort")]
    aborted = controller.handle(Raised(0, 0, "run", JobError("aborted")), 0)
    assert aborted == [Discard(0), End("failed", failure)]


@pytest.mark.parametrize("step", ["open", "link", "connect"])
def test_a_drain_before_the_workers_run_waits_until_they_do(step: str) -> None:
    controller = JobController(2, LIMITS)
    calls = complete(controller, controller.start(0), step)
    assert controller.handle(StopRequested(drain=True), 0) == []
    assert controller.phase is JobPhase.STARTING
    drains = [CallMember(0, 0, "drain"), CallMember(1, 0, "drain")]
    assert complete(controller, calls, "run")[-2:] == drains
    late = controller.handle(Tick(), LIMITS.drain_timeout_ns)
    assert late == [CallMember(0, 0, "abort"), CallMember(1, 0, "abort")]


@pytest.mark.parametrize("step", ["open", "link", "connect"])
def test_a_drain_while_the_next_attempt_starts_cancels_since_what_was_read_is_lost(
    step: str,
) -> None:
    controller = JobController(2, LIMITS)
    complete(controller, controller.start(0), "run")
    controller.handle(Died(0, "signal 9"), 0)
    controller.handle(Raised(1, 0, "run", JobError("aborted")), 0)
    complete(controller, controller.handle(Respawned(0), 0), step)
    aborts = [CallMember(0, 1, "abort"), CallMember(1, 1, "abort")]
    assert controller.handle(StopRequested(drain=True), 0) == aborts
    controller.handle(Returned(0, 1, step, None), 0)
    aborted = Raised(1, 1, step, JobError("aborted"))
    assert controller.handle(aborted, 0) == [Discard(1), End("cancelled")]


def test_a_drain_while_the_job_begins_anew_cancels_since_what_was_read_is_lost() -> None:
    controller = JobController(2, LIMITS)
    complete(controller, controller.start(0), "run")
    controller.handle(Died(0, "signal 9"), 0)
    assert controller.handle(StopRequested(drain=True), 0) == [CallMember(1, 0, "abort")]
    aborted = Raised(1, 0, "run", JobError("aborted"))
    assert controller.handle(aborted, 0) == [Discard(0), End("cancelled")]


@pytest.mark.parametrize("until", ["run", "stage"])
def test_a_worker_that_dies_after_a_stop_fails_the_job_which_publishes_nothing(until: str) -> None:
    controller = JobController(2, LIMITS)
    complete(controller, controller.start(0), until)
    controller.handle(StopRequested(drain=True), 0)
    assert controller.handle(Died(0, "signal 15"), 0) == [CallMember(1, 0, "abort")]
    discard, end = controller.handle(Raised(1, 0, until, JobError("aborted")), 0)
    assert discard == Discard(0)
    assert isinstance(end, End) and isinstance(end.error, WorkerDiedError)
    assert str(end.error) == (
        "worker 0 died (signal 15); the job is not restarted: it was to drain, and what it had "
        "read and not published is lost; run it again"
    )


def test_what_was_drained_before_its_end_is_distinguished_from_what_had_ended() -> None:
    for cut_short, state in ((True, "drained"), (False, "finished")):
        controller = JobController(2, LIMITS)
        actions = complete(controller, controller.start(0), "run")
        drains = controller.handle(StopRequested(drain=True), 0)
        assert drains == [CallMember(0, 0, "drain"), CallMember(1, 0, "drain")]
        complete(controller, actions, "never")
        assert controller.handle(Published(cut_short=cut_short), 0) == [End(state)]


def test_a_stop_after_the_inputs_have_ended_leaves_a_finished_job() -> None:
    controller = JobController(1, LIMITS)
    actions = complete(controller, controller.start(0), "stage")
    assert controller.handle(StopRequested(drain=True), 0) == []
    successor = JobController(1, LIMITS)
    successor.resume(controller.progress, 0)
    for one in (controller, successor):
        complete(one, actions, "")
        assert one.handle(Published(), 0) == [End("finished")]


def test_a_drain_that_takes_too_long_fails() -> None:
    controller = JobController(1, LIMITS)
    complete(controller, controller.start(0), "run")
    controller.handle(StopRequested(drain=True), 0)
    assert controller.handle(Tick(), 50) == [CallMember(0, 0, "abort")]
    end = controller.handle(Tick(), 60)[-1]
    assert isinstance(end, End)
    assert "worker 0 did not drain in time: raise runtime.drain_timeout_ms" in str(end.error)


def test_a_drain_that_is_asked_for_again_gets_no_more_time() -> None:
    controller = JobController(1, LIMITS)
    complete(controller, controller.start(0), "run")
    controller.handle(StopRequested(drain=True), 0)
    assert controller.handle(StopRequested(drain=True), 40) == []
    assert controller.handle(Tick(), 50) == [CallMember(0, 0, "abort")]


def test_relays_that_wait_for_a_worker_are_not_blamed_for_a_late_drain() -> None:
    controller = JobController(2, LIMITS, relays=1, names=("worker 0", "worker 1", "relay x"))
    complete(controller, controller.start(0), "run")
    controller.handle(StopRequested(drain=True), 0)
    controller.handle(Returned(0, 0, "run", None), 0)
    controller.handle(Tick(), 50)
    end = controller.handle(Tick(), 60)[-1]
    assert isinstance(end, End)
    assert str(end.error).startswith("worker 1 did not drain in time")


def test_a_worker_that_does_not_start_is_named() -> None:
    controller = JobController(2, LIMITS)
    controller.start(0)
    controller.handle(Returned(0, 0, "open", None), 0)
    controller.handle(Tick(), 100)
    end = controller.handle(Tick(), 110)[-1]
    assert isinstance(end, End)
    assert isinstance(end.error, ResourceError)
    assert str(end.error).startswith("worker 1 did not start in time")


def test_an_output_that_cannot_be_published_is_discarded() -> None:
    controller = JobController(1, LIMITS)
    complete(controller, controller.start(0), "never")
    problem = OutputError("disk full")
    assert controller.handle(Published(problem), 0) == [Discard(0), End("failed", problem)]


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), trouble=st.floats(0, 0.3))
def test_whatever_happens_it_ends_and_publishes_at_most_once(
    seed: int, workers: int, trouble: float
) -> None:
    """A random fleet: calls return, raise or kill in any order; aborts may be ignored."""
    chance = random.Random(seed)
    controller = JobController(workers, LIMITS)
    pending: list[Event] = []
    running: set[int] = set()
    published = ended = 0
    now = 0
    actions = controller.start(now)
    for _ in range(2000):
        for action in actions:
            if isinstance(action, CallMember) and action.method in STEPS:
                draw = chance.random()
                if draw < trouble / 2:
                    pending.append(Died(action.member, "killed"))
                elif draw < trouble:
                    error = JobError("user error")
                    pending.append(Raised(action.member, action.attempt, action.method, error))
                elif draw < 1 - trouble / 4:  # else the member never answers
                    pending.append(Returned(action.member, action.attempt, action.method, None))
            elif isinstance(action, Respawn):
                pending = [e for e in pending if getattr(e, "member", None) != action.member]
                pending.append(Respawned(action.member))
            elif isinstance(action, Publish):
                published += 1
                assert not running
                pending.append(Published(OutputError("full") if chance.random() < 0.1 else None))
            elif isinstance(action, End):
                ended += 1
        if controller.phase is JobPhase.ENDED:
            break
        now += chance.choice([0, 0, 0, 20])
        if chance.random() < 0.02:
            event: Event = StopRequested(drain=chance.random() < 0.5)
        elif pending:
            event = pending.pop(chance.randrange(len(pending)))
        else:
            now += 50
            event = Tick()
            if controller.phase is JobPhase.RUNNING and not controller.draining:
                event = StopRequested(drain=True)  # a function hangs, which only users see
            elif controller.phase is JobPhase.STAGING:
                event = StopRequested(drain=False)
        actions = controller.handle(event, now)
    assert ended == 1
    assert published <= 1
    assert controller.attempt <= LIMITS.max_restarts
