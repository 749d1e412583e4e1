"""The epochs of one stage on one worker: aligns its rings, takes snapshots, passes markers on.

::

    marker in every ring ──► marker into every ring out ──► snapshot of every task ──► read on

The tasks of a stage on a worker share the rings into which they write. So they take their snapshots
together, and none is called again before the markers of all are in the rings (the *sibling rule*,
`state.epochs.aligner`): a task whose ring is full keeps the others waiting. `StageTask.paused`
keeps rings, deadlines and sources away from them meanwhile. The marker is sent before the snapshot
is taken, which emits nothing, so that downstream stages can align meanwhile.

A stage whose head is a source has one more input in the alignment: the controller, which orders it
to begin an epoch.

Tables that are joined are complete before the first snapshot, so their rings take no part: their
sources write no marker, and their stages report only their end. A snapshot waits until the tables
of its stage are complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..configs.errors import AttemptLostError, WhaleError
from ..operators.sinks.cut_rows import CutRows
from ..operators.snapshots import OperatorSnapshot
from ..plan.logical import TABLE
from ..plan.physical import Edge
from ..state.epochs.aligner import EpochAligner
from ..state.epochs.epoch_commands import InjectMarker
from ..transport.wire.messages import MarkerMessage
from .stage_task import StageTask

__all__ = ["EpochInlet", "SnapshotOutlet", "StageEpochs", "TakenSnapshot", "aligns"]


def aligns(edge: Edge) -> bool:
    """Return whether an edge's rings take part in epochs: all but those that bring a table."""
    return not (edge.is_side_input and edge.port == TABLE)


_CONTROLLER = 0
"""The number of the ring, and of the producer, that stands for the controller."""


@dataclass(frozen=True)
class TakenSnapshot:
    """The snapshot of one operator object at an epoch.

    Attributes:
        operator: what it keeps.
        staged: its output since the last epoch that counts, oldest first, staged or still to be.
    """

    operator: OperatorSnapshot
    staged: tuple[CutRows, ...] = ()


class SnapshotOutlet(Protocol):
    """Where a stage tells how far it is, and where its snapshots go; no call may wait."""

    def aligned(self, participant: tuple[int, int], epoch: int) -> None:
        """Learn that all inputs have come to the marker, and that it has been passed on."""

    def taken(
        self, participant: tuple[int, int], epoch: int, parts: tuple[TakenSnapshot, ...]
    ) -> None:
        """Take the snapshot of an epoch, which is to be written."""

    def failed(self, participant: tuple[int, int], epoch: int, reason: str) -> None:
        """Learn that the snapshot of an epoch could not be taken."""

    def ended(
        self, participant: tuple[int, int], behind: int, parts: tuple[TakenSnapshot, ...]
    ) -> None:
        """Take the last snapshot of tasks that have all ended, after this epoch."""


