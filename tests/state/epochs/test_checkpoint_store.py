"""The store of checkpoints, in a local directory and at a URL: what is written, kept and refused.

The URL is of fsspec's memory, an object store without a network; `test_store_on_s3.py` has one.
"""

import logging
import shutil
from dataclasses import replace

import fsspec
import pytest

from tests.state.epochs.manifests import small_manifest
from whale_ray.errors import DamagedCheckpointError, InputError
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.epoch_commands import RestorePoint
from whale_ray.state.epochs.local_files import LocalFiles
from whale_ray.state.epochs.manifest import MANIFEST_VERSION, chunk_files, encode_manifest
from whale_ray.state.epochs.sealed_json import seal
from whale_ray.state.epochs.store_files import files_at
from whale_ray.state.epochs.store_names import (
    ChunkName,
    ManifestName,
    chunk_name,
    manifest_names,
)


@pytest.fixture(params=["directory", "url"])
def url(request, tmp_path):
    if request.param == "directory":
        yield str(tmp_path / "deep" / "store")
    else:
        yield f"memory://{tmp_path.name}/store"
        fsspec.filesystem("memory").store.clear()


@pytest.fixture
def claimed():
    """Return a function that takes a folder for a job; claims are given back at the end."""
    claims = []

    def take(url, job="job-1", **more):
        store = CheckpointStore.at(url)
        claims.append(store.take_claim(job, "auction", **more))
        return store

    yield take
    for claim in claims:
        claim.close()


def going_on(store):
    """Return what a user names to go on from the newest epoch."""
    return RestorePoint(store.url, store.newest_name(), store.newest().epoch)


def write_epoch(store, epoch, *older, job="job-1", **more):
    """Write an epoch with one chunk file of its own, and older ones; return name and chunk."""
    chunk = store.write_chunk(chunk_name(job, epoch, "count-0"), b"rows of %d" % epoch)
    name = store.write_manifest(small_manifest(epoch, *older, chunk, job=job, **more))
    return name, chunk


def chunks_of(url):
    return set(files_at(url).names("chunks"))


def cut(url, name, by=1):
    files = files_at(url)
    files.put(name, files.get(name)[:-by])


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["a", "über/..", "1-2-3", ".", "a b%2F"])
def test_names_say_what_they_were_made_of(job):
    name = ManifestName(3, 17, job)
    assert ManifestName.of(str(name)) == name
    chunk = ChunkName.of(chunk_name(job, 5, "stage 1/2"))
    assert chunk == ChunkName(job, 5, "stage 1/2")
    assert chunk_name(job, 5, "x").count("/") == 3


def test_the_order_of_names_is_that_of_time():
    names = [str(ManifestName(c, e, "j")) for c, e in [(1, 999_999_999_999), (2, 3), (2, 20)]]
    assert [str(name) for name in manifest_names(reversed(names))] == names
    assert manifest_names(["manifests/x", "chunks/a/000000000001/b", "newest/000001"]) == []


# --- chunks ---------------------------------------------------------------------------------------


def test_chunks_are_read_as_they_were_written(url):
    store = CheckpointStore.at(url)
    for data in (b"", b"x", bytes(range(256)) * 5_000):
        file = store.write_chunk(chunk_name("job", 1, "a"), data)
        assert file.nbytes == len(data)
        assert CheckpointStore.at(url).read_chunk(file) == data


def test_a_name_that_is_used_twice_does_not_replace_a_chunk(url):
    store = CheckpointStore.at(url)
    first = store.write_chunk(chunk_name("job", 1, "a"), b"one")
    second = store.write_chunk(chunk_name("job", 1, "a"), b"two")
    assert (store.read_chunk(first), store.read_chunk(second)) == (b"one", b"two")


def test_a_missing_or_changed_chunk_is_refused_by_name(url):
    store = CheckpointStore.at(url)
    file = store.write_chunk(chunk_name("job", 1, "a"), b"abc")
    cut(url, file.name)
    with pytest.raises(DamagedCheckpointError, match=rf"^{file.name} .* 2 bytes instead of 3; res"):
        store.read_chunk(file)
    files_at(url).put(file.name, b"abd")
    with pytest.raises(DamagedCheckpointError, match="has other bytes than were written; restore"):
        store.read_chunk(file)
    files_at(url).remove(file.name)
    with pytest.raises(DamagedCheckpointError, match=f"lacks {file.name}; restore from another"):
        store.read_chunk(file)


