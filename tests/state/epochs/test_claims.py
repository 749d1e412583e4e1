"""One job at a time writes into a folder of checkpoints: who is refused, and who is fenced."""

import fcntl
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import fsspec
import pytest

from tests.state.epochs.manifests import small_manifest
from whale_ray.errors import ClaimLostError, DamagedCheckpointError, InputError, OutputError
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.claim import Claim, check_not_in_use
from whale_ray.state.epochs.claim_rules import (
    BEAT_MS,
    EXPIRY_MS,
    ClaimRecord,
    LockState,
    refusal_of_claim,
    refusal_of_folder,
)
from whale_ray.state.epochs.epoch_commands import RestorePoint
from whale_ray.state.epochs.store_files import files_at
from whale_ray.state.epochs.store_names import claim_name
from whale_ray.transport.clock import VirtualClock

MS = 1_000_000
NOW_MS = 1_800_000_000_000
HELD = ClaimRecord(4, "auction-12", "auction", "anna", 77, NOW_MS, NOW_MS, locks=True)


@pytest.fixture
def claims():
    """Return a list; all claims that a test puts into it are given back at its end."""
    taken = []
    yield taken
    for claim in taken:
        claim.close()


@pytest.fixture(params=["directory", "url"])
def url(request, tmp_path):
    if request.param == "directory":
        yield str(tmp_path / "store")
    else:
        yield f"memory://{tmp_path.name}/claims"
        fsspec.filesystem("memory").store.clear()


def take(claims, url, job, clock=None, **more):
    store = CheckpointStore.at(url)
    claims.append(store.take_claim(job, "auction", clock=clock, **more))
    return store


def last_point(store):
    return RestorePoint(store.url, store.newest_name(), store.newest().epoch)


# --- the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lock", "locks", "host", "later_ms", "free"),
    [
        (LockState.OTHERS, True, "anna", 10 * EXPIRY_MS, False),
        (LockState.OURS, True, "anna", 0, True),
        (LockState.OURS, True, "berta", 0, False),  # locks may not reach other hosts
        (LockState.OURS, False, "anna", 0, False),  # it has taken over, and never had the lock
        (LockState.NONE, False, "anna", EXPIRY_MS - 1, False),
        (LockState.NONE, False, "berta", EXPIRY_MS, True),
        (LockState.OURS, True, "berta", EXPIRY_MS, True),
    ],
)
def test_a_claim_is_taken_over_from_the_dead_alone(lock, locks, host, later_ms, free):
    held = replace(HELD, locks=locks)

    def said(held, job="auction-13"):
        now_ms = NOW_MS + later_ms
        return refusal_of_claim(held, job=job, lock=lock, host=host, now_ms=now_ms, url="/data")

    assert (said(held) == "") == free
    assert said(replace(held, over=True)) == ""
    assert said(held, held.job) == ""


def test_the_refusal_names_job_host_and_since_when():
    said = refusal_of_claim(
        HELD,
        job="auction-13",
        lock=LockState.NONE,
        host="berta",
        now_ms=NOW_MS + EXPIRY_MS - 1_500,
        url="/data",
    )
    assert said == (
        "the checkpoint folder '/data' is in use by job auction-12 (topology 'auction', process 77"
        " on host anna) since 2027-01-15 08:00:00 UTC; stop that job, name another folder, or, if"
        " it is dead, try again in 2 s (at once with checkpoints.take_over=true, or"
        " resume with --take-over)"
    )


def test_heartbeats_are_often_enough():
    assert 3 * BEAT_MS < EXPIRY_MS


def test_a_folder_of_others_is_refused_unless_the_job_goes_on_from_it():
    newest = small_manifest(12, job="auction-1")

    def said(newest=newest, *, job="auction-2", topology="auction", is_restored=False):
        return refusal_of_folder(
            newest, job=job, topology=topology, is_restored=is_restored, url="/data"
        )

    assert said() == (
        "the checkpoint folder '/data' holds epoch 12 of job auction-1, topology 'auction'; go on"
        " from it (restore='latest'), or name another folder to begin anew"
    )
    assert said(topology="other").endswith("not of topology 'other'; name another folder")
    assert said(None) == said(is_restored=True) == said(job="auction-1") == ""
    assert said(replace(newest, finished=True)) == ""
    assert said(replace(newest, finished=True), topology="other")


# --- two jobs on one folder -----------------------------------------------------------------------


def test_the_second_job_is_refused_until_the_first_gives_the_folder_back(url, claims):
    clock = VirtualClock(NOW_MS * MS)
    first = take(claims, url, "job-1", clock)
    with pytest.raises(OutputError, match=r"is in use by job job-1 \(topology 'auction', process"):
        take(claims, url, "job-2", clock)
    assert first.claim.holds()
    first.claim.close()
    assert not first.claim.holds()
    second = take(claims, url, "job-2", clock)
    assert second.claim.number == first.claim.number + 1


