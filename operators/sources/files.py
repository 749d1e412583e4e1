"""Resolves paths to input files: a file, a folder, a pattern, or a list of these.

Files of a folder or a pattern are sorted by their full path, so that every instance and every
attempt has the same order. No file is opened, so that checking a topology is cheap.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...configs.errors import InputError

PathLike: TypeAlias = str | os.PathLike[str]

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
            InputError: no path at all, or a URL.
        """
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
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
        absolute = tuple(os.path.abspath(os.path.expanduser(one)) for one in given)
        return cls(given, absolute, kind, tuple(suffixes))

    def files(self) -> list[str]:
        """Return the files, absolute, in reading order.

        Raises:
            InputError: a path is missing, matches nothing or cannot be read.
        """
        found = [file for path in self.absolute for file in self._expand(path)]
        for file in found:
            if not os.access(file, os.R_OK):
                msg = f"no permission to read {file!r}; change its mode or its owner"
                raise InputError(msg)
        return found

    def describe(self) -> str:
        """Return the paths as the user wrote them."""
        return ", ".join(self.given)

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
        wanted = [name for name in names if self._has_suffix(name)]
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

    def _has_suffix(self, name: str) -> bool:
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


def share(units: int, instance: int, parallelism: int) -> range:
    """Return the units of one instance, assigned round-robin, so that instances advance evenly."""
    return range(instance, units, parallelism)
