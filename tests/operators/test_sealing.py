"""All ready-made operators on random rows: sealed, rolled back, and moved by virtual node."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows.driving import AGGREGATES, EVENTS, arrivals, batch_of
from whale_ray import state
from whale_ray.operators.joins.asof_join import AsOfJoin
from whale_ray.operators.joins.deduplication import Deduplication
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.joins.join import Join
from whale_ray.operators.process import CoProcess, Output, Process
from whale_ray.operators.sealing import Sealing, Survives
from whale_ray.operators.snapshots import StateChunk
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.specifications import CountWindow, SessionWindow, TimeWindow
from whale_ray.operators.windows.top_n import TopN
from whale_ray.state.watermarks import WATERMARK_NONE
from whale_ray.testing import check_dump, instance_context
from whale_ray.testing.conformance import counted, difference
from whale_ray.testing.dump_check import Step, hand_over
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

F = whale.functions
US = 1_000
BRIEFLY = datetime.timedelta(microseconds=9)
KEYS = ("key",)
TIMES = st.integers(-40 * US, 40 * US)
TUMBLING = TimeWindow("time", 7 * US, 7 * US, 0)
HOPPING = TimeWindow("time", 11 * US, 4 * US, US)
OBJECTS = (*AGGREGATES, F.collect_list("text"), F.approx_count_distinct("text"))


RIGHT = Schema.of(key="int32", **{f"{one.name}2": one.type for one in EVENTS.fields[1:]})


def joined(how: str, within: TimeWindow | SessionWindow | TimeInterval) -> Join:
    return Join((("key", "key"),), within, how=how, left=EVENTS, right=RIGHT)


class Everything(whale.KeyedProcess):
    """Declared state of every kind, emitted when a key has been quiet."""

    rows = state.count()
    least = state.min("double")
    text = state.value("string")
    numbers = state.list("int64")
    ratios = state.map("int64", "double")
    words = state.list("string")
    named = state.map("string", "string")
    brief = state.value("int64", ttl=BRIEFLY)
    brief_numbers = state.list("int64", ttl=BRIEFLY)
    brief_ratios = state.map("string", "double", ttl=BRIEFLY)
    quiet = state.timer()

    def on_row(self, row: Any, out: Output) -> None:
        self.rows.add(1)
        self.quiet.set(out.time_ns + 6 * US)
        self.text.set(row.text)
        if row.number is None:
            self.numbers.clear()
            return
        self.numbers.append(row.number)
        self.brief.set(row.number)
        self.brief_numbers.append(row.number)
        self.words.append("wörd" * (row.number % 4))
        self.named[str(row.number % 6)] = self.words[-1]
        if row.ratio is not None:
            self.least.add(row.ratio)
            for ratios, kind in ((self.ratios, int), (self.brief_ratios, str)):
                if row.number % 5 == 4:
                    ratios.pop(kind(row.number + 1))
                ratios[kind(row.number)] = row.ratio

    def on_timer(self, timer: Any, out: Output) -> None:
        one = {"key": self.key.key, "rows": self.rows.get(), "least": self.least.get()}
        for name in ("text", "numbers", "words", "brief", "brief_numbers"):
            one[name] = str(getattr(self, name).get())
        for name in ("ratios", "named", "brief_ratios"):
            one[name] = str(sorted(getattr(self, name).items()))
        out.emit_rows([one])
        if self.rows.get() > 4:
            self.clear()


INTERVAL = TimeInterval(-6 * US, 9 * US)
MADE: dict[str, Callable[[], Process | CoProcess]] = {
    "tumbling windows": Aggregation(KEYS, TUMBLING, OBJECTS),
    "hopping windows, late": Aggregation(KEYS, HOPPING, OBJECTS, allowed_lateness_ns=9 * US),
    "changed rows": Aggregation(KEYS, HOPPING, AGGREGATES, "update"),
    "changed rows, some time later": Aggregation(KEYS, HOPPING, AGGREGATES, "update", 10**9),
    "no window": Aggregation(KEYS, None, OBJECTS, "update"),
    "sessions": Aggregation(KEYS, SessionWindow("time", 5 * US), OBJECTS),
    "sessions, late": Aggregation(
        KEYS, SessionWindow("time", 5 * US), AGGREGATES, allowed_lateness_ns=9 * US
    ),
    "changed sessions, some time later": Aggregation(
        KEYS, SessionWindow("time", 5 * US), AGGREGATES, "update", 10**9
    ),
    "counts": Aggregation(KEYS, CountWindow(3), OBJECTS),
    "top rows": TopN(KEYS, TUMBLING, 2, "number"),
    "top rows with ties": TopN(KEYS, HOPPING, 1, "number", with_ties=True),
    "first rows": Deduplication(KEYS, 8 * US),
    "keyed process": Everything,
    "join of sessions": joined("outer", SessionWindow("", 5 * US)),
    "semi join of sessions": joined("semi", SessionWindow("", 5 * US)),
    "semi join": joined("semi", INTERVAL),
    "anti join": joined("anti", HOPPING),
}
PAIRS = {
    f"{how} join {within.describe()}": joined(how, within)
    for how in ("inner", "outer")
    for within in (INTERVAL, HOPPING)
}
PAIRS |= {
    f"as-of join, {strategy}": AsOfJoin(
        (("key", "key"),), strategy, tolerance_ns, how="left", left=EVENTS, right=RIGHT
    )
    for strategy, tolerance_ns in (("backward", None), ("forward", 9 * US), ("nearest", 5 * US))
}


def renamed(batch: Batch) -> Batch:
    names = ("number", "ratio", "text")
    return batch.rename({name: f"{name}2" for name in names})


def in_order(drawn: list[tuple[list[Any], int]]) -> list[Step]:
    """Return pairs of batches in the order of event time, each with its watermark behind it."""
    steps: list[Any] = []
    events = sorted((one for some, _ in drawn for one in some), key=lambda one: one.time_ns)
    times = sorted({one.time_ns for one in events})
    for some_ns in (set(times[at : at + 3]) for at in range(0, len(times), 3)):
        some = [one for one in events if one.time_ns in some_ns]
        lefts, rights = some[::2], some[1::2]
        right = renamed(batch_of(rights)) if rights else None
        steps += [(batch_of(lefts), right), max(some_ns)]
    return steps


def steps_of(drawn: list[tuple[list[Any], int]], name: str) -> list[Step]:
    """Return batches and rising watermarks; of a join, batches go to the sides in turns."""
    if "as-of" in name:
        return in_order(drawn)
    paired = "join" in name
    steps: list[Any] = []
    latest_ns = -(1 << 62)
    for number, (events, watermark_ns) in enumerate(drawn):
        if events:
            batch = batch_of(events)
            pair = (None, renamed(batch)) if number % 2 else (batch, None)
            steps.append(pair if paired else batch)
        if watermark_ns > latest_ns:
            latest_ns = watermark_ns
            steps.append(watermark_ns)
    return steps


# With a trigger, when changed rows come depends on the other keys of an instance.
MOVED = [name for name in (*MADE, *PAIRS) if "some time later" not in name]


@pytest.mark.long
@pytest.mark.parametrize("name", MOVED)
@settings(max_examples=4)
@given(data=st.data())
def test_virtual_nodes_move_to_other_instances(name: str, data: st.DataObject) -> None:
    make = {**MADE, **PAIRS}[name]
    is_join = "join" in name
    steps = steps_of(data.draw(arrivals(TIMES)), name)
    old, new = data.draw(st.sampled_from([(1, 3), (3, 7), (7, 1), (3, 1)]))
    check_dump(
        make,
        steps,
        keys=KEYS,
        right_keys=KEYS if is_join else (),
        parallelisms=(old, new),
        event_times=name != "no window",  # there it is that of the latest row of the instance
    )


BESIDE = [
    name for name, made in MADE.items() if isinstance(made, Aggregation | TopN | Deduplication)
]
"""Operators whose snapshots a thread makes, beside keyed processes."""


class Taken(Output):
    """Keeps rows with their output and event time."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, batch, times=None):
        self.emit_to("main", batch, times)

    def emit_rows(self, rows):
        self.rows += [{"output": "main", "time": self.time_ns, **row} for row in rows]

    def emit_to(self, output, rows, times=None):
        times = rows.times if times is None else times
        at = [None] * rows.num_rows if times is None else times.tolist()
        for row, time_ns in zip(rows.to_pylist(), at, strict=True):
            self.rows.append({"output": output, "time": time_ns, **row})


