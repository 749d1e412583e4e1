"""A part while it is written: a file without a name, which the kernel frees if its process ends."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from .held_folders import FolderHold


class PartFile:
    """A file that is being written and has no name, or a hidden one, until it is linked."""

    def __init__(
        self, stream: BinaryIO, path: str | None = None, hold: FolderHold | None = None
    ) -> None:
        """Wrap a stream; without nameless files, `path` is its name and `hold` locks its folder."""
        self.stream = stream
        self._path = path
        self._hold = hold

    def link(self, path: str) -> None:
        """Sync the file to disk and give it a name.

        Raises:
            FileExistsError: the name is taken; the file can still be linked under another.
        """
        self.stream.flush()
        os.fsync(self.stream.fileno())
        if self._path is not None:
            os.link(self._path, path)
            os.unlink(self._path)
            self._path = None
            return
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Python calls linkat, which follows /proc/self/fd/N to the file, only if it gets the
            # descriptor of a folder; plain link does not follow it.
            nameless = f"/proc/self/fd/{self.stream.fileno()}"
            name = os.path.basename(path)
            os.link(nameless, name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def link_free(self, path: str, suffix: str) -> str:
        """Link the file as `path` + `suffix`, or under the next free name, and return that.

        With checkpoints, all attempts of a job stage in one folder, and one that was taken for dead
        may continue beside the next.
        """
        for name in free_names(path, suffix):
            with suppress(FileExistsError):
                self.link(name)
                return name
        raise AssertionError

    def copy_to(self, other: PartFile) -> None:
        """Copy what was written to another file, which may be on another disk."""
        self.stream.flush()
        with open(f"/proc/self/fd/{self.stream.fileno()}", "rb") as written:
            shutil.copyfileobj(written, other.stream)

    def size(self) -> int:
        """Return the number of bytes written."""
        self.stream.flush()
        return os.fstat(self.stream.fileno()).st_size

    def close(self) -> None:
        """Drop the file, unless it was linked."""
        with suppress(OSError):  # there may be no room for buffered bytes, which are dropped anyway
            self.stream.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None
        if self._hold is not None:
            self._hold.close()


def free_names(path: str, suffix: str) -> Iterator[str]:
    """Yield names to try for a file: `path` + `suffix`, then with `-2`, `-3`, … between them."""
    yield path + suffix
    yield from (f"{path}-{number}{suffix}" for number in itertools.count(2))


def sync_folder(folder: str) -> None:
    """Make new names in a folder survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
