"""Stages of the job of the scenario "epochs": their participants, and the rings between them."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.scenarios.epoch_control import TASKS, WORKERS, Output, Part
from whale_ray.state.epochs import coordinator_events as events
from whale_ray.state.epochs.aligner import EpochAligner
from whale_ray.state.epochs.epoch_commands import InjectMarker

if TYPE_CHECKING:
    from tests.simulation.scenarios.epochs import Job

KEYS = 5
_FRAMES_MAX = 6
"""Frames that a ring holds."""


class Row(NamedTuple):
    """A frame with one row."""

    key: int
    count: int = 0


class Marker(NamedTuple):
    """A frame that divides the stream into what an epoch's snapshot holds and what follows."""

    epoch: int
    stop: bool


class End(NamedTuple):
    """The last frame of a producer."""


Frame = Row | Marker | End


def key_of(task: int, number: int) -> int:
    """Return the key of a source's row."""
    return (task * 7 + number * 3 + number // 4) % KEYS


def expected_output(positions: dict[int, int]) -> Output:
    """Return what the sink gets from the rows before these positions."""
    rows = Counter(key_of(task, n) for task, stop in positions.items() for n in range(stop))
    return Counter({(key, n): 1 for key, count in rows.items() for n in range(1, count + 1)})


class Ring:
    """The frames from the producers of one worker to one participant, in order."""

    def __init__(self) -> None:
        self.frames: deque[tuple[int, Frame]] = deque()

    @property
    def full(self) -> bool:
        return len(self.frames) >= _FRAMES_MAX


class Participant:
    """One stage on one worker: reads its rings, counts or stages, writes to the next stage."""

    def __init__(self, job: Job, stage: int, worker: int, part: Part | None) -> None:
        self.job, self.stage, self.worker = job, stage, worker
        self.name = (stage, worker)
        self.inputs = job.rings_into(stage, worker)
        self.outputs = job.rings_from(stage, worker)
        self.tasks = [worker * TASKS + n for n in range(TASKS if stage == 0 else 1)]
        producers = TASKS if stage == 1 else 1
        numbers = [[w * producers + n for n in range(producers)] for w in range(WORKERS)]
        self.producers = numbers if self.inputs else []
        self.aligner = EpochAligner(self.producers)
        part = Part() if part is None else part
        starts = {} if stage else dict.fromkeys(self.tasks, 0)
        self.positions = starts | part.positions
        self.counts = Counter(part.counts)
        self.staged: dict[int, Output] = {}
        self.rows: Output = Counter()
        self.producing = set(self.tasks)
        self.marker: Marker | None = None
        self.behind = job.base_epoch
        self.forgotten = 0
        self.ended = self.stopped = False

    def turn(self, chance: random.Random) -> None:
        """Do one thing, if anything can be done: bounded rings may be full."""
        if self.ended or any(ring.full for ring in self.outputs):
            return
        if self.stage == 0:
            self._read_source(chance)
        else:
            self._read_ring(chance)

    # --- rows -------------------------------------------------------------------------------------

    def _read_source(self, chance: random.Random) -> None:
        if self.marker is not None:
            self.stopped = self.stopped or self.marker.stop
            self.snapshot(self.marker)
            self.marker = None
        elif not self.stopped:
            task = chance.choice(sorted(self.producing))
            number = self.positions[task]
            if number == self.job.rows:
                self._finish(task)
            else:
                self.positions[task] += 1
                self._write(Row(key_of(task, number)), task)

    def _read_ring(self, chance: random.Random) -> None:
        ready = [
            n for n, ring in enumerate(self.inputs) if ring.frames and not self.aligner.waits(n)
        ]
        if not ready:
            return
        number = chance.choice(ready)
        producer, frame = self.inputs[number].frames.popleft()
        if isinstance(frame, Row):
            self.aligner.row(number, producer)
            self._take(frame)
        elif isinstance(frame, Marker):
            self.aligner.marker(number, producer, frame.epoch)
            self.marker = frame
        else:
            self.aligner.end(number, producer)
        if self.aligner.aligned and self.marker is not None:
            self.snapshot(self.marker._replace(epoch=self.aligner.pass_on()))
        if not any(
            self.aligner.is_open(ring, one)
            for ring, numbers in enumerate(self.producers)
            for one in numbers
        ):
            self._finish(self.tasks[0])

    def _take(self, row: Row) -> None:
        if self.stage == 1:
            self.counts[row.key] += 1
            self._write(Row(row.key, self.counts[row.key]), self.tasks[0])
        else:
            self.rows[row] += 1

    def _write(self, frame: Row, task: int) -> None:
        target = frame.key % WORKERS if self.stage == 0 else frame.key // WORKERS % WORKERS
        self.outputs[target].frames.append((self._producer(task), frame))

    def _producer(self, task: int) -> int:
        return task if self.stage == 0 else self.worker

    # --- epochs -----------------------------------------------------------------------------------

    def snapshot(self, marker: Marker) -> None:
        """Take the snapshot of an epoch, and pass its marker on."""
        self.behind = marker.epoch
        self.job.tell(events.Aligned(self.name, marker.epoch))
        part = self._part(marker.epoch)
        self.pass_on(marker)
        self.job.write_snapshot(self.name, marker.epoch, part)

    def pass_on(self, marker: Marker) -> None:
        """Write the markers of all producers of this participant before any of them goes on."""
        for task in sorted(self.producing):
            for ring in self.outputs:
                ring.frames.append((self._producer(task), marker))

    def begin(self, command: InjectMarker) -> None:
        """Let the tasks of a source emit the marker, unless it comes too late."""
        newest = self.forgotten if self.marker is None else self.marker.epoch
        if self.stage == 0 and not self.ended and command.epoch > max(newest, self.behind):
            self.marker = Marker(command.epoch, command.stop)

    def forget(self, epoch: int) -> None:
        """Give the alignment of an epoch up."""
        self.aligner.forget(epoch)
        self.forgotten = max(self.forgotten, epoch)
        if self.stage == 0 and self.marker is not None and self.marker.epoch <= epoch:
            self.marker = None

    def release(self, epoch: int) -> None:
        """Give up what is committed."""
        self.staged = {n: output for n, output in self.staged.items() if n > epoch}

    def _part(self, epoch: int) -> Part:
        if self.rows:
            self.staged[epoch] = self.rows
            self.rows = Counter()
        return Part(dict(self.positions), Counter(self.counts), dict(self.staged))

    def _finish(self, task: int) -> None:
        self.producing.discard(task)
        for ring in self.outputs:
            ring.frames.append((self._producer(task), End()))
        if not self.producing:
            self.ended = True
            part = self._part(self.behind + 1)
            self.job.tell(events.ParticipantEnded(self.name, self.behind, part))
