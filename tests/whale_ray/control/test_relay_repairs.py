"""Relays that are replaced while the job runs: when, how long that may take, who is notified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.whale_ray.control.test_controller import LIMITS, MADE, complete, running
from whale_ray.configs.errors import AttemptLostError, JobError, NotInAttemptError, WhaleError
from whale_ray.configs.settings import MulticastSettings
from whale_ray.control.controller import JobController, JobPhase
from whale_ray.control.controller_events import (
    AttemptLost,
    CallMember,
    Died,
    Discard,
    End,
    Event,
    Publish,
    Raised,
    RelayBack,
    RelayLost,
    Respawn,
    Respawned,
    Returned,
    StopRequested,
    Tick,
)
from whale_ray.control.fleet import MemberMessage
from whale_ray.control.tree_session import TreeSession
from whale_ray.deployment.member_host import MemberHost
from whale_ray.multicast.switch_protocol import SwitchRecord
from whale_ray.multicast.tree_messages import HostUnreachable, Relocated
from whale_ray.multicast.tree_state import (
    Goal,
    TreeState,
)
from whale_ray.multicast.trees import star
from whale_ray.plan.hosts import HostLayout
from whale_ray.plan.streams import RingSpec, StreamPlan
from whale_ray.worker.offers import RingOffer

PLAN = StreamPlan(
    4, (RingSpec(0, 0, 0, (0, 1, 2, 3), 1 << 16),), HostLayout((0, 1, 2, 3), "chain", 0)
)
OTHER = {0: TreeState(Goal("star"), SwitchRecord(star(0, (1, 2, 3)), epoch=7, last_epoch=7))}
LATE_NS = LIMITS.start_timeout_ns


class Relay:
    """One that takes steps at once, and has nothing to do."""

    name = "relay"
    attempt = -1

    def rejoin(self, attempt: int, *_made: Any) -> str:
        self.attempt = attempt
        return "new offer"


# --- how long it may take ---


def test_waiting_for_a_relay_to_return_is_bounded() -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    assert controller.handle(Tick(), LATE_NS - 1) == []
    assert controller.handle(Tick(), LATE_NS) == [
        CallMember(0, 0, "abort"),
        CallMember(1, 0, "abort"),
        Respawn(2),
    ]
    for member in (0, 1):
        controller.handle(Raised(member, 0, "run", AttemptLostError("aborted")), LATE_NS)
    assert controller.handle(Respawned(2), LATE_NS)[0] == Discard(0)
    assert controller.attempt == 1


def test_a_relay_that_hangs_while_it_rejoins_is_aborted_and_then_replaced() -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    controller.handle(Respawned(2), 0)
    aborts = controller.handle(Tick(), LATE_NS)
    assert aborts == [CallMember(member, 0, "abort") for member in range(3)]
    for member in (0, 1):
        controller.handle(Raised(member, 0, "run", AttemptLostError("aborted")), LATE_NS)
    assert controller.handle(Tick(), LATE_NS + LIMITS.kill_grace_ns) == [Respawn(2)]
    assert controller.handle(Respawned(2), LATE_NS)[0] == Discard(0)


def test_a_relay_that_cannot_rejoin_lives_and_is_not_waited_for() -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    controller.handle(Respawned(2), 0)
    gone = AttemptLostError("the ring of worker 0 is gone")
    assert controller.handle(Raised(2, 0, "rejoin", gone), 0) == [
        CallMember(0, 0, "abort"),
        CallMember(1, 0, "abort"),
    ]
    controller.handle(Raised(0, 0, "run", AttemptLostError("aborted")), 0)
    opened = controller.handle(Raised(1, 0, "run", AttemptLostError("aborted")), 0)
    assert opened == [Discard(0), *(CallMember(member, 1, "open") for member in range(3))]


def test_an_attempt_that_is_lost_is_aborted_everywhere() -> None:
    controller = running()
    assert controller.handle(AttemptLost(1, "of another attempt"), 0) == []
    assert controller.handle(AttemptLost(0, "bytes are gone"), 0) == [
        CallMember(member, 0, "abort") for member in range(3)
    ]
    assert controller.handle(AttemptLost(0, "reported twice"), 0) == []


def test_others_that_cannot_reach_a_relay_wait_while_it_is_replaced() -> None:
    """How long that may take is limited already, and may be longer than hosts stay in touch."""
    controller = running()
    unreachable = AttemptLost(0, "host-1 is unreachable from host-0", unreachable=2)
    controller.handle(Died(2, "signal 9"), 0)
    assert controller.handle(unreachable, LATE_NS - 2) == []
    controller.handle(Respawned(2), LATE_NS - 2)
    assert controller.handle(unreachable, LATE_NS - 1) == []
    controller.handle(Returned(2, 0, "rejoin", "new offer"), LATE_NS)
    reached_ns = LATE_NS + LIMITS.unreachable_after_ns
    assert controller.handle(unreachable, reached_ns - 1) == []
    assert controller.handle(unreachable, reached_ns) == [
        CallMember(member, 0, "abort") for member in range(3)
    ]


def test_a_relay_that_is_not_replaced_and_out_of_reach_costs_the_attempt() -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    unreachable = AttemptLost(0, "host-0 is unreachable from host-1", unreachable=1)
    assert controller.handle(unreachable, 0) == [
        CallMember(0, 0, "abort"),
        CallMember(1, 0, "abort"),
    ]


def test_a_controller_that_resumes_gives_relays_time_to_be_reached() -> None:
    first = running()
    first.handle(Died(2, "signal 9"), 0)
    first.handle(Respawned(2), 0)
    first.handle(Returned(2, 0, "rejoin", "new offer"), 0)
    second = JobController(1, LIMITS, 2)
    second.resume(first.progress, LATE_NS)
    unreachable = AttemptLost(0, "host-1 is unreachable from host-0", unreachable=2)
    reached_ns = LATE_NS + LIMITS.unreachable_after_ns
    assert second.handle(unreachable, reached_ns - 1) == []
    assert second.handle(unreachable, reached_ns) != []


def test_a_relay_may_have_died_with_the_controller_that_knew_it() -> None:
    """Others report its host before the new process, which is in no attempt, answers."""
    controller = JobController(1, LIMITS, 2)
    controller.resume(running().progress, 0)
    unreachable = AttemptLost(0, "host-1 is unreachable from host-0", unreachable=2)
    assert controller.handle(unreachable, 0) == []
    new = Raised(2, 0, "run", NotInAttemptError("it is in attempt -1"))
    assert controller.handle(new, 1)[0] == RelayLost(2)
    assert controller.handle(unreachable, LATE_NS) == []


# --- at the end ---


def test_a_relay_that_dies_when_all_workers_have_ended_is_ignored() -> None:
    controller = running()
    controller.handle(Returned(0, 0, "run", None), 0)
    assert controller.handle(Died(2, "signal 9"), 0) == []
    assert controller.handle(Returned(1, 0, "run", None), 0) == [CallMember(0, 0, "stage")]
    staged = {"out": ["part"]}
    assert controller.handle(Returned(0, 0, "stage", staged), 0) == [
        Publish(0, (staged, None, None))
    ]


def test_a_relay_that_dies_while_workers_stage_is_ignored() -> None:
    controller = JobController(1, LIMITS, 1)
    complete(controller, controller.start(0), "run")
    controller.handle(Returned(0, 0, "run", None), 0)
    controller.handle(Returned(1, 0, "run", None), 0)
    assert controller.phase is JobPhase.STAGING
    assert controller.handle(Died(1, "signal 9"), 0) == []
    assert controller.handle(Returned(0, 0, "stage", {}), 0) == [Publish(0, ({}, None))]


def test_an_ignored_relay_is_started_again_if_the_job_restarts() -> None:
    controller = JobController(1, LIMITS, 1)
    complete(controller, controller.start(0), "run")
    controller.handle(Returned(0, 0, "run", None), 0)
    controller.handle(Died(1, "signal 9"), 0)
    assert controller.phase is JobPhase.STAGING
    assert controller.handle(Died(0, "signal 9"), 0) == [Respawn(0), Respawn(1)]
    controller.handle(Respawned(0), 0)
    assert controller.handle(Respawned(1), 0)[:2] == [Discard(0), CallMember(0, 1, "open")]


def test_waiting_for_a_relay_to_finish_is_bounded() -> None:
    """The relay is stopped, or frozen; the others have ended and do not need it."""
    controller = running()
    controller.handle(Returned(0, 0, "run", None), 0)
    controller.handle(Returned(1, 0, "run", None), 0)
    assert controller.handle(Tick(), LIMITS.drain_timeout_ns - 1) == []
    assert controller.handle(Tick(), LIMITS.drain_timeout_ns) == [CallMember(0, 0, "stage")]
    assert controller.handle(Returned(2, 0, "run", "late"), LATE_NS) == []
    assert controller.handle(Returned(0, 0, "stage", {}), LATE_NS) == [Publish(0, ({}, None, None))]


@pytest.mark.parametrize(
    "event",
    [
        AttemptLost(0, "bytes are gone"),
        AttemptLost(0, "host-1 is unreachable from host-0", unreachable=2),
        Raised(2, 0, "run", AttemptLostError("the ring of worker 0 is gone")),
        Raised(2, 0, "run", NotInAttemptError("it is in attempt -1")),
    ],
    ids=["reported", "unreachable", "lost", "replaced"],
)
def test_what_relays_lack_when_all_workers_have_ended_does_not_matter(event: Event) -> None:
    controller = running()
    controller.handle(Returned(0, 0, "run", None), 0)
    assert controller.handle(event, 0) == []
    assert controller.phase is JobPhase.RUNNING
    for relay in (1, 2):
        actions = controller.handle(Returned(relay, 0, "run", None), 0)
        if actions:
            break
    assert actions == [CallMember(0, 0, "stage")]


def test_no_host_has_to_be_reached_while_the_last_checkpoint_is_written() -> None:
    controller = JobController(1, replace(LIMITS, has_checkpoints=True), 2)
    complete(controller, controller.start(0), "run")
    controller.handle(Died(2, "signal 9"), 0)
    controller.handle(Returned(0, 0, "run", None), 0)
    unreachable = AttemptLost(0, "host-1 is unreachable from host-0", unreachable=2)
    assert controller.handle(unreachable, LATE_NS) == []
    assert controller.handle(AttemptLost(0, "a worker ended without its snapshot"), 0) != []


def test_a_relay_that_reported_its_end_and_then_dies_counts_as_not_ended() -> None:
    second = JobController(1, LIMITS, 1)
    first = running(1)
    second.resume(first.progress, 0)
    second.handle(Returned(1, 0, "run", "counters"), 0)
    assert second.handle(Died(1, "signal 9"), 0) == [RelayLost(1), Respawn(1)]
    assert second.handle(Returned(0, 0, "run", None), 0) == [CallMember(0, 0, "stage")]
    assert second.handle(Returned(0, 0, "stage", {}), 0) == [Publish(0, ({}, None))]


def test_all_that_do_not_come_back_are_started_again() -> None:
    controller = running()
    for relay in (1, 2):
        controller.handle(Died(relay, "signal 9"), 0)
    assert controller.handle(Tick(), LATE_NS) == [CallMember(0, 0, "abort"), Respawn(1), Respawn(2)]


def test_a_job_that_fails_lets_no_relay_rejoin() -> None:
    controller = running()
    controller.handle(Died(2, "signal 9"), 0)
    controller.handle(StopRequested(drain=False), 0)
    assert controller.handle(Respawned(2), 0) == []


@pytest.mark.parametrize("error", [None, JobError("a row that cannot be used")])
def test_a_successor_ends_what_was_to_end(error: WhaleError | None) -> None:
    first = running()
    if error is None:
        first.handle(StopRequested(drain=False), 0)
    else:
        first.handle(Raised(0, 0, "run", error), 0)
    second = JobController(1, LIMITS, 2)
    assert second.resume(first.progress, 0) == [
        CallMember(member, 0, "abort") for member in range(3)
    ]
    ended = second.handle(Tick(), LIMITS.kill_grace_ns)
    assert ended == [Discard(0), End("cancelled" if error is None else "failed", error)]


# --- who is notified ---


def test_a_successor_learns_where_a_relay_listens_that_rejoined_without_a_controller() -> None:
    first = running()
    first.handle(Died(2, "signal 9"), 0)
    assert first.handle(Respawned(2), 0) == [CallMember(2, 0, "rejoin", MADE)]
    relay = MemberHost(2, Relay())  # type: ignore[arg-type]  # all that is asked of it
    relay.execute_once(1, 0, "rejoin", MADE)
    # The controller dies before it has heard that; another one reads the journal.
    second = JobController(1, LIMITS, 2)
    assert second.resume(first.progress, 0) == [
        CallMember(0, 0, "run", first.progress.arguments),
        CallMember(1, 0, "run", first.progress.arguments),
        RelayLost(2),
        CallMember(2, 0, "rejoin", MADE),
    ]
    answer = relay.execute_once(2, 0, "rejoin", MADE)
    assert isinstance(answer, Returned)
    assert second.handle(answer, 0) == [RelayBack(2, "new offer"), CallMember(2, 0, "run")]
    assert second.progress.exchanged[1][2] == "new offer"


def test_a_successor_announces_the_address_of_a_relay_that_was_back_before() -> None:
    first = running()
    first.handle(Died(2, "signal 9"), 0)
    first.handle(Respawned(2), 0)
    back = first.handle(Returned(2, 0, "rejoin", "offer"), 0)
    assert back[0] == RelayBack(2, "offer")
    # That is written down, and the controller dies before it is carried out.
    second = JobController(1, LIMITS, 2)
    actions = second.resume(first.progress, 0)
    assert actions[0] == RelayBack(2, "offer")
    assert actions[1:] == [
        CallMember(member, 0, "run", first.progress.arguments) for member in range(3)
    ]


def test_a_relay_that_rejoins_learns_the_address_of_another_new_one() -> None:
    calls: list[tuple[int, Any]] = []
    session = TreeSession(
        PLAN,
        MulticastSettings(),
        lambda member, _attempt, _method, arguments: calls.append((member, arguments[0])),
        lambda: None,
    )
    session.run(0, 0)
    one, other = PLAN.relay_of(1), PLAN.relay_of(2)
    session.lost(one, 0)
    session.lost(other, 0)
    # Both were asked to rejoin, with old addresses of each other. The first is back while the
    # second, which is not connected yet, gets no message.
    session.back(RelayBack(one, RingOffer({}, ("127.0.0.1", 1111))), 0)
    calls.clear()
    session.back(RelayBack(other, RingOffer({}, ("127.0.0.1", 2222))), 0)
    assert (other, Relocated(1, ("127.0.0.1", 1111))) in calls
    assert (one, Relocated(2, ("127.0.0.1", 2222))) in calls


def test_a_report_of_an_unreachable_host_names_its_relay() -> None:
    session = TreeSession(PLAN, MulticastSettings(), lambda *_: None, lambda: None)
    session.run(3, 0)
    report = HostUnreachable(2, "host-2 has been unreachable from host-0")
    lost = AttemptLost(3, report.reason, unreachable=PLAN.relay_of(2))
    assert session.take(MemberMessage(PLAN.relay_of(0), 3, report), 0) == lost
    assert session.take(MemberMessage(PLAN.relay_of(0), 2, report), 0) is None


# --- the trees that a successor inherits ---


def test_what_a_successor_inherited_is_written_down_before_it_begins() -> None:
    session = TreeSession(PLAN, MulticastSettings(), lambda *_: None, lambda: None)
    session.inherit(2, OTHER)
    assert session.states == OTHER
    session.run(0, 0)
    assert session.trees[0] == OTHER[0].record.tree


def test_the_trees_of_an_attempt_that_was_lost_are_not_those_of_the_next() -> None:
    session = TreeSession(PLAN, MulticastSettings(), lambda *_: None, lambda: None)
    session.inherit(2, OTHER)
    session.end()  # the first thing to be heard is that a worker has died
    session.run(1, 0)
    assert session.states[0].record.epoch == 0
    assert session.trees[0] == PLAN.tree_of(PLAN.rings[0])