def test_at_a_url_a_claim_ends_with_its_heartbeat(claims, tmp_path):
    url = f"memory://{tmp_path.name}/beats"
    clock = VirtualClock(NOW_MS * MS)
    first = take(claims, url, "job-1", clock)
    clock.advance((EXPIRY_MS - 1) * MS)
    first.claim.beat()
    clock.advance((EXPIRY_MS - 1) * MS)
    with pytest.raises(OutputError, match="try again in 1 s"):
        take(claims, url, "job-2", clock)
    clock.advance(MS)
    second = take(claims, url, "job-2", clock)
    assert second.claim.holds() and not first.claim.holds()
    first.claim.beat()
    assert second.claim.holds() and not first.claim.holds()


def test_a_fenced_job_writes_removes_and_commits_nothing(url, claims):
    first = take(claims, url, "job-1")
    first.write_manifest(small_manifest(1))
    point = last_point(first)
    second = take(claims, url, "job-2", restore=point, take_over=True)
    for act in (
        lambda: first.write_manifest(small_manifest(2)),
        lambda: first.remove_unlisted(1),
        first.claim.check,
    ):
        with pytest.raises(
            ClaimLostError, match=r"job job-1 no longer.*taken over by job job-2 \("
        ):
            act()
    assert not first.claim.holds()
    second.write_manifest(small_manifest(2, job="job-2"))
    assert CheckpointStore.at(url).newest().lineage.job == "job-2"


def test_what_a_fenced_job_wrote_too_late_does_not_count(url, claims, monkeypatch):
    """It had asked whether its claim holds before it was taken over."""
    first = take(claims, url, "job-1")
    first.write_manifest(small_manifest(1))
    second = take(claims, url, "job-2", restore=last_point(first), take_over=True)
    monkeypatch.setattr(first.claim, "check", lambda: None)
    late = first.write_manifest(small_manifest(99))
    assert second.newest().epoch == 1
    assert CheckpointStore.at(url).newest().epoch == 1
    second.write_manifest(small_manifest(2, job="job-2"))
    assert late not in CheckpointStore.at(url).manifests()
    second.remove_unlisted(3)
    assert files_at(url).get(late) is None
    assert [CheckpointStore.at(url).read_manifest(n).epoch for n in second.manifests()] == [1, 2]


def test_a_damaged_newest_manifest_stops_a_job_unless_it_names_an_earlier_one(url, claims):
    first = take(claims, url, "job-1")
    older = first.write_manifest(small_manifest(1))
    newest = first.write_manifest(small_manifest(2))
    first.claim.close()
    files_at(url).put(newest, b"{")
    with pytest.raises(DamagedCheckpointError, match="was whole once"):
        take(claims, url, "job-2")
    second = take(claims, url, "job-2", restore=RestorePoint(first.url, older, 1))
    with pytest.raises(DamagedCheckpointError, match="was whole once"):
        second.newest()
    assert second.newest("job-2") is None
    second.write_manifest(small_manifest(2, job="job-2"))
    assert second.newest().lineage.job == "job-2"


def test_old_claims_are_removed_with_old_manifests(url, claims):
    for number in range(1, 5):
        store = CheckpointStore.at(url)
        point = None if number == 1 else last_point(store)
        store = take(claims, url, f"job-{number}", restore=point)
        store.write_manifest(small_manifest(number, job=f"job-{number}"))
        store.remove_unlisted(2)
        store.claim.close()
    assert files_at(url).names("claims") == [claim_name(4)]
    assert len(files_at(url).names("newest")) == 1
    assert [name.split("job-")[1] for name in store.manifests()] == ["3", "4"]


def test_a_refused_job_leaves_the_folder_to_the_next_one(url, claims):
    first = take(claims, url, "job-1")
    first.write_manifest(small_manifest(1))
    first.claim.close()
    with pytest.raises(InputError, match=r"holds epoch 1 of job job-1.*restore='latest'"):
        take(claims, url, "job-2")
    take(claims, url, "job-3", restore=last_point(first))


def test_a_folder_that_vanished_with_its_claim_may_come_back(url, claims):
    store = take(claims, url, "job-1")
    files = files_at(url)
    kept = {name: files.get(name) for name in files.names("claims") + files.names("newest")}
    for name in kept:
        files.remove(name)
    with pytest.raises(
        OutputError, match=r"' has vanished: nothing is left .*; bring it"
    ) as caught:
        store.claim.check()
    assert not isinstance(caught.value, ClaimLostError), "it may come back"
    for name, data in kept.items():
        files.put(name, data)
    store.claim.check()