class StageEpochs:
    """The epochs of a stage on a worker, whose `tasks` are all that it runs there.

    Args:
        participant: its name towards the coordinator: stage and worker.
        tasks: of the stage on this worker.
        rings: the producers of each ring that takes part, by the ring's number in the plan.
        injects: whether it is a source's stage whose markers come from the controller.
        last: the epoch that this attempt resumes from; 0 for none.
        outlet: where it tells what happens.
    """

    def __init__(
        self,
        participant: tuple[int, int],
        tasks: Sequence[StageTask],
        rings: Mapping[int, Sequence[int]],
        outlet: SnapshotOutlet,
        *,
        injects: bool = False,
        last: int = 0,
    ) -> None:
        self.participant = participant
        self.behind = last
        """The last epoch of which it has taken a snapshot."""
        self.ended = False
        """Whether all its tasks have ended, and their last snapshot is taken."""
        self._tasks = tuple(tasks)
        self._outlet = outlet
        self._injects = injects
        self._numbers = {ring: number for number, ring in enumerate(rings, int(injects))}
        producers = [(_CONTROLLER,)] if injects else []
        self.aligner = EpochAligner([*producers, *rings.values()])
        self.aligner.forget(last)
        self._passing = False
        self._stop = False  # the flag of the epoch that is being aligned
        self._stopped_at: int | None = None
        self._staged: dict[tuple[str, tuple[int, ...]], list[tuple[int, CutRows]]] = {}

    def inlet(self, ring: int, beside: Sequence[int] = ()) -> EpochInlet:
        """Return a ring's place in the alignment; `beside` are others of the same producers.

        A producer writes its end into one of them only. Some may go to other workers alone.
        """
        here = [self._numbers[other] for other in beside if other in self._numbers]
        return EpochInlet(self, self._numbers[ring], here)

    # --- what the controller says -----------------------------------------------------------------

    def inject(self, command: InjectMarker) -> None:
        """Begin an epoch, if the head is a source that has not ended."""
        if self._injects:
            self.mark(_CONTROLLER, _CONTROLLER, command.epoch, stop=command.stop)

    def forget(self, epoch: int) -> None:
        """End the alignment of an epoch that does not count; tasks that it stopped continue.

        Sources do not: the stop is tried again with another epoch.
        """
        self.aligner.forget(epoch)
        if self._stopped_at is not None and self._stopped_at <= epoch:
            self._stopped_at = None
            self._go_on()

    def durable(self, epoch: int) -> None:
        """Give up what was staged up to an epoch that counts: the controller has it."""
        for key, staged in self._staged.items():
            self._staged[key] = [one for one in staged if one[0] > epoch]

    # --- what rings bring -------------------------------------------------------------------------

    def mark(self, ring: int, producer: int, epoch: int, *, stop: bool) -> None:
        """Take a marker; `ring` counts those that take part."""
        if ring == _CONTROLLER and self._injects and self._source_ended:
            return
        self.aligner.marker(ring, producer, epoch)
        if epoch == self.aligner.epoch:
            self._stop = stop

    def give_up(self, reason: str) -> None:
        """End the alignment that is under way, and let the rings be read."""
        epoch = self.aligner.epoch
        if epoch is not None:
            self.aligner.forget(epoch)
            self._outlet.failed(self.participant, epoch, reason)

    @property
    def _source_ended(self) -> bool:
        return all(task.head_ended for task in self._tasks)

    # --- the worker's loop ------------------------------------------------------------------------

    def turn(self, now_ns: int) -> bool:
        """Pass markers on and take a snapshot, if due; return whether anything happened."""
        if self._passing:
            return self._release_rings()
        if self.ended:
            return False
        if all(task.done for task in self._tasks):
            self.ended = True
            self._outlet.ended(self.participant, self.behind, self._snapshots(self.behind + 1))
            return True
        if self.aligner.epoch is None:
            return False
        if self._injects and self._source_ended:
            self.aligner.end(_CONTROLLER, _CONTROLLER)
        if not self.aligned:
            return False
        self._pass_on(now_ns)
        return True

    @property
    def aligned(self) -> bool:
        """Whether the snapshot is due: all rings are held, all tables complete, all rows out."""
        return self.aligner.aligned and all(
            task.tables_ready and not task.has_more for task in self._tasks
        )

    def _pass_on(self, now_ns: int) -> None:
        """Pass the marker on and take the snapshot; keep the tasks waiting until both are done."""
        epoch = self.behind = self.aligner.pass_on()
        if self._stop:
            self._stopped_at = epoch
            for task in self._tasks:
                task.suspend()
        self._passing = True
        for task in self._tasks:
            task.paused = True
            task.empty_for_marker()
            for writer in task.writers:
                writer.mark_epoch(epoch, stop=self._stop)
                writer.pump(now_ns)
        self._outlet.aligned(self.participant, epoch)
        try:
            self._outlet.taken(self.participant, epoch, self._snapshots(epoch))
        except AttemptLostError:
            raise  # what an earlier epoch needs is gone
        except WhaleError as error:
            self._outlet.failed(self.participant, epoch, str(error))
        self._release_rings()

    def _release_rings(self) -> bool:
        """Let the tasks be called again if their markers are in the rings; return whether so."""
        if not all(writer.caught_up for task in self._tasks for writer in task.writers):
            return False
        self._passing = False
        self._go_on()
        return True

    def _go_on(self) -> None:
        if not self._passing and self._stopped_at is None:
            for task in self._tasks:
                task.paused = False

    def _snapshots(self, epoch: int) -> tuple[TakenSnapshot, ...]:
        """Return the snapshots of all tasks; raises WhaleError if one cannot be taken.

        What other sinks have staged by then is kept for the next epoch.
        """
        failed: WhaleError | None = None
        taken: list[TakenSnapshot] = []
        for task in self._tasks:
            try:
                for snapshot in task.snapshot(epoch):
                    taken.append(TakenSnapshot(snapshot, self._note_staged(epoch, snapshot)))
            except AttemptLostError:
                raise
            except WhaleError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return tuple(taken)

    def _note_staged(self, epoch: int, snapshot: OperatorSnapshot) -> tuple[CutRows, ...]:
        staged = self._staged.setdefault((snapshot.operator_id, snapshot.instances), [])
        if snapshot.staged is not None:
            staged.append((epoch, snapshot.staged))
        return tuple(output for _, output in staged)


class EpochInlet:
    """One ring of a stage, as its reader tells the alignment what comes through it."""

    def __init__(self, epochs: StageEpochs, ring: int, beside: Sequence[int] = ()) -> None:
        self._epochs = epochs
        self._aligner = epochs.aligner
        self._ring = ring
        self._beside = tuple(beside)

    @property
    def held(self) -> bool:
        """Whether nothing may be read: the ring has come to the marker, and others have not."""
        return self._aligner.waits(self._ring)

    def row(self, producer: int) -> None:
        """Check that rows, or a watermark, may come; raises ProtocolError."""
        if not self._is_over(producer):
            self._aligner.row(self._ring, producer)

    def marker(self, message: MarkerMessage) -> None:
        """Take a marker; raises ProtocolError."""
        producer = message.header.source
        if self._is_over(producer):
            return
        self._epochs.mark(self._ring, producer, message.epoch, stop=message.stops)

    def give_up(self, reason: str) -> None:
        """End the alignment that is under way: the stage takes no snapshot of this epoch."""
        self._epochs.give_up(reason)

    def end(self, producer: int) -> None:
        """Take a producer's end."""
        for ring in (self._ring, *self._beside):
            self._aligner.end(ring, producer)

    def _is_over(self, producer: int) -> bool:
        """Whether another ring has brought the end; it overtakes marks that say nothing new."""
        return bool(self._beside) and not self._aligner.is_open(self._ring, producer)
