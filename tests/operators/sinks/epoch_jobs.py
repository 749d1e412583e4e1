"""Drives a sink through epochs as a job's coordinator does, with failures at random.

Of the job there is only what concerns the sink: instances that write numbers, epochs that count or
are forgotten, commits that fail before or after they were made, restarts, and restores by another
job. What `rows` returns is compared with the numbers that were written.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from whale_ray.configs.errors import OutputError
from whale_ray.operators.sinks.base import CommitId, Sink, SinkWriter, Staged
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

INSTANCES = 3


@dataclass
class Checkpoint:
    """An epoch that counts: how far its job had read, and what is to be committed with it."""

    commit: CommitId
    read: int
    staged: list[Staged]


@dataclass
class EpochJob:
    """A job of one sink whose source is the numbers 0, 1, 2 …; `token` is its id."""

    sink: Sink
    token: str
    chance: random.Random
    failures: float = 0.0
    bounded: bool = False
    batch_rows: int = 100
    kept: list[Checkpoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.epoch = 0
        self.read = 0
        self.writers: list[SinkWriter] = []
        self.waiting: list[Staged] = []  # of a bounded job: staged by the epochs that count

    def begin(self, restored: Checkpoint | None = None) -> None:
        """Begin anew, or behind an epoch of another job."""
        if restored is None:
            self.sink.prepare(self.token, bounded=self.bounded)
            self._open()
        else:
            self.kept.append(restored)
            self._go_on()

    def run_epoch(self, rows: int) -> None:
        """Write rows and let an epoch count and be committed; failures restart the job."""
        goal = self._counted_read() + rows
        while self._counted_read() < goal:
            self._try_epoch(goal)

    def publish(self) -> int:
        """Stage the rest and publish all; return the number of rows."""
        parts = self.waiting + [writer.stage() for writer in self.writers]
        published = self._persistently(lambda: self.sink.publish(self.token, parts))
        self.close()
        return published.rows

    def close(self) -> None:
        """End the writers."""
        for writer in self.writers:
            writer.abort()

    def _try_epoch(self, goal: int) -> None:
        self.epoch += 1
        while self.read < goal:
            self._write(min(self.batch_rows, goal - self.read))
        if self._fails():  # a worker dies before the marker
            return self._restart()
        staged = [part for writer in self.writers if (part := writer.stage_epoch(self.epoch))]
        if self._fails():  # ... and before the manifest is there
            return self._restart()
        self.waiting = self.waiting + staged if self.bounded else staged
        self.kept.append(Checkpoint(CommitId(self.token, self.epoch), self.read, self.waiting))
        if self._fails():  # the manifest is there, the commit is left to the restart
            return self._restart()
        if not self.bounded:
            self._commit(self.kept[-1])
        if self._fails():  # committed, and forgotten that it was
            return self._restart()
        return None

    def _commit(self, checkpoint: Checkpoint) -> None:
        self._persistently(lambda: self.sink.commit(checkpoint.commit, checkpoint.staged))

    def _persistently(self, commit: Callable[[], object]):
        """Try until it succeeds; an error does not say whether it was done."""
        for _ in range(100):
            try:
                return commit()
            except OutputError:
                continue
        raise AssertionError("a hundred tries of a commit failed")

    def _restart(self) -> None:
        self.close()
        self._go_on()

    def _go_on(self) -> None:
        last = self.kept[-1] if self.kept else Checkpoint(CommitId(self.token, 0), 0, [])
        self.read, self.waiting = last.read, list(last.staged)
        self.sink.recover(self.token, last.staged, bounded=self.bounded)
        if last.staged and not self.bounded:
            self._commit(last)
        self._open()

    def _open(self) -> None:
        self.writers = [
            self.sink.open(instance_context(number, INSTANCES), self.token)
            for number in range(INSTANCES)
        ]

    def _write(self, rows: int) -> None:
        numbers = np.arange(self.read, self.read + rows)
        for number, writer in enumerate(self.writers):
            writer.write(Batch.from_pydict({"id": numbers[number::INSTANCES]}))
        self.read += rows

    def _counted_read(self) -> int:
        return self.kept[-1].read if self.kept else 0

    def _fails(self) -> bool:
        return self.chance.random() < self.failures
