"""Writes the snapshots of a worker's stages beside the running job, and tells the controller.

The loop hands a snapshot over and goes on; a thread turns it into chunk files, or sends what is
small along with the message. A chunk of state that the last snapshot of its operator object had,
too, is not written again: its identity says so.

One epoch is written at a time. The snapshot of a later one takes the place of an earlier one of the
same stage that waits: the coordinator has forgotten that one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from ..configs.errors import AttemptLostError, OutputError, WhaleError
from ..operators import snapshot_files
from ..operators.sinks.cut_rows import CutRows
from ..operators.sinks.staged_json import staged_to_json
from ..operators.snapshot_files import chunk_to_bytes, values_to_bytes
from ..operators.snapshots import OperatorSnapshot, StateChunk
from ..state import sealed_records
from ..state.epochs.coordinator_events import (
    Aligned,
    ParticipantEnded,
    SnapshotFailed,
    SnapshotWritten,
)
from ..state.epochs.manifest import INLINE_BYTES_MAX, ChunkFile, InlineChunk, OperatorPart
from ..state.epochs.store_names import chunk_name
from ..tasks.stage_epochs import TakenSnapshot
from .kept_snapshots import KeptSnapshots

__all__ = ["ChunkStore", "SnapshotWriter", "warm_up"]

_TRIES_MAX = 10
_RETRY_S = 0.1
_CLOSING_S = 5.0
"""How long a write under way may take when the attempt ends; then its thread is left behind."""
_INLINE_BYTES_OF_OBJECT_MAX = 1 << 16
"""So many bytes of one operator object's state are in the manifest at most."""

_log = logging.getLogger(__name__)

_Participant = tuple[int, int]
_Object = tuple[str, tuple[int, ...]]


def warm_up() -> None:
    """Load or compile what snapshots are written with, which else takes a running job's time."""
    snapshot_files.warm_up()
    sealed_records.warm_up()


class ChunkStore(Protocol):
    """What it needs of the store of checkpoints."""

    def write_chunk(self, name: str, data: bytes) -> ChunkFile:
        """Write a file, durably; raises OutputError."""
        ...


@dataclass(frozen=True)
class _Due:
    """A snapshot that is to be written: of an epoch, or the last one of tasks that have ended."""

    participant: _Participant
    epoch: int
    parts: tuple[TakenSnapshot, ...]
    ended: bool


