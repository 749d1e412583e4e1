"""Files that appear only when they are complete, and folders that appear all at once.

An output `out/` of a job passes through these states::

    writing     nameless files (O_TMPFILE) on the file system of `out`; the kernel frees them when
                the process ends, however it ends
    staged      .out.whale-<token>/part-00000.parquet …       linked there when complete
    published   out/part-00000.parquet …                      one rename of the whole folder

Under the output's own name there are complete outputs only. What a job had read that was stopped
goes beside it, as `out.partial/`; never in the place of anything, unless overwriting was asked for:
then in the place of an earlier `out.partial/`, else as `out.partial-2/`, and so on.

Where the file system has no nameless files, a part is written as `part-00000.parquet.open` in the
hidden folder instead. Whoever stages holds the hidden folder (`held_folders`) until it is published
or discarded; a folder that nobody holds belongs to a dead job, and the next job for the same output
removes it.

Beside the parts stands a list of them (`manifest`); only an output that holds nothing else is ever
replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from ...configs.errors import OutputError, system_reason
from .held_folders import FolderHold, leads_to, opened_folder, remove_unless_held
from .manifest import add_to_manifest, has_manifest, is_manifest, not_ours

PART_PREFIX = "part-"
_OPEN_SUFFIX = ".open"
_ASIDE_SUFFIX = "-old"
_PARTIAL_SUFFIX = ".partial"
_NO_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
_LONGEST_TOKEN = 64
"""Room in names for the token of an attempt."""
_TRIES_MAX = 100
"""How often to begin again because another job replaced the output meanwhile."""
_COME_OR_GONE = {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class PartFile:
    """A file being written that has no name, or none that matters, until it is linked."""

    def __init__(
        self, stream: BinaryIO, path: str | None = None, hold: FolderHold | None = None
    ) -> None:
        """Take an open stream, and on file systems without nameless files its name and a hold."""
        self.stream = stream
        self._path = path
        self._hold = hold

    def link(self, path: str) -> None:
        """Make the bytes durable and give them a name.

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
            # Only linkat follows /proc/self/fd/N to the file; Python calls plain link, which does
            # not, unless a folder's descriptor is passed.
            nameless = f"/proc/self/fd/{self.stream.fileno()}"
            name = os.path.basename(path)
            os.link(nameless, name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def size(self) -> int:
        """Return how many bytes were written."""
        self.stream.flush()
        return os.fstat(self.stream.fileno()).st_size

    def close(self) -> None:
        """Drop the file, unless it was linked."""
        with suppress(OSError):  # what it still had to write finds no room: it is dropped anyway
            self.stream.close()
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None
        if self._hold is not None:
            self._hold.close()


@dataclass(frozen=True)
class OutputFolder:
    """The folder that a job's output will be.

    Attributes:
        path: its absolute path; folders above it that are missing are made when staging.
        overwrite: whether an existing output is replaced.
    """

    path: str
    overwrite: bool

    def partial(self, number: int) -> OutputFolder:
        """Return the folder for rows of an input that was not read to its end; 1 is the first."""
        if number == 1:
            return OutputFolder(self.path + _PARTIAL_SUFFIX, self.overwrite)
        return OutputFolder(f"{self.path}{_PARTIAL_SUFFIX}-{number}", overwrite=False)

    def hidden(self, token: str) -> str:
        """Return the folder in which an attempt stages."""
        return os.path.join(self._parent, f"{self._hidden_prefix}{token}")

    def check(self) -> None:
        """Raise `OutputError` if the output exists or cannot be written."""
        self._check_place()
        if os.path.ismount(self.path):
            msg = (
                f"the output {self.path!r} is a mount point, which cannot appear all at once; "
                f"name a folder in it, such as {os.path.join(self.path, 'result')!r}"
            )
            raise OutputError(msg)
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            msg = f"the output {self.path!r} is {_kind_of(self.path)}, and must be a folder; "
            raise OutputError(msg + "remove it or name another output")
        if not self._is_taken():
            return
        if not self.overwrite:
            msg = (
                f"the output {self.path!r} exists; name another, remove it, or have it overwritten "
                "(overwrite=True, --overwrite)"
            )
            raise OutputError(msg)
        self._check_removable(self.path)

    @property
    def is_free(self) -> bool:
        """Whether the output may be published here without a loss; not in the place of a link."""
        if not os.path.lexists(self.path):
            return True
        if os.path.islink(self.path) or not os.path.isdir(self.path):
            return False
        try:
            if self._is_taken():
                self._check_removable(self.path)
                return self.overwrite
        except OSError:  # such as another user's, which cannot be looked into
            return False
        except OutputError:
            return False
        return True

    def sweep(self) -> None:
        """Remove what jobs that died left beside the output; give back what they put aside.

        The same for all partial outputs: a job may have died while it published one of them.
        """
        with suppress(OSError):
            names = sorted(os.listdir(self._parent), reverse=True)  # put aside before staged
            for place in (self, *self._partials_begun(names)):
                place._sweep([name for name in names if name.startswith(place._hidden_prefix)])

    def _partials_begun(self, names: Iterable[str]) -> Iterator[OutputFolder]:
        """Yield the partial outputs that some of these names of hidden folders belong to."""
        hidden = f".{re.escape(os.path.basename(self.path) + _PARTIAL_SUFFIX)}"
        found = (re.match(rf"{hidden}(?:-(\d+))?\.whale-", name) for name in names)
        yield from map(self.partial, sorted({int(one[1] or 1) for one in found if one}))

    def _sweep(self, hidden_names: Iterable[str]) -> None:
        for name in hidden_names:
            path = os.path.join(self._parent, name)
            if not path.endswith(_ASIDE_SUFFIX) or not self._give_back(path):
                remove_unless_held(path)

    def _give_back(self, aside: str) -> bool:
        """Tell whether an old output is kept: its job lives, or died before the new one was there.

        In the latter case it gets its name back.
        """
        hidden = aside.removesuffix(_ASIDE_SUFFIX)
        if os.path.lexists(hidden) and not remove_unless_held(hidden):
            return True
        if os.path.lexists(self.path):
            return False
        os.rename(aside, self.path)
        return True

    def new_file(self, token: str, name: str) -> PartFile:
        """Open a nameless file on the output's file system."""
        descriptor = _nameless(self._nearest_folder())
        if descriptor is not None:
            return PartFile(os.fdopen(descriptor, "wb"))
        hold = self.hold_hidden(token)
        path = os.path.join(self.hidden(token), name + _OPEN_SUFFIX)
        return PartFile(open(path, "wb"), path, hold)  # closed by PartFile

    def hold_hidden(self, token: str) -> FolderHold:
        """Make the hidden folder, and those above it, unless they are there, and hold it."""
        return FolderHold.make(self.hidden(token))

    def hand_over(self, token: str, other: OutputFolder) -> None:
        """Let what was staged for this output be published as another one."""
        with suppress(FileNotFoundError):  # nothing was, or it was handed over before
            os.rename(self.hidden(token), other.hidden(token))

    def publish(self, token: str) -> None:
        """Give the hidden folder the output's name; an old output is swapped out and removed.

        Raises:
            OutputError: the output has come into being meanwhile.
        """
        hidden = self.hidden(token)
        _sync_folder(hidden)
        for _ in range(_TRIES_MAX):
            try:
                if self._is_taken():
                    self.check()
                    self._replace(hidden)
                else:
                    os.rename(hidden, self.path)
                break
            except OSError as error:  # unless another job has come first, it is not made good
                if error.errno not in _COME_OR_GONE or not os.path.lexists(hidden):
                    raise
        else:
            raise self._contended()
        _sync_folder(self._parent)
        self.discard(token)

    def _replace(self, hidden: str) -> None:
        """Swap the folders; back again if something was put into the old one meanwhile."""
        # Under the hidden name, the next job would take the old one for what a dead job left.
        hold = FolderHold.take(self.path)
        try:
            old = _exchange(hidden, self.path)
            try:
                self._check_removable(old)
            except OutputError:
                if old == hidden:
                    _exchange(hidden, self.path)
                else:
                    os.rename(self.path, hidden)
                    os.rename(old, self.path)
                raise
        finally:
            if hold is not None:
                hold.close()

    def discard(self, token: str) -> None:
        """Remove the hidden folder, and what is left of an old output that was swapped out.

        If a publication was broken off before the new output was there, the old one comes back.
        """
        hidden = self.hidden(token)
        if not os.path.lexists(self.path):
            with suppress(FileNotFoundError):
                os.rename(hidden + _ASIDE_SUFFIX, self.path)
        for folder in (hidden, hidden + _ASIDE_SUFFIX):
            shutil.rmtree(folder, ignore_errors=True)

    def holds(self, parts: Mapping[str, int | None]) -> bool:
        """Tell whether the output is just these files (name: inode number).

        A file keeps its inode when the folder around it is renamed, so another output with parts
        of the same names is not taken for this one.
        """
        found = self._parts()
        if found is None or {one.name for one in found} != parts.keys():
            return False
        # Not `one.inode()`: on some file systems a folder lists other numbers than files have.
        return {one.name: one.stat(follow_symlinks=False).st_ino for one in found} == parts

    def holds_only(self, name: str, content: bytes) -> bool:
        """Tell whether the output is just one file with this content."""
        found = self._parts()
        if found is None or [one.name for one in found] != [name]:
            return False
        if found[0].stat().st_size != len(content):
            return False
        with open(found[0].path, "rb") as stream:
            return stream.read() == content

    def _parts(self) -> list[os.DirEntry[str]] | None:
        """Return what a published output holds; None if there is none."""
        try:
            entries = list(os.scandir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not any(is_manifest(entry.name) for entry in entries):
            return None
        return [entry for entry in entries if not is_manifest(entry.name)]

    def add_part(self, file: PartFile, instance: int, suffix: str, number: int) -> tuple[str, int]:
        """Link a part straight into the output, under the first free number; return both."""
        os.makedirs(self.path, exist_ok=True)
        while True:
            name = f"{PART_PREFIX}{instance:05d}-{number:06d}{suffix}"
            path = os.path.join(self.path, name)
            if not os.path.lexists(path):
                add_to_manifest(self.path, instance, name, file.size())
                with suppress(FileExistsError):
                    file.link(path)
                    _sync_folder(self.path)
                    return path, number
            number += 1

    def remove(self, token: str) -> None:
        """Remove an existing output at once, as far as anybody can see."""
        if not self._is_taken():
            return
        self.check()
        aside = self.hidden(token) + _ASIDE_SUFFIX
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:  # another job that begins has removed it
            return
        try:
            self._check_removable(aside)
        except OutputError:  # something was put there meanwhile
            os.rename(aside, self.path)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    @property
    def _parent(self) -> str:
        return os.path.dirname(self.path)

    @property
    def _hidden_prefix(self) -> str:
        return f".{os.path.basename(self.path)}.whale-"

    def _nearest_folder(self) -> str:
        place = self._parent
        while not os.path.lexists(place):
            place = os.path.dirname(place)
        return place

    def _check_place(self) -> None:
        """Raise `OutputError` if no folder can be made where the output shall be."""
        place = self._nearest_folder()
        if not os.path.isdir(place):
            msg = (
                f"the output {self.path!r} lies below {place!r}, which is {_kind_of(place)}; "
                "remove that or name another output"
            )
            raise OutputError(msg)
        names = os.path.relpath(self.path, place).split(os.sep)
        longest = max(len(os.fsencode(name)) for name in [*names, self._hidden_prefix])
        limit = os.pathconf(place, "PC_NAME_MAX") - _LONGEST_TOKEN
        if longest > limit:
            msg = f"a name in the output {self.path!r} is too long; use at most {limit - 8} bytes"
            raise OutputError(msg)
        try:
            descriptor = _nameless(place)
        except OSError as error:
            why = system_reason(error)
            msg = f"cannot write in {place!r}: {why}; mend that or name another output"
            raise OutputError(msg) from None
        if descriptor is not None:
            os.close(descriptor)
        elif not os.access(place, os.W_OK | os.X_OK):
            msg = f"no permission to write in {place!r}; change its mode or name another output"
            raise OutputError(msg)

    def _is_taken(self) -> bool:
        """Whether an output is in the way; an empty folder is not."""
        if not os.path.isdir(self.path):
            return os.path.lexists(self.path)
        with os.scandir(self.path) as entries:
            return any(True for _ in entries)

    def _check_removable(self, folder: str) -> None:
        """Raise `OutputError` unless a folder holds only what a sink has listed there.

        Another job that replaces the output at this moment takes the path, and removes the parts of
        the folder that is looked at: then that says nothing, and the one that came is looked at.
        """
        for _ in range(_TRIES_MAX):
            if not os.path.lexists(folder):
                return
            with suppress(FileNotFoundError), opened_folder(folder) as descriptor:
                reason = self._reason_to_keep(descriptor)
                if reason is None:
                    return
                if leads_to(folder, descriptor):
                    raise OutputError(reason)
        raise self._contended()

    def _reason_to_keep(self, folder: int) -> str | None:
        if not has_manifest(folder):
            return (
                f"the output {self.path!r} is not replaced: it holds no list of its parts "
                "(_whale-parts), as one of an earlier version or of another program; remove it "
                "yourself or name another output"
            )
        stranger = not_ours(folder)
        if stranger is None:
            return None
        shown = os.path.join(self.path, stranger)
        return (
            f"overwrite=True replaces only what whale-ray wrote, and {shown!r} is something "
            "else, or was changed; move it away or name another output"
        )

    def _contended(self) -> OutputError:
        return OutputError(
            f"others replace the output {self.path!r} at the same time, again and again; let one "
            "job after the other write there, or name another output"
        )


def _kind_of(path: str) -> str:
    """Return in words what stands at a path that is no folder."""
    if os.path.islink(path) and not os.path.exists(path):
        return "a link that leads nowhere"
    return "a file" if os.path.isfile(path) else "no folder"


def _nameless(folder: str) -> int | None:
    """Return a descriptor of a nameless file, None if the system has none or cannot link it."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_NAMELESS:
            return None
        raise
    if os.path.exists(f"/proc/self/fd/{descriptor}"):
        return descriptor
    os.close(descriptor)
    return None


def _exchange(new: str, path: str) -> str:
    """Put a folder in the place of another, in one step where possible; return the other's name."""
    libc = ctypes.CDLL(None, use_errno=True)
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 is not None:
        paths = os.fsencode(new), os.fsencode(path)
        if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
            return new
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), path)
    aside = new + _ASIDE_SUFFIX
    os.rename(path, aside)
    os.rename(new, path)
    return aside


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
