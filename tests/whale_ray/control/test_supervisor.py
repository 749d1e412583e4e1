"""The supervisor in this process: a job ends in order, whatever a sink or a journal does."""

from __future__ import annotations

import pickle
import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any, cast

import pytest

import whale_ray as whale
from whale_ray.api.job_requests import NewJob
from whale_ray.configs.errors import (
    AttemptLostError,
    Interrupted,
    JobError,
    OutputError,
    ResourceError,
    SegmentGoneError,
    UserFunctionError,
    WhaleError,
)
from whale_ray.configs.settings import Settings
from whale_ray.control import sink_publisher
from whale_ray.control.attempt_steps import STEPS
from whale_ray.control.controller import JobPhase
from whale_ray.control.controller_events import Raised, Returned, StopRequested
from whale_ray.control.counter_history import CounterHistory
from whale_ray.control.fleet import (
    CountersTaken,
    MemberMessage,
)
from whale_ray.control.job_states import ALIVE
from whale_ray.control.journal import Entry, Journal
from whale_ray.control.sink_publisher import SinkPublisher
from whale_ray.control.supervisor import Supervisor
from whale_ray.deployment.envelope import seal, unseal
from whale_ray.deployment.local_fleet import LocalFleet
from whale_ray.deployment.member_host import MemberHost, StepThread, pack
from whale_ray.deployment.members import LOCAL_ADDRESS
from whale_ray.deployment.processes.message_socket import MessageSocket
from whale_ray.deployment.processes.process_worker import ProcessWorker
from whale_ray.metrics.counters import MemberCounters
from whale_ray.metrics.job_metrics import summarize
from whale_ray.operators.sinks.base import Sink, SinkResult, Staged
from whale_ray.operators.sinks.collect import CollectSink
from whale_ray.plan.assignment import (
    Assignment,
)
from whale_ray.records.recorder import NoRecorder
from whale_ray.records.sampling import JobEnd, JobView
from whale_ray.transport.clock import SystemClock, VirtualClock
from whale_ray.worker.worker import Worker


class Trouble(CollectSink):
    """Collects, and fails in the method that is passed."""

    def __init__(self, fails_in: str) -> None:
        super().__init__()
        self.fails_in = fails_in
        self.discarded: list[str] = []

    def configured(self, settings: Settings) -> Any:
        return self

    def prepare(self, token: str, *, bounded: bool) -> None:
        if self.fails_in == "prepare":
            raise ValueError("no such bucket")

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        if self.fails_in == "publish":
            raise ValueError("no such bucket")
        return super().publish(token, staged)

    def discard(self, token: str) -> None:
        self.discarded.append(token)
        if self.fails_in == "discard":
            raise ValueError("no such bucket")