class SnapshotWriter:
    """The snapshots of one worker in one attempt; see `tasks.stage_epochs.SnapshotOutlet`.

    Args:
        store: where chunk files go.
        kept: keeps the snapshots in memory, too.
        job: the id of the job.
        attempt: the attempt, which is part of the files' names.
        report: sends an event of the coordinator to the controller; called in both threads.
        wake: wakes the worker's loop.
        known: of each object, the files of chunks by identity that the epoch has from which the
            attempt goes on.
        retry_s: until the last snapshot of tasks that have ended is tried again; doubles.
        closing_s: how long `close` waits for a write under way.
    """

    def __init__(
        self,
        store: ChunkStore,
        kept: KeptSnapshots,
        job: str,
        attempt: int,
        report: Callable[[object], None],
        wake: Callable[[], None],
        *,
        known: Mapping[_Object, Mapping[str, ChunkFile]] = MappingProxyType({}),
        retry_s: float = _RETRY_S,
        closing_s: float = _CLOSING_S,
    ) -> None:
        self._store = store
        self._kept = kept
        self._job = job
        self._attempt = attempt
        self._report = report
        self._wake = wake
        self._retry_s, self._closing_s = retry_s, closing_s
        self._changed = threading.Condition()
        self._due: dict[tuple[_Participant, bool], _Due] = {}  # at most two for each stage
        self._writing = self._closed = False
        self._broken: WhaleError | None = None
        self._known: dict[_Object, Mapping[str, ChunkFile]] = dict(known)
        self._told: dict[_Object, tuple[tuple[CutRows, Mapping[str, Any]], ...]] = {}
        self._thread: threading.Thread | None = None

    # --- the worker's loop ------------------------------------------------------------------------

    def aligned(self, participant: _Participant, epoch: int) -> None:
        """See `SnapshotOutlet.aligned`."""
        self._report(Aligned(participant, epoch))

    def taken(
        self, participant: _Participant, epoch: int, parts: tuple[TakenSnapshot, ...]
    ) -> None:
        """See `SnapshotOutlet.taken`."""
        self._kept.remember(epoch, (part.operator for part in parts))
        self._add(_Due(participant, epoch, parts, ended=False))

    def failed(self, participant: _Participant, epoch: int, reason: str) -> None:
        """See `SnapshotOutlet.failed`."""
        self._report(SnapshotFailed(participant, epoch, reason))

    def ended(
        self, participant: _Participant, behind: int, parts: tuple[TakenSnapshot, ...]
    ) -> None:
        """See `SnapshotOutlet.ended`."""
        self._kept.remember(behind + 1, (part.operator for part in parts))
        self._add(_Due(participant, behind, parts, ended=True))

    @property
    def idle(self) -> bool:
        """Whether all that it was given is written and told; raises what it gave up on."""
        with self._changed:
            if self._broken is not None:
                raise self._broken
            return not self._due and not self._writing

    def wait(self) -> None:
        """Wait until it is idle: for workers on a clock of their own, which must not run ahead."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._broken is not None or not (self._due or self._writing)
            )

    def close(self) -> None:
        """End the thread; what is not written yet is dropped, and nothing is told any more.

        A write that hangs is left behind, since a folder that does not answer must not keep the job
        from going on. Its file has this attempt in its name, and no manifest will name it: it goes
        with those that no checkpoint needs. The thread writes no other one, and ends.
        """
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
        if self._thread is None:
            return
        self._thread.join(self._closing_s)
        if self._thread.is_alive():
            _log.warning(
                "a file of the checkpoint under way is still being written after %g s: it is left"
                " behind, counts for nothing, and is removed behind a later checkpoint; see whether"
                " the disk or store of the checkpoints answers",
                self._closing_s,
            )

    def _add(self, due: _Due) -> None:
        with self._changed:
            self._due.pop((due.participant, due.ended), None)
            self._due[due.participant, due.ended] = due
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="snapshots", daemon=True)
                self._thread.start()

    # --- the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (due := self._next()) is not None:
            event = self._written(due)
            with self._changed:
                is_told = event is not None and not self._closed
            if is_told:
                self._report(event)
            with self._changed:
                self._writing = False
                self._changed.notify_all()
            self._wake()

    def _next(self) -> _Due | None:
        """Wait for a snapshot; None when it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._due or self._closed)
            if self._closed:
                return None
            self._writing = True
            return self._due.pop(next(iter(self._due)))

    def _written(self, due: _Due) -> object:
        """Write a snapshot; return what is to be told of it, None for nothing."""
        if due.ended:
            return self._last_written(due)
        try:
            return SnapshotWritten(due.participant, due.epoch, self._parts(due))
        except Exception as error:  # noqa: BLE001  # the job runs on, whatever pickling raises
            return SnapshotFailed(due.participant, due.epoch, _reason(error))

    def _last_written(self, due: _Due) -> object:
        """Write the last snapshot of tasks that have ended, which is not taken again."""
        pause_s = self._retry_s
        for left in reversed(range(_TRIES_MAX)):
            try:
                return ParticipantEnded(due.participant, due.epoch, self._parts(due))
            except AttemptLostError as error:  # rows are gone; those who try again read them again
                self._break(error)
                return None
            except Exception as error:  # noqa: BLE001  # as above
                reason = _reason(error)
            if self._closed:
                return None
            _log.warning(
                "the last snapshot of stage %d cannot be written: %s", due.participant[0], reason
            )
            self._report(SnapshotFailed(due.participant, due.epoch + 1, reason))
            with self._changed:
                if not left or self._changed.wait_for(lambda: self._closed, pause_s):
                    break
            pause_s *= 2
        self._break(
            OutputError(
                f"what the operators of stage {due.participant[0]} kept at their end could not be"
                f" written to the folder of checkpoints: {reason}"
            )
        )
        return None

    def _break(self, error: WhaleError) -> None:
        """Let the worker's loop raise this."""
        with self._changed:
            self._broken = error

    def _parts(self, due: _Due) -> tuple[OperatorPart, ...]:
        return tuple(self._part(due, part) for part in due.parts)

    def _part(self, due: _Due, taken: TakenSnapshot) -> OperatorPart:
        kept = taken.operator
        files = _Files(self._store, self._job, self._labels(due, kept), self._check_open)
        values = files.write(values_to_bytes(kept.values)) if kept.values else None
        return OperatorPart(
            kept.operator_id,
            kept.instances,
            kept.parallelism,
            kept.watermark_ns,
            self._chunks(kept, files),
            values,
            kept.position,
            self._staged_json(kept, taken.staged, files),
        )

    def _staged_json(
        self, kept: OperatorSnapshot, staged: tuple[CutRows, ...], files: _Files
    ) -> tuple[Mapping[str, Any], ...]:
        """Stage the output of a sink; return it as JSON, the same at each epoch that names it.

        The controller knows by that what it has committed, so a payload's file is written once.
        """
        key = kept.operator_id, kept.instances
        before = self._told.get(key, ())
        now = []
        for one in staged:
            told = next((json for known, json in before if known is one), None)
            json = staged_to_json(one.staged(), files.write) if told is None else told
            now.append((one, json))
        self._told[key] = tuple(now)
        return tuple(json for _, json in now)

    def _chunks(self, kept: OperatorSnapshot, files: _Files) -> tuple[ChunkFile, ...]:
        """Return the files of an operator's state; write those that the last snapshot lacked.

        A file that an epoch did without is not named again: it may be gone by then.
        """
        key = kept.operator_id, kept.instances
        before = self._known.get(key, {})
        now: dict[str, ChunkFile] = {}
        found: list[ChunkFile] = []
        for chunk in kept.chunks:
            self._check_open()  # what the chunks read may be given back, or changed, behind it
            known = _known_file(before, chunk)
            file = files.write(chunk_to_bytes(chunk)) if known is None else files.keep(known)
            found.append(file)
            if chunk.identity is not None:
                now[chunk.identity] = file
        self._known[key] = now
        return tuple(found)

    def _check_open(self) -> None:
        if self._closed:
            msg = "the attempt is over"
            raise OutputError(msg)

    def _labels(self, due: _Due, kept: OperatorSnapshot) -> tuple[int, str]:
        """Return the epoch for which files are written, and how their names begin."""
        stage, worker = due.participant
        epoch = due.epoch + 1 if due.ended else due.epoch
        label = f"{kept.operator_id}-{kept.instances[0]}-{stage}-{worker}-{self._attempt}"
        return epoch, label


