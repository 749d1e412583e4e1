"""What a controller's successor and a later attempt know of the epochs before, and what not."""

from __future__ import annotations

import tempfile

import pytest

from tests.whale_ray.control.test_epoch_session import WORKERS, Job, Row, rows_of
from whale_ray.configs.errors import OutputError
from whale_ray.control.epoch_progress import EpochProgress
from whale_ray.control.fleet import MemberMessage
from whale_ray.state.epochs import coordinator_events as events


def test_who_has_ended_is_written_down_whole_and_for_its_attempt_alone() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        job.turn(0)
        for worker, participant in enumerate(job.participants):
            ended = events.ParticipantEnded((0, worker), 0, participant.snapshot(1))
            job.session.take(MemberMessage(worker, 0, ended), 0)
        written: list[EpochProgress] = []
        vars(job)["write_down"] = lambda: written.append(job.session.progress)
        job.lose_controller(0)
        job.turn(0)
        assert [len(progress.ended) for progress in written] == [WORKERS] * len(written)
        assert written, "the successor may fail at any of them"
        job.session.end()
        assert not job.session.progress.ended, "and may fail before the next attempt runs"
        job.session.writer.close()


def test_what_a_bounded_job_publishes_without_a_manifest_outlives_its_controller_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_manifest(*_: object) -> str:
        raise OutputError("no space left on device")

    def published() -> list[Row]:
        staged = job.session.writer.staged().get("out", [])
        return sorted(row for one in staged for row in rows_of(one))

    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, limit=10)
        monkeypatch.setattr(job.store, "write_manifest", write_manifest)
        job.turn(0)
        for worker in range(WORKERS):
            job.work(worker)
        job.end()
        everything = [(worker, 0) for worker in range(WORKERS)]
        assert published() == everything
        job.session.end()
        job.write_down()
        for _ in range(2):  # the successor may fail as well
            job.lose_controller(0)
            assert published() == everything
            job.write_down()
        job.lose_attempt(0)  # another one stages all of it again
        assert published() == []
        job.lose_controller(0)  # it was written down before its attempt was over
        assert published() == []
        job.session.writer.close()


def test_a_manifest_that_comes_late_does_not_count_for_the_attempt_after_the_next() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, store=f"memory://{folder}")
        job.fail_manifests(3)  # that of epoch 1 is there, but nobody knows; that of 2 comes late
        while job.store.late is None:
            job.work(0)
            job.turn(1)
            while job.answers:
                job.answer(0)
        job.lose_attempt(0)
        assert job.session.writer.manifest is not None
        assert job.session.writer.manifest.epoch == 1
        job.turn(0)  # what it lists is committed
        job.session.writer.settle()
        job.turn(0)
        assert job.table.rows
        job.land_late(0)
        job.lose_attempt(0)
        assert job.session.writer.manifest.epoch == 1
        job.end_in_peace()
        job.session.writer.close()
        assert job.table.rows == [(0, n) for n in range(job.participants[0].done)]
