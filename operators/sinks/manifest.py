"""The manifest: the list of a sink's parts in its output, which alone may be removed later.

A file of lines, each with the name and the size of one part::

    {"name": "part-00000.parquet", "bytes": 1234}

The output of a bounded job has one such file, `_whale-parts`, which appears together with the
parts, and says who published them::

    {"published_by": "trips-7d17c9fa"}

In the output of an unbounded job, each instance has its own, such as `_whale-parts-00003`,
and lists a part just before it appears. With checkpoints, each job has one that is named after it,
with the columns of the parts as well::

    {"columns": "<Arrow schema, base64>"}

Spark, pandas, pyarrow and whale-ray's sources ignore names that begin with `_`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

MANIFEST = "_whale-parts"


def is_manifest(name: str) -> bool:
    """Return whether a file of this name is a manifest."""
    return name == MANIFEST or name.startswith(MANIFEST + "-")


def write_manifest(folder: str, names: Iterable[str], token: str = "") -> None:
    """Write the manifest of all parts in a hidden folder, durably; `token` publishes them."""
    lines = [_line(name, os.stat(os.path.join(folder, name)).st_size) for name in names]
    if token:
        lines.append(_json_line({"published_by": token}))
    with open(os.path.join(folder, MANIFEST), "wb") as stream:
        stream.write(b"".join(lines))
        stream.flush()
        os.fsync(stream.fileno())


def add_to_manifest(folder: str, instance: int, name: str, nbytes: int) -> None:
    """Append a part to its instance's manifest, durably; only that instance may call this."""
    _append(os.path.join(folder, f"{MANIFEST}-{instance:05d}"), _line(name, nbytes))


def add_epoch(folder: str, job: str, parts: Mapping[str, int], columns: bytes | None) -> None:
    """Append the parts of an epoch to its job's manifest, durably; one process at a time.

    Args:
        folder: the output.
        job: the job that staged them.
        parts: the bytes of each part, by name.
        columns: their serialized Arrow schema.
    """
    lines = b"".join(_line(name, nbytes) for name, nbytes in parts.items())
    head = b"" if columns is None else _json_line({"columns": base64.b64encode(columns).decode()})
    _append(os.path.join(folder, f"{MANIFEST}-{job}"), lines, head)


def _append(path: str, lines: bytes, head: bytes = b"") -> None:
    """Append lines to a file durably; `head` is written before them if the file is new."""
    with open(path, "a+b") as stream:
        if not stream.tell():
            stream.write(head)
        else:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":  # the last line is truncated: full disk, or a crash
                stream.write(b"\n")
        stream.write(lines)
        stream.flush()
        os.fsync(stream.fileno())


def has_manifest(folder: int) -> bool:
    """Return whether there is a manifest in a folder, given by its descriptor."""
    return any(is_manifest(name) for name in os.listdir(folder))


def listed_parts(folder: int) -> frozenset[str]:
    """Return the names of all parts that the manifests in a folder list, there or not."""
    return frozenset(str(line["name"]) for line in _all_lines(folder) if "name" in line)


def listed_columns(folder: int) -> bytes | None:
    """Return the serialized schema of the parts in a folder, None if no manifest has it."""
    found = (str(line["columns"]) for line in _all_lines(folder) if "columns" in line)
    text = next(found, None)
    return None if text is None else base64.b64decode(text)


def published_by(folder: int) -> str:
    """Return the token that published the parts in a folder; "" if no manifest says it."""
    found = (str(line["published_by"]) for line in _all_lines(folder) if "published_by" in line)
    return next(found, "")


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
    return _json_line({"name": name, "bytes": nbytes})


def _json_line(values: Mapping[str, object]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _listed(name: str, folder: int) -> Iterator[tuple[str, int]]:
    for line in _lines(name, folder):
        with suppress(KeyError, ValueError, TypeError):  # written by another program
            yield str(line["name"]), int(line["bytes"])


def _all_lines(folder: int) -> Iterator[dict[str, Any]]:
    for name in sorted(os.listdir(folder)):
        if is_manifest(name):
            yield from _lines(name, folder)


def _lines(name: str, folder: int) -> Iterator[dict[str, Any]]:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as stream:
        for line in stream:
            with suppress(ValueError):  # truncated by a crash, or written by another program
                values = json.loads(line)
                if isinstance(values, dict):
                    yield values
