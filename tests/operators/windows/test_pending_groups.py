"""Aggregates with groups on the disk: rows wait for a pass, and nobody sees a difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows import model
from tests.operators.windows.driving import AGGREGATES, Emitted, arrivals, batch_of, bounds
from tests.operators.windows.test_aggregate_windows import TIMES, US, WINDOWS
from whale_ray.configs.errors import BadRowError
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.group_state import GroupState
from whale_ray.operators.windows.pending_groups import PendingGroups
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.state.disk_traffic import DiskTraffic, Moved
from whale_ray.state.region_runs import RegionRuns
from whale_ray.state.store import KeyedStore
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

F = whale.functions
COUNT_AND_SUM = (F.count().alias("rows"), F.sum("number").alias("sum"))
KEYS = 60_000
ROWS = Schema.of(key="int64", number="int64")


@pytest.fixture(autouse=True)
def from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let state on the disk count as coming from there, as if the kernel had no memory for it."""
    monkeypatch.setattr(DiskTraffic, "is_heavy", True)


def newest(out: Emitted) -> dict[tuple[int, int, Any], dict[str, Any]]:
    return {(*bounds(row), row["key"]): row for row in out.rows}


@pytest.mark.long
@settings(max_examples=40)
@given(
    batches=arrivals(TIMES),
    window=WINDOWS,
    lateness=st.integers(0, 30),
    update=st.booleans(),
    step=st.sampled_from([0, 1, 10]),
    puts_off=st.booleans(),
)
def test_windows_are_those_of_a_model_though_rows_wait(
    batches: Any, window: Any, lateness: int, update: bool, step: int, puts_off: bool
) -> None:
    """Each group behaves as if it were on the disk; time passes, so that triggers are due.

    With `puts_off` the memory for rows is full before each batch, they wait on the disk, and there
    are so many of each region that it is passed.
    """

    def has_room(waiting: PendingGroups, rows: Batch) -> bool:
        return not (puts_off and waiting._gathered)

    asked = Aggregation(
        ("key",),
        window,
        AGGREGATES,
        output_mode="update" if update else "append",
        trigger_ns=10**9 if update else None,
        allowed_lateness_ns=lateness * US,
    )
    process, out = AggregateWindows(asked), Emitted()
    clock = mock.Mock(monotonic_ns=mock.Mock(side_effect=range(0, 10**15, step * 10**8 or 1)))
    context = replace(instance_context(operator_id="windows"), clock=clock)
    context = replace(context, state_budget=StateBudget(1 << 30, 1 << 30))
    with (
        mock.patch.object(GroupState, "spills", True),
        mock.patch.object(PendingGroups, "has_room", has_room),
        mock.patch.object(RegionRuns, "has_room", return_value=puts_off),
        mock.patch.object(KeyedStore, "region_pages", 1 if puts_off else 1 << 10),
    ):
        process.open(context)
        for number, (events, watermark_ns) in enumerate(batches):
            if events:
                process.on_batch(batch_of(events), out)
            if number == 2:
                process.seal(1)
            if watermark_ns > out.watermark_ns:
                process.on_watermark(watermark_ns, out)
                out.watermark_ns = watermark_ns
        process.close(out)
    expected, late = model.tumble(
        batches, window.size_ns, window.slide_ns, window.start_ns, lateness * US
    )
    assert len(out.late) == late
    found = newest(out)
    assert set(found) == set(expected)
    for key, row in found.items():
        wanted = model.aggregates(expected[key])
        for one in AGGREGATES:
            assert model.same(row[one.output_name], wanted[one.output_name]), one


def test_rows_that_were_late_and_wait_leave_before_their_window_closes() -> None:
    """The window ends without a row, so that its only rows are those that wait."""
    sums = (F.sum("number").alias("sum"),)
    more = {"output_mode": "update", "trigger_ns": 10**12, "allowed_lateness_ns": 5}
    process = AggregateWindows(Aggregation(("key",), TimeWindow("time", 10, 10, 0), sums, **more))
    out, clock = Emitted(), mock.Mock(monotonic_ns=lambda: 0)
    context = replace(instance_context(operator_id="windows"), clock=clock)
    process.open(replace(context, state_budget=StateBudget(1 << 30, 1 << 30)))
    with mock.patch.object(GroupState, "spills", True):
        for time_ns, watermark_ns in ((25, 11), (7, 15)):
            process.on_batch(batch_of([model.Event(time_ns, 1, time_ns, None, None)]), out)
            process.on_watermark(watermark_ns, out)
            out.watermark_ns = watermark_ns
    assert [row["sum"] for row in out.rows] == [7, 25]


def opened(budget: StateBudget, **asked: Any) -> AggregateWindows:
    process = AggregateWindows(Aggregation(("key",), None, COUNT_AND_SUM, **asked))
    process.open(replace(instance_context(operator_id="counts"), state_budget=budget))
    return process