class Memory(Journal):
    """Keeps the entries in memory, and may be out of order."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.entries: deque[Entry] = deque(maxlen=100)

    def read(self) -> Entry | None:
        return None

    def write(self, entry: Entry) -> None:
        if self.broken:
            raise KeyError("no such store")
        self.entries.append(entry)

    def erase(self) -> None:
        if self.broken:
            raise KeyError("no such store")


def assignment_of(sink: Sink, function: Any = lambda row: {"v": row.v}) -> Assignment:
    topology = whale.Topology("small")
    rows = whale.sources.iterable([{"v": i} for i in range(10)])
    topology.source(rows, id="rows").map(function, id="same").sink(sink, id="out")
    return NewJob.checked(topology.logical_plan(), Settings(), 1).assignment(Settings())


def supervise(sink: Sink, journal: Journal | None = None) -> Supervisor:
    clock = VirtualClock()
    return Supervisor(assignment_of(sink), LocalFleet(clock), clock, journal)


@pytest.mark.parametrize("where", ["prepare", "publish"])
def test_a_sink_of_the_user_that_raises_is_named_and_what_it_staged_discarded(
    where: str, no_leaks: None
) -> None:
    sink = Trouble(where)
    outcome = supervise(sink).run()
    assert outcome.state == "failed"
    assert isinstance(outcome.error, UserFunctionError)
    assert "ValueError: no such bucket\nin operator 'out'" in str(outcome.error)
    assert len(sink.discarded) == 1
    assert outcome.results == {}


def test_a_sink_that_cannot_discard_does_not_hide_why_the_job_failed(no_leaks: None) -> None:
    sink = Trouble("discard")
    outcome = supervise(sink, Memory(broken=True)).run()
    assert outcome.state == "failed"
    assert isinstance(outcome.error, JobError)
    assert "KeyError: 'no such store'" in str(outcome.error)
    assert len(sink.discarded) == 1


def test_the_end_of_a_job_does_not_wait_for_a_disk_that_hangs(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    sink, answers = Trouble("nowhere"), threading.Event()
    monkeypatch.setattr(Trouble, "discard", lambda *_: answers.wait())
    monkeypatch.setattr(sink_publisher, "_DROP_TIMEOUT_S", 0.01)
    publisher = SinkPublisher(assignment_of(sink), lambda: None)
    publisher.prepare()
    with pytest.raises(OutputError, match="a sink did not answer within 0 s"):
        publisher.drop(0, None, SystemClock())
    answers.set()


def test_collected_rows_are_not_written_into_the_journal(no_leaks: None) -> None:
    journal = Memory()
    outcome = supervise(Trouble("nowhere"), journal).run()
    assert outcome.error is None
    assert outcome.results["out"].rows == 10
    assert len(journal.entries) > 2
    assert all(entry.results == {} for entry in journal.entries)


def test_an_interrupt_while_it_runs_discards_and_goes_on_up(no_leaks: None) -> None:
    def interrupt(row: Any) -> Any:
        raise Interrupted

    class Ends(NoRecorder):
        def end(self, view: JobView, end: JobEnd) -> None:
            ends.append(end.state)

    ends: list[str] = []
    sink, clock = Trouble("nowhere"), VirtualClock()
    job = assignment_of(sink, interrupt)
    supervisor = Supervisor(job, LocalFleet(clock), clock, recorder=Ends())
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert supervisor.state == "cancelled"
    assert ends == ["cancelled"]
    assert len(sink.discarded) == 1


def test_a_stop_waits_for_its_turn_whatever_was_asked_for_before(tmp_path: Path) -> None:
    job = assignment_of(Trouble("nowhere"))
    settings = job.settings.with_overrides({"checkpoints.url": str(tmp_path)})
    clock = VirtualClock()
    supervisor = Supervisor(replace(job, settings=settings), LocalFleet(clock), clock)
    supervisor.stop(drain=False)
    supervisor.stop(drain=True)
    supervisor.stop_with_savepoint()
    supervisor.stop(drain=True)
    asked = [StopRequested(False), StopRequested(True), StopRequested(False, savepoint=True)]
    assert [supervisor._next_event(0) for _ in asked] == asked


def test_a_job_that_is_stopped_before_its_workers_run_drains_once_they_do(no_leaks: None) -> None:
    sink = Trouble("nowhere")
    supervisor = supervise(sink)
    supervisor.stop(drain=True)
    outcome = supervisor.run()
    assert (outcome.state, outcome.error) == ("drained", None)
    assert outcome.results["out"].rows == 0


def test_a_snapshot_that_comes_late_does_not_replace_a_newer_one() -> None:
    history = CounterHistory()
    old, new = (MemberCounters(0, at_ns, 0, ()) for at_ns in (5, 9))
    for each in (new, old):
        history.take(each)
    assert (history.newest, history.previous) == ({0: new}, {})
    last = MemberCounters(0, 9, 1, ())
    history.take(last)
    assert (history.newest, history.previous) == ({0: last}, {})


class Silent(LocalFleet):
    """A worker that does its work and answers no question until it is through."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.asked = 0
        self.turns = 0

    def call(self, member: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "counters":
            self.asked += 1
        else:
            super().call(member, attempt, method, arguments)

    def next_event(self, timeout_ns: int) -> Any:
        if self._pending and self._pending[0][1] == "run" and self.turns < 20:
            self.turns += 1
            self._clock.sleep_ns(timeout_ns)
            if self.turns == 20:
                return CountersTaken(0, None)
            return None
        return super().next_event(timeout_ns)


def test_a_worker_in_this_process_is_heard_before_it_runs_on() -> None:
    clock = VirtualClock()
    fleet = LocalFleet(clock)
    fleet.start(assignment_of(CollectSink()))
    fleet.call(0, 0, "open", ())
    cast(Worker, fleet.host.member).report(0, "news")
    assert fleet.next_event(0) == MemberMessage(0, 0, "news")
    assert isinstance(fleet.next_event(0), Returned)
    fleet.shutdown(0)


def test_a_worker_that_does_not_answer_is_not_asked_again(no_leaks: None) -> None:
    clock = VirtualClock()
    fleet = Silent(clock)
    outcome = Supervisor(assignment_of(Trouble("nowhere")), fleet, clock).run()
    assert outcome.state == "finished"
    assert (fleet.turns, fleet.asked) == (20, 2)
    assert outcome.metrics.operator("out").rows_in == 10


class Watched(LocalFleet):
    """Keeps all counters that it gave."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.taken: deque[MemberCounters] = deque(maxlen=100)

    def next_event(self, timeout_ns: int) -> Any:
        event = super().next_event(timeout_ns)
        if isinstance(event, CountersTaken) and event.counters is not None:
            self.taken.append(event.counters)
        return event


def test_counters_taken_in_this_process_do_not_go_on_counting(no_leaks: None) -> None:
    topology = whale.Topology("paced")
    rows = whale.sources.poisson(100.0, lambda numbers, _: {"v": numbers}, limit=500, seed=1)
    topology.source(rows, id="rows").sink(whale.sinks.collect(), id="out")
    clock = VirtualClock()
    fleet = Watched(clock)
    assignment = NewJob.checked(topology.logical_plan(), Settings(), 1).assignment(Settings())
    assert Supervisor(assignment, fleet, clock).run().state == "finished"
    counts = [sum(one.rows_in for one in taken.instances) for taken in fleet.taken]
    assert len(counts) > 2
    assert counts == sorted(set(counts))
    early, late = fleet.taken[0], fleet.taken[1]
    assert summarize(["rows"], [late], [early]).operator("rows").rate_per_s > 0


class Heard(LocalFleet):
    """Keeps what it was asked for."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.events: deque[Any] = deque(maxlen=100)

    def next_event(self, timeout_ns: int) -> Any:
        event = super().next_event(timeout_ns)
        self.events.append(event)
        return event


def test_once_the_output_is_published_no_event_is_waited_for(no_leaks: None) -> None:
    topology = whale.Topology("short")
    rows = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    clock = VirtualClock()
    fleet = Heard(clock)
    assignment = NewJob.checked(topology.logical_plan(), Settings(), 1).assignment(Settings())
    assert Supervisor(assignment, fleet, clock).run().state == "finished"
    assert isinstance(fleet.events[-1], Returned)
    assert fleet.events[-1].method == "stage"


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        (JobPhase.STARTING, "starting"),
        (JobPhase.RUNNING, "running"),
        (JobPhase.STAGING, "finishing"),
        (JobPhase.PUBLISHING, "finishing"),
        (JobPhase.RESTARTING, "restarting"),
        (JobPhase.ENDING, "ending"),
        (JobPhase.ENDED, "finishing"),
    ],
)
def test_the_state_says_what_the_job_does(phase: JobPhase, state: str) -> None:
    supervisor = supervise(Trouble("nowhere"))
    supervisor._controller.phase = phase
    assert supervisor.state == state
    assert state in ALIVE
    supervisor._controller.handle(StopRequested(drain=True), 0)
    drained = {
        JobPhase.RUNNING: "draining",
        JobPhase.RESTARTING: "finishing",
    }
    assert supervisor.state == drained.get(phase, state)


