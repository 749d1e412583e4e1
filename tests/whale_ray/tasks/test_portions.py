"""Operators that emit in portions: no more than an output takes, and all before what follows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from whale_ray.operators.joins.asof_join import AsOfJoin
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.joins.join import Join
from whale_ray.operators.windows.specifications import SessionWindow, TimeWindow
from whale_ray.plan.physical import Stage
from whale_ray.state.event_time_buffer import EventTimeBuffer
from whale_ray.state.spill import SpillFile
from whale_ray.state.watermarks import WATERMARK_END
from whale_ray.tasks.process_node import ProcessNode
from whale_ray.tasks.stage_epochs import StageEpochs
from whale_ray.tasks.stage_task import StageTask
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

MS, ROWS = 1_000_000, 50_000
LEFT, RIGHT = Schema.of(key="int64", n="int64"), Schema.of(key="int64", m="int64")
SIDES: dict[str, Any] = {"how": "left", "left": LEFT, "right": RIGHT}
KEY = (("key", "key"),)
JOINS = {
    "window": Join(KEY, TimeWindow("", 1_000 * MS, 1_000 * MS, 0), **SIDES),
    "interval": Join(KEY, TimeInterval(0, 1_000 * MS), **SIDES),
    "sessions": Join(KEY, SessionWindow("", 100 * MS), **SIDES),
    "as-of": AsOfJoin(KEY, "forward", 1_000 * MS, **SIDES),
}
LATER_NS, PORTION_ROWS = 10_000 * MS, 1 << 14


class Narrow:
    """An output that is full whenever it has taken rows, until it is emptied."""

    deadline_ns = None
    done = ended = blocked = False

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.taken: list[Any] = []

    def emit(self, batch: Batch) -> None:
        self.rows.update(batch["n"].tolist())
        self.taken.append(batch.num_rows)
        self.blocked = True

    def advance(self, watermark_ns: int) -> None:
        self.taken.append(f"watermark {watermark_ns}")

    def set_idle(self, idle: bool) -> None:
        self.taken.append(f"idle {idle}")

    def end(self) -> None:
        self.ended = self.done = True
        self.taken.append("end")

    def settle(self, now_ns: int) -> None:
        """Do nothing: rows are counted at once."""

    def mark_epoch(self, epoch: int, *, stop: bool) -> None:
        self.taken.append(f"marker {epoch}")

    def pump(self, now_ns: int) -> bool:
        return False

    @property
    def caught_up(self) -> bool:
        return True


class Unheard:
    """Takes snapshots, and drops them."""

    def aligned(self, *about: Any) -> None:
        """Do nothing."""

    taken = ended = aligned


def waiting(join: Any) -> tuple[StageTask, Narrow]:
    """Return a task that keeps rows without a match, and its output."""
    context = instance_context(operator_id="join")
    sink: Any = Narrow()
    unread = [Narrow(), Narrow()]  # of late rows
    more: dict[str, Any] = {"remake": join, "groupings": ()}
    buffer = None
    if isinstance(join, AsOfJoin):
        spill = SpillFile("join", 1 << 30)
        buffer = EventTimeBuffer(2, 1 << 30, lambda: spill)
    node = ProcessNode(context, 0, join(), [sink, *unread], buffer, 2, True, True, **more)
    stage = Stage(0, ("join",), 1, (0,), False, {})
    task = StageTask(stage, 0, (0,), node, [node], [sink], [(0, 0), (1, 0)])
    numbers = np.arange(ROWS)
    left = Batch.from_pydict({"key": numbers, "n": numbers}, LEFT).with_times(numbers)
    right = Batch.from_pydict({"key": np.arange(9), "m": np.arange(9)}, RIGHT)
    right = right.with_times(np.arange(9))
    task.deliver(0, 0, left)
    task.deliver(1, 0, right)
    sink.blocked = False
    return task, sink


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("ends", [False, True])
def test_rows_come_in_portions_while_the_output_takes_them(name: str, ends: bool) -> None:
    task, sink = waiting(JOINS[name])
    watermark_ns = WATERMARK_END if ends else LATER_NS
    task.advance(0, 0, watermark_ns)
    before = len(sink.taken)
    outlet: Any = Unheard()
    epochs = StageEpochs((0, 0), [task], {0: (0,), 1: (0,)}, outlet)
    epochs.mark(0, 0, 1, stop=False)
    task.advance(1, 0, watermark_ns)
    epochs.mark(1, 0, 1, stop=False)
    portions = 0
    while task.has_more:
        assert not task.accepts_rows and not task.done
        assert not epochs.turn(0), "the marker would come before rows"
        assert not task.poll(0), "the output is full"
        task.set_idle(0, 0, False)
        sink.blocked = False
        assert task.poll(0)
        portions += 1
    rows, last = sink.taken[before:-1], sink.taken[-1]
    assert portions > 2 and max(rows) <= PORTION_ROWS
    assert sink.rows == Counter(range(ROWS))
    assert last == ("end" if ends else f"watermark {LATER_NS}")
    sink.blocked = False
    assert task.accepts_rows
    epochs.turn(0)
    assert epochs.ended if ends else sink.taken[-1] == "marker 1"


@pytest.mark.parametrize("name", JOINS)
def test_a_second_watermark_follows_the_first_one(name: str) -> None:
    task, sink = waiting(JOINS[name])
    task.advance(1, 0, 2 * LATER_NS)
    task.advance(0, 0, LATER_NS)  # of a message that says also that its producer is idle
    assert task.has_more
    task.set_idle(0, 0, True)
    while task.has_more:
        sink.blocked = False
        assert task.poll(0)
    assert sink.rows == Counter(range(ROWS))
    assert sink.taken[-2:] == [f"watermark {LATER_NS}", f"watermark {2 * LATER_NS}"]


def test_rows_that_end_idleness_come_before_the_watermark_that_follows() -> None:
    task, sink = waiting(JOINS["window"])
    task.advance(1, 0, LATER_NS)
    for producer in (1, 0):
        task.set_idle(producer, 0, True)
    task.set_idle(1, 0, False)
    assert not task.has_more
    task.advance(1, 0, LATER_NS)
    assert task.has_more
    assert sink.taken[-3:-1] == ["idle True", "idle False"]


def test_idleness_follows_the_watermark() -> None:
    task, sink = waiting(JOINS["window"])
    task.advance(0, 0, LATER_NS)
    task.advance(1, 0, LATER_NS)
    assert task.has_more
    task.set_idle(0, 0, True)
    task.set_idle(1, 0, True)
    while task.has_more:
        sink.blocked = False
        task.poll(0)
    assert sink.taken[-2:] == [f"watermark {LATER_NS}", "idle True"]