class Running:
    """An operator on its worker, and what it has emitted."""

    def __init__(
        self, make: Callable[[], Process | CoProcess], watermark_ns: int = WATERMARK_NONE
    ) -> None:
        self.operator: Any = make()
        self.context = replace(
            instance_context(operator_id="op"), keys=(KEYS, KEYS), watermark_ns=watermark_ns
        )
        self.out = Taken()
        self.operator.open(self.context)
        assert isinstance(self.operator, Sealing)

    def take(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, int):
                self.operator.on_watermark(step, self.out)
            elif isinstance(step, Batch):
                self.operator.on_batch(step, self.out)
            else:
                hand_over(self.operator, *step, self.out)

    def back_to(self, epoch: int, rows: int, steps: list[Step]) -> None:
        self.operator.roll_back(epoch)
        del self.out.rows[rows:]
        self.take(steps)

    def ended(self, last_epoch: int) -> tuple[Any, int]:
        """Return the rows in the end, and the bytes of state that are taken then.

        What an earlier epoch needs is given up with the last one.
        """
        self.operator.close(self.out)
        self.operator.seal(last_epoch)
        self.operator.release(last_epoch)
        return counted(self.out.rows), self.context.state_budget.used_bytes


@pytest.mark.parametrize("name", [*MADE, *PAIRS])
@settings(max_examples=4)
@given(data=st.data())
def test_what_follows_a_roll_back_is_as_if_nothing_had_been(name: str, data: st.DataObject) -> None:
    make = {**MADE, **PAIRS}[name]
    steps = steps_of(data.draw(arrivals(TIMES)), name)
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(steps))] * 2)))
    straight = Running(make)
    straight.take(steps)
    wanted, _ = straight.ended(1)
    running = Running(make)
    running.take(steps[:first])
    rows = [len(running.out.rows)]
    running.operator.seal(1)
    running.take(steps[first:second])
    rows.append(len(running.out.rows))
    running.operator.seal(2)
    running.take(steps[second:])
    if data.draw(st.booleans()):
        running.operator.release(1)
    for _ in range(data.draw(st.integers(0, 2))):
        running.back_to(2, rows[1], steps[second:])
    running.back_to(1, rows[0], steps[first:])
    running.operator.seal(3)
    running.operator.release(3)
    found, left_bytes = running.ended(4)
    assert not difference(wanted, found)
    assert left_bytes <= 1 << 20  # first chunks and indexes of stores, none of it for rows


