"""Deltas wait until their windows end, or go into the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operators.windows.test_partial_windows import FIRST, NEXT, SUMS, Merger, deltas_of
from whale_ray.operators.windows import held_deltas
from whale_ray.transport.wire.batch import Batch


def test_deltas_of_several_producers_wait_together_and_need_no_store() -> None:
    merger = Merger(SUMS, 2)
    process, budget = merger.process, merger.process._context.state_budget
    for events in ([*FIRST, *NEXT], FIRST, NEXT):
        process.on_batch(deltas_of(events), merger.out)
    assert process._state.slices == ()
    held_bytes = budget.used_bytes
    process.on_watermark(9, merger.out)
    assert [row["sum"] for row in merger.out.rows] == [20]
    assert process._state.slices == () and not process._held.is_empty
    process.on_watermark(19, merger.out)
    assert [row["sum"] for row in merger.out.rows] == [20, 14]
    assert process._held.is_empty and budget.used_bytes < held_bytes


def test_more_deltas_than_may_wait_go_into_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_deltas, "_ROWS_MAX", 2)
    merger = Merger(SUMS, 2)
    for events in (FIRST, FIRST, [*FIRST, *NEXT]):
        merger.process.on_batch(deltas_of(events), merger.out)
    assert merger.process._state.slices == (0,)
    merger.process.on_watermark(99, merger.out)
    assert sorted(row["sum"] for row in merger.out.rows) == [7, 30]


def test_keys_that_only_have_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def alike(batch: Batch, names: Sequence[str]) -> tuple[Any, None]:
        return np.zeros(batch.num_rows, np.uint64), None

    monkeypatch.setattr(held_deltas, "hash_keys", alike)
    merger = Merger(SUMS, 1)
    other = [replace(one, key=2) for one in FIRST]
    merger.process.on_batch(deltas_of(FIRST, other), merger.out)
    merger.process.on_watermark(99, merger.out)
    assert [(row["key"], row["sum"]) for row in merger.out.rows] == [(1, 10), (2, 10)]
