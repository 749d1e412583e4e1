"""The list of parts that a sink leaves in its output: what may be removed when it is overwritten.

A file of lines, each with the name and the size of one part::

    {"name": "part-00000.parquet", "bytes": 1234}

A bounded job's output has one such file, `_whale-parts`, which appears together with the parts. In
an unbounded job's each instance has its own, `_whale-parts-00003`, and lists a part just before it
appears. Spark, pandas, pyarrow and whale-ray's sources pass over names that begin with `_`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

MANIFEST = "_whale-parts"


def is_manifest(name: str) -> bool:
    """Tell whether a file of this name lists parts."""
    return name == MANIFEST or name.startswith(MANIFEST + "-")


def write_manifest(folder: str, names: Iterable[str]) -> None:
    """List parts that stand in a folder, durably; the folder is not visible yet."""
    lines = [_line(name, os.stat(os.path.join(folder, name)).st_size) for name in names]
    with open(os.path.join(folder, MANIFEST), "wb") as stream:
        stream.write(b"".join(lines))
        stream.flush()
        os.fsync(stream.fileno())


def add_to_manifest(folder: str, instance: int, name: str, nbytes: int) -> None:
    """List one more part of an instance, durably; only that instance calls this."""
    path = os.path.join(folder, f"{MANIFEST}-{instance:05d}")
    with open(path, "a+b") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":  # cut when there was no room left, or its writer died
                stream.write(b"\n")
        stream.write(_line(name, nbytes))
        stream.flush()
        os.fsync(stream.fileno())


def has_manifest(folder: int) -> bool:
    """Tell whether a sink left a list of its parts in a folder, of which this is the descriptor."""
    return any(is_manifest(name) for name in os.listdir(folder))


def not_ours(folder: int) -> str | None:
    """Return the name of something in a folder that is no part as listed there; None if all are.

    Args:
        folder: its descriptor, so that it is one folder whatever takes its path meanwhile.

    Raises:
        FileNotFoundError: something was removed from it meanwhile.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    listed: set[tuple[str, int]] = set()
    for entry in entries:
        if is_manifest(entry.name) and entry.is_file(follow_symlinks=False):
            listed.update(_listed(entry.name, folder))
    for entry in entries:
        if not entry.is_file(follow_symlinks=False):
            return entry.name
        size = os.stat(entry.name, dir_fd=folder, follow_symlinks=False).st_size
        if not is_manifest(entry.name) and (entry.name, size) not in listed:
            return entry.name
    return None


def _line(name: str, nbytes: int) -> bytes:
    return json.dumps({"name": name, "bytes": nbytes}).encode() + b"\n"


def _listed(name: str, folder: int) -> Iterable[tuple[str, int]]:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as stream:
        for line in stream:
            try:
                entry = json.loads(line)
                yield str(entry["name"]), int(entry["bytes"])
            except (ValueError, KeyError, TypeError):
                continue  # cut when its writer was killed, or not ours: it lists nothing
