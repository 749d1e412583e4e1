"""Deltas of windows that overlap wait by slice, or go into the store; windows have them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows import model
from tests.operators.windows.driving import Emitted, arrivals, batch_of, bounds
from tests.operators.windows.test_overlapping_windows import NAMES, OF_FIXED_WIDTH
from tests.operators.windows.test_partial_windows import STEPS, Edge, Merger, keeping, partial, run
from whale_ray.operators.windows import held_slices, overlapping_windows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.group_state import GroupState
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.state.disk_traffic import DiskTraffic
from whale_ray.state.keys import hash_keys
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

US = 1_000
SUM = whale.functions.sum("number").alias("sum")
SUMS = Aggregation(("key",), TimeWindow("time", 30 * US, 10 * US, 0), (SUM,))
"""Of windows from 10 k to 10 k + 30 µs."""


def few_hashes(batch: Batch, names: Sequence[str]) -> tuple[Any, Any]:
    """Let different keys have the same hash."""
    hashes, nulls = hash_keys(batch, names)
    return hashes % np.uint64(2), nulls


@settings(max_examples=15)
@given(
    batches=arrivals(st.integers(-40 * US, 40 * US)),
    slides=st.integers(2, 5),
    rest=st.integers(0, 3),
    steps=STEPS,
    producers=st.sampled_from([1, 2]),
    node=st.sampled_from([partial, keeping]),
    slices_max=st.sampled_from([1, 64]),
    hashes=st.sampled_from([hash_keys, hash_keys, few_hashes]),
    sealed_at=st.integers(0, 12),
)
def test_windows_have_the_deltas_of_all_their_slices(
    batches, slides, rest, steps, producers, node, slices_max, hashes, sealed_at
):
    window = TimeWindow("time", (4 * slides + rest) * US, 4 * US, 0)
    asked = Aggregation(("key",), window, OF_FIXED_WIDTH)

    sealed: list[int] = []

    class SealedBetween(Edge):
        """A checkpoint is taken between two batches."""

        def emit(self, batch: Batch) -> None:
            super().emit(batch)
            if self.merger.deltas >= sealed_at and not sealed:
                self.merger.process.seal(1)
                sealed.append(1)

    def result(most: int, hashes: Any) -> Merger:
        sealed.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(held_slices, "_SLICES_MAX", most)
            patch.setattr(overlapping_windows, "hash_keys", hashes)
            return run(
                asked,
                producers,
                batches,
                steps,
                lambda edge, asked: node(SealedBetween(edge.merger, edge.source), asked),
            )

    merged, stored = result(slices_max, hashes), result(0, hash_keys)
    assert len(merged.out.late) == len(stored.out.late)
    found, expected = by_window(merged.out), by_window(stored.out)
    assert len(merged.out.rows) == len(found) and found.keys() == expected.keys()
    if producers == 1:
        of_model, _ = model.tumble(batches, window.size_ns, window.slide_ns, 0, 0)
        assert found.keys() == of_model.keys()
        expected = {key: model.aggregates(events) for key, events in of_model.items()}
    for key, row in found.items():
        for name in NAMES:
            assert model.same(row[name], expected[key][name]), (key, name)


def by_window(out: Emitted) -> dict[Any, dict[str, Any]]:
    return {(*bounds(row), row["key"]): row for row in out.rows}


def event(time_us: int, number: int, key: int | None = 1) -> model.Event:
    return model.Event(time_us * US, key, number, None, None)


def deltas_of(*events: model.Event) -> Batch:
    """Return the deltas of rows, each a flush of its own."""
    taken: list[Batch] = []

    class Kept(Edge):
        def emit(self, batch: Batch) -> None:
            taken.append(batch)

    for one in events:
        node = partial(Kept(Merger(SUMS, 1), 0), SUMS)
        node.emit(batch_of([one]))
        node.pass_on_waiting()
    return Batch.concat(taken)


def sums_of(merger: Merger) -> list[tuple[int, int]]:
    """Return start in µs and sum of each result, by start."""
    return sorted((bounds(row)[0] // US, row["sum"]) for row in merger.out.rows)


def test_deltas_of_windows_that_overlap_need_no_store_and_give_their_memory_back() -> None:
    merger = Merger(SUMS, 2)
    process, budget = merger.process, merger.process._context.state_budget
    for deltas in (
        deltas_of(event(3, 1), event(13, 2), event(4, 4)),
        deltas_of(event(25, 8), event(3, 16)),
    ):
        process.on_batch(deltas, merger.out)
    process.on_watermark(30 * US - 1, merger.out)
    assert process._state.slices == ()
    assert sums_of(merger) == [(-20, 21), (-10, 23), (0, 31)]
    process.on_batch(deltas_of(event(14, 32)), merger.out)  # is late for the windows before
    process.on_watermark(99 * US, merger.out)
    assert sums_of(merger)[3:] == [(10, 42), (20, 8)]
    assert process._open_slices() == ()
    empty_bytes = budget.used_bytes
    process.on_batch(deltas_of(event(103, 1)), merger.out)
    assert budget.used_bytes > empty_bytes
    process.on_watermark(199 * US, merger.out)
    process.on_watermark(200 * US, merger.out)
    assert budget.used_bytes <= empty_bytes


def test_slices_in_the_store_and_others_make_one_window() -> None:
    merger = Merger(SUMS, 1)
    process = merger.process
    process.on_batch(deltas_of(event(3, 1), event(13, 2)), merger.out)
    kept = process.chunks(1)  # puts them into the store
    assert process._state.slices == (0, 1)
    process.on_batch(deltas_of(event(14, 4), event(23, 8)), merger.out)
    assert process._state.slices == (0, 1) and process._overlapping.held.slices == (2,)
    process.on_watermark(99 * US, merger.out)
    assert sums_of(merger) == [(-20, 1), (-10, 7), (0, 15), (10, 14), (20, 8)]
    process.roll_back(1)
    assert not process._overlapping.held.slices
    restored = Merger(SUMS, 1)
    restored.process.take(kept, whole=True)
    for one in (merger, restored):
        one.out = Emitted()
        one.process.on_watermark(99 * US, one.out)
        assert sums_of(one) == [(-20, 1), (-10, 3), (0, 3), (10, 2)]


def test_a_slice_in_the_store_that_changes_is_read_again() -> None:
    merger = Merger(SUMS, 1)
    process = merger.process
    process.on_batch(deltas_of(event(3, 1)), merger.out)
    process.seal(1)
    process.on_watermark(10 * US - 1, merger.out)
    process.on_batch(deltas_of(event(4, 2)), merger.out)
    process.on_watermark(99 * US, merger.out)
    assert sums_of(merger) == [(-20, 1), (-10, 3), (0, 3)]


def test_deltas_of_slices_that_are_all_in_the_store_leave_none_to_wait_for_a_pass(monkeypatch):
    """They come just as the groups on the disk move so much that rows are better gathered."""
    merger = Merger(SUMS, 1)
    process = merger.process
    process.on_batch(deltas_of(event(3, 1), event(13, 2)), merger.out)
    process.seal(1)  # puts them into the store
    monkeypatch.setattr(GroupState, "spills", True)
    monkeypatch.setattr(DiskTraffic, "is_heavy", True)
    process.on_batch(deltas_of(event(4, 4)), merger.out)
    process.on_batch(deltas_of(event(5, 8), event(25, 16)), merger.out)
    process.on_watermark(99 * US, merger.out)
    assert sums_of(merger) == [(-20, 13), (-10, 15), (0, 31), (10, 18), (20, 16)]


def test_deltas_are_not_held_where_they_took_more_than_a_share_of_the_memory() -> None:
    deltas = deltas_of(event(3, 1))
    few = StateBudget(4 * held_slices._most_bytes(deltas) - 4)
    enough = StateBudget(4 * held_slices._most_bytes(deltas))
    for budget, is_taken in (few, False), (enough, True):
        context = instance_context()
        object.__setattr__(context, "state_budget", budget)
        held = held_slices.HeldSlices()
        assert held.take(deltas, np.array([0]), context) is is_taken
        assert bool(held.slices) is is_taken


def test_nulls_of_one_batch_take_no_more_memory_once_there_is_none() -> None:
    """One null lets all rows of a slice have validity, as soon as they are one batch."""
    context = instance_context()
    budget = context.state_budget
    held = held_slices.HeldSlices()
    for keys in ([None, 1], list(range(90))):
        batch = Batch.from_pydict({"key": keys})
        assert held.take(batch, np.zeros(len(keys), np.int64), context)
    budget.take("other", budget.free_bytes, 1)
    found = held.of(0)
    assert found is not None and found.num_rows == 92
