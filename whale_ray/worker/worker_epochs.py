"""The epochs of one worker: what the controller says of them, and the stages that carry it out.

The controller speaks in another thread. The worker's loop takes what it has said before its next
frame or turn.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..plan.physical import PhysicalPlan
from ..plan.side_inputs import sources_of_side_inputs
from ..plan.streams import CustomStream, RingSpec
from ..state.epochs.epoch_commands import EpochCommand, EpochDurable, EpochForgotten, InjectMarker
from ..tasks.stage_epochs import SnapshotOutlet, StageEpochs, aligns
from ..tasks.stage_task import StageTask
from .epoch_schedule import EpochSchedule
from .kept_snapshots import KeptSnapshots

__all__ = ["WorkerEpochs"]


class WorkerEpochs:
    """The epochs of all stages of worker `worker`, whose tasks are `tasks`, in one attempt.

    `queue_command` may be called from any thread, everything else only by the worker's loop.

    Args:
        outlet: receives the stages' progress and their snapshots.
        kept: the snapshots that are kept in memory.
        last: the epoch from which the attempt was restored; 0 for none.
        schedule: tells when the next epoch is near.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        worker: int,
        tasks: Sequence[StageTask],
        outlet: SnapshotOutlet,
        kept: KeptSnapshots,
        last: int,
        schedule: EpochSchedule,
    ) -> None:
        of_tables = sources_of_side_inputs(plan.logical)
        self.by_stage: dict[int, StageEpochs] = {}
        """The epochs of each local stage, those upstream first."""
        for stage in plan.local_stages(worker):
            of_stage = [task for task in tasks if task.stage.id == stage.id]
            is_source = not plan.operator(stage.head).inputs
            self.by_stage[stage.id] = StageEpochs(
                (stage.id, worker),
                of_stage,
                _producers(plan, stage.id, worker),
                outlet,
                injects=is_source and stage.head not in of_tables,
                last=last,
            )
        self._stages = tuple(self.by_stage.values())
        self._tasks = tuple(tasks)
        self._epoch: int | None = None  # whose markers some stage here lacks
        self._schedule = schedule
        self._hurries = self._is_near = False
        self._kept = kept
        self._lock = threading.Lock()
        # The latest of each kind: the controller leads one epoch at a time.
        self._commands: dict[type, EpochCommand] = {}

    @property
    def has_commands(self) -> bool:
        """Whether commands of the controller wait for the loop."""
        return bool(self._commands)

    def comes_first(self, stage: int) -> bool:
        """Whether what rings bring to a local stage comes before what sources would read.

        So it is while the marker of the epoch under way has not come to the stage, and if an epoch
        is near: its markers will wait behind what is in the rings by then.
        """
        if self._epoch is None:
            return self._is_near
        found = self.by_stage[stage]
        return not found.ended and found.behind < self._epoch

    def has_passed_on(self, stage: int) -> bool:
        """Whether a local stage has passed on the marker that another one here lacks."""
        if self._epoch is None:
            return False
        found = self.by_stage[stage]
        return found.ended or found.behind >= self._epoch

    @property
    def ended(self) -> bool:
        """Whether all stages have ended, and their last snapshots are taken."""
        return all(stage.ended for stage in self._stages)

    def queue_command(self, command: EpochCommand) -> None:
        """Queue a command for the loop's next turn; only the latest of a kind counts."""
        with self._lock:
            self._commands[type(command)] = command

    def carry_out_commands(self) -> None:
        """Carry out the queued commands of the controller."""
        with self._lock:
            commands, self._commands = self._commands, {}
        forgotten, durable = commands.get(EpochForgotten), commands.get(EpochDurable)
        begun = commands.get(InjectMarker)
        if forgotten is not None:
            self._kept.forget(forgotten.epoch)
        if durable is not None:
            self._kept.forget_before(durable.epoch)
        for stage in self._stages:
            if forgotten is not None:
                stage.forget(forgotten.epoch)
            if durable is not None:
                stage.durable(durable.epoch)
            if isinstance(begun, InjectMarker):
                stage.inject(begun)
        epoch = self._epoch if begun is None else begun.epoch
        if epoch is not None and forgotten is not None and epoch <= forgotten.epoch:
            epoch = None
        self._epoch = epoch
        if begun is not None:
            self._schedule.begun()

    def turn_between_frames(self, now_ns: int) -> None:
        """Begin an epoch, or pass its marker on, without waiting for frames that are in the rings.

        A frame may take as long as all else in a turn.
        """
        if self._commands:
            self.carry_out_commands()
        if self._epoch is not None:
            self.turn(now_ns)

    def turn(self, now_ns: int) -> bool:
        """Give every stage its turn; return whether anything happened."""
        moved = False
        for stage in self._stages:
            moved |= stage.turn(now_ns)
        epoch = self._epoch
        if epoch is not None and all(one.ended or one.behind >= epoch for one in self._stages):
            self._epoch = None
        self._is_near = self._schedule.puts_rings_first(now_ns)
        self._hurry(self._schedule.reads_little(now_ns) or self._epoch is not None)
        return moved

    def _hurry(self, hurries: bool) -> None:
        """Let sources read little while markers of an epoch are on their way, or soon will be."""
        if hurries != self._hurries:
            self._hurries = hurries
            for task in self._tasks:
                task.hurry(hurries)


def _producers(plan: PhysicalPlan, stage: int, worker: int) -> dict[int, tuple[int, ...]]:
    """Return the producers of each stream that brings rows to a stage on a worker, by its id."""
    streams: list[RingSpec | CustomStream] = list(plan.rings_of_consumer(worker))
    streams += [one for one in plan.custom_streams if one.consumer_worker == worker]
    found: dict[int, tuple[int, ...]] = {}
    for stream in streams:
        edge = plan.edges[stream.edge]
        if edge.target_stage == stage and aligns(edge):
            found[stream.id] = plan.source_ids(edge.source_stage, stream.producer_worker)
    return found
