"""The session of epochs leads pretended workers; what it commits has each row once.

A worker's participant numbers its rows. A snapshot holds how far it is; what it has staged since
the last epoch that counts is named with it. Steps of Hypothesis let snapshots fail or come late,
attempts and controllers be lost, commits and manifests fail. In the end all go on to their end.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.api.job_requests import NewJob
from whale_ray.configs.errors import OutputError, UserFunctionError
from whale_ray.configs.settings import Settings
from whale_ray.control import epoch_writer
from whale_ray.control.controller_events import EpochCounted, EpochsFailed, EpochsOver
from whale_ray.control.epoch_progress import EpochProgress
from whale_ray.control.epoch_session import EpochSession, FailureLog
from whale_ray.control.epoch_writer import EpochWriter
from whale_ray.control.fleet import MemberMessage
from whale_ray.metrics.checkpoint_metrics import CheckpointMetrics, CheckpointUnderWay
from whale_ray.operators.sinks.base import CommitId, Staged
from whale_ray.operators.sinks.staged_json import staged_to_json
from whale_ray.plan.assignment import Assignment
from whale_ray.state.epochs import coordinator_events as events
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.coordinator import EpochPhase
from whale_ray.state.epochs.epoch_commands import EpochDurable, EpochForgotten, InjectMarker
from whale_ray.state.epochs.manifest import Manifest, OperatorPart, encode_manifest
from whale_ray.state.epochs.store_names import ManifestName
from whale_ray.transport.clock import SystemClock, VirtualClock

MS = 1_000_000
WORKERS = 2
Row = tuple[int, int]


def assignment(url: str, limit: int | None = None) -> Assignment:
    """Return a job of one stage on two workers, unbounded unless rows have a limit."""
    topology = whale.Topology("rows")
    rows = whale.sources.poisson(1.0, lambda numbers, _: {"v": numbers}, limit=limit)
    source = topology.source(rows, id="rows", parallelism=WORKERS)
    source.sink(whale.sinks.parquet(f"{url}/out"), id="out", parallelism=WORKERS)
    overrides = {
        "checkpoints.url": url,
        "checkpoints.interval_ms": 1000,
        "checkpoints.timeout_ms": 5000,
        "checkpoints.tries_max": 1000 if limit is None else 2,
    }
    settings = Settings().with_overrides(overrides)
    return NewJob.checked(topology.logical_plan(), settings, WORKERS).assignment(settings)


class Table:
    """What sinks have committed, by identity; may fail before or after it has done so."""

    def __init__(self) -> None:
        self.commits: dict[CommitId, list[Row]] = {}
        self.failing = 0
        self.raises: list[Exception] = []

    def commit(self, commit: CommitId, staged: Mapping[str, Sequence[Staged]]) -> None:
        if self.raises:
            raise self.raises.pop()
        self.failing = max(self.failing - 1, 0)
        if self.failing % 2:
            raise OutputError("the table is locked")
        rows = [row for one in staged["out"] for row in rows_of(one)]
        assert self.commits.setdefault(commit, rows) == rows
        if self.failing:
            raise OutputError("the answer was lost")

    @property
    def rows(self) -> list[Row]:
        return sorted(row for rows in self.commits.values() for row in rows)


def rows_of(staged: Staged) -> list[Row]:
    assert staged.path is not None
    first, last = map(int, staged.path.split("-"))
    return [(staged.instance, number) for number in range(first, last)]


class UncertainStore(CheckpointStore):
    """Writes manifests; may fail before it has done so, or behind that, and still do so later."""

    failing = 0
    late: tuple[ManifestName, bytes] | None = None

    def land_late(self) -> None:
        """Write the last manifest for which that has failed."""
        if self.late is not None:
            name, data = self.late
            self._files.put(str(name), data)

    def write_manifest(self, manifest: Manifest) -> str:
        self.failing = max(self.failing - 1, 0)
        if self.failing % 2:
            assert self.claim is not None
            name = ManifestName(self.claim.number, manifest.epoch, manifest.lineage.job)
            self.late = name, encode_manifest(manifest, frozenset(self.manifests()))
            raise OutputError("no space left on device")
        name = super().write_manifest(manifest)
        if self.failing:
            raise OutputError("the connection was reset")
        return name


@dataclass
class Participant:
    """What a worker knows of its rows."""

    worker: int
    done: int = 0
    staged: list[tuple[int, str]] = field(default_factory=list)
    named: int = 0
    behind: int = 0
    ended: bool = False

    def snapshot(self, epoch: int) -> tuple[OperatorPart, ...]:
        if self.done > self.named:
            self.staged.append((epoch, f"{self.named}-{self.done}"))
            self.named = self.done
        names = (Staged(self.worker, 0, path=path) for _, path in self.staged)
        part = OperatorPart(
            "out",
            (self.worker,),
            WORKERS,
            0,
            position={"done": self.done},
            staged=tuple(map(staged_to_json, names)),
        )
        return (part,)


class Job:
    """A session, its store and table, and its workers."""

    def __init__(self, url: str, limit: int | None = None, store: str | None = None) -> None:
        self.clock = VirtualClock()
        self.assignment = assignment(url, limit)
        self.table = Table()
        self.store = UncertainStore(CheckpointStore.at(store or url)._files)
        self.attempt = 0
        self.participants = [Participant(worker) for worker in range(WORKERS)]
        self.answers: list[tuple[int, Any]] = []
        self.told: list[Any] = []
        self.progress: EpochProgress | None = None
        self.session = self.new_session()
        self.session.writer.claim()

    def new_session(self) -> EpochSession:
        writer = EpochWriter(self.assignment, self.store, self.table.commit, self.clock)
        return EpochSession(self.assignment, writer, self.call, self.write_down)

    def write_down(self) -> None:
        self.progress = self.session.progress

    def call(self, worker: int, attempt: int, method: str, arguments: tuple[object, ...]) -> None:
        assert (method, attempt) == ("tell", self.attempt)
        participant, (command,) = self.participants[worker], arguments
        if isinstance(command, EpochDurable):
            participant.staged = [one for one in participant.staged if one[0] > command.epoch]
        elif isinstance(command, InjectMarker) and not participant.ended:
            participant.behind = command.epoch
            name = (0, worker)
            self.answers.append((worker, events.Aligned(name, command.epoch)))
            written = events.SnapshotWritten(
                name, command.epoch, participant.snapshot(command.epoch)
            )
            self.answers.append((worker, written))
        else:
            assert isinstance(command, EpochForgotten | InjectMarker)

    # --- steps ------------------------------------------------------------------------------------

    def work(self, worker: int) -> None:
        if not self.participants[worker].ended:
            self.participants[worker].done += 1

    def answer(self, _: int) -> None:
        if self.answers:
            worker, content = self.answers.pop(0)
            message = MemberMessage(worker, self.attempt, content)
            self.session.take(message, self.clock.monotonic_ns())

    def fail_snapshot(self, _: int) -> None:
        if self.answers and isinstance(self.answers[0][1], events.SnapshotWritten):
            worker, written = self.answers[0]
            failed = events.SnapshotFailed(written.participant, written.epoch, "no space")
            self.answers[0] = (worker, failed)

    def turn(self, ms: int) -> None:
        self.clock.sleep_ns(ms * 400 * MS)
        now_ns = self.clock.monotonic_ns()
        self.session.run(self.attempt, now_ns)
        self.told += self.session.turn(now_ns)

    def fail_commits(self, times: int) -> None:
        self.table.failing = times

    def fail_manifests(self, times: int) -> None:
        self.store.failing = times

    def land_late(self, _: int) -> None:
        self.store.land_late()

    def lose_attempt(self, _: int) -> None:
        self.session.end()
        self.session.writer.recover()
        self.attempt += 1
        self.answers.clear()
        self.restore()

    def restore(self) -> None:
        manifest = self.session.writer.manifest
        done = {} if manifest is None else {p.instances[0]: p.position for p in manifest.parts}
        self.participants = []
        for worker in range(WORKERS):
            at = (done.get(worker) or {"done": 0})["done"]
            self.participants.append(Participant(worker, at, named=at))

    def lose_controller(self, _: int) -> None:
        if self.progress is None:
            return
        self.session = self.new_session()
        self.session.inherit(self.progress, self.attempt)

    def end_in_peace(self) -> None:
        self.fail_commits(0)
        self.fail_manifests(0)
        self.end()

    def end(self) -> None:
        for participant in self.participants:
            if not participant.ended:
                participant.ended = True
                name = (0, participant.worker)
                ended = events.ParticipantEnded(
                    name, participant.behind, participant.snapshot(participant.behind + 1)
                )
                self.answers.append((participant.worker, ended))
        for _ in range(200):
            self.turn(1)
            while self.answers:
                self.answer(0)
            if any(isinstance(one, EpochsOver) for one in self.told):
                return
        raise AssertionError("it does not come to its end")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "work",
                "work",
                "answer",
                "answer",
                "answer",
                "turn",
                "turn",
                "turn",
                "fail_snapshot",
                "fail_commits",
                "fail_manifests",
                "land_late",
                "lose_attempt",
                "lose_controller",
            ]
        ),
        st.integers(0, 1),
    ),
    max_size=60,
)


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_each_row_is_committed_once_whatever_is_lost(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        try:
            for name, given_ in steps:
                argument = given_ + 2 if name in ("fail_commits", "fail_manifests") else given_ + 1
                getattr(job, name)(given_ if name == "work" else argument)
            job.end_in_peace()
        finally:
            job.session.writer.close()
        expected = [
            (participant.worker, n)
            for participant in job.participants
            for n in range(participant.done)
        ]
        assert job.table.rows == expected
        assert not any(isinstance(one, EpochsFailed) for one in job.told)
        assert any(isinstance(one, EpochCounted) for one in job.told)


def test_a_checkpoint_that_fails_is_told_and_the_next_one_counts(caplog: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        job.turn(0)
        job.turn(3)
        job.answer(0)
        job.fail_snapshot(0)
        job.answer(0)
        told = job.session.metrics(job.clock.monotonic_ns())
        assert (told.count, told.failures, told.failure) == (0, 1, "no space")
        assert "checkpoint 1 failed: no space; the job runs on" in caplog.text
        assert told.line() == "LAST CHECKPOINT FAILED (1 in all), no checkpoint yet"
        job.end_in_peace()
        told = job.session.metrics(job.clock.monotonic_ns())
        assert (told.failures, told.failure) == (1, "")
        assert told.count > 0
        job.session.writer.close()


def test_how_far_the_checkpoint_under_way_is_is_told() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)

        def told() -> CheckpointMetrics:
            return job.session.metrics(job.clock.monotonic_ns())

        job.turn(0)
        assert told().under_way is None
        job.turn(3)
        assert told().under_way == CheckpointUnderWay(1, 0, WORKERS, 0)
        job.answer(0)
        job.answer(0)
        job.clock.sleep_ns(700 * MS)
        assert told().under_way == CheckpointUnderWay(1, 1, WORKERS, 700)
        assert told().line() == "no checkpoint yet; 1 under way for 700 ms, 1 of 2 snapshots"
        job.answer(0)
        job.answer(0)
        assert told().under_way == CheckpointUnderWay(1, 2, WORKERS, 700)
        while job.session.writer.manifest is None:
            job.turn(0)
        assert (told().count, told().under_way) == (1, None)
        while told().under_way is None:
            job.turn(1)
        job.lose_attempt(0)
        assert told().under_way is None
        job.session.writer.close()


def test_what_a_users_sink_raises_is_told_with_its_traceback_once(caplog: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        text = 'Traceback (most recent call last):\n  File "mine.py"\nValueError: no room\n'
        job.table.raises = [UserFunctionError("out", 0, text, "3 rows")] * 2
        job.work(0)
        job.end_in_peace()
        told = [one.getMessage() for one in caplog.records if "committed yet" in one.getMessage()]
        assert text.strip() in told[0]
        assert told[1].endswith("cannot be committed yet: ValueError: no room, in operator 'out'")
        job.session.writer.close()


def test_of_checkpoints_that_fail_again_and_again_ever_fewer_are_told(caplog: Any) -> None:
    log = FailureLog()
    for epoch in range(1, 21):
        log.failed(epoch, f"no space for {'ab'[epoch % 2]}-{epoch:06}-{epoch * 0xB5297A4D:08x}")
    log.failed(21, "read-only")
    log.counted(22)
    log.failed(23, "read-only")
    log.counted(24)
    told = [one.getMessage().partition(";")[0] for one in caplog.records]
    assert told == [
        "checkpoint 1 failed: no space for b-000001-b5297a4d",
        "checkpoint 2 failed: no space for a-000002-16a52f49a",
        "checkpoint 4 failed (4 times in a row): no space for a-000004-2d4a5e934",
        "checkpoint 8 failed (8 times in a row): no space for a-000008-5a94bd268",
        "checkpoint 16 failed (16 times in a row): no space for a-000016-b5297a4d0",
        "checkpoint 21 failed: read-only",
        "checkpoint 22 is complete, after 21 that failed",
        "checkpoint 23 failed: read-only",
    ]


def test_a_folder_that_hangs_is_left_behind_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, answers = CheckpointStore.at(str(tmp_path)), threading.Event()
    writer = EpochWriter(assignment(str(tmp_path)), store, lambda *_: None, SystemClock())
    writer.claim()
    assert store.claim is not None
    with monkeypatch.context() as patch:
        patch.setattr(epoch_writer, "_CLOSE_TIMEOUT_S", 0.01)
        patch.setattr(store.claim, "close", lambda: answers.wait() and None)
        with pytest.raises(OutputError, match="the checkpoint folder .* did not answer within 0 s"):
            writer.close()
        answers.set()
    writer.close()


def test_a_job_that_has_ended_does_not_wait_for_a_folder_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        while job.session.writer.manifest is None:
            job.turn(1)
            job.answer(0)
        writer = job.session.writer
        with monkeypatch.context() as patch:
            patch.setattr(epoch_writer, "_CLOSE_TIMEOUT_S", 0.01)
            patch.setattr(job.store, "write_manifest", lambda _manifest: answers.wait())
            patch.setattr(writer, "_clock", SystemClock())
            with pytest.raises(OutputError, match="the checkpoint folder .* did not answer"):
                writer.finish(drained=False)
            answers.set()
        writer.close()


@pytest.mark.parametrize("call", ["newest_name", "read_manifest"])
def test_a_restart_does_not_wait_for_a_folder_that_hangs(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    answers = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        writer = job.session.writer
        while writer.manifest is None:
            job.turn(1)
            job.answer(0)
        with monkeypatch.context() as patch:
            patch.setattr(epoch_writer, "_SETTLE_TIMEOUT_S", 0.01)
            patch.setattr(job.store, call, lambda _asked: answers.wait())
            patch.setattr(writer, "_clock", SystemClock())
            with pytest.raises(OutputError, match="the checkpoint folder .* did not answer"):
                writer.recover()
            answers.set()
        writer.recover()
        writer.close()


def test_of_an_epoch_without_output_sinks_hear_nothing_and_nobody_waits() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        writer = job.session.writer
        job.table.raises = [OutputError("there is nothing to commit")]
        while writer.manifest is None:
            job.turn(1)
            job.answer(0)
        coordinator = job.session._coordinator
        assert coordinator is not None
        assert coordinator.phase is EpochPhase.DURABLE
        assert writer.next_due_ns == job.clock.monotonic_ns()
        job.turn(0)
        assert coordinator.phase is EpochPhase.BEGUN, "the next one is due by then"
        assert len(job.table.raises) == 1
        assert not job.table.commits


def test_what_was_committed_of_an_attempt_that_is_over_is_not_told() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        while job.session.writer.manifest is None:
            job.turn(1)
            job.answer(0)
        job.session.end()
        assert job.session.writer.poll() == []


def test_a_savepoint_is_found_by_who_asked_for_it() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        job.turn(0)
        number = job.session.savepoints.ask()
        assert job.session.savepoints.place_of(number) is None
        assert job.session.savepoints.place_of(number + 1) == ""
        while job.session.savepoints.place_of(number) is None:
            job.turn(0)
            job.answer(0)
        manifest = job.session.writer.manifest
        assert manifest is not None
        assert (manifest.savepoint, manifest.stopped) == (True, False)
        assert job.session.savepoints.place_of(number) == job.session.writer.place
        job.session.writer.close()