def test_a_chunk_has_a_chunks_name(tmp_path):
    with pytest.raises(ValueError, match="not the name of a chunk"):
        CheckpointStore.at(str(tmp_path)).write_chunk("../elsewhere", b"")


# --- manifests ------------------------------------------------------------------------------------


def test_an_empty_or_missing_folder_has_no_manifests(url, claimed):
    store = claimed(url)
    assert store.manifests() == []
    assert store.newest() is None


def test_the_newest_manifest_is_the_last_that_was_written(url, claimed):
    store = claimed(url)
    names = [write_epoch(store, epoch)[0] for epoch in (1, 2, 10)]
    again = CheckpointStore.at(url)
    assert again.manifests() == names
    assert again.newest() == store.read_manifest(names[-1])
    assert again.newest().epoch == 10
    assert again.newest("job-2") is None


def test_a_manifest_that_was_never_finished_is_passed_over_and_told(url, claimed, caplog):
    store = claimed(url)
    write_epoch(store, 1)
    torn = str(ManifestName(1, 2, "job-1"))
    files_at(url).put(torn, b'{"whale-ray": "mani')
    with caplog.at_level(logging.WARNING):
        assert CheckpointStore.at(url).newest().epoch == 1
    assert torn in caplog.text and "never finished" in caplog.text
    write_epoch(store, 3)
    assert CheckpointStore.at(url).newest().epoch == 3


def test_a_whole_manifest_counts_even_if_nothing_names_it(url, claimed):
    store = claimed(url)
    name, _ = write_epoch(store, 1)
    later = str(ManifestName(1, 2, "job-1"))
    files_at(url).put(later, files_at(url).get(name))
    assert CheckpointStore.at(url).newest_name() == later


@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_manifest_that_was_durable_is_never_passed_over(url, claimed, harm):
    store = claimed(url)
    write_epoch(store, 1)
    name, _ = write_epoch(store, 2)
    if harm == "cut":
        cut(url, name)
    else:
        files_at(url).remove(name)
    with pytest.raises(DamagedCheckpointError, match=rf"{name}.*was whole once.*whale-ray state"):
        CheckpointStore.at(url).newest()


def test_a_newer_version_is_never_passed_over(url, claimed):
    store = claimed(url)
    write_epoch(store, 1)
    files_at(url).put(str(ManifestName(1, 2, "j")), seal("manifest", MANIFEST_VERSION + 1, {}))
    with pytest.raises(InputError, match="newer whale-ray"):
        CheckpointStore.at(url).newest()


def test_a_store_can_be_moved_and_copied(tmp_path, claimed):
    store = claimed(str(tmp_path / "a"))
    name, chunk = write_epoch(store, 1, savepoint=True)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    copy = CheckpointStore.at(f"file://{tmp_path}/b")
    assert copy.newest() == copy.read_manifest(name)
    assert copy.read_chunk(chunk) == b"rows of 1"


def test_manifests_and_chunks_alone_are_a_store(tmp_path, claimed):
    write_epoch(claimed(str(tmp_path / "a")), 1)
    for folder in ("manifests", "chunks"):
        shutil.copytree(tmp_path / "a" / folder, tmp_path / "b" / folder)
    assert CheckpointStore.at(str(tmp_path / "b")).newest().epoch == 1


def test_an_epoch_of_another_folder_is_copied_once(tmp_path, url, claimed):
    first = claimed(str(tmp_path / "first"))
    _, kept = write_epoch(first, 1)
    name, chunk = write_epoch(first, 2, kept, savepoint=True)
    point = RestorePoint(first.url, name, 2)
    assert first.adopt(point) == name
    second = claimed(url, "job-2", restore=point)
    copy = second.adopt(point)
    shutil.rmtree(tmp_path / "first")
    assert second.adopt(point) == copy
    assert second.read_manifest(copy) == small_manifest(2, kept, chunk)
    assert [second.read_chunk(file) for file in (kept, chunk)] == [b"rows of 1", b"rows of 2"]
    second.claim.close()
    again = claimed(url, "job-2", restore=point)
    again.remove_unlisted(1, [copy])
    assert again.read_chunk(chunk)
    write_epoch(again, 3, job="job-2")
    again.remove_unlisted(1)
    assert not chunks_of(url) & {kept.name, chunk.name}


# --- what nobody needs ----------------------------------------------------------------------------