class _Files:
    """The files of one operator object's snapshot, numbered; small ones are in the manifest.

    Only so many bytes of them: those in a manifest are written again with every epoch.
    """

    def __init__(
        self, store: ChunkStore, job: str, named: tuple[int, str], check_open: Callable[[], None]
    ) -> None:
        """`check_open` raises OutputError once no file may be begun any more."""
        self._store = store
        self._job = job
        self._check_open = check_open
        self._epoch, self._label = named
        self._numbers: Iterator[int] = iter(range(1 << 62))
        self._inline_left = _INLINE_BYTES_OF_OBJECT_MAX

    def write(self, data: bytes) -> ChunkFile:
        """Write the next one, if it is large enough for a file."""
        name = self._next_name()
        if len(data) <= INLINE_BYTES_MAX and self._takes_inline(len(data)):
            return InlineChunk.of(name, data)
        return self._write_file(name, data)

    def keep(self, chunk: ChunkFile) -> ChunkFile:
        """Return a chunk of an earlier epoch, with a file of its own if it needs one by now.

        The file is named for the present epoch: no manifest lists it yet, so retention would take
        one of an epoch that counts for a file that nobody needs.
        """
        if not isinstance(chunk, InlineChunk) or self._takes_inline(chunk.nbytes):
            return chunk
        return self._write_file(self._next_name(), chunk.data)

    def _next_name(self) -> str:
        return chunk_name(self._job, self._epoch, f"{self._label}-{next(self._numbers)}")

    def _write_file(self, name: str, data: bytes) -> ChunkFile:
        self._check_open()
        return self._store.write_chunk(name, data)

    def _takes_inline(self, nbytes: int) -> bool:
        self._inline_left -= nbytes
        return self._inline_left >= 0


def _known_file(known: Mapping[str, ChunkFile], chunk: StateChunk) -> ChunkFile | None:
    return None if chunk.identity is None else known.get(chunk.identity)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WhaleError) else f"{type(error).__name__}: {error}"
