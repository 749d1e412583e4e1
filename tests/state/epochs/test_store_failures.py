"""A folder of checkpoints that cannot be used: one line, which names the folder and the remedy."""

import errno
import functools
import os
import shutil
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from whale_ray.errors import InputError, OutputError, ResourceError
from whale_ray.state.epochs import local_files
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.local_files import LocalFiles
from whale_ray.state.epochs.store_files import files_at
from whale_ray.state.epochs.store_names import chunk_name

CHUNK = chunk_name("job", 1, "a")


def fail_with(number):
    def fail(*arguments, **more):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        (
            "fsync",
            errno.ENOSPC,
            "No space left on device (chunks/.*); make room there, or keep few",
        ),
        ("fsync", errno.EIO, "Input/output error (.*); correct that, or name another folder"),
        ("replace", errno.EDQUOT, "Disk quota exceeded (.*); make room in the quota"),
        ("open", errno.EROFS, "Read-only file system (.*); name a folder that can be written to"),
        ("mkdir", errno.EACCES, "Permission denied (.*); give this user the right to it"),
    ],
)
def test_what_the_system_refuses_is_told_and_leaves_nothing(
    tmp_path, monkeypatch, call, number, said
):
    store = CheckpointStore.at(str(tmp_path / "store"))
    with monkeypatch.context() as patch:
        patch.setattr(local_files.os, call, fail_with(number))
        said = said.replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(OutputError, match=rf"folder '{tmp_path}/store' cannot be.*: {said}"):
            store.write_chunk(CHUNK, b"rows")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert store.read_chunk(store.write_chunk(CHUNK, b"rows")) == b"rows"


def test_a_short_write_is_gone_on_with(tmp_path, monkeypatch):
    """The system may take fewer bytes than it was given."""
    real = local_files.open if hasattr(local_files, "open") else open

    class Slow:
        def __init__(self, descriptor):
            self.stream = real(descriptor, "wb", buffering=0)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.stream.close()

        def write(self, data):
            return self.stream.write(data[:3])

    def slow_open(path, mode, **more):
        return Slow(path) if mode == "wb" else real(path, mode, **more)

    monkeypatch.setattr(local_files, "open", slow_open, raising=False)
    store = CheckpointStore.at(str(tmp_path))
    assert store.read_chunk(store.write_chunk(CHUNK, b"0123456789")) == b"0123456789"


def test_a_folder_that_vanished_is_not_made_anew(tmp_path):
    """It may lie on a disk that is no longer mounted."""
    store = CheckpointStore.at(str(tmp_path / "store"))
    store.write_chunk(CHUNK, b"rows")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(OutputError, match=r"No such file.*it was there before: bring it back"):
        store.write_chunk(CHUNK, b"rows")
    assert not (tmp_path / "store").exists()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    store = CheckpointStore.at(str(tmp_path / "file" / "store"))
    with pytest.raises(OutputError, match=r"Not a directory \(.*\); name a folder"):
        store.write_chunk(CHUNK, b"rows")
    assert store.manifests() == []


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    store = CheckpointStore.at(str(tmp_path))
    file = store.write_chunk(CHUNK, b"rows")
    monkeypatch.setattr(local_files.os, "scandir", fail_with(errno.EACCES))
    with pytest.raises(InputError, match=rf"'{tmp_path}' cannot be read: Permission.*right to it"):
        store.manifests()
    monkeypatch.setattr(local_files, "open", fail_with(errno.EIO), raising=False)
    with pytest.raises(InputError, match=r"cannot be read: Input/output error \(chunks/"):
        store.read_chunk(file)


def test_files_that_were_not_finished_are_not_seen(tmp_path):
    files = LocalFiles(str(tmp_path))
    files.put("chunks/a", b"")
    (tmp_path / "chunks" / "b.12-abcd.open").write_bytes(b"half")
    assert files.names("chunks") == ["chunks/a"]


def test_urls_that_mean_nothing_are_refused():
    with pytest.raises(InputError, match=r"'nothing://x' is not understood: .*such as s3://"):
        CheckpointStore.at("nothing://x")
    with pytest.raises(InputError, match=r"'s3:/x/y' is no URL: did you mean 's3://x/y'\?"):
        CheckpointStore.at("s3:/x/y")


@pytest.mark.parametrize(
    "url", ["", " ", "a\0b", "s3://", "s3:", "memory://", "file:///", "local://"]
)
def test_urls_that_name_no_folder_are_refused(url):
    with pytest.raises(InputError, match=r"names none: write a path, or s3://bucket/folder$"):
        CheckpointStore.at(url)


@pytest.mark.parametrize("url", ["ftp://user:word@host/state", "simplecache::ftp://:word@host/x"])
def test_a_url_with_a_password_is_refused_and_not_told(url):
    with pytest.raises(InputError, match="leave it out, and set FSSPEC_FTP_PASSWORD") as error:
        CheckpointStore.at(url)
    assert "word@" not in str(error.value)


def test_the_password_comes_from_where_the_message_says(monkeypatch):
    import fsspec

    monkeypatch.setenv("FSSPEC_FTP_PASSWORD", "word")
    config: dict[str, dict[str, str]] = {}
    fsspec.config.set_conf_env(config)
    assert config == {"ftp": {"password": "word"}}


def test_a_package_that_is_missing_is_named(monkeypatch):
    import fsspec

    def needs_a_package(*arguments, **more):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", needs_a_package)
    with pytest.raises(ResourceError, match="at s3://x need a package .*: Install s3fs"):
        CheckpointStore.at("s3://x")


def test_paths_and_urls_of_files_are_local(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schemes = ("", f"{tmp_path}/", f"file://{tmp_path}/", f"local://{tmp_path}/")
    for url in schemes:
        assert files_at(f"{url}a store").url == f"{tmp_path}/a store"
        assert isinstance(files_at(f"{url}a store"), LocalFiles)


@pytest.fixture
def read_only_urls(tmp_path):
    """Yield the URLs of an archive, and of a server that hands out the files of a folder."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("file", "")
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield {
            "zip": f"zip://state::{tmp_path}/a.zip",
            "http": f"http://127.0.0.1:{server.server_port}/state",
        }
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("kind", ["zip", "http"])
def test_what_can_only_be_read_is_refused_in_one_line(kind, read_only_urls):
    url = read_only_urls[kind]
    with pytest.raises(
        OutputError, match=r"it can only be read: name a folder, or a st"
    ) as refused:
        CheckpointStore.at(url).take_claim("job-1", "auction")
    assert str(refused.value).startswith(f"the checkpoint folder {url!r} cannot be written to: ")
    assert len(str(refused.value).splitlines()) == 1


def test_a_store_that_cannot_even_be_named_is_told(monkeypatch):
    """Some kinds look at their host at once."""
    import fsspec

    def unreachable(*arguments, **more):
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(fsspec.core, "url_to_fs", unreachable)
    with pytest.raises(
        InputError, match=r"^the checkpoint folder 'github://x' cannot be reached: "
    ):
        CheckpointStore.at("github://x")
