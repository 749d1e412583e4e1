"""Writes the manifests of epochs, lets sinks commit them, and removes what nobody needs any more.

All of this runs in the background; `poll` returns what became of it, as events of the coordinator.
"""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

from ..configs.errors import (
    ClaimLostError,
    InputError,
    OutputError,
    UserFunctionError,
    WhaleError,
)
from ..configs.units import NS_PER_MS
from ..operators.sinks.base import CommitId, Staged
from ..plan.assignment import Assignment, job_is_bounded, resumed_assignment
from ..state.epochs import coordinator_events as events
from ..state.epochs.checkpoint_store import CheckpointStore
from ..state.epochs.epoch_commands import RestorePoint
from ..state.epochs.manifest import ChunkFile, Lineage, Manifest, OperatorPart, how_it_ended
from ..transport.clock import Clock
from .background import Background, carry_out_within
from .epoch_output import EpochOutput
from .operator_records import check_adds_nothing, operator_records

Commit = Callable[[CommitId, Mapping[str, Sequence[Staged]]], None]
"""Lets sinks, by their ids, commit what they have staged."""

_CLOSE_TIMEOUT_S = 30.0
"""How long the end of a job waits for its folder of checkpoints, to give it back."""

_SETTLE_TIMEOUT_S = 60.0
"""How long the end of an attempt waits for a manifest that is being written, or read."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Written:
    """A manifest is in the store."""

    name: str
    manifest: Manifest
    snapshots: tuple[OperatorPart, ...]


@dataclass(frozen=True)
class EpochSize:
    """The bytes of an epoch's files: of all, and of those that were written for it."""

    nbytes: int = 0
    new_nbytes: int = 0


