"""A job that goes on from the newest checkpoint takes those that came until it had the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.state.epochs.manifests import small_manifest
from tests.whale_ray.control.test_epoch_session import assignment
from whale_ray.api.checkpoints import CheckpointOptions, find_manifest
from whale_ray.configs.errors import InputError
from whale_ray.control.epoch_writer import EpochWriter
from whale_ray.control.operator_records import operator_records
from whale_ray.plan.assignment import Assignment
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.coordinator_events import WriteManifest
from whale_ray.transport.clock import SystemClock


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def first(url: str) -> CheckpointStore:
    """Return the folder of a job that has written its first epoch."""
    store = CheckpointStore.at(url)
    store.take_claim("job-1", "rows", beats=False)
    write(store, url, 1)
    return store


def write(store: CheckpointStore, url: str, epoch: int, **more: object) -> None:
    """Write an epoch of the topology of `assignment`."""
    operators = operator_records(assignment(url).plan.logical)
    store.write_manifest(
        small_manifest(epoch, topology="rows", operators=operators, parts=(), **more)
    )


def submitted(url: str, restore: str) -> Assignment:
    """Return a job that takes the folder over, as it is when its user submits it."""
    begun = assignment(url)
    settings = begun.settings.with_overrides({"checkpoints.take_over": True})
    return CheckpointOptions(restore=restore).restored(replace(begun, settings=settings))


def begun(job: Assignment, url: str) -> EpochWriter:
    """Let a job take the folder."""
    store = CheckpointStore.at(url)
    writer = EpochWriter(job, store, lambda *_: None, SystemClock())
    try:
        writer.claim()
        writer.recover()
    finally:
        writer.close()
    return writer


def epochs_of(writer: EpochWriter) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return the epoch that a job goes on from, and the restores in its history."""
    assert writer.manifest is not None
    return writer.manifest.epoch, writer._assignment.restored


@pytest.mark.parametrize("restore", ["latest", "FOLDER"])
def test_epochs_that_came_after_it_was_submitted_are_not_taken_again(url, first, restore):
    job = submitted(url, restore.replace("FOLDER", url))
    write(first, url, 2)
    assert epochs_of(begun(job, url)) == (2, (("job-1", 2),))


def test_an_epoch_that_the_user_names_is_the_one(url, first):
    job = submitted(url, f"{url}/{first.newest_name()}")
    write(first, url, 2)
    assert epochs_of(begun(job, url)) == (1, (("job-1", 1),))


def test_a_job_that_ended_meanwhile_is_not_continued(url, first):
    job = submitted(url, "latest")
    write(first, url, 2, finished=True)
    with pytest.raises(InputError, match="ended meanwhile, behind epoch 2 of job 'job-1'"):
        begun(job, url)


def test_a_third_job_that_went_on_meanwhile_is_named_and_keeps_the_folder(url, first):
    job = submitted(url, "latest")
    found = find_manifest("latest", url)
    assert found is not None
    other = CheckpointStore.at(url)
    claim = other.take_claim("job-3", "rows", restore=found[0], take_over=True, beats=False)
    write(other, url, 2, job="job-3")
    with pytest.raises(InputError, match="another job wrote epoch 2 of job 'job-3'"):
        begun(job, url)
    assert claim.holds()


def test_a_successor_of_its_controller_keeps_what_that_one_went_on_from(url, first):
    job = submitted(url, "latest")
    write(first, url, 2)
    before = begun(job, url)
    store = CheckpointStore.at(url)
    store.take_claim(job.job_id, "rows", restore=before.restore_point, beats=False)
    lineage = replace(before.manifest.lineage, job=job.job_id, restored=before._assignment.restored)
    write(store, url, 3, lineage=lineage)
    assert epochs_of(begun(job, url)) == (3, (("job-1", 2),))


@pytest.mark.parametrize(
    ("limit", "ended", "restored", "publisher"),
    [
        (5, True, "", "own"),
        (5, False, "", ""),
        (None, True, "", ""),
        (5, True, "first", "first"),
        (5, False, "first", "first"),
    ],
)
def test_output_is_published_under_the_id_of_the_job_that_first_had_all_of_it(
    url: str, limit: int | None, ended: bool, restored: str, publisher: str
) -> None:
    job = assignment(url, limit)
    store = CheckpointStore.at(url)
    writer = EpochWriter(job, store, lambda *_: None, SystemClock())
    writer.claim()
    if restored:
        writer.manifest = small_manifest(6, publisher=restored)
    writer.write(WriteManifest(7, 6, {}, ended), savepoint=False, stopped=False)
    writer.settle()
    writer.close()
    name = store.newest_name()
    assert name is not None
    wanted = publisher.replace("own", job.job_id)
    assert store.read_manifest(name).publisher == writer.publisher == wanted
