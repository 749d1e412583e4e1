"""Resolves paths to input files: a file, a folder, a pattern, or a list of these.

Files of a folder or a pattern are sorted by their full path, so that every instance and every
attempt has the same order. No file is opened, so that checking a topology is cheap.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from ...configs.errors import InputError
from ...configs.file_names import check_encodable
from ..arguments import check_type
from .files_passed import FilesPassed

PathLike: TypeAlias = str | os.PathLike[str]

START_ANEW = "bring the input back as it was, or start without restoring"
"""The remedy if the input is another than that of the positions."""

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


@dataclass(frozen=True)
class FileSet:
    """The input files of one source.

    Attributes:
        given: the paths as the user wrote them, for messages.
        absolute: the same as absolute paths, resolved where the topology was built, since workers
            may run in another folder.
        kind: the format, such as `Parquet`, for messages.
        suffixes: the suffixes of the files to read of a folder.
    """

    given: tuple[str, ...]
    absolute: tuple[str, ...]
    kind: str
    suffixes: tuple[str, ...]

    @classmethod
    def of(cls, path: PathLike | Sequence[PathLike], kind: str, suffixes: Sequence[str]) -> FileSet:
        """Create the set from one path or several, as a user wrote them.

        Raises:
            UsageError: something else than paths.
            InputError: no path at all, or a URL.
        """
        paths = [path] if isinstance(path, str | os.PathLike) else path
        wanted = "a file, a folder, a pattern or a list of these"
        check_type(f"a {kind} source", "path", paths, Iterable, wanted)
        paths = list(paths)
        for one in paths:
            check_type(f"a {kind} source", "path", one, (str, os.PathLike), wanted)
        given = tuple(os.fspath(one) for one in paths)
        if not given or not all(given):
            msg = f"a {kind} source got no path; name a file, a folder or a pattern"
            raise InputError(msg)
        for one in given:
            if "://" in one:
                msg = (
                    f"{one!r} is a URL; a {kind} source reads local and mounted paths: "
                    "mount the store, or read it with Spark or Ray Data and pass that"
                )
                raise InputError(msg)
            check_encodable(f"the path of a {kind} source", one)
        absolute = tuple(os.path.abspath(os.path.expanduser(one)) for one in given)
        return cls(given, absolute, kind, tuple(suffixes))

    def files(self) -> list[str]:
        """Return the files, absolute, in reading order.

        Raises:
            InputError: a path is missing, matches nothing or cannot be read.
        """
        found = [file for path in self.absolute for file in self._expand(path)]
        for file in found:
            if any("\ud800" <= letter <= "\udfff" for letter in file):  # Arrow opens none of these
                msg = f"the path {file!r} is not UTF-8; rename the file, or its folder"
                raise InputError(msg)
            if not os.access(file, os.R_OK):
                msg = f"no permission to read {file!r}; change its mode or its owner"
                raise InputError(msg)
        return found

    def describe(self) -> str:
        """Return the paths as the user wrote them."""
        return ", ".join(self.given)

    def facts(self, files: Sequence[str]) -> dict[str, Any]:
        """Return what a position says of the files: how many, and a digest of their names."""
        names = "\n".join(map(os.path.basename, files))
        digest = hashlib.blake2b(names.encode("utf-8", "surrogateescape"), digest_size=8)
        return {"files": len(files), "names": digest.hexdigest()}

    def check_same(
        self, files: Sequence[str], positions: Sequence[Mapping[str, Any]]
    ) -> FilesPassed:
        """Check that these are the files of the positions; return which of them were passed.

        Raises:
            InputError: there are others, or one that was passed has changed.
        """
        now = self.facts(files)
        names = set(map(os.path.basename, files))
        for one in positions:
            if one["files"] == now["files"] and one["names"] == now["names"]:
                continue
            begun = [place["file"] for _, place in one["begun"]]
            for name in begun:
                if name not in names:
                    msg = (
                        f"{self.describe()}: the file {name!r}, of which a part was read, is "
                        f"missing; {START_ANEW}"
                    )
                    raise InputError(msg)
            newest = max(files, key=os.path.getmtime)
            msg = (
                f"{self.describe()}: the files have changed since the checkpoint: {now['files']:,} "
                f"instead of {one['files']:,}, or with other names; the newest is {newest!r}; "
                f"{START_ANEW} (for files that keep coming there is sources.growing_folder)"
            )
            raise InputError(msg)
        return FilesPassed.of_positions(files, positions, START_ANEW)

    def _expand(self, path: str) -> list[str]:
        if os.path.isdir(path):
            return self._of_folder(path)
        if os.path.exists(path):
            return [path]
        if glob.has_magic(path):
            return self._of_pattern(path)
        msg = f"no file or folder {path!r}; correct the path{_nearest_folder(path)}"
        raise InputError(msg)

    def _of_folder(self, folder: str) -> list[str]:
        try:
            names = sorted(name for name in os.listdir(folder) if name[0] not in "._")
        except PermissionError:
            msg = f"no permission to list the folder {folder!r}; change its mode or its owner"
            raise InputError(msg) from None
        wanted = [name for name in names if self.takes(name)]
        files = [path for name in wanted if os.path.isfile(path := os.path.join(folder, name))]
        if files:
            return files
        what = f"the folder {folder!r} holds no {self.kind} file ({', '.join(self.suffixes)})"
        deeper = [name for name in names if os.path.isdir(os.path.join(folder, name))]
        if deeper:
            pattern = os.path.join(folder, "**", "*" + self.suffixes[0])
            msg = f"{what} itself but folders such as {deeper[0]!r}; pass {pattern!r}"
            raise InputError(msg)
        if names:
            pattern = os.path.join(folder, "*")
            msg = f"{what} but others such as {names[0]!r}; pass {pattern!r} to read all"
            raise InputError(msg)
        msg = f"{what}, it is empty; correct the path or fill the folder first"
        raise InputError(msg)

    def _of_pattern(self, pattern: str) -> list[str]:
        files = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
        if files:
            return files
        msg = f"the pattern {pattern!r} matches no file; correct it{_nearest_folder(pattern)}"
        raise InputError(msg)

    def takes(self, name: str) -> bool:
        """Return whether a file of a folder is to be read, by its name."""
        if name[0] in "._":
            return False
        root, suffix = os.path.splitext(name.lower())
        return (root if suffix in _COMPRESSIONS else name.lower()).endswith(self.suffixes)


def _nearest_folder(path: str) -> str:
    """Return the part of the path that exists, as a hint: the typo is often in a folder's name."""
    parent = os.path.dirname(path)
    if os.path.isdir(parent):
        return ""
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    return f" (it exists as far as {parent!r})"