class EpochWriter:
    """The epochs of a job that count, and the way there.

    `wake` is called when `poll` has something to return, in another thread.

    Attributes:
        manifest: the newest that counts; None if there is none.
        restore_point: where it is.
        size: of the epoch that was written last.
        lost: the error by which another job has taken over the folder of checkpoints.
    """

    def __init__(
        self,
        assignment: Assignment,
        store: CheckpointStore,
        commit: Commit,
        clock: Clock,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._assignment = assignment
        self._store = store
        self._commit = commit
        self._clock = clock
        self._timeout_ns = assignment.settings.checkpoints.timeout_ms * NS_PER_MS
        self._bounded = job_is_bounded(assignment)
        self._output = EpochOutput(store.read_chunk, bounded=self._bounded)
        self._background: Background[_Written | events.Event | None] = Background(clock, wake)
        self._operators = operator_records(assignment.plan.logical)
        self.manifest: Manifest | None = None
        self.restore_point: RestorePoint | None = None
        self.size = EpochSize()
        self.lost: WhaleError | None = None
        self._has_written = False  # a manifest that may come late, since the claim was taken
        self._unremoved = ""  # why old checkpoints stay
        self._uncommitted = ""  # why the last commit failed
        self._empty: list[events.Event] = []  # commits that `poll` tells of, without a call

    def staged(self) -> dict[str, list[Staged]]:
        """Return what the newest epoch names, by sink: in a bounded job, all that is staged."""
        return self._output.staged()

    @property
    def epoch(self) -> CommitId | None:
        """The newest epoch, by which job wrote it; None if there is none."""
        newest = self.manifest
        return None if newest is None else CommitId(newest.lineage.job, newest.epoch)

    @property
    def publisher(self) -> str:
        """The job under whose id sinks publish what the newest epoch names; "" for this one."""
        return "" if self.manifest is None else self.manifest.publisher

    @property
    def place(self) -> str:
        """The newest epoch's manifest, as users name it; "" if there is none."""
        point = self.restore_point
        return "" if point is None else f"{point.url}/{point.manifest}"

    # --- the folder -------------------------------------------------------------------------------

    def claim(self) -> None:
        """Take the folder of checkpoints for this job; `close` gives it back.

        Raises:
            OutputError: another job uses it, or it cannot be written to.
            InputError: it holds checkpoints of another job, from which this one does not go on; or
                that job has ended since this one was submitted.
        """
        job, name = self._assignment.job_id, self._assignment.plan.name
        take_over = self._assignment.settings.checkpoints.take_over
        if take_over:  # a job that is refused takes the folder from nobody
            self._continuing_from_newest()
        restore = self._assignment.restore
        try:
            self._store.take_claim(
                job, name, restore=restore, take_over=take_over, clock=self._clock
            )
            self._assignment = self._continuing_from_newest()
        except WhaleError:
            with suppress(WhaleError):
                self._store.jobs.forget(job)
            raise

    def _continuing_from_newest(self) -> Assignment:
        """Return the job, continuing from what the folder has as its newest now.

        The job that had the folder may have committed more epochs since this one was submitted,
        but no more since it was claimed.

        Raises:
            InputError: see `claim`.
        """
        point = self._assignment.restore
        if point is None or not point.is_newest or point.url != self._store.url:
            return self._assignment
        name = self._store.newest_name()
        if name is None or name == point.manifest:
            return self._assignment
        newest = self._store.read_manifest(name)
        lineage = newest.lineage
        if lineage.job == self._assignment.job_id:  # a controller of it that failed wrote this
            return replace(self._assignment, restored=lineage.restored)
        where = f"epoch {newest.epoch} of job {lineage.job!r} in {self._store.url!r}"
        if newest.finished:
            msg = (
                f"that job ended meanwhile, behind {where}, and {how_it_ended(newest)}: there is"
                " nothing to go on with"
            )
            raise InputError(msg)
        if lineage.job != self._assignment.restored[-1][0]:
            msg = f"another job wrote {where} meanwhile; resume that one"
            raise InputError(msg)
        check_adds_nothing(self._assignment.plan.logical, newest)
        later = replace(point, manifest=name, epoch=newest.epoch)
        return resumed_assignment(self._assignment, later, lineage)

    def close(self) -> None:
        """Let other jobs use the folder.

        Raises:
            OutputError: it does not answer. The claim on it ends with this process, or without
                heartbeats.
        """
        claim = self._store.claim
        if claim is not None:
            carry_out_within(claim.close, self._folder, _CLOSE_TIMEOUT_S, self._clock)

    @property
    def _folder(self) -> str:
        return f"the checkpoint folder {self._store.url!r}"

    # --- go on from an epoch ----------------------------------------------------------------------

    def recover(self) -> None:
        """Find the newest epoch of the job, else the one that it is to be restored from.

        Raises:
            InputError: the folder cannot be read, or a manifest is damaged.
            OutputError: see `settle`; or the folder does not answer.
        """
        self._await_manifest()
        if self._has_written:
            self._ask(self._store.begin_attempt)
            self._has_written = False
        self._output.forget()
        point = self._assignment.restore
        name = self._ask(partial(self._store.newest_name, self._assignment.job_id))
        if name is None and point is not None:
            name = self._ask(partial(self._store.adopt, point))
        if name is not None:
            self.inherit(name)

    def settle(self) -> None:
        """Take the manifest that was under way when the last attempt ended, if it counts.

        Then `staged` says all that may be needed: no manifest turns up later that names more.

        Raises:
            InputError: the folder cannot be read, or a manifest is damaged.
            OutputError: a manifest is still being written, so nobody knows.
        """
        if self._store.claim is None:
            return  # it has written nothing
        self._await_manifest()
        name = self._ask(partial(self._store.newest_name, self._assignment.job_id))
        point = self.restore_point
        if name is not None and (point is None or name != point.manifest):
            self.inherit(name)

    def _await_manifest(self) -> None:
        if not self._background.has_returned("manifest", _SETTLE_TIMEOUT_S):
            msg = (
                f"a manifest is still being written to {self._store.url}, after"
                f" {_SETTLE_TIMEOUT_S:g} s: see whether that disk or store answers, then resume"
            )
            raise OutputError(msg)

    def _ask(self, call: Callable[[], T]) -> T:
        """Return what the folder answers; raises OutputError if it does not answer in time."""
        answers: list[T] = []

        def ask() -> None:
            answers.append(call())

        carry_out_within(ask, self._folder, _SETTLE_TIMEOUT_S, self._clock)
        return answers[0]

    def inherit(self, name: str, ended: Iterable[events.Part] = ()) -> None:
        """Go on from a manifest; `ended` has the parts of participants that ended before it."""
        self.manifest = self._ask(partial(self._store.read_manifest, name))
        self._output.count(self.manifest, parts_of(ended))
        self.restore_point = RestorePoint(self._store.url, name, self.manifest.epoch)

    def forget(self) -> None:
        """Expect no results any more: their attempt is over."""
        self._empty.clear()
        self._background.forget()

    def keep(self, ended: Iterable[events.Part]) -> None:
        """Publish also what ended participants name, although the last epoch does not count."""
        self._output.keep(parts_of(ended))

    # --- the steps of an epoch --------------------------------------------------------------------

    def write(self, action: events.WriteManifest, *, savepoint: bool, stopped: bool) -> None:
        """Write an epoch's manifest."""
        self._has_written = True
        snapshots = parts_of(action.parts.values())
        publishes = self._bounded and action.ended
        manifest = Manifest(
            action.epoch,
            action.previous,
            Lineage(self._assignment.job_id, self._assignment.restored),
            self._assignment.plan.name,
            self._clock.wall_ns() // NS_PER_MS,
            self._assignment.settings.runtime.virtual_nodes,
            self._output.parts(snapshots),
            self._operators,
            savepoint=savepoint,
            stopped=stopped,
            publisher=self.publisher or (self._assignment.job_id if publishes else ""),
            versions=program_versions(),
        )

        def failed(error: BaseException) -> events.Event:
            return events.ManifestFailed(action.epoch, self._reason(error))

        def write() -> _Written:
            return _Written(self._store.write_manifest(manifest), manifest, snapshots)

        self._background.begin("manifest", write, failed, self._timeout_ns, who=self._folder)

    def commit(self, epoch: int) -> None:
        """Let sinks commit what the newest manifest names; bounded jobs publish at their end."""
        manifest = self.manifest
        assert manifest is not None
        assert manifest.epoch == epoch
        if self._bounded or self._output.is_empty:
            self._empty.append(events.Committed(epoch))  # a thread takes longer to start and end
            return
        commit_id = CommitId(manifest.lineage.job, epoch)

        def commit() -> events.Event:
            if self._store.claim is not None:
                self._store.claim.check()
            self._commit(commit_id, self.staged())
            return events.Committed(epoch)

        def failed(error: BaseException) -> events.Event:
            reason = self._reason(error)
            # The traceback of a user's sink is told once.
            is_new = isinstance(error, UserFunctionError) and reason != self._uncommitted
            told = str(error) if is_new else reason
            self._uncommitted = reason
            _log.warning("checkpoint %d cannot be committed yet: %s", epoch, told)
            return events.CommitFailed(epoch, reason)

        who = f"a sink, or the checkpoint folder {self._store.url!r},"
        self._background.begin("commit", commit, failed, self._timeout_ns, who=who)

    def release(self) -> None:
        """Remove checkpoints that are not kept any more, unless it is being done."""
        if self._background.is_busy("retention"):
            return
        keep = self._assignment.settings.checkpoints.keep
        point = self.restore_point
        needed = [] if point is None else [point.manifest]

        def remove() -> None:
            self._store.remove_unlisted(keep, needed)
            self._unremoved = ""

        def failed(error: BaseException) -> None:
            reason = self._reason(error)
            if reason != self._unremoved:  # else it was told
                _log.warning("old checkpoints stay for now: %s", reason)
            self._unremoved = reason

        who = f"the checkpoint folder {self._store.url!r}"
        self._background.begin(
            "retention", remove, failed, self._timeout_ns, who=who, awaited=False
        )

    def poll(self) -> list[events.Event]:
        """Return the results of the steps that have ended, or have taken too long."""
        found, self._empty = self._empty, []
        for result in self._background.poll():
            if isinstance(result, _Written):
                self._count(result)
                found.append(events.ManifestWritten(result.manifest.epoch))
            elif result is not None:
                found.append(result)
        return found

    @property
    def next_due_ns(self) -> int | None:
        """When `poll` is to be called again; None while nothing is under way."""
        return self._clock.monotonic_ns() if self._empty else self._background.next_due_ns

    def finish(self, *, drained: bool) -> None:
        """Mark the newest epoch: the job has ended behind it, and its output is visible.

        Args:
            drained: it was asked to end, and had not read all of a source.

        Raises:
            OutputError: the folder cannot be written to, or does not answer.
        """
        if self.manifest is not None:
            marked = replace(self.manifest, finished=True, drained=drained)
            write = partial(self._store.write_manifest, marked)
            carry_out_within(write, self._folder, _CLOSE_TIMEOUT_S, self._clock)

    def _count(self, written: _Written) -> None:
        before = set() if self.manifest is None else {file.name for file in _files(self.manifest)}
        files = {file.name: file.nbytes for file in _files(written.manifest)}
        new = sum(nbytes for name, nbytes in files.items() if name not in before)
        self.size = EpochSize(sum(files.values()), new)
        self.manifest = written.manifest
        self._output.count(written.manifest, written.snapshots)
        self.restore_point = RestorePoint(self._store.url, written.name, written.manifest.epoch)

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, ClaimLostError):
            self.lost = error
        if isinstance(error, UserFunctionError):
            return error.in_a_line
        lines = str(error).strip().splitlines() if isinstance(error, WhaleError) else ()
        return next(iter(lines), repr(error))


def parts_of(snapshots: Iterable[events.Part]) -> tuple[OperatorPart, ...]:
    """Return the parts of operators in those of participants."""
    found: list[OperatorPart] = []
    for part in snapshots:
        assert isinstance(part, tuple)
        found += part
    return tuple(sorted(found, key=lambda one: (one.operator_id, one.instances)))


@cache
def program_versions() -> Mapping[str, str]:
    """Return the versions of the programs that write a manifest."""
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "whale-ray": importlib.metadata.version("whale-ray"),
    }


def _files(manifest: Manifest) -> Iterable[ChunkFile]:
    for part in manifest.parts:
        yield from part.chunks
        if part.values is not None:
            yield part.values