def test_the_claim_is_lost_if_another_job_begins_in_the_emptied_folder(url, claims):
    for job in ("job-1", "job-2"):
        first = take(claims, url, job)
        first.claim.close()
    first = take(claims, url, "job-3")
    files = files_at(url)
    for name in files.names("claims") + files.names("newest"):
        files.remove(name)
    second = take(claims, url, "job-4", take_over=True)
    with pytest.raises(ClaimLostError, match=r"whose claim is gone.*; see what is left"):
        first.claim.check()
    second.claim.check()


def test_of_two_claims_at_once_one_succeeds(url, claims, monkeypatch):
    """The other job's claim appears between the look and the put."""
    files = files_at(url)
    create, rivals = type(files).create, []

    def create_second(self, name, data):
        if not rivals:
            rivals.append(Claim.take(files_at(url), "rival", "auction", clock=VirtualClock()))
        return create(self, name, data)

    def create_first(self, name, data):
        monkeypatch.setattr(type(files), "create", create)
        return create_second(self, name, data)

    monkeypatch.setattr(type(files), "create", create_first)
    with pytest.raises(OutputError, match="in use by job rival"):
        Claim.take(files_at(url), "job-1", "auction", clock=VirtualClock())
    assert rivals[0].holds()
    rivals[0].close()


def test_a_claim_advances_as_long_as_it_holds(url, claims):
    first = take(claims, url, "job-1", beats=False)
    number = first.claim.number
    first.claim.advance()
    assert first.claim.number == number + 1
    assert first.claim.holds()
    with pytest.raises(OutputError, match="in use by job job-1"):
        take(claims, url, "job-2")
    take(claims, url, "job-2", take_over=True, beats=False)
    with pytest.raises(ClaimLostError, match="taken over by job job-2"):
        first.claim.advance()
    assert first.claim.number == number + 1


# --- a look, which takes nothing ------------------------------------------------------------------


def look(url, job="job-2", restore=None, take_over=False):
    CheckpointStore.at(url).check_claimable(job, "auction", restore, take_over=take_over)


def names_in(url):
    return sorted(files_at(url).names(""))


def test_a_look_refuses_while_a_job_has_the_folder_and_changes_nothing(url, claims):
    look(url)  # there is no folder yet
    assert names_in(url) == []
    store = take(claims, url, "job-1", beats=False)
    there = names_in(url)
    with pytest.raises(OutputError) as refused:
        look(url)
    with pytest.raises(OutputError) as taken:
        take(claims, url, "job-2")
    assert str(refused.value) == str(taken.value)
    look(url, "job-1")  # a successor of its controller
    look(url, take_over=True)
    assert names_in(url) == there
    assert store.claim.holds()
    store.claim.close()
    look(url)


def test_a_look_refuses_checkpoints_of_another_job_from_which_this_one_does_not_go_on(url, claims):
    store = take(claims, url, "job-1")
    store.write_manifest(small_manifest(1))
    store.claim.close()
    with pytest.raises(InputError, match="holds epoch 1 of job"):
        look(url)
    look(url, restore=last_point(store))


def test_a_look_at_a_url_goes_by_the_heartbeat(claims, tmp_path):
    url, clock = f"memory://{tmp_path.name}/looks", VirtualClock(NOW_MS * MS)
    take(claims, url, "job-1", clock, beats=False)
    clock.advance(EXPIRY_MS * MS - MS)
    with pytest.raises(OutputError, match="if it is dead, try again in 1 s"):
        check_not_in_use(files_at(url), "job-2", clock)
    clock.advance(MS)
    check_not_in_use(files_at(url), "job-2", clock)


def test_a_look_hinders_no_job_that_takes_the_folder(tmp_path, claims, monkeypatch):
    """It does not try the lock, which would be refused to whoever takes it in that moment."""
    url = str(tmp_path / "store")
    take(claims, url, "job-1").claim.close()
    monkeypatch.setattr(fcntl, "flock", None)
    look(url)


def test_a_claim_is_needed_to_write(tmp_path):
    with pytest.raises(ValueError, match="without a claim"):
        CheckpointStore.at(str(tmp_path)).write_manifest(small_manifest(1))


def test_after_a_kill_a_local_folder_is_taken_over_at_once(tmp_path, claims, no_leaks):
    program = f"""
    import sys
    from whale_ray.state.epochs.checkpoint_store import CheckpointStore
    CheckpointStore.at({str(tmp_path / "store")!r}).take_claim("job-1", "auction")
    print("taken", flush=True)
    sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"taken\n"
        url = str(tmp_path / "store")
        with pytest.raises(OutputError, match=f"process {process.pid} on host"):
            take(claims, url, "job-2")
        with pytest.raises(OutputError, match=f"process {process.pid} on host"):
            look(url)
        process.send_signal(signal.SIGKILL)
        process.wait()
        look(url)
        assert take(claims, url, "job-2").claim.holds()
