"""The files of a checkpoint store at a URL that fsspec knows: such as S3, GCS or HDFS.

A put of an object store is atomic: the object is there, whole, or is not. Nothing is renamed.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from ...configs.errors import InputError, OutputError, ResourceError, WhaleError
from ...configs.extras import require_extra
from ...configs.store_errors import store_remedy

__all__ = ["RemoteFiles"]

_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "r2", "b2"}
"""Object stores: to make a folder there would do nothing, or create the bucket unasked."""
_PASSWORD = re.compile(r"(\w+)://[^/?#\s]*:[^/?#\s]*@")
_NOT_WRITABLE = (405, 501)
"""Status codes of HTTP servers that take no files."""


class RemoteFiles:
    """Files below a URL; fsspec and the package for its kind are loaded here."""

    def __init__(self, url: str) -> None:
        _refuse_password(url)
        require_extra("s3", f"checkpoints at {url}", "name a local folder")
        import fsspec

        try:
            self._files, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            msg = f"checkpoints at {url} need a package that is not installed: {error}"
            raise ResourceError(msg) from None
        except ValueError as error:
            msg = (
                f"the checkpoint folder {url!r} is not understood: {_reason(error)}; name a path, "
            )
            raise InputError(
                msg + "or a URL that fsspec knows, such as s3://bucket/folder"
            ) from None
        except Exception as error:
            msg = f"the checkpoint folder {url!r} cannot be reached: {_reason(error)}; "
            raise InputError(msg + _remedy(error)) from error
        if getattr(self._files, "async_impl", False):
            _outlast_pools()
        self._url = url.rstrip("/")
        self._root = str(self._root).rstrip("/")
        kinds = self._files.protocol
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        self._has_folders = not kinds & _WITHOUT_FOLDERS

    @property
    def url(self) -> str:
        """Return the folder's URL, which has no password."""
        return self._url

    def put(self, name: str, data: bytes) -> None:
        """Write a file in one put."""
        with self._writing(name):
            self._make_folder(name)
            self._files.pipe_file(self._path_of(name), bytes(data))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless there is one; where the store can, it decides between two at once."""
        path = self._path_of(name)
        with self._writing(name):
            self._make_folder(name)
            try:
                self._files.pipe_file(path, bytes(data), mode="create")
            except FileExistsError:
                return False
            except (TypeError, NotImplementedError):  # this kind of store has no such put
                if self._files.exists(path):
                    return False
                self._files.pipe_file(path, bytes(data))
        return True

    def get(self, name: str) -> bytes | None:
        """Return a file's bytes; None if there is none."""
        with self._reading(name):
            try:
                return bytes(self._files.cat_file(self._path_of(name)))
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        """Return the names of all files in a folder, and in those below it, sorted."""
        with self._reading(folder):
            try:
                found = self._files.find(self._path_of(folder))
            except FileNotFoundError:
                return []
        # Some kinds of store answer with a leading slash, or without, whatever they were asked.
        begin = len(self._root.lstrip("/")) + 1
        return sorted(str(path).lstrip("/")[begin:] for path in found)

    def unfinished(self, folder: str) -> list[str]:
        """Return nothing: a store shows a file once it has all of it."""
        return []

    def remove(self, name: str) -> None:
        """Remove a file; does nothing if there is none."""
        with self._writing(name):
            try:
                self._files.rm_file(self._path_of(name))
            except FileNotFoundError:
                return

    def _make_folder(self, name: str) -> None:
        """Create the folder of a file, where the kind of store has folders."""
        if self._has_folders:
            self._files.makedirs(self._path_of(name).rpartition("/")[0], exist_ok=True)

    def _path_of(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except WhaleError:
            raise
        except Exception as error:
            what = f"the checkpoint folder {self._url!r} cannot be written to"
            msg = f"{what}: {_reason(error)} ({name}); {_remedy(error)}"
            raise OutputError(msg) from error

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except WhaleError:
            raise
        except Exception as error:
            what = f"the checkpoint folder {self._url!r} cannot be read"
            msg = f"{what}: {_reason(error)} ({name}); {_remedy(error)}"
            raise InputError(msg) from error


class _DaemonThreads(ThreadPoolExecutor):
    """Runs each call in a thread of its own, also while the process ends.

    By then Python has closed all pools of threads, and a job that ends with its process would not
    find its store any more, whose address is looked up in one: its claim would stay.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor.submit`."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  # the caller gets it
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future


@cache
def _outlast_pools() -> None:
    """Let the loop of fsspec, which all stores share, look addresses up in daemon threads."""
    from fsspec.asyn import get_loop

    loop = get_loop()
    loop.call_soon_threadsafe(loop.set_default_executor, _DaemonThreads())


def _reason(error: BaseException) -> str:
    """Return the first line of what a library says, and the kind of error if it says nothing."""
    return str(error).partition("\n")[0].strip().rstrip(".") or type(error).__name__


def _remedy(error: BaseException) -> str:
    said = f"{type(error).__name__} {error} {error.__cause__}"
    if (
        isinstance(error, io.UnsupportedOperation | NotImplementedError)
        or "requires mode" in said
        or getattr(error, "status", None) in _NOT_WRITABLE
    ):
        return "it can only be read: name a folder, or a store that can be written to"
    if isinstance(error, PermissionError):
        said += " access denied"
    elif isinstance(error, FileNotFoundError):
        said += " the bucket does not exist"
    unknown = "check the URL, and whether the store can be reached from here"
    return store_remedy(said) or unknown


def _refuse_password(url: str) -> None:
    """Refuse a URL with a password: messages, records and the page show where checkpoints are."""
    found = _PASSWORD.search(url)
    if found is not None:
        kind = found[1]
        msg = (
            f"the URL of the checkpoint folder, {kind}://…, has a password, which messages and"
            f" records would tell: leave it out, and set FSSPEC_{kind.upper()}_PASSWORD where the"
            " job and its workers run"
        )
        raise InputError(msg)
