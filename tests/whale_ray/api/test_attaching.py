"""A second driver and a job on Ray, without Ray: what it is told, and what it leaves alone."""

from __future__ import annotations

import pickle
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

import whale_ray as whale
from whale_ray.api import attaching, ray_submission
from whale_ray.api.job import Job
from whale_ray.api.ray_submission import DetachedRunner
from whale_ray.cli.main import main
from whale_ray.control.outcome import JobOutcome
from whale_ray.deployment.on_ray import ray_jobs, ray_output
from whale_ray.deployment.on_ray.followers import Followers
from whale_ray.deployment.on_ray.ray_jobs import RunningJob
from whale_ray.metrics.job_metrics import JobMetrics
from whale_ray.ray_bridge import session as ray_session
from whale_ray.transport.clock import VirtualClock
from whale_ray.ui import run_reader

FINISHED = JobOutcome("finished", {}, JobMetrics((), 0.0, 0), 1.0, 0, 1)
TRACEBACK = """Traceback (most recent call last):
  File "disks.py", line 3, in bad
    raise OSError("no disk")
OSError: no disk
in operator 'keep'"""
RUNS = [
    {"id": "rides-2", "name": "rides", "state": "failed", "error": "no disk", "alive": False},
    {"id": "cabs-1", "name": "cabs", "state": "failed", "error": TRACEBACK, "alive": False},
    {"id": "bids-1", "name": "bids", "state": "finished", "error": "", "alive": False},
    {"id": "rides-1", "name": "rides", "state": "finished", "error": "", "alive": False},
]


class Controller:
    """Answers what is asked of a job's controller, in turn, and notes the calls."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*_arguments: Any) -> Any:
            self.called.append(name)
            return self.outcomes.pop(0) if name == "outcome" else name

        method = SimpleNamespace(remote=remote)
        method.options = lambda **_: method
        return method


def answer(call: Any, timeout: float = 0.0) -> Any:
    if isinstance(call, Exception):
        raise call
    return call


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for Ray, and for what this machine has kept of runs."""
    monkeypatch.setattr(ray_submission.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_submission.ray, "get", answer)
    monkeypatch.setattr(ray_submission.ray, "wait", lambda calls, timeout: (calls, []))
    reader = SimpleNamespace(jobs=lambda: RUNS)
    monkeypatch.setattr(run_reader, "RunReader", lambda *_: reader)


def followed(controller: Controller, closed: list[str], name: str = "rides-3") -> Job:
    session: Any = SimpleNamespace(close=lambda: closed.append(name), dashboard_url="")
    runner: Any = DetachedRunner(name, controller, session)
    return Job(name, name.partition("-")[0], runner)


def test_a_follower_waits_for_the_outcome_and_tells_that_it_has_it() -> None:
    controller = Controller(None, pickle.dumps(FINISHED))
    closed: list[str] = []
    assert followed(controller, closed).wait().state == "finished"
    assert controller.called == ["outcome", "outcome", "has_outcome"]
    assert closed == ["rides-3"]


def test_stop_asks_a_detached_job_and_waits_for_its_end() -> None:
    controller = Controller(pickle.dumps(FINISHED))
    assert followed(controller, []).stop().state == "finished"
    assert controller.called == ["stop", "outcome", "has_outcome"]


@pytest.mark.parametrize(
    ("job_id", "said"),
    [
        ("rides-2", "job 'rides-2' has ended (failed): no disk, before this process asked"),
        ("rides-9", "job 'rides-9' has ended, before this process asked"),
    ],
)
def test_a_job_that_ended_before_is_told_with_what_is_known(job_id: str, said: str) -> None:
    with pytest.raises(whale.errors.UsageError) as refused:
        followed(Controller(ActorDiedError()), [], job_id).wait()
    assert str(refused.value) == f"{said}; its output is where its sinks publish"


class Interrupting(Controller):
    """Sends its asker a signal before each answer."""

    def __getattr__(self, name: str) -> Any:
        if name == "outcome":
            signal.raise_signal(signal.SIGINT)
        return super().__getattr__(name)


def test_a_signal_ends_the_waiting_and_not_the_job() -> None:
    controller = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        followed(controller, []).wait()
    assert controller.called == []


def attached(monkeypatch: pytest.MonkeyPatch, running: list[RunningJob], named: str) -> Job:
    closed: list[str] = []
    session = SimpleNamespace(close=lambda: closed.append("session"), dashboard_url="")
    monkeypatch.setattr(ray_session, "connect_ray", lambda address: session)
    monkeypatch.setattr(ray_jobs, "list_jobs", lambda address: running)
    monkeypatch.setattr(
        ray_jobs, "controller_of", lambda job_id: None if job_id == "gone-1" else Controller()
    )
    monkeypatch.setattr(ray_output, "logs_place", lambda: "")
    try:
        return attaching.attach(named)
    except whale.errors.UsageError:
        assert closed == ["session"]
        raise


@pytest.mark.parametrize("named", ["rides", "rides-3"])
def test_a_running_job_is_found_by_its_name_and_its_id(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = attached(monkeypatch, [RunningJob("rides-3", "rides", "running")], named)
    monkeypatch.setattr(ray_submission.ray, "is_initialized", lambda: False)  # none answers
    assert (job.id, job.name, job.metrics().operators) == ("rides-3", "rides", ())


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("trips", "there is no job 'trips'; running: gone-1, twice-1, twice-2"),
        ("twice", "several jobs are named 'twice'; pass an id: twice-1, twice-2"),
        ("rides", "job 'rides-2' has ended (failed): no disk"),
        ("bids-1", "job 'bids-1' has ended (finished)"),
        ("cabs", "job 'cabs-1' has ended (failed): OSError: no disk, in operator 'keep'"),
        ("gone", "job 'gone-1' has just ended"),
    ],
)
def test_a_job_that_cannot_be_followed_is_said_in_one_line(
    named: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [
        RunningJob(f"{one}", one[:-2], "running") for one in ("gone-1", "twice-1", "twice-2")
    ]
    with pytest.raises(whale.errors.UsageError) as refused:
        attached(monkeypatch, running, named)
    assert str(refused.value) == said


@pytest.mark.parametrize("command", ["stop", "savepoint"])
def test_commands_for_a_job_that_has_ended_say_how(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_jobs, "list_jobs", lambda address: [])
    assert main([command, "rides"]) == 2
    assert capsys.readouterr().err == "whale-ray: job 'rides-2' has ended (failed): no disk\n"


def test_a_controller_stays_for_those_who_asked_lately() -> None:
    clock = VirtualClock()
    followers = Followers(clock)
    followers.wait()  # nobody asked
    followers.ask("dead")
    clock.advance(4_000_000_000)
    followers.ask("alive")
    staying = threading.Thread(target=followers.wait)
    staying.start()
    clock.advance(2_000_000_000)
    followers.leave("dead")
    staying.join(0)
    assert staying.is_alive(), "one has not got the outcome"
    followers.leave("alive")
    staying.join()
    followers.ask("dead")
    clock.advance(5_000_000_000)
    followers.wait()


def test_a_process_that_has_left_ray_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of an actor would start another Ray."""
    monkeypatch.setattr(ray_submission.ray, "is_initialized", lambda: False)
    controller = Controller()
    job = followed(controller, [])
    for ask in (job.wait, job.stop, job.savepoint, lambda: job.state):
        with pytest.raises(whale.errors.UsageError, match=r"has left Ray \(ray.shutdown"):
            ask()
    assert not controller.called
