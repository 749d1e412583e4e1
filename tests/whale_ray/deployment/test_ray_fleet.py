"""What the fleet of Ray actors reports when actors do not start or return; no Ray runs here."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError

import whale_ray as whale
from whale_ray.configs.errors import ResourceError
from whale_ray.configs.settings import Settings
from whale_ray.control.controller_events import Died, Respawned
from whale_ray.control.fleet import (
    CountersTaken,
    MemberMessage,
)
from whale_ray.deployment.envelope import seal
from whale_ray.deployment.members import make_member
from whale_ray.deployment.on_ray import ray_fleet
from whale_ray.deployment.on_ray.message_outbox import MessageOutbox
from whale_ray.deployment.on_ray.ray_fleet import RayFleet
from whale_ray.plan.assignment import (
    Assignment,
)
from whale_ray.plan.planner import plan_unsized
from whale_ray.transport.clock import VirtualClock

if TYPE_CHECKING:
    from whale_ray.worker.worker import Worker

GONE = (
    "host-1 is gone: its Ray node 10.0.0.1 died, and its workers cannot come back; "
    "submit the job again, on the nodes that remain"
)


class StandIn:
    """As much of Ray as the fleet uses: answers wait in `answers` until they are asked for.

    A call without an answer does not return; an answer that is an exception is raised. A list has
    the answers to calls one after another.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.killed: list[int] = []
        self.given: dict[str, tuple[Any, ...]] = {}
        self.restarting: set[int] = set()
        self.alive = {"a": True, "b": True}

    def actor(self, member: int) -> Any:
        def method(name: str) -> Any:
            return SimpleNamespace(remote=lambda *given: self.called(f"{name} {member}", given))

        methods = ("ready", "execute", "messages", "command", "counters")
        return SimpleNamespace(**{name: method(name) for name in methods}, member=member)

    def called(self, call: str, given: tuple[Any, ...]) -> str:
        self.given[call] = given
        return call

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        assert not no_restart
        self.killed.append(actor.member)

    def wait(
        self, calls: list[str], num_returns: int, timeout: float
    ) -> tuple[list[str], list[str]]:
        done = [call for call in calls if call in self.answers][:num_returns]
        return done, [call for call in calls if call not in done]

    def get(self, call: str) -> Any:
        answer = self.answers.pop(call)
        if isinstance(answer, list):
            answer, *rest = answer
            self.answers |= {call: rest} if rest else {}
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Alive": alive, "NodeManagerAddress": f"10.0.0.{number}"}
            for number, (name, alive) in enumerate(self.alive.items())
        ]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(ray_fleet, "ray", made)
    return made


