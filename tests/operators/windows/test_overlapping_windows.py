"""Windows that are merged from several slices, against a plain Python model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows import model
from tests.operators.windows.driving import AGGREGATES, Emitted, arrivals, bounds, drive
from whale_ray.configs.errors import StateFullError
from whale_ray.operators.windows import overlapping_windows
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

US = 1_000
NAMES = ("rows", "numbers", "sum", "total", "mean", "least", "most", "lowest", "deviation")
OF_FIXED_WIDTH = tuple(one for one in AGGREGATES if one.output_name in NAMES)


@settings(max_examples=40)
@given(
    batches=arrivals(st.integers(-40 * US, 40 * US)),
    slides=st.integers(2, 5),
    rest=st.integers(0, 3),
    lateness=st.sampled_from([0, 0, 7]),
    has_room=st.booleans(),
)
def test_windows_have_the_groups_of_all_their_slices(batches, slides, rest, lateness, has_room):
    window = TimeWindow("time", (4 * slides + rest) * US, 4 * US, 0)
    asked = Aggregation(("key",), window, OF_FIXED_WIDTH, allowed_lateness_ns=lateness * US)
    merged = overlapping_windows.OverlappingWindows.merged
    found = []

    def watched(self, windows):
        found.append(merged(self, windows))
        return found[-1]

    with (
        mock.patch.object(overlapping_windows, "_BYTES_PER_GROUP", 256 if has_room else 1 << 40),
        mock.patch.object(overlapping_windows.OverlappingWindows, "merged", watched),
    ):
        out = drive(AggregateWindows(asked), batches)
    expected, late = model.tumble(batches, window.size_ns, window.slide_ns, 0, lateness * US)
    newest = {(*bounds(row), row["key"]): row for row in out.rows}
    assert (len(out.late), newest.keys()) == (late, expected.keys())
    for group, row in newest.items():
        values = model.aggregates(expected[group])
        assert all(model.same(row[name], values[name]) for name in NAMES), (row, values)
    assert all((one is not None) == has_room for one in found)
    windows = sum(len(one.counts) if has_room else 1 for one in found)
    assert windows >= len({group[:2] for group in expected}) * (lateness == 0)


def test_keys_of_closed_slices_leave_the_memory_to_groups() -> None:
    """Long keys that do not come again; all of them would take more than there is."""
    asked = Aggregation(("key",), TimeWindow("time", 3 * US, US, 0), OF_FIXED_WIDTH[:1])
    process, out, keys = AggregateWindows(asked), Emitted(), 200
    budget = StateBudget(6_000_000)
    process.open(replace(instance_context(operator_id="windows"), state_budget=budget))
    for slide in range(60):
        names = [f"{slide * keys + one}".ljust(800) for one in range(keys)]
        batch = Batch.from_pydict({"key": names}).with_times(np.full(keys, slide * US))
        process.on_batch(batch, out)
        process.on_watermark(slide * US - 1, out)
        assert budget.used_bytes < budget.limit_bytes // 2
    process.close(out)
    assert len(out.rows) == 60 * keys * 3
    assert {row["rows"] for row in out.rows} == {1}


@pytest.mark.parametrize(("budget_bytes", "fits"), [(24 << 20, True), (12 << 20, False)])
def test_states_of_a_window_are_made_only_where_there_is_memory_for_them(budget_bytes, fits):
    """Wide ones would else take as much as the groups themselves, which nobody counted."""
    wide = whale.functions.approx_count_distinct("number", rsd=0.01).alias("different")
    asked = Aggregation(("key",), TimeWindow("time", 2 * US, US, 0), (wide,))
    process, out, budget = AggregateWindows(asked), Emitted(), StateBudget(budget_bytes)
    process.open(replace(instance_context(operator_id="windows"), state_budget=budget))
    numbers = np.arange(500)
    columns = {"key": numbers, "number": numbers}
    process.on_batch(Batch.from_pydict(columns).with_times(np.zeros(500, np.int64)), out)
    with nullcontext() if fits else pytest.raises(StateFullError):
        process.on_watermark(5 * US, out)
    assert [row["different"] for row in out.rows] == [1] * (1_000 if fits else 0)