def test_what_jobs_were_submitted_as_goes_with_their_last_checkpoint(url, claimed):
    first = claimed(url)
    for job in ("job-1", "refused"):
        first.jobs.write(job, b"a topology")
    write_epoch(first, 1)
    first.claim.close()
    first.jobs.write("job-2", b"a topology")
    again = claimed(url, "job-2", restore=going_on(first))
    again.jobs.write("job-3", b"submitted behind that claim, and may take over")
    for epoch, left in ((2, {"job-1", "job-2", "job-3"}), (3, {"job-2", "job-3"})):
        write_epoch(again, epoch, job="job-2")
        again.remove_unlisted(2)
        assert {name.partition("/")[2] for name in files_at(url).names("jobs")} == left


def test_the_newest_epochs_stay_with_every_chunk_that_they_list(url, claimed):
    store = claimed(url)
    _, first = write_epoch(store, 1)
    _, second = write_epoch(store, 2, first)
    third_name, third = write_epoch(store, 3, first)
    fourth_name, fourth = write_epoch(store, 4, first, third)
    assert store.remove_unlisted(2) == 3
    assert store.manifests() == [third_name, fourth_name]
    assert chunks_of(url) == {first.name, third.name, fourth.name}
    assert second.name not in chunks_of(url)
    assert store.remove_unlisted(2) == 0


def test_a_newest_manifest_that_is_written_again_needs_no_other_note(tmp_path, claimed):
    store = claimed(str(tmp_path))
    name, _ = write_epoch(store, 1)
    note = tmp_path / "newest" / "000001"
    before = note.stat().st_ino
    assert store.write_manifest(replace(store.read_manifest(name), finished=True)) == name
    assert note.stat().st_ino == before
    assert CheckpointStore.at(str(tmp_path)).newest().finished
    later, _ = write_epoch(store, 2)
    assert note.stat().st_ino != before
    assert store.newest_name() == later


def test_behind_many_epochs_all_goes_that_none_lists(url, claimed):
    """Although not every folder is walked through at each of them."""
    store = claimed(url)
    out = []
    for epoch in range(1, 21):
        _, own = write_epoch(store, epoch, *out)
        store.remove_unlisted(1)
        assert chunks_of(url) == {chunk.name for chunk in (*out, own)}
        out += [own] * (epoch % 2)
    late = store.write_chunk(chunk_name("job-1", 7, "late"), b"of an epoch that is over")
    for epoch in range(21, 24):
        write_epoch(store, epoch, *out)
        store.remove_unlisted(1)
    assert late.name not in chunks_of(url)


def test_a_manifest_that_a_killed_job_has_begun_goes_once_another_has_its_own(tmp_path, claimed):
    store = claimed(str(tmp_path))
    write_epoch(store, 1)
    begun = tmp_path / "manifests" / "000001-000000000002-job-1.77-deadbeef.open"
    begun.write_bytes(b"half of")
    store.remove_unlisted(1)
    assert begun.exists(), "the job that has the claim may be writing it"
    store.claim.close()
    again = claimed(str(tmp_path), "job-2", restore=going_on(store))
    again.remove_unlisted(1)
    assert begun.exists()
    write_epoch(again, 3, job="job-2")
    again.remove_unlisted(1)
    assert not begun.exists()


def test_what_a_killed_worker_has_begun_goes_with_the_files_of_its_epoch(tmp_path, claimed):
    """Its name may not be given any more then: who still writes it is told that it is gone."""
    store = claimed(str(tmp_path))
    names = [chunk_name("job-1", epoch, "killed") for epoch in (1, 2)]
    begun = [tmp_path / f"{name}-1a2b3c4d.77-deadbeef.open" for name in names]
    for path in begun:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half of")
    write_epoch(store, 1)
    assert store.remove_unlisted(1) == 1
    assert [path.exists() for path in begun] == [False, True]
    write_epoch(store, 2)
    store.remove_unlisted(1)
    assert not begun[1].exists()


def test_savepoints_stay(url, claimed):
    store = claimed(url)
    saved, chunk = write_epoch(store, 1, savepoint=True)
    names = [write_epoch(store, epoch)[0] for epoch in range(2, 6)]
    store.remove_unlisted(1)
    assert store.manifests() == [saved, names[-1]]
    assert store.read_chunk(chunk) == b"rows of 1"


def test_what_a_job_was_restored_from_stays_while_it_is_needed(url, claimed):
    store = claimed(url)
    name, chunk = write_epoch(store, 1)
    write_epoch(store, 2)
    write_epoch(store, 3)
    store.remove_unlisted(1, needed=[name])
    assert store.read_chunk(chunk)
    store.remove_unlisted(1)
    assert chunk.name not in chunks_of(url)