@dataclass(frozen=True)
class Marker:
    """What there was at a marker."""

    chunks: Sequence[StateChunk]
    watermark_ns: int
    steps: int
    rows: int


class Written:
    """Takes snapshots between steps; reads them late, or at once before an epoch counts."""

    def __init__(self, make: Callable[[], Process | CoProcess]) -> None:
        self.make, self.running = make, Running(make)
        self.watermark_ns, self.steps = WATERMARK_NONE, 0
        self.markers: list[Marker] = []
        self.first = 0  # of the markers that can be gone back to
        self.files: dict[str, Batch] = {}

    def take(self, steps: list[Step]) -> None:
        self.running.take(steps)
        self.steps += len(steps)
        for step in steps:
            self.watermark_ns = step if isinstance(step, int) else self.watermark_ns

    def snapshot(self) -> None:
        chunks = self.running.operator.chunks(len(self.markers) + 1)
        rows = len(self.running.out.rows)
        self.markers.append(Marker(chunks, self.watermark_ns, self.steps, rows))

    def count(self) -> None:
        """Let the last epoch count: its chunks are in files, and none before it is of use."""
        self.first = len(self.markers) - 1
        for chunk in self.markers[-1].chunks:
            self.read(chunk)
        if isinstance(self.running.operator, Survives):
            survivor = self.running.operator.survivor(len(self.markers))
            if survivor is not None:
                survivor.release()

    def read(self, chunk: StateChunk) -> Batch:
        if chunk.identity is None:
            return chunk.rows
        if chunk.identity not in self.files:
            self.files[chunk.identity] = chunk.rows
        return self.files[chunk.identity]

    def go_back(self, wasted: list[Step]) -> None:
        """Let another object take over what survives, after steps that count for nothing."""
        operator, epoch, before = self.running.operator, len(self.markers), self.markers[-1]
        if not isinstance(operator, Survives) or operator.survivor(epoch) is None:
            return
        survivor = operator.survivor(epoch)
        self.running.take(wasted)
        rows = self.running.out.rows[: before.rows]
        self.running = Running(self.make, before.watermark_ns)
        self.running.out.rows = rows
        self.running.operator.take_over(survivor)


@pytest.mark.long
@pytest.mark.parametrize("name", BESIDE)
@settings(max_examples=4)
@given(data=st.data())
def test_what_follows_a_snapshot_is_the_same_whenever_its_rows_are_made(
    name: str, data: st.DataObject
) -> None:
    steps = steps_of(data.draw(arrivals(TIMES)), name)
    straight = Running(MADE[name])
    straight.take(steps)
    wanted, _ = straight.ended(1)
    written = Written(MADE[name])
    for number in range(len(steps)):
        written.take(steps[number : number + 1])
        written.snapshot()
        match data.draw(st.sampled_from(["go on", "go on", "count", "go back"])):
            case "count":
                written.count()
            case "go back":
                written.go_back(steps[number + 1 : number + 3])
    rows = written.running.out.rows
    for marker in written.markers[written.first :]:
        restored = Running(MADE[name], marker.watermark_ns)
        batches = [written.read(chunk) for chunk in marker.chunks]
        restored.operator.take([StateChunk(batch) for batch in batches], whole=True)
        restored.out.rows = rows[: marker.rows]
        restored.take(steps[marker.steps :])
        found, _ = restored.ended(len(steps) + 1)
        assert not difference(wanted, found)


def test_epochs_increase_and_are_gone_after_their_release() -> None:
    for make in (*MADE.values(), *PAIRS.values()):
        operator = Running(make).operator
        operator.seal(3)
        with pytest.raises(ValueError, match="epoch 3 after epoch 3"):
            operator.seal(3)
        operator.seal(5)
        operator.release(5)
        with pytest.raises(ValueError, match=r"no seal of epoch 3; there are \[5\]"):
            operator.roll_back(3)
        operator.roll_back(5)