def compression_of(path: str) -> str | None:
    """Return Arrow's name of a text file's compression, by the file's suffix; None if none."""
    return _COMPRESSIONS.get(os.path.splitext(path.lower())[1])


def likeness(path: str) -> dict[str, Any]:
    """Return what a position says of a file of which a part was read.

    Raises:
        InputError: the file cannot be found.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); bring it back or leave it out"
        raise InputError(msg) from error
    return {
        "file": os.path.basename(path),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
    }


def check_likeness(path: str, place: Mapping[str, Any]) -> None:
    """Check that a file of which a part was read has not changed since.

    Raises:
        InputError: it has another name, size or time of change.
    """
    now = likeness(path)
    for what, name in (("file", "name"), ("size", "size in bytes"), ("mtime_ns", "time of change")):
        if now[what] != place[what]:
            msg = (
                f"{path}: a part of it was read before the checkpoint, and it has changed since: "
                f"its {name} is {_shown(what, now)} instead of {_shown(what, place)}; {START_ANEW}"
            )
            raise InputError(msg)


def _shown(what: str, of: Mapping[str, Any]) -> str:
    if what != "mtime_ns":
        return f"{of[what]:,}" if what == "size" else repr(of[what])
    moment = datetime.fromtimestamp(of[what] / 1e9, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S.%f} UTC"