def assignment() -> Assignment:
    """Return a job of 4 workers: 0 and 1 on host-0, 2 and 3 on host-1; relays are 4 and 5."""
    topology = whale.Topology("rows")
    rows = topology.source(whale.sources.iterable([{"k": 1}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    settings = Settings().with_overrides({"runtime.hosts": 2})
    return Assignment("rows-1", plan_unsized(topology.logical_plan(), settings, 4), settings)


def new_fleet(ray: StandIn) -> RayFleet:
    actors = [ray.actor(member) for member in range(6)]
    return RayFleet(
        actors,
        ["a", "b"],
        10**9,
        VirtualClock(),
        ray.nodes,
        lambda actor: cast("Any", actor).member in ray.restarting,
    )


@pytest.fixture
def fleet(stand_in: StandIn) -> RayFleet:
    """Return a fleet whose members are ready."""
    made = new_fleet(stand_in)
    stand_in.answers |= {f"ready {member}": f"token {member}" for member in range(6)}
    made.start(assignment())
    return made


def message_of(call: Callable[[], object]) -> str:
    with pytest.raises(ResourceError) as caught:
        call()
    return str(caught.value)


def test_workers_are_counted_without_relays(stand_in: StandIn) -> None:
    stand_in.answers |= {f"ready {member}": "token" for member in (0, 1, 4)}
    text = message_of(lambda: new_fleet(stand_in).start(assignment()))
    assert text == (
        "2 of 4 workers did not start in time, though Ray has room for them; raise "
        "runtime.start_timeout_ms, or see why in Ray's logs"
    )
    stand_in.answers |= {"ready 2": "token", "ready 3": "token"}
    text = message_of(lambda: new_fleet(stand_in).start(assignment()))
    assert text == "relay of host-1 did not start in time; raise runtime.start_timeout_ms"


def test_a_member_that_dies_while_it_starts_is_named(stand_in: StandIn) -> None:
    stand_in.answers |= {f"ready {member}": "token" for member in range(5)}
    stand_in.answers["ready 5"] = ActorUnschedulableError("no such node")
    text = message_of(lambda: new_fleet(stand_in).start(assignment()))
    assert text.startswith("relay of host-1 died while starting: ") and "no such node" in text


def test_a_node_that_is_gone_while_members_start_is_reported(stand_in: StandIn) -> None:
    stand_in.alive["b"] = False
    assert message_of(lambda: new_fleet(stand_in).start(assignment())) == GONE


def test_members_of_a_node_that_is_gone_do_not_come_back(
    stand_in: StandIn, fleet: RayFleet
) -> None:
    fleet.call(3, 0, "run", ())
    stand_in.answers["execute 3"] = ActorUnavailableError("connection lost", b"0" * 16)
    assert isinstance(fleet.next_event(10**9), Died)
    fleet.respawn(3)  # Ray does not know yet that the node is gone
    assert fleet.next_event(10**9) is None
    stand_in.alive["b"] = False
    assert message_of(lambda: fleet.next_event(10**9)) == GONE
    assert message_of(lambda: fleet.respawn(5)) == GONE
    fleet.respawn(0)  # on the other host


@pytest.mark.parametrize(
    "refusal",
    [ActorUnavailableError("restarting", b"0" * 16), ActorUnschedulableError("no such node")],
    ids=["unavailable", "unschedulable"],
)
def test_a_refused_question_is_asked_again_while_the_node_lives(
    refusal: Exception, stand_in: StandIn, fleet: RayFleet
) -> None:
    fleet.respawn(3)
    stand_in.answers["ready 3"] = refusal
    assert fleet.next_event(10**9) is None
    stand_in.answers["ready 3"] = refusal
    del stand_in.alive["b"]  # Ray forgets nodes that are long gone
    assert message_of(lambda: fleet.next_event(10**9)) == GONE.replace("10.0.0.1", "b")


UNAVAILABLE = ActorUnavailableError("restarting", b"0" * 16)


def test_a_member_is_asked_whether_it_is_ready_once_ray_has_restarted_it(
    stand_in: StandIn, fleet: RayFleet
) -> None:
    """Before, Ray would hold the call for up to two seconds, and then refuse it."""
    del stand_in.given["ready 3"]
    stand_in.restarting.add(3)
    fleet.respawn(3)
    assert fleet.next_event(10**9) is None
    assert "ready 3" not in stand_in.given
    stand_in.restarting.clear()
    stand_in.answers["ready 3"] = "next token"
    assert fleet.next_event(10**9) == Respawned(3)
    stand_in.restarting.add(3)
    fleet.respawn(3)
    stand_in.alive["b"] = False
    assert message_of(lambda: fleet.next_event(10**9)) == GONE


def test_a_member_that_restarts_while_a_controller_takes_over_is_waited_for(
    stand_in: StandIn,
) -> None:
    stand_in.answers |= {f"ready {member}": f"token {member}" for member in range(5)}
    stand_in.answers["ready 5"] = [UNAVAILABLE, UNAVAILABLE, "token 5"]
    fleet = new_fleet(stand_in)
    fleet.start(assignment())
    assert fleet._tokens[5] == "token 5"
    stand_in.answers |= {f"ready {member}": f"token {member}" for member in range(5)}
    stand_in.answers["ready 5"] = [UNAVAILABLE] * 1000
    text = message_of(lambda: new_fleet(stand_in).start(assignment()))
    assert text == "relay of host-1 did not start in time; raise runtime.start_timeout_ms"


def test_a_relay_is_asked_for_messages_again_when_its_next_process_answers(
    stand_in: StandIn, fleet: RayFleet
) -> None:
    """It died while no other call was under way, so that nothing reported its death."""
    stand_in.answers["messages 5"] = UNAVAILABLE
    assert fleet.next_event(10**9) is None
    assert "messages 5" not in fleet._pending
    fleet.call(5, 0, "counters", ())
    stand_in.answers["counters 5"] = pickle.dumps(CountersTaken(5, None))
    assert fleet.next_event(10**9) == CountersTaken(5, None)
    assert "messages 5" in fleet._pending


def test_a_worker_is_told_how_many_of_its_messages_were_dealt_with(
    stand_in: StandIn, fleet: RayFleet
) -> None:
    messages = [MemberMessage(3, 0, content) for content in ("one", "two")]
    stand_in.answers["messages 3"] = pickle.dumps((2, messages))
    assert [fleet.next_event(10**9) for _ in messages] == messages
    assert stand_in.given["messages 3"] == (0,)  # the caller deals with the second one now
    assert fleet.next_event(10**9) is None
    assert stand_in.given["messages 3"] == (2,)


def test_messages_are_kept_until_a_controller_has_dealt_with_them() -> None:
    box = MessageOutbox()
    assert box.fetch(0, 0.0) == (0, [])
    first, second = (MemberMessage(3, 0, content) for content in ("one", "two"))
    box.add(first)
    assert box.fetch(0, 0.0) == (1, [first])
    box.add(second)
    assert box.fetch(0, 0.0) == (2, [first, second])  # another controller
    assert box.fetch(1, 0.0) == (2, [second])
    assert box.fetch(2, 0.0) == (2, [])


def test_a_worker_tells_things_unasked_in_an_attempt() -> None:
    told: list[tuple[int, object]] = []
    envelope = seal(assignment())
    worker = cast("Worker", make_member(0, envelope, tell=lambda *given: told.append(given)))
    worker.report(2, "news")
    assert told == [(2, "news")]
    cast("Worker", make_member(0, envelope)).report(2, "nobody hears it")


@pytest.mark.parametrize("step", ["run", "rejoin"])
def test_a_member_that_hangs_in_a_step_is_killed(
    stand_in: StandIn, fleet: RayFleet, step: str
) -> None:
    fleet.call(5, 0, step, ())
    fleet.respawn(5)
    assert stand_in.killed == [5]
