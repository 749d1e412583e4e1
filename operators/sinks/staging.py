"""Files that appear only when they are complete, and folders that appear all at once.

An output `out/` of a job passes through these states::

    writing     nameless files (O_TMPFILE) on the file system of `out`; the kernel frees them when
                the process ends, however it ends
    staged      .out.whale-<token>/part-00000.parquet …       linked there when complete
    published   out/part-00000.parquet …                      one rename of the whole folder

The output's own name is only used for complete outputs. The output of a job that was stopped is
published beside it, as `out.partial/`. If that exists, it is replaced if overwriting was requested;
otherwise the name is `out.partial-2/`, and so on.

What a job with checkpoints stages outlives its processes; see `epoch_parts`.

If the file system has no nameless files, a part is written as `part-00000.parquet.open` in the
hidden folder. A job locks its hidden folder (`held_folders`) until it is published or discarded; an
unlocked one belongs to a dead job, and the next job with the same output removes it.

The output includes a list of its parts (`manifest`); an output with anything else in it is never
replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...configs.errors import OutputError, system_reason
from .epoch_note import outlives_its_job
from .held_folders import FolderHold, leads_to, opened_folder, remove_unless_held
from .manifest import add_to_manifest, has_manifest, is_manifest, published_by, unlisted_entry
from .part_file import PartFile, free_names, sync_folder

if TYPE_CHECKING:
    from .base import Staged

PART_PREFIX = "part-"
_OPEN_SUFFIX = ".open"
_ASIDE_SUFFIX = "-old"
_PARTIAL_SUFFIX = ".partial"
_NO_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
_LONGEST_TOKEN = 64
"""Bytes reserved in names for the token of an attempt."""
_TRIES_MAX = 100
"""How often to retry because another job replaced the output meanwhile."""
_COME_OR_GONE = {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True)
class OutputFolder:
    """The place of a job's output.

    Attributes:
        path: the output's absolute path; missing parent folders are created when staging.
        overwrite: whether an existing output is replaced.
    """

    path: str
    overwrite: bool

    def partial(self, number: int) -> OutputFolder:
        """Return the folder for the output of a stopped job; the first number is 1."""
        if number == 1:
            return OutputFolder(self.path + _PARTIAL_SUFFIX, self.overwrite)
        return OutputFolder(f"{self.path}{_PARTIAL_SUFFIX}-{number}", overwrite=False)

    def hidden(self, token: str) -> str:
        """Return the folder in which an attempt stages."""
        return os.path.join(self._parent, f"{self._hidden_prefix}{token}")

    def check(self) -> None:
        """Raise `OutputError` if the output exists or cannot be written."""
        self.check_place()
        if not self._is_taken():
            return
        if not self.overwrite:
            msg = (
                f"the output {self.path!r} exists; name another, remove it, or have it "
                "overwritten: overwrite=True of its sink, or --overwrite where a command has that "
                "option"
            )
            raise OutputError(msg)
        self._check_removable(self.path)

    def check_place(self) -> None:
        """Raise `OutputError` if there is something else than a folder, or none can be created."""
        self._check_parent()
        if os.path.ismount(self.path):
            msg = (
                f"the output {self.path!r} is a mount point, which cannot be renamed; "
                f"name a folder in it, such as {os.path.join(self.path, 'result')!r}"
            )
            raise OutputError(msg)
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            msg = f"the output {self.path!r} is {_kind_of(self.path)}, and must be a folder; "
            raise OutputError(msg + "remove it or name another output")

    @property
    def is_free(self) -> bool:
        """Whether publishing here would lose nothing; a link is never replaced."""
        if not os.path.lexists(self.path):
            return True
        if os.path.islink(self.path) or not os.path.isdir(self.path):
            return False
        try:
            if self._is_taken():
                self._check_removable(self.path)
                return self.overwrite
        except OSError:  # such as a folder of another user that cannot be listed
            return False
        except OutputError:
            return False
        return True

    def sweep(self, keep: Collection[str] = ()) -> None:
        """Remove hidden folders of dead jobs; restore the outputs that they had moved aside.

        Includes those of partial outputs, one of which a job may have published when it died.

        Args:
            keep: paths of hidden folders to leave alone.
        """
        with suppress(OSError):
            # In this order, a folder moved aside (NAME-old) comes before the staged one (NAME).
            names = sorted(os.listdir(self._parent), reverse=True)
            for place in (self, *self._partials_begun(names)):
                mine = (name for name in names if name.startswith(place._hidden_prefix))
                paths = (os.path.join(place._parent, name) for name in mine)
                place._sweep(path for path in paths if path not in keep)

    def _partials_begun(self, names: Iterable[str]) -> Iterator[OutputFolder]:
        """Yield the partial outputs to which any of these hidden folders belong."""
        hidden = f".{re.escape(os.path.basename(self.path) + _PARTIAL_SUFFIX)}"
        found = (re.match(rf"{hidden}(?:-(\d+))?\.whale-", name) for name in names)
        yield from map(self.partial, sorted({int(one[1] or 1) for one in found if one}))

    def _sweep(self, hidden_folders: Iterable[str]) -> None:
        for path in hidden_folders:
            if not path.endswith(_ASIDE_SUFFIX) or not self._give_back(path):
                remove_unless_held(path, unless=outlives_its_job)

    def _give_back(self, aside: str) -> bool:
        """Return whether an output that was moved aside is still needed.

        It is if its job is alive. It also is if the job died before the new output was in place:
        then it is renamed back.
        """
        hidden = aside.removesuffix(_ASIDE_SUFFIX)
        if os.path.lexists(hidden) and not remove_unless_held(hidden, unless=outlives_its_job):
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
        names = free_names(os.path.join(self.hidden(token), name), _OPEN_SUFFIX)
        path = next(name for name in names if not os.path.lexists(name))  # an earlier attempt's
        return PartFile(open(path, "xb"), path, hold)  # closed by PartFile

    def hold_hidden(self, token: str) -> FolderHold:
        """Create the hidden folder and its parents unless they exist, and lock it."""
        return FolderHold.make(self.hidden(token))

    def hand_over(self, token: str, other: OutputFolder) -> None:
        """Move what was staged for this output, so that it can be published as another one."""
        with suppress(FileNotFoundError):  # nothing was staged, or it was moved before
            os.rename(self.hidden(token), other.hidden(token))

    def publish(self, token: str) -> None:
        """Rename the hidden folder to the output; swap out and remove an old output.

        Raises:
            OutputError: the output was created meanwhile.
        """
        hidden = self.hidden(token)
        sync_folder(hidden)
        for _ in range(_TRIES_MAX):
            try:
                if self._is_taken():
                    self.check()
                    self._replace(hidden)
                else:
                    os.rename(hidden, self.path)
                break
            except OSError as error:  # try again only if another job was first
                if error.errno not in _COME_OR_GONE or not os.path.lexists(hidden):
                    raise
        else:
            raise self._contended()
        sync_folder(self._parent)
        self.discard(token)

    def _replace(self, hidden: str) -> None:
        """Swap the folders; swap back if something was added to the old one meanwhile."""
        # Locked, since under the hidden name it looks like the leftover of a dead job.
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
        """Remove the hidden folder, and the rest of an old output that was swapped out.

        If a publication was interrupted before the new output was in place, restore the old one.
        """
        hidden = self.hidden(token)
        if not os.path.lexists(self.path):
            with suppress(FileNotFoundError):
                os.rename(hidden + _ASIDE_SUFFIX, self.path)
        for folder in (hidden, hidden + _ASIDE_SUFFIX):
            shutil.rmtree(folder, ignore_errors=True)

    def holds(self, parts: Mapping[str, Staged]) -> bool:
        """Return whether the output is exactly these files.

        Renaming a folder does not change the inodes in it, so another output whose parts have the
        same names is not mistaken for this one.
        """
        found = self._parts()
        if found is None or {one.name for one in found} != parts.keys():
            return False
        # The inode is not `one.inode()`, which differs from the file's on some file systems.
        return all(parts[one.name].is_file(one.stat(follow_symlinks=False)) for one in found)

    def was_published_by(self, token: str) -> bool:
        """Return whether this output is that of a token."""
        with suppress(FileNotFoundError, NotADirectoryError), opened_folder(self.path) as folder:
            return published_by(folder) == token
        return False

    def holds_only(self, name: str, content: bytes) -> bool:
        """Return whether the output is exactly one file with this content."""
        found = self._parts()
        if found is None or [one.name for one in found] != [name]:
            return False
        if found[0].stat().st_size != len(content):
            return False
        with open(found[0].path, "rb") as stream:
            return stream.read() == content

    def _parts(self) -> list[os.DirEntry[str]] | None:
        """Return the parts of a published output; None if there is none."""
        try:
            entries = list(os.scandir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not any(is_manifest(entry.name) for entry in entries):
            return None
        return [entry for entry in entries if not is_manifest(entry.name)]

    def add_part(self, file: PartFile, instance: int, suffix: str, number: int) -> tuple[str, int]:
        """Link a part into the output under the first free number; return path and number."""
        os.makedirs(self.path, exist_ok=True)
        while True:
            name = f"{PART_PREFIX}{instance:05d}-{number:06d}{suffix}"
            path = os.path.join(self.path, name)
            if not os.path.lexists(path):
                add_to_manifest(self.path, instance, name, file.size())
                with suppress(FileExistsError):
                    file.link(path)
                    sync_folder(self.path)
                    return path, number
            number += 1

    def hidden_folders(self) -> list[str]:
        """Return the hidden folders of all jobs with this output."""
        with suppress(FileNotFoundError):
            names = [name for name in os.listdir(self._parent) if self._is_hidden(name)]
            return [os.path.join(self._parent, name) for name in sorted(names)]
        return []

    def _is_hidden(self, name: str) -> bool:
        return name.startswith(self._hidden_prefix) and not name.endswith(_ASIDE_SUFFIX)

    def remove(self, token: str) -> None:
        """Remove an existing output: rename it to a hidden name, then remove that."""
        if not self._is_taken():
            return
        self.check()
        aside = self.hidden(token) + _ASIDE_SUFFIX
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:  # another job that starts has removed it
            return
        try:
            self._check_removable(aside)
        except OutputError:  # something was added meanwhile
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

    def _check_parent(self) -> None:
        """Raise `OutputError` if no folder can be created at the output's path."""
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
            msg = f"cannot write in {place!r}: {why}; correct that or name another output"
            raise OutputError(msg) from None
        if descriptor is not None:
            os.close(descriptor)
        elif not os.access(place, os.W_OK | os.X_OK):
            msg = f"no permission to write in {place!r}; change its mode or name another output"
            raise OutputError(msg)

    def _is_taken(self) -> bool:
        """Return whether something exists at the output's path; an empty folder does not count."""
        if not os.path.isdir(self.path):
            return os.path.lexists(self.path)
        with os.scandir(self.path) as entries:
            return any(True for _ in entries)

    def _check_removable(self, folder: str) -> None:
        """Raise `OutputError` unless a folder contains only parts listed in its manifest.

        Another job may replace the output at the same time and remove the parts of the folder that
        is being checked. Its findings are then void, and the folder now at the path is checked.
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
                f"the output {self.path!r} is not replaced: it has no list of its parts "
                "(_whale-parts), so an earlier version or another program wrote it; remove it "
                "yourself or name another output"
            )
        name = unlisted_entry(folder)
        if name is None:
            return None
        shown = os.path.join(self.path, name)
        return (
            f"overwrite=True replaces only what whale-ray wrote, and {shown!r} is something "
            "else, or was changed; move it away or name another output"
        )

    def _contended(self) -> OutputError:
        return OutputError(
            f"other jobs keep replacing the output {self.path!r} at the same time; run one job "
            "after the other, or name another output"
        )


def _kind_of(path: str) -> str:
    """Describe the entry at a path that is not a folder."""
    if os.path.islink(path) and not os.path.exists(path):
        return "a link that leads nowhere"
    return "a file" if os.path.isfile(path) else "no folder"


def _nameless(folder: str) -> int | None:
    """Open a nameless file; None if the file system has none, or /proc is not there to link it."""
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
    """Replace a folder by another, atomically if possible; return the new path of the old one."""
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
