"""Operators that emit in portions: no more than an output takes, and all before what follows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import whale_ray as whale
from whale_ray.operators import portions
from whale_ray.operators.groupings import Global
from whale_ray.operators.joins.asof_join import AsOfJoin
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.joins.join import Join
from whale_ray.operators.windows.aggregation import Aggregation
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
TUMBLING, HOPPING = (TimeWindow("", size * MS, 1_000 * MS, 0) for size in (1_000, 2_000))
GREATEST = (whale.functions.max("n").alias("n"),)
WINDOWS: dict[str, Aggregation] = {
    "tumbling": Aggregation(("key",), TUMBLING, GREATEST),
    "several": Aggregation(("key",), TimeWindow("", 1_000, 1_000, 0), GREATEST),
    "hopping": Aggregation(("key",), HOPPING, GREATEST),
    "none": Aggregation(("key",), None, GREATEST, output_mode="append"),
    "sessions": Aggregation(("key",), SessionWindow("", 100 * MS), GREATEST),
}


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
    more: dict[str, Any] = {"remake": join, "groupings": (Global(), Global())}
    buffer = None
    if isinstance(join, AsOfJoin):
        spill = SpillFile("join", 1 << 30)
        buffer = EventTimeBuffer(2, 1 << 30, lambda: spill)
    node = ProcessNode(context, 0, join(), [sink, *unread], buffer, True, True, **more)
    stage = Stage(0, ("join",), 1, (0,), False, {})
    task = StageTask(stage, (0,), node, [node], [sink], [(0, 0), (1, 0)])
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
    count = 0
    while task.has_more:
        assert not task.accepts_rows and not task.done
        assert not epochs.turn(0), "the marker would come before rows"
        assert not task.poll(0), "the output is full"
        task.set_idle(0, 0, False)
        sink.blocked = False
        assert task.poll(0)
        count += 1
    taken, last = sink.taken[before:-1], sink.taken[-1]
    rows = [one for one in taken if isinstance(one, int)]
    assert count > 2 and max(rows) <= PORTION_ROWS
    assert len(taken) - len(rows) <= 1, "the latest watermark of both inputs, before their end"
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


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("ends", [False, True])
def test_windows_emit_in_portions_before_a_second_watermark_and_a_marker(
    name: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "_PORTION_ROWS", PORTION_ROWS)
    asked, sink = WINDOWS[name], Narrow()
    outputs: list[Any] = [sink, Narrow()]
    more: dict[str, Any] = {"remake": asked, "groupings": (Global(),)}
    context = instance_context(operator_id="windows")
    node = ProcessNode(context, 0, asked(), outputs, None, True, True, **more)
    stage = Stage(0, ("windows",), 1, (0,), False, {})
    task = StageTask(stage, (0,), node, [node], outputs[:1], [(0, 0), (0, 1)])
    numbers = np.arange(ROWS)
    batch = Batch.from_pydict({"key": numbers, "n": numbers}, LEFT)
    task.deliver(0, 0, batch.with_times(numbers))
    once = name != "hopping"
    watermarks = (LATER_NS, WATERMARK_END) if ends else (LATER_NS, 2 * LATER_NS)
    task.advance(0, 1, WATERMARK_END if name == "none" else LATER_NS)
    task.advance(0, 0, WATERMARK_END if name == "none" else LATER_NS)
    assert task.has_more
    if name != "none":
        for source in (0, 1):
            task.advance(0, source, watermarks[1])
    outlet: Any = Unheard()
    epochs = StageEpochs((0, 0), [task], {0: (0, 1)}, outlet)
    for source in (0, 1):
        epochs.mark(0, source, 1, stop=False)
    while task.has_more:
        assert not task.accepts_rows and not task.done and not epochs.turn(0)
        sink.blocked = False
        assert task.poll(0)
    emitted = [one for one in sink.taken if isinstance(one, int)]
    assert len(emitted) > 2 and max(emitted) <= PORTION_ROWS
    assert sink.rows == Counter(np.arange(ROWS).tolist() * (1 if once else 2))
    last = "end" if ends or name == "none" else f"watermark {2 * LATER_NS}"
    assert sink.taken[-1] == last
    sink.blocked = False
    epochs.turn(0)
    assert epochs.ended if last == "end" else sink.taken[-1] == "marker 1"
