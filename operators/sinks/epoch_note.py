"""The note in a hidden folder with parts of epochs, which outlive the processes that staged them.

A job with checkpoints can continue after all its processes have died, and then needs what they had
staged. So its hidden folder has a note, which says where the checkpoints are and which columns the
parts have. Another job that cleans up leaves the folder alone as long as one of these checkpoints
is the job's, or cannot be read. The folder's life ends with them, or when a job publishes or
discards what is in it.

The note is a manifest by its name, so that it is never taken for a part.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace

from ...configs.errors import WhaleError
from .manifest import MANIFEST, is_manifest

NOTE = MANIFEST + "-staged"
COMMITTED = MANIFEST + "-committed"
"""An empty file beside the note: the job has committed parts, so its output must exist."""


@dataclass(frozen=True)
class EpochNote:
    """What the note of a hidden folder says.

    Attributes:
        job: the id of the job that stages in the folder.
        checkpoints: the folder or URL of its checkpoints; empty if it is not known.
        columns: the serialized Arrow schema of all parts.
    """

    job: str
    checkpoints: str
    columns: bytes


def write_note(folder: str, note: EpochNote) -> EpochNote:
    """Write a folder's note, durably, unless there is one; return that which is there now.

    One with another folder of checkpoints is replaced: a restored job takes its own there.
    """
    before = read_note(folder)
    if before is not None:
        if before.checkpoints == note.checkpoints:
            return before
        note = replace(before, checkpoints=note.checkpoints)
    descriptor, path = tempfile.mkstemp(prefix=NOTE, dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_encoded(note))
            stream.flush()
            os.fsync(stream.fileno())
        if before is not None:
            os.rename(path, os.path.join(folder, NOTE))
            return note
        with suppress(FileExistsError):  # another instance was first
            os.link(path, os.path.join(folder, NOTE))
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
    return read_note(folder) or note


def read_note(folder: str) -> EpochNote | None:
    """Return a folder's note, None if it has none."""
    try:
        with open(os.path.join(folder, NOTE), "rb") as stream:
            values = json.loads(stream.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return EpochNote(values["job"], values["checkpoints"], base64.b64decode(values["columns"]))


def outlives_its_job(folder: str) -> bool:
    """Return whether a hidden folder must stay although its job is dead."""
    try:
        note = read_note(folder)
    except (OSError, ValueError, KeyError):  # unreadable: nobody knows whether it is needed
        return True
    return note is not None and (not note.checkpoints or _has_checkpoints(note))


def _has_checkpoints(note: EpochNote) -> bool:
    from ...state.epochs.checkpoint_store import CheckpointStore
    from ...state.epochs.store_names import manifest_names

    try:
        store = CheckpointStore.at(note.checkpoints)
        if any(name.job == note.job for name in manifest_names(store.manifests())):
            return True
        # Those of jobs that are restored to publish what it had staged name it, too.
        newest = store.newest_name()
        return newest is not None and store.read_manifest(newest).publisher == note.job
    except (WhaleError, OSError):
        return True


def has_parts(folder: str) -> bool:
    """Return whether there is more in a folder than a note."""
    return not all(map(is_manifest, os.listdir(folder)))


def _encoded(note: EpochNote) -> bytes:
    columns = base64.b64encode(note.columns).decode()
    values = {"job": note.job, "checkpoints": note.checkpoints, "columns": columns}
    return json.dumps(values).encode() + b"\n"