def test_chunks_of_the_epoch_under_way_stay(url, claimed):
    store = claimed(url)
    write_epoch(store, 1)
    forgotten = store.write_chunk(chunk_name("job-1", 2, "count-0"), b"of an epoch that failed")
    young = store.write_chunk(chunk_name("job-1", 3, "count-0"), b"of the epoch under way")
    assert store.remove_unlisted(1) == 0
    store.write_manifest(small_manifest(3, young))
    store.remove_unlisted(1)
    assert chunks_of(url) == {young.name}
    assert forgotten.name not in chunks_of(url)


def test_an_earlier_jobs_chunks_go_once_the_present_one_has_a_manifest(url, claimed):
    store = claimed(url)
    _, kept = write_epoch(store, 1)
    stray = store.write_chunk(chunk_name("job-1", 2, "a"), b"its manifest may not be seen")
    store.remove_unlisted(1)
    assert stray.name in chunks_of(url)
    store.claim.close()
    store = claimed(url, "job-2", restore=going_on(store))
    store.remove_unlisted(1)
    assert stray.name in chunks_of(url)
    _, own = write_epoch(store, 2, kept, job="job-2")
    store.remove_unlisted(1)
    assert chunks_of(url) == {kept.name, own.name}


def test_a_manifest_of_a_forgotten_epoch_goes_once_a_later_one_counts(url, claimed):
    store = claimed(url)
    write_epoch(store, 1)
    chunk = store.write_chunk(chunk_name("job-1", 2, "a"), b"")
    turned_up = str(ManifestName(1, 2, "job-1"))
    files_at(url).put(turned_up, encode_manifest(small_manifest(2, chunk)))
    store.remove_unlisted(1)
    assert turned_up in store.manifests() and chunk.name in chunks_of(url)
    last, _ = write_epoch(store, 3)
    store.remove_unlisted(5)
    assert turned_up not in store.manifests() and last in store.manifests()


def test_nothing_goes_while_a_manifest_that_stays_cannot_be_read(url, claimed):
    store = claimed(url)
    saved, _ = write_epoch(store, 1, savepoint=True)
    for epoch in range(2, 6):
        write_epoch(store, epoch)
    before = set(files_at(url).names("chunks"))
    cut(url, saved)
    point = going_on(store)
    store.claim.close()
    fresh = claimed(url, "job-2", restore=point)
    with pytest.raises(DamagedCheckpointError):
        fresh.remove_unlisted(1)
    assert chunks_of(url) == before


def test_what_a_job_has_written_itself_is_not_read_again(url, claimed):
    """What its manifests list stays known, whatever has become of them."""
    store = claimed(url)
    saved, chunk = write_epoch(store, 1, savepoint=True)
    newest = [write_epoch(store, epoch)[1] for epoch in range(2, 6)][-1]
    cut(url, saved)
    store.remove_unlisted(1)
    assert chunks_of(url) == {chunk.name, newest.name}


def test_files_of_others_stay(url, claimed):
    store = claimed(url)
    write_epoch(store, 1)
    files_at(url).put("chunks/notes.txt", b"mine")
    files_at(url).put("README", b"mine")
    write_epoch(store, 2)
    store.remove_unlisted(1)
    assert files_at(url).get("chunks/notes.txt") == files_at(url).get("README") == b"mine"


def test_a_listing_that_is_out_of_date_hides_nothing_that_is_durable(
    tmp_path, claimed, monkeypatch
):
    store = claimed(str(tmp_path))
    saved, chunk = write_epoch(store, 1, savepoint=True)
    old = [write_epoch(store, epoch) for epoch in (2, 3)]
    last, _ = write_epoch(store, 4)
    listing = LocalFiles.names

    def names(files, folder):
        return [name for name in listing(files, folder) if name not in (saved, last)]

    monkeypatch.setattr(LocalFiles, "names", names)
    point = going_on(store)
    store.claim.close()
    fresh = claimed(str(tmp_path), "job-2", restore=point)
    assert fresh.newest_name() == last
    assert fresh.manifests() == [saved, *(name for name, _ in old), last]
    fresh.remove_unlisted(1)
    assert fresh.read_chunk(chunk) == b"rows of 1"
    assert all(fresh.read_chunk(file) for file in newest_chunks(fresh))


def newest_chunks(store):
    manifest = store.newest()
    assert chunk_files(manifest)
    return [chunk for part in manifest.parts for chunk in part.chunks]