def explode() -> None:
    raise ValueError("cannot be rebuilt")


class Unpackable:
    def __reduce__(self) -> Any:
        return explode, ()


def test_what_a_worker_cannot_unpack_is_an_error_of_the_job() -> None:
    import cloudpickle

    envelope = seal(assignment_of(Trouble("nowhere")))
    broken = replace(envelope, inside=cloudpickle.dumps(Unpackable()))
    assert unseal(envelope).plan.name == "small"
    with pytest.raises(JobError, match="cannot unpack the topology: ValueError: cannot be rebuilt"):
        unseal(broken)


def test_all_steps_run_in_one_thread_whichever_thread_asks_for_them() -> None:
    steps = StepThread()
    seen = [steps.run(threading.get_ident)]
    asking = threading.Thread(target=lambda: seen.append(steps.run(threading.get_ident)))
    asking.start()
    asking.join()
    assert seen[0] == seen[1] != threading.get_ident()

    def fail() -> None:
        raise ResourceError("no room")

    with pytest.raises(ResourceError, match="no room"):
        steps.run(fail)


def test_returned_events_of_the_run_carry_the_final_counters(no_leaks: None) -> None:
    supervisor = supervise(Trouble("nowhere"))
    supervisor._keep_final(Returned(0, 7, "run", MemberCounters(0, 5, 0, ())))
    assert supervisor._counters.newest == {}  # of another attempt
    supervisor.stop(True)
    supervisor.stop(True)
    supervisor.stop(False)
    assert len(supervisor._commands) == 2
    assert supervisor.run().state == "cancelled"


