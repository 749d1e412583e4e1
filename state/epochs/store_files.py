"""The files of a checkpoint store: what it asks of a folder, wherever that is."""

from __future__ import annotations

import re
from typing import Protocol

from ...configs.errors import InputError
from .local_files import LocalFiles
from .remote_files import RemoteFiles

__all__ = ["StoreFiles", "files_at"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)(?:::|://)")
_SCHEME_ALONE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*")
_ONE_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")


class StoreFiles(Protocol):
    """Whole files below one folder, by their names with `/` between parts.

    What fails for want of room, rights or a network raises OutputError if it was to write, and
    InputError if it was to read; the message names the folder and the remedy.
    """

    @property
    def url(self) -> str:
        """Return the folder's path, or URL."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file, durably; one that has the name is replaced.

        It appears whole or not at all, if the file system can do that.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless there is one; return whether it was written.

        Of those who try at the same time one succeeds, if the file system can do that.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """Return a file's bytes; None if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of all files in a folder, and in those below it, sorted.

        An object store may lack what was written a moment ago, and still have what was removed.
        """
        ...

    def unfinished(self, folder: str) -> list[str]:
        """Return what was begun in a folder and has not got its name, which comes first in it.

        That is being written, or its process has died. `remove` takes these names, too.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file; does nothing if there is none."""
        ...


def files_at(url: str) -> StoreFiles:
    """Return the files of a folder: a path, `file://…`, `local://…`, or any URL that fsspec knows.

    Raises:
        ResourceError: fsspec, or what it takes for this kind of URL, is not installed.
        InputError: the URL is not understood.
    """
    is_blank = not url.strip() or "\0" in url
    if is_blank or _SCHEME_ALONE.fullmatch(url):
        msg = f"the checkpoint folder {url!r} names none: write a path, or s3://bucket/folder"
        raise InputError(msg)
    found = _SCHEME.match(url)
    if found is None:
        if slip := _ONE_SLASH.match(url):
            slashes = ":///" if slip[1] in ("file", "local") else "://"
            meant = slip[1] + slashes + url[slip.end() :]
            msg = f"the checkpoint folder {url!r} is no URL: did you mean {meant!r}?"
            raise InputError(msg)
        return LocalFiles(url)
    for local in ("file://", "local://"):
        if url.startswith(local):
            return LocalFiles(url.removeprefix(local))
    return RemoteFiles(url)
