"""Tumbling and hopping windows against a plain Python model, on random rows in random order."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows import model
from tests.operators.windows.driving import (
    AGGREGATES,
    EPOCH,
    TIMES,
    US,
    WINDOWS,
    Emitted,
    arrivals,
    batch_of,
    bounds,
    check,
    drive,
)
from whale_ray.configs.errors import BadRowError
from whale_ray.operators.windows import slice_stores
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

F = whale.functions


@pytest.mark.long
@settings(max_examples=25)
@given(batches=arrivals(TIMES), window=WINDOWS)
def test_every_window_has_one_row_per_key_when_the_watermark_has_passed(batches, window):
    process = AggregateWindows(Aggregation(("key",), window, AGGREGATES))
    out = drive(process, batches)
    expected, late = model.tumble(batches, window.size_ns, window.slide_ns, window.start_ns, 0)
    assert len(out.late) == late
    found = [(*bounds(row), row["key"]) for row in out.rows]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)
    for key, row in zip(found, out.rows, strict=True):
        check(row, expected[key])
    assert out.times == sorted(out.times)
    assert all(time >= end - 1 for time, (_, end, _) in zip(out.times, found, strict=True))


@pytest.mark.long
@settings(max_examples=25)
@given(batches=arrivals(TIMES), window=WINDOWS, lateness=st.integers(1, 30), update=st.booleans())
def test_the_newest_row_of_a_group_is_right_with_late_rows_and_updates(
    batches, window, lateness, update
):
    asked = Aggregation(
        ("key",),
        window,
        AGGREGATES,
        output_mode="update" if update else "append",
        allowed_lateness_ns=lateness * US,
    )
    process = AggregateWindows(asked)
    out = drive(process, batches)
    expected, late = model.tumble(
        batches, window.size_ns, window.slide_ns, window.start_ns, lateness * US
    )
    assert len(out.late) == late
    newest = {(*bounds(row), row["key"]): row for row in out.rows}
    assert set(newest) == set(expected)
    for key, row in newest.items():
        check(row, expected[key])


@settings(max_examples=25)
@given(batches=arrivals(TIMES))
def test_groups_without_a_window(batches):
    process = AggregateWindows(Aggregation(("key",), None, AGGREGATES, output_mode="update"))
    out = drive(process, batches)
    newest = {row["key"]: row for row in out.rows}
    events = [event for rows, _ in batches for event in rows]
    assert set(newest) == {event.key for event in events}
    for key, row in newest.items():
        check(row, [event for event in events if event.key == key])


@settings(max_examples=25)
@given(batches=arrivals(TIMES), window=WINDOWS)
def test_windows_without_a_key(batches, window):
    process = AggregateWindows(Aggregation((), window, (F.count().alias("rows"),)))
    out = drive(process, batches)
    events = [event for rows, _ in batches for event in rows]
    unkeyed = [
        ([model.Event(e.time_ns, None, None, None, None) for e in rows], mark)
        for rows, mark in batches
    ]
    expected, late = model.tumble(unkeyed, window.size_ns, window.slide_ns, window.start_ns, 0)
    assert {bounds(row): row["rows"] for row in out.rows} == {
        key[:2]: len(rows) for key, rows in expected.items()
    }
    assert late == len(out.late) <= len(events)


@pytest.mark.long
def test_an_hour_of_windows_leaves_nothing_behind():
    second = 1_000_000 * US
    window = TimeWindow("time", 10 * second, 2 * second, 0)
    asked = Aggregation(("key",), window, (F.count(), F.count_distinct("text"), F.min("text")))
    process = AggregateWindows(asked)
    sizes = []
    batches = [
        ([model.Event(at * second, at % 50, at, 0.5, f"text {at:04}")], at * second - 1)
        for at in range(3600)
    ]
    original = process.on_watermark

    def measured(watermark_ns, out):
        original(watermark_ns, out)
        sizes.append(process._state.nbytes)

    process.on_watermark = measured
    drive(process, batches)
    assert max(sizes[100:]) <= max(sizes[:100])
    assert process._state.slices == ()


def test_a_sum_that_leaves_its_type_names_operator_key_and_window():
    window = TimeWindow("time", 10 * US, 10 * US, 0)
    process = AggregateWindows(Aggregation(("key",), window, (F.sum("number"),)))
    events = [model.Event(5, 7, 2**63 - 1, None, None), model.Event(6, 7, 1, None, None)]
    with pytest.raises(BadRowError) as raised:
        drive(process, [(events, 0)])
    assert str(raised.value) == (
        "operator 'windows': sum(number) of key {key=7} in the window 1970-01-01T00:00:00.000000 to"
        " 1970-01-01T00:00:00.000010: the sum 9223372036854775808 does not fit into an int64: cast"
        " the column to decimal(38, 0) before"
    )


@pytest.mark.parametrize("size_us", [10, 20], ids=["in a slice", "in the merge of two"])
def test_a_list_longer_than_its_limit_names_operator_and_key(size_us):
    window = TimeWindow("time", size_us * US, 10 * US, 0)
    process = AggregateWindows(Aggregation(("key",), window, (F.collect_list("number", 1),)))
    second_us = 6 if size_us == 10 else 16
    events = [model.Event(at * US, 7, at, None, None) for at in (5, second_us)]
    with pytest.raises(BadRowError) as raised:
        drive(process, [([model.Event(0, 8, 1, None, None), *events], 0)])
    assert str(raised.value) == (
        "operator 'windows': collect_list(number, 1) of key {key=7}: it has more values than its"
        " limit of 1: pass a higher limit=, or use an aggregate of bounded size"
    )


def test_a_text_longer_than_what_is_kept_names_operator_and_key():
    process = AggregateWindows(Aggregation(("key",), None, (F.min("text"),)))
    process.open(instance_context(operator_id="windows"))
    rows = [{"key": 6, "text": "a"}, {"key": 7, "text": "a" * (16 << 20)}]
    with pytest.raises(BadRowError, match=r"'windows': min\(text\) of key {key=7}: a value of 16,"):
        process.on_batch(Batch.from_rows(rows), Emitted())


def test_a_time_at_the_end_of_what_nanoseconds_can_tell_is_refused():
    window = TimeWindow("time", 10 * US, 10 * US, 0)
    process = AggregateWindows(Aggregation(("key",), window, (F.count(),)))
    with pytest.raises(BadRowError, match="would leave the years 1677 to 2262"):
        drive(process, [([model.Event(2**63 - 2, 1, 1, None, None)], 0)])


DAY = 86_400 * 1_000_000 * US


@pytest.mark.parametrize("slide_days", [73_000, 36_500, 50_000])
def test_windows_of_centuries(slide_days):
    window = TimeWindow("time", 73_000 * DAY, slide_days * DAY, 0)
    process = AggregateWindows(Aggregation(("key",), window, (F.count(),)))
    out = drive(process, [([model.Event(at * DAY, 1, 1, None, None) for at in (0, 1, 20_000)], 0)])
    starts = [(row["window_start"] - EPOCH).days for row in out.rows]
    assert starts == [at for at in (-slide_days, 0) if at > -73_000]
    assert {row["count(*)"] for row in out.rows} == {3}


def test_a_window_longer_than_what_nanoseconds_can_tell_is_refused():
    window = TimeWindow("time", 106_000 * DAY, 106_000 * DAY, 0)
    process = AggregateWindows(Aggregation(("key",), window, (F.count(),)))
    with pytest.raises(BadRowError, match="at 2119-.* shorten it, or correct the event time of {"):
        drive(process, [([model.Event(54_500 * DAY, 1, 1, None, None)], 0)])


def test_without_a_window_results_have_the_latest_time_of_all_rows():
    asked = Aggregation(("key",), None, (F.count(),), output_mode="update")
    batches = [([model.Event(time, 1, 1, None, None)], -(10**9)) for time in (-9, 0, -5)]
    assert drive(AggregateWindows(asked), batches).times == [-9, 0, 0]


def test_instants_that_are_equal_modulo_64_bits_of_nanoseconds_are_groups_of_their_own():
    kind, far = DataType.parse("timestamp[us]"), -(1 << 63)
    process, found = AggregateWindows(Aggregation(("at",), None, (F.count(),))), {}
    process.open(instance_context(operator_id="windows"))
    out = Emitted()
    out.emit = lambda batch, times=None: found.update(
        zip(*(column.data.tolist() for column in batch.columns), strict=True)
    )
    for instants in ([0, 1], [far, 0], [0, far, far]):
        batch = Batch(Schema.of(at=kind), [Column(kind, np.array(instants))], len(instants))
        process.on_batch(batch.with_times(np.zeros(len(instants), np.int64)), out)
    process.close(out)
    assert found == {0: 3, 1: 1, far: 3}


@settings(max_examples=15)
@given(batches=arrivals(TIMES), window=WINDOWS, rows_at_once=st.integers(1, 8))
def test_slices_are_dumped_together_and_another_object_goes_on_with_them(
    batches, window, rows_at_once
):
    drawn = [(events, model.NO_WATERMARK_NS) for events, _ in batches]
    expected, _ = model.tumble(drawn, window.size_ns, window.slide_ns, window.start_ns, 0)
    asked = Aggregation(("key",), window, AGGREGATES)
    process, other, out = AggregateWindows(asked), AggregateWindows(asked), Emitted()
    for each in (process, other):
        each.open(instance_context(operator_id="windows"))
    for events, _ in drawn:
        if events:
            process.on_batch(batch_of(events), out)
    with mock.patch.object(slice_stores, "_TOGETHER_ROWS", rows_at_once):
        dumped = list(process.dump(np.arange(1 << 10)))
    groups = [batch for batch in dumped[1:] if batch.schema == dumped[1].schema]  # without sets
    slices = [set(batch["#slice"].tolist()) for batch in groups]
    assert all(batch.num_rows >= rows_at_once for batch in groups[:-1])
    assert len(set().union(*slices)) == sum(map(len, slices))  # a slice is in one batch
    for batch in dumped:
        other.load(batch)
    other.close(out)
    found = {(*bounds(row), row["key"]): row for row in out.rows}
    assert len(found) == len(out.rows) and set(found) == set(expected)
    for key, row in found.items():
        check(row, expected[key])