def of_random_keys(random: np.random.Generator, rows: int = 8192) -> Batch:
    keys = random.integers(0, KEYS, rows)
    return Batch.from_pydict({"key": keys, "number": keys * 7}, ROWS)


def results(process: AggregateWindows) -> dict[int, tuple[int, int]]:
    out = Emitted()
    process.close(out)
    assert len({row["key"] for row in out.rows}) == len(out.rows)
    return {row["key"]: (row["rows"], row["sum"]) for row in out.rows}


def taken_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of how many rows are added to groups at a time from now on."""
    taken: list[int] = []
    update: Callable[..., None] = GroupState.update
    monkeypatch.setattr(GroupState, "update", lambda *a: (taken.append(len(a[1])), update(*a))[1])
    return taken


def expected(batches: list[Batch]) -> dict[int, tuple[int, int]]:
    counts = np.bincount(np.concatenate([batch.column("key").data for batch in batches]))
    return {k: (n, 7 * k * n) for k, n in enumerate(counts.tolist()) if n}


def test_groups_on_the_disk_go_back_to_a_marker_in_memory_and_hold_to_their_budget() -> None:
    budget, random = StateBudget(4 << 20, 1 << 30), np.random.default_rng(5)
    process = opened(budget)
    batches = [of_random_keys(random) for _ in range(24)]
    for batch in batches[:16]:
        process.on_batch(batch, Emitted())
        assert budget.used_bytes <= budget.limit_bytes
    assert budget.spilled_by("counts") > 0
    process.seal(1)
    for batch in batches[:5]:  # what is undone
        process.on_batch(batch, Emitted())
    process.roll_back(1)
    for batch in batches[16:]:
        process.on_batch(batch, Emitted())
        assert budget.used_bytes <= budget.limit_bytes
    assert results(process) == expected(batches)


def test_rows_wait_on_the_disk_until_they_take_as_much_as_the_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between passes over all groups nothing is merged; then all that waited is, and is freed."""
    budget, random = StateBudget(4 << 20, 1 << 30), np.random.default_rng(10)
    process = opened(budget)
    batches = [Batch.from_pydict({"key": np.arange(KEYS), "number": np.arange(KEYS) * 7}, ROWS)]
    process.on_batch(batches[0], Emitted())
    next(iter(process.dump(np.empty(0, np.int64))))
    taken = taken_rows(monkeypatch)
    most_bytes = 0
    while not taken:
        batches.append(of_random_keys(random))
        process.on_batch(batches[-1], Emitted())
        most_bytes = max(most_bytes, budget.spilled_by("counts"))
        assert len(batches) < 200
    groups_bytes = budget.spilled_by("counts")
    assert 1.5 * groups_bytes < most_bytes <= 2 * groups_bytes
    assert results(process) == expected(batches)


def test_rows_that_wait_leave_the_disk_once_groups_need_the_room() -> None:
    """The groups fit on the disk; with the rows that wait, which take as much at most, not."""
    budget, random = StateBudget(4 << 20, 18 << 20), np.random.default_rng(3)
    process = opened(budget)
    batches: list[Batch] = []
    for keys in range(20_000, 220_000, 2_000):
        taken = np.concatenate([random.integers(0, keys, 6_000), np.arange(keys, keys + 2_000)])
        batches.append(Batch.from_pydict({"key": taken, "number": taken * 7}, ROWS))
        process.on_batch(batches[-1], Emitted())
    assert results(process) == expected(batches)


def test_groups_on_the_disk_are_dumped_whole() -> None:
    budget, random = StateBudget(4 << 20, 1 << 30), np.random.default_rng(6)
    process, other = opened(budget), opened(StateBudget(1 << 30))
    batches = [of_random_keys(random) for _ in range(16)]
    for batch in batches:
        process.on_batch(batch, Emitted())
    for dumped in process.dump(np.arange(1024)):
        other.load(dumped)
    assert results(other) == expected(batches)