@pytest.mark.parametrize("step", STEPS)
def test_memory_that_is_gone_at_any_step_means_that_its_worker_died(step: str) -> None:
    def attach(attempt: int) -> None:
        raise SegmentGoneError("segment 'ring' is gone")

    host = host_of(SimpleNamespace(attempt=0, **dict.fromkeys(STEPS, attach)))
    event = host.execute(0, step, ())
    assert isinstance(event, Raised)
    assert (type(event.error), str(event.error)) == (AttemptLostError, "segment 'ring' is gone")


def host_of(worker: Any) -> MemberHost:
    fleet = LocalFleet(VirtualClock())
    fleet.start(assignment_of(Trouble("nowhere")))
    fleet.host.member = worker
    return fleet.host


class LockedError(WhaleError):
    """Keeps what no pickle takes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("event", "done"),
    [
        (Returned(1, 2, "stage", {"out": [threading.Lock()]}), "returned"),
        (Raised(1, 2, "stage", LockedError("no such bucket")), "raised (no such bucket)"),
    ],
)
def test_an_event_that_cannot_be_sent_becomes_an_error_of_its_step(event: Any, done: str) -> None:
    sent = pickle.loads(pack(event))
    assert (sent.member, sent.attempt, sent.method) == (1, 2, "stage")
    assert str(sent.error) == (
        f"what worker 1 {done} at step 'stage' cannot be sent to the controller: TypeError: cannot "
        "pickle '_thread.lock' object; a sink's receipts and errors must be picklable"
    )


def test_what_is_printed_amid_a_message_is_sent_behind_it() -> None:
    """Signal handlers and finalizers run wherever they want, in a send too."""
    sent: list[Any] = []

    class Interrupted:
        def send(self, data: bytes) -> None:
            if not sent:
                sent.append(None)
                worker._send(["printed"])
            sent.append(pickle.loads(data))

    worker = ProcessWorker(cast(MessageSocket, Interrupted()), 0, LOCAL_ADDRESS)
    thread = threading.Thread(target=worker._send, args=("result",), daemon=True)
    thread.start()
    thread.join(60)
    assert sent == [None, "result", ["printed"]]


def test_a_control_thread_that_breaks_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = map(MessageSocket, socket.socketpair())
    worker = ProcessWorker(theirs, 0, LOCAL_ADDRESS)
    left: list[str] = []
    monkeypatch.setattr(worker, "_leave", lambda: left.append("left"))
    with closing(ours), closing(theirs):
        ours.send(b"no pickle")
        with pytest.raises(UnpicklingError):
            worker._listen()
        assert left == ["left"]
        ours.send(pickle.dumps((0, "counters", ())))
        ours.send(pickle.dumps((0, "open", ())))
        ours.close()
        worker._listen()
    assert worker._calls.get_nowait() == (0, "open", ())
    assert left == ["left", "left"]
