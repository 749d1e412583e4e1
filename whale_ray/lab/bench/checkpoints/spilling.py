"""State at four times its memory: read-modify-write of keys, most of them on disk.

First the kernel has memory for the pages of the file; then it has not, by a control group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import numpy as np

from .... import functions
from .... import state as declared
from ....operators.groupings import Global
from ....operators.keyed.keyed_process import KeyedProcess, compiled
from ....operators.windows.aggregate_windows import AggregateWindows
from ....operators.windows.aggregation import Aggregation
from ....state.budget import StateBudget
from ....state.disk_traffic import DiskTraffic
from ....tasks.flow import FanOut
from ....tasks.process_node import ProcessNode
from ....testing import instance_context
from ....transport.clock import SystemClock
from ....transport.wire.batch import Batch
from ....transport.wire.column import Column
from ....transport.wire.types import Schema
from ..disk_bandwidth import disk_bytes_per_s
from ..memory_limit import NoLimitError, run_within
from ..report import Aim, BenchRow

__all__ = ["disk_bytes", "spilling_rows", "uniform", "zipf"]

KEYS = 16_000_000
QUICK_KEYS = 2_000_000
BATCH_ROWS = 65_536
BATCHES = 400
QUICK_BATCHES = 300
"""So many rows take about twice as much as the records: they are taken in two passes over these."""
TIMES_ITS_MEMORY = 4
ZIPF_AIM = 0.2
_DISK_BYTES_MAX = 64 << 30
_NO_OUTPUT: Any = None  # nothing is emitted before the end
_COMPILING_KEYS = 1 << 18
_COMPILING_BYTES = 20
"""A key of state takes several times so much."""
LIMITED_S = 20.0
"""For so long at most keys are drawn where the kernel limits memory."""
BESIDE_BYTES = 64 << 20
"""What the limited process may take beside its state: batches, pages on their way to the disk."""


class _Subject(Protocol):
    """State by key that is measured."""

    def add(self, keys: np.ndarray[Any, Any]) -> None:
        """Count one row of each key."""

    def settle(self) -> None:
        """Do what was put off."""

    @property
    def nbytes(self) -> int:
        """What it takes, in memory and on the disk."""


class _CountedByKey(KeyedProcess):
    """Counts and adds up the rows of each key."""

    n = declared.count()
    total = declared.sum("double")

    @compiled
    def on_row(self, row: Any, out: Any) -> None:
        """Read the key's state and change it."""
        self.n.add(1)
        self.total.add(row.key)


class _EachRow:
    """A keyed process as a worker runs it: rows may be gathered, and wait for a pass."""

    title = "state that each row reads"

    def __init__(self, budget: StateBudget) -> None:
        self._clock = SystemClock()
        context = replace(
            instance_context(operator_id="bench", clock=self._clock),
            state_budget=budget,
            keys=(("key",),),
        )
        self._node = ProcessNode(
            context,
            0,
            _CountedByKey(),
            [FanOut(())],
            None,
            False,
            True,
            remake=_CountedByKey,
            groupings=(Global(),),
        )
        self._budget = budget

    def add(self, keys: np.ndarray[Any, Any]) -> None:
        batch = Batch(Schema.of(key="int64"), [Column.of(keys)], len(keys))
        self._node.accept(0, 0, batch)
        self._node.due_ns(self._clock.monotonic_ns())  # as after each turn of a worker

    def settle(self) -> None:
        self._node.empty_for_marker()

    @property
    def nbytes(self) -> int:
        return self._budget.used_bytes + self._budget.spilled_by("bench")


class _Aggregates:
    """The operator of `group_by("key").agg(count, sum)`, without a window."""

    title = "aggregates"

    def __init__(self, budget: StateBudget) -> None:
        asked = Aggregation(
            ("key",), None, (functions.count().alias("n"), functions.sum("key").alias("sum"))
        )
        self._budget = budget
        self._operator = AggregateWindows(asked)
        self._operator.open(replace(instance_context(operator_id="bench"), state_budget=budget))

    def add(self, keys: np.ndarray[Any, Any]) -> None:
        batch = Batch(Schema.of(key="int64"), [Column.of(keys)], len(keys))
        self._operator.on_batch(batch, _NO_OUTPUT)

    def settle(self) -> None:
        next(iter(self._operator.dump(np.empty(0, np.int64))))

    @property
    def nbytes(self) -> int:
        return self._budget.used_bytes + self._budget.spilled_by("bench")


