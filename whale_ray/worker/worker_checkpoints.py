"""What a worker knows of checkpoints, across attempts, and what writes its snapshots in one.

A worker that survives a lost attempt keeps its last snapshots, so the next attempt goes back to
them in memory. All else is read from the folder of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..plan.assignment import Assignment, has_checkpoints
from ..state.epochs.checkpoint_store import CheckpointStore
from . import snapshot_writer
from .epoch_schedule import EpochSchedule, exchanges_in_a_row
from .kept_snapshots import KeptSnapshots
from .restored_snapshots import KnownFiles, known_files, snapshots_of
from .snapshot_writer import SnapshotWriter
from .worker_epochs import WorkerEpochs

if TYPE_CHECKING:
    from ..operators.snapshots import OperatorSnapshot
    from ..state.budget import StateBudget
    from ..state.epochs.epoch_commands import RestorePoint
    from ..tasks.stage_epochs import SnapshotOutlet
    from ..tasks.stage_task import StageTask

__all__ = ["WorkerCheckpoints"]


class WorkerCheckpoints:
    """The checkpoints of worker `worker`, for one attempt after the other.

    Args:
        budget: memory of the worker's state, of which only survivors keep their part.
        report: sends an event of the coordinator to the controller: called with the attempt and it.
        wake: wakes the worker's loop.
    """

    def __init__(
        self,
        assignment: Assignment,
        worker: int,
        budget: StateBudget,
        report: Callable[[int, object], None],
        wake: Callable[[], None],
    ) -> None:
        self._assignment = assignment
        self._worker = worker
        self._budget = budget
        self._report = report
        self._wake = wake
        self._kept = KeptSnapshots()
        self._restored_epoch = 0  # from which the attempt goes on; 0 for none
        self._known_files: KnownFiles = {}  # of that epoch
        self._epochs: WorkerEpochs | None = None
        self._writer: SnapshotWriter | None = None

    def warm_up(self) -> None:
        """Load or compile what snapshots are written with, if the job has checkpoints."""
        if has_checkpoints(self._assignment):
            snapshot_writer.warm_up()

    def restore(self, point: RestorePoint | None) -> dict[str, list[OperatorSnapshot]]:
        """Go back to an epoch; return its snapshots by operator, none without an epoch.

        Raises:
            DamagedCheckpointError: the manifest is missing or damaged.
            InputError: the folder of checkpoints cannot be read.
        """
        self._restored_epoch = 0 if point is None else point.epoch
        self._kept.forget_after(self._restored_epoch)
        self._known_files = {}
        if point is None:
            self._budget.keep_only(())
            return {}
        store = CheckpointStore.at(point.url)
        manifest = store.read_manifest(point.manifest)
        is_ours = manifest.lineage.job == self._assignment.job_id
        kept = self._kept.at(point.epoch) if is_ours else {}
        if is_ours:
            self._known_files = known_files(manifest, kept)
        survivors = [one.operator_id for one in kept.values() if one.survivor is not None]
        self._budget.keep_only(survivors)
        return snapshots_of(manifest, store.read_chunk, kept)

    def begin(self, attempt: int, tasks: Sequence[StageTask]) -> WorkerEpochs | None:
        """Return the epochs of an attempt with these tasks; None in a job without checkpoints."""
        outlet = self._make_outlet(attempt)
        if outlet is None:
            return None
        plan = self._assignment.plan
        schedule = EpochSchedule.of(self._assignment.settings.checkpoints, exchanges_in_a_row(plan))
        self._epochs = WorkerEpochs(
            plan, self._worker, tasks, outlet, self._kept, self._restored_epoch, schedule
        )
        return self._epochs

    def _make_outlet(self, attempt: int) -> SnapshotOutlet | None:
        """Return where snapshots go; None in a job without checkpoints."""
        if not has_checkpoints(self._assignment):
            return None
        self._writer = SnapshotWriter(
            CheckpointStore.at(self._assignment.settings.checkpoints.url),
            self._kept,
            self._assignment.job_id,
            attempt,
            partial(self._report, attempt),
            self._wake,
            known=self._known_files,
        )
        return self._writer

    @property
    def are_complete(self) -> bool:
        """Whether the last snapshots of all stages are written, if the job has checkpoints."""
        if self._epochs is not None and not self._epochs.ended:
            return False
        return not self.is_writing

    @property
    def is_writing(self) -> bool:
        """Whether snapshots are being written, or are about to be; raises what made that fail."""
        return self._writer is not None and not self._writer.idle

    def wait(self) -> None:
        """Wait until all snapshots that were taken are written."""
        if self._writer is not None:
            self._writer.wait()

    def close(self) -> None:
        """End the attempt: nothing more of it is written. What was kept in memory stays."""
        writer, self._writer, self._epochs = self._writer, None, None
        if writer is not None:
            writer.close()