def test_groups_are_left_alone_until_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a thousand keys are not added batch by batch, but together in the end."""
    budget, random = StateBudget(4 << 20, 1 << 30), np.random.default_rng(7)
    process = opened(budget)
    batches = [of_random_keys(random) for _ in range(16)]
    batches.append(Batch.from_pydict({"key": np.arange(KEYS), "number": np.arange(KEYS) * 7}, ROWS))
    for batch in batches:
        process.on_batch(batch, Emitted())
    next(iter(process.dump(np.empty(0, np.int64))))
    taken = taken_rows(monkeypatch)
    for _ in range(40):
        frequent = np.arange(1000)
        batches.append(Batch.from_pydict({"key": frequent, "number": frequent * 7}, ROWS))
        process.on_batch(batches[-1], Emitted())
    assert not taken
    assert results(process) == expected(batches)
    assert sum(taken) == 40_000
    assert len(taken) < 40


@pytest.mark.parametrize("has_memory", [True, False])
def test_an_index_that_takes_the_memory(
    has_memory: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows keep a part of the memory if they have had any; if not, that is reported once."""
    if not has_memory:
        monkeypatch.setattr(GroupState, "set_aside", lambda *_: False)
    budget = StateBudget(4 << 20, 1 << 30)
    process = opened(budget)
    batches = []
    for start in range(0, 320_000, 8_000):
        keys = np.arange(start, start + 8_000)
        batches.append(Batch.from_pydict({"key": keys, "number": keys * 7}, ROWS))
        process.on_batch(batches[-1], Emitted())
        assert budget.used_bytes <= budget.limit_bytes
    assert (process._waiting is not None) == has_memory
    assert len(caplog.records) == (not has_memory)
    for record in caplog.records:
        assert "operator 'counts'" in record.getMessage()
        assert "runtime.state_bytes" in record.getMessage()
    assert results(process) == expected(batches)


def test_what_waits_is_in_the_chunks_of_a_checkpoint() -> None:
    """Of the last groups some are in memory alone before the marker."""
    budget, random = StateBudget(4 << 20, 1 << 30), np.random.default_rng(9)
    process, other = opened(budget), opened(StateBudget(1 << 30))
    batches = [of_random_keys(random) for _ in range(18)]
    for batch in batches[:16]:
        process.on_batch(batch, Emitted())
    process.chunks(1)
    for batch in batches[16:]:
        process.on_batch(batch, Emitted())
    chunks = list(process.chunks(2))
    process.on_batch(batches[0], Emitted())  # is not in it
    other.take(chunks, whole=True)
    assert results(other) == expected(batches)


def test_a_sum_that_leaves_its_type_names_operator_and_key_though_rows_waited() -> None:
    process, random = opened(StateBudget(4 << 20, 1 << 30)), np.random.default_rng(8)
    for _ in range(16):
        process.on_batch(of_random_keys(random), Emitted())
    for _ in range(3):
        large = Batch.from_pydict({"key": [KEYS + 5], "number": [2**62]}, ROWS)
        process.on_batch(large, Emitted())
    with pytest.raises(BadRowError, match=rf"'counts'.*{KEYS + 5}"):
        process.close(Emitted())


def test_what_aggregates_read_is_computed_before_rows_wait() -> None:
    """A key may be called like a column that waits, and an error is that of the batch at hand."""
    table = np.arange(3) * 7
    key = "#slice0"

    @whale.compiled
    def found(place: Any) -> Any:
        return table[place]

    asked = Aggregation(
        (key,),
        None,
        (
            F.sum(found("number")).alias("found"),
            F.sum("number").alias("sum"),
            F.max("number").alias("most"),
            F.sum(key).alias("keys"),
        ),
    )
    process = AggregateWindows(asked)
    context = instance_context(operator_id="counts")
    process.open(replace(context, state_budget=StateBudget(1 << 30, 1 << 30)))
    with mock.patch.object(GroupState, "spills", True):
        for numbers in ([1, 2], [2, 0]):
            process.on_batch(Batch.from_pydict({key: [4, 5], "number": numbers}), Emitted())
        with pytest.raises(IndexError):
            process.on_batch(Batch.from_pydict({key: [4], "number": [3]}), Emitted())
        out = Emitted()
        process.close(out)
    rows = {row[key]: [row[one] for one in ("found", "sum", "most", "keys")] for row in out.rows}
    assert rows == {4: [21, 3, 2, 8], 5: [14, 2, 2, 10]}


def test_rows_wait_only_while_a_pass_moves_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are added where their groups lie, wait once that reads the disk, and no longer after."""
    monkeypatch.undo()
    budget, random = StateBudget(4 << 20, 1 << 30), np.random.default_rng(11)
    process, batches = opened(budget), []
    reads, read_bytes = 0, 0

    def moved() -> Moved:
        nonlocal read_bytes
        read_bytes += reads
        return Moved(read_bytes, 0)

    def waits_after(count: int) -> list[bool]:
        """Take so many batches, and after each a marker, for which a pass is made if rows wait."""
        waits = []
        for _ in range(count):
            batches.append(of_random_keys(random))
            process.on_batch(batches[-1], Emitted())
            process._state.traffic._moved = moved
            waits.append(process._waiting is not None)
            process.seal(len(batches))
            process.release(len(batches))
        return waits

    assert not any(waits_after(16))
    assert budget.spilled_by("counts") > 0
    reads = 64 << 20
    assert waits_after(8) == [False] + 7 * [True]
    reads = 0
    waits = waits_after(24)
    assert waits[0]
    assert not waits[-1]
    assert results(process) == expected(batches)
