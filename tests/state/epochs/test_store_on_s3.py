"""The store of checkpoints in S3, over HTTP: moto's server on this machine, one for all tests."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from s3fs import S3FileSystem

from tests.s3_server import s3_server
from tests.state.epochs.manifests import small_manifest
from whale_ray.errors import DamagedCheckpointError, InputError, OutputError
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.epoch_commands import RestorePoint
from whale_ray.state.epochs.remote_files import RemoteFiles
from whale_ray.state.epochs.store_names import ChunkName, chunk_name


@pytest.fixture(scope="module")
def server():
    """Yield a server to which everything goes, with a bucket."""
    with s3_server("checkpoints") as one:
        yield one


@pytest.fixture(scope="module")
def bucket(server):
    """Return the URL of a bucket that is there."""
    return "s3://checkpoints"


@pytest.fixture
def other_account(bucket):
    """Let the next client read the environment anew, and the one behind it again."""
    S3FileSystem.clear_instance_cache()
    yield bucket
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def strict(server):
    """Let the server check credentials and what they permit: it knows none."""
    with server.strict():
        yield


@pytest.mark.long
def test_epochs_are_written_read_and_removed(bucket):
    store = CheckpointStore.at(f"{bucket}/epochs")
    assert store.newest() is None
    claim = store.take_claim("job-1", "auction")
    data = bytes(range(256)) * 8_192
    kept = store.write_chunk(chunk_name("job-1", 1, "a"), data)
    names = []
    for epoch in (1, 2, 3):
        chunk = store.write_chunk(chunk_name("job-1", epoch, "b/c d"), b"rows of %d" % epoch)
        names.append(store.write_manifest(small_manifest(epoch, kept, chunk)))
    young = store.write_chunk(chunk_name("job-1", 4, "a"), b"of the epoch under way")
    fresh = CheckpointStore.at(f"{bucket}/epochs/")
    assert fresh.manifests() == names
    assert fresh.newest() == small_manifest(3, kept, chunk)
    assert store.remove_unlisted(1) == 4
    assert fresh.manifests() == names[-1:]
    assert [fresh.read_chunk(file) for file in (kept, chunk, young)] == [
        data,
        b"rows of 3",
        b"of the epoch under way",
    ]
    claim.close()


def test_many_threads_write_chunks(bucket):
    store = CheckpointStore.at(f"{bucket}/threads")
    with ThreadPoolExecutor(4) as threads:
        files = list(
            threads.map(
                lambda n: store.write_chunk(chunk_name("job", 1, str(n)), b"%d" % n), range(24)
            )
        )
    assert [store.read_chunk(file) for file in files] == [b"%d" % n for n in range(24)]


def test_a_put_of_what_is_there_decides_between_two_jobs(bucket):
    files = RemoteFiles(f"{bucket}/create")
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lambda n: files.create("claims/000001", b"%d" % n), range(8)))
    assert sum(done) == 1
    assert files.get("claims/000001") == b"%d" % done.index(True)


def test_a_second_job_is_refused_and_a_fenced_one_writes_nothing(bucket):
    first = CheckpointStore.at(f"{bucket}/claims")
    first.take_claim("job-1", "auction")
    first.write_manifest(small_manifest(1))
    second = CheckpointStore.at(f"{bucket}/claims")
    with pytest.raises(OutputError, match=r"'s3://.*/claims' is in use by job job-1.*try again in"):
        second.take_claim("job-2", "auction")
    point = RestorePoint(first.url, first.newest_name(), 1)
    second.take_claim("job-2", "auction", restore=point, take_over=True)
    with pytest.raises(OutputError, match="job job-1 no longer has the checkpoint folder"):
        first.write_manifest(small_manifest(2))
    first.claim.close()
    second.claim.close()


def test_a_chunk_that_is_gone_or_changed_is_refused(bucket):
    store = CheckpointStore.at(f"{bucket}/damage")
    file = store.write_chunk(chunk_name("job", 1, "a"), b"rows")
    RemoteFiles(store.url).put(file.name, b"rats")
    with pytest.raises(DamagedCheckpointError, match="has other bytes than were written"):
        store.read_chunk(file)
    RemoteFiles(store.url).remove(file.name)
    RemoteFiles(store.url).remove(file.name)
    with pytest.raises(DamagedCheckpointError, match=rf"'s3://.*' lacks {file.name}"):
        store.read_chunk(file)


def test_a_bucket_that_is_not_there_is_not_made(bucket):
    store = CheckpointStore.at("s3://no-such-bucket/store")
    with pytest.raises(OutputError, match=r"^the checkpoint folder 's3://no-such.*; create the"):
        store.write_chunk(chunk_name("job", 1, "a"), b"")


def test_refused_credentials_are_told(bucket, strict):
    store = CheckpointStore.at(f"{bucket}/refused")
    with pytest.raises(OutputError, match=r"cannot be written to: .*; check the credentials, and"):
        store.write_chunk(chunk_name("job", 1, "a"), b"")
    with pytest.raises(InputError, match=r"cannot be read: .*; check the credentials, and what"):
        store.newest()


def test_without_credentials_it_is_told_so(other_account, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = CheckpointStore.at(f"{other_account}/nobody")
    with pytest.raises(OutputError, match=r"cannot be written to: .*redentials.*; check the cred"):
        store.write_chunk(chunk_name("job", 1, "a"), b"")


def test_a_server_that_is_not_there_is_told(other_account, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    store = CheckpointStore.at(f"{other_account}/away")
    with pytest.raises(
        InputError, match=r"cannot be read: Could not connect.*; check the URL, and"
    ):
        store.newest()


def test_names_are_kept_as_they_were(bucket):
    store = CheckpointStore.at(f"{bucket}/names")
    name = chunk_name("jöb/1 %", 1, "a+b=c?d#e")
    file = store.write_chunk(name, b"x")
    assert store.read_chunk(file) == b"x"
    assert [ChunkName.of(found) for found in RemoteFiles(store.url).names("chunks")] == [
        ChunkName.of(file.name)
    ]


_AT_EXIT = """
import atexit, fsspec.asyn
from whale_ray.state.epochs.remote_files import RemoteFiles
RemoteFiles("s3://trips/state")
loop = fsspec.asyn.get_loop()
async def addresses():
    return await loop.getaddrinfo("127.0.0.1", 80)
atexit.register(lambda: print(fsspec.asyn.sync(loop, addresses)[0][4]))
"""


@pytest.mark.long
def test_a_process_that_ends_still_finds_the_store_to_give_its_claim_back():
    command = [sys.executable, "-c", _AT_EXIT]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("('127.0.0.1', 80)\n", "")
