"""The manifest: the list of a sink's parts in its output, which alone may be removed later.

A file of lines, each with the name and the size of one part::

    {"name": "part-00000.parquet", "bytes": 1234}

The output of a bounded job has one such file, `_whale-parts`, which appears together with the
parts. In the output of an unbounded job, each instance has its own, such as `_whale-parts-00003`,
and lists a part just before it appears. Spark, pandas, pyarrow and whale-ray's sources ignore names
that begin with `_`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

MANIFEST = "_whale-parts"


def is_manifest(name: str) -> bool:
    """Return whether a file of this name is a manifest."""
    return name == MANIFEST or name.startswith(MANIFEST + "-")


def write_manifest(folder: str, names: Iterable[str]) -> None:
    """Write the manifest of all parts in a hidden folder, durably."""
    lines = [_line(name, os.stat(os.path.join(folder, name)).st_size) for name in names]
    with open(os.path.join(folder, MANIFEST), "wb") as stream:
        stream.write(b"".join(lines))
        stream.flush()
        os.fsync(stream.fileno())


def add_to_manifest(folder: str, instance: int, name: str, nbytes: int) -> None:
    """Append a part to its instance's manifest, durably; only that instance may call this."""
    path = os.path.join(folder, f"{MANIFEST}-{instance:05d}")
    with open(path, "a+b") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":  # the last line is truncated: full disk, or a crash
                stream.write(b"\n")
        stream.write(_line(name, nbytes))
        stream.flush()
        os.fsync(stream.fileno())


def has_manifest(folder: int) -> bool:
    """Return whether there is a manifest in a folder, given by its descriptor."""
    return any(is_manifest(name) for name in os.listdir(folder))


def unlisted_entry(folder: int) -> str | None:
    """Return the name of an entry that is not a part as listed in the manifests; None if all are.

    Args:
        folder: the folder's descriptor, since its path may refer to another folder meanwhile.

    Raises:
        FileNotFoundError: an entry was removed meanwhile.
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
                continue  # truncated by a crash, or written by another program