def spilling_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure keys drawn by Zipf's law and uniformly."""
    keys, batches = (QUICK_KEYS, QUICK_BATCHES) if quick else (KEYS, BATCHES)
    order = np.random.default_rng(1).permutation(keys)
    rows = []
    for subject in (_Aggregates, _EachRow):
        _compile(subject, folder)
        for name, draw in (("Zipf", zipf), ("uniform", uniform)):
            in_memory, taken = _rate(subject(StateBudget(_DISK_BYTES_MAX)), order, batches, draw)
            budget = StateBudget(taken // TIMES_ITS_MEMORY, _DISK_BYTES_MAX, str(folder))
            spilled, _ = _rate(subject(budget), order, batches, draw)
            aim = Aim("ratio", "at least", ZIPF_AIM) if name == "Zipf" else None
            title = f"{subject.title}, {TIMES_ITS_MEMORY} times their memory, {name} keys"
            case: dict[str, Any] = {"keys": keys, "state MiB": taken >> 20}
            rows.append(
                BenchRow(
                    f"{title}; the kernel has more",
                    case,
                    spilled / 1e6,
                    "M rows/s",
                    ratio=spilled / in_memory,
                    against="all in memory",
                    aim=aim,
                )
            )
            budget = StateBudget(taken // TIMES_ITS_MEMORY, _DISK_BYTES_MAX, str(folder))
            work = partial(_limited_rate, subject, budget, order, batches, draw)
            disk = disk_bytes_per_s(folder)
            if disk is not None:
                case = {**case, "of the disk's MB/s": round(disk / 1e6)}
            rows.append(_limited_row(f"{title}; a hard limit", case, in_memory, budget, work, aim))
    return rows


def _compile(subject: type[_Aggregates | _EachRow], folder: Path) -> None:
    """Let passes be compiled, which a process with little memory cannot do."""
    order = np.random.default_rng(1).permutation(_COMPILING_KEYS)
    with mock.patch.object(DiskTraffic, "is_heavy", True):
        budget = StateBudget(_COMPILING_KEYS * _COMPILING_BYTES, _DISK_BYTES_MAX, str(folder))
        _rate(subject(budget), order, BATCHES // 20, zipf)


def _limited_row(
    title: str,
    case: dict[str, Any],
    in_memory: float,
    budget: StateBudget,
    work: Callable[[], tuple[float, float]],
    aim: Aim | None,
) -> BenchRow:
    """Measure where the kernel has no memory beyond the budget."""
    try:
        rate, io_bytes_per_s = run_within(budget.limit_bytes + BESIDE_BYTES, work)
    except NoLimitError as error:
        return BenchRow(f"{title}: not measured, {error}", case, 0.0, "M rows/s")
    return BenchRow(
        title,
        {**case, "disk MB/s": round(io_bytes_per_s / 1e6)},
        rate / 1e6,
        "M rows/s",
        ratio=rate / in_memory,
        against="all in memory",
        aim=aim,
    )


def _limited_rate(
    subject: type[_Aggregates | _EachRow],
    budget: StateBudget,
    order: np.ndarray[Any, Any],
    batches: int,
    draw: Any,
) -> tuple[float, float]:
    """Return rows per second, and the bytes that the disk reads and writes for them."""
    state, generator = subject(budget), np.random.default_rng(2)
    _fill(state, order)
    rows, taken_s, begin_bytes = 0, 0.0, disk_bytes()
    for _ in range(batches):
        drawn = draw(generator, len(order))
        taken_s += _seconds(partial(state.add, drawn))
        rows += BATCH_ROWS
        if taken_s > LIMITED_S:
            break
    taken_s += _seconds(state.settle)
    return rows / taken_s, (disk_bytes() - begin_bytes) / taken_s


def disk_bytes() -> int:
    """Return the bytes that this process has made the disk read or write."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    counters = {name: int(value) for name, value in lines}
    return counters["read_bytes"] + counters["write_bytes"]


def zipf(generator: np.random.Generator, keys: int) -> np.ndarray[Any, Any]:
    """Return a batch of keys by Zipf's law with exponent 1: int64 (BATCH_ROWS,), from 1 on."""
    return np.floor(keys ** generator.random(BATCH_ROWS)).astype(np.int64)


def uniform(generator: np.random.Generator, keys: int) -> np.ndarray[Any, Any]:
    """Return a batch of keys that are all as frequent: int64 (BATCH_ROWS,)."""
    return generator.integers(0, keys, BATCH_ROWS)


def _rate(
    state: _Subject, order: np.ndarray[Any, Any], batches: int, draw: Any
) -> tuple[float, int]:
    """Return rows per second once all keys are there, and what the state takes."""
    generator = np.random.default_rng(2)
    _fill(state, order)
    taken_s = 0.0
    for _ in range(batches):
        drawn = draw(generator, len(order))
        taken_s += _seconds(partial(state.add, drawn))
    taken_s += _seconds(state.settle)
    return batches * BATCH_ROWS / taken_s, state.nbytes


def _seconds(work: Callable[[], None]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


def _fill(state: _Subject, order: np.ndarray[Any, Any]) -> None:
    """Let all keys be there, that come in an order."""
    for first in range(0, len(order), BATCH_ROWS):
        state.add(order[first : first + BATCH_ROWS])
    state.settle()
