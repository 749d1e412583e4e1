"""A measurement begins when every instance receives rows, however long the first ones take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from whale_ray.lab.bench.one_to_many import control_block as b
from whale_ray.lab.bench.one_to_many.deployment import Deployment, Shape
from whale_ray.lab.bench.one_to_many.modes import mode_named
from whale_ray.metrics.job_metrics import JobMetrics

ROWS_A_LOOK = 100


class SlowJob:
    """A job that moves on whenever it is looked at; what flows comes late to some instances.

    `late` and `silent` are numbers of looks: so many after rows begin to flow they get the first
    ones, and so many after these the next.
    """

    def __init__(
        self, control_block: b.ControlBlock, late: int, silent: int, instances: slice
    ) -> None:
        self.control_block = control_block
        self.slow = instances
        self.late = late
        self.silent = silent
        self.looks = 0
        self.flowed = 0

    @property
    def state(self) -> str:
        source, workers, sums = (
            self.control_block.source,
            self.control_block.workers,
            self.control_block.sums,
        )
        if self.control_block.orders[b.RATE]:
            self.looks += 1
            self.flowed = self.looks
            source[b.ROWS] += ROWS_A_LOOK
            source[b.WORD_SUM] += 7 * ROWS_A_LOOK
        else:
            self.looks = 0
        paused = not self.looks
        all_get = paused or self.looks == self.late or self.looks > self.late + self.silent
        kept = workers[self.slow, b.ROWS].copy(), sums[self.slow, 0].copy()
        workers[:, b.ROWS], sums[:, 0] = source[b.ROWS], source[b.WORD_SUM]
        if not all_get:
            workers[self.slow, b.ROWS], sums[self.slow, 0] = kept
        return "running"

    def metrics(self) -> JobMetrics:
        return JobMetrics((), 0.0, 0)

    def abandon(self) -> None:
        self.control_block.orders[b.RATE] = 0


@pytest.fixture
def control_block() -> Iterator[b.ControlBlock]:
    made = b.ControlBlock.create(b.ControlBlockShape(workers=2, instances=2, samples=64, bins=8))
    yield made
    made.close()


def deployed(control_block: b.ControlBlock, late: int, silent: int, instances: slice) -> Any:
    """Return a deployment around a stand-in for its job."""
    deployment: Any = Deployment.__new__(Deployment)
    deployment.shape = Shape(hosts=2, instances=2)
    deployment.mode = mode_named("one host")
    deployment.control_block = control_block
    deployment.job = SlowJob(control_block, late, silent, instances)
    deployment._members = {}
    return deployment


@pytest.mark.parametrize("instances", [slice(0, 2), slice(1, 2)], ids=["all", "one"])
@pytest.mark.parametrize(("late", "silent"), [(0, 0), (8, 0), (1, 8), (5, 8)])
def test_a_window_begins_and_ends_with_rows_at_every_instance(
    control_block: b.ControlBlock, late: int, silent: int, instances: slice
) -> None:
    """The warm-up is one look long and so is the window: both too short for what is late."""
    deployment = deployed(control_block, late, silent, instances)
    measured = deployment.unpaced(0.01, 0.01)
    assert measured.rows >= ROWS_A_LOOK // 2
    assert deployment.job.flowed > late + silent, "it waited until all had received rows again"
    assert control_block.orders[b.RATE] == 0
    assert (control_block.workers[:, b.ROWS] == control_block.source[b.ROWS]).all(), (
        "it was drained"
    )
