"""Joins whose kept rows exceed their memory: they lie on the disk, and results stay the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operators.joins.test_join_streams import Emitted
from whale_ray.configs.errors import StateFullError
from whale_ray.operators.joins.asof_join import AsOfJoin
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.joins.join import Join
from whale_ray.operators.windows.specifications import SessionWindow, TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.testing.dump_check import hand_over
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

ROWS, BATCH, KEYS = 24_000, 2_000, 6_000
MS = 1_000_000
LEFT = Schema.of(key="int64", n="int64", text="string")
RIGHT = Schema.of(key="int64", m="int64", other="string")
KEY = (("key", "key"),)
WITHIN = TimeInterval(-30 * MS, 3_000 * MS)


def batches(schema: Schema, seed: int) -> list[Batch]:
    """Return rows a tenth of a millisecond apart, with random keys and 300 bytes each."""
    generator = np.random.default_rng(seed)
    made = []
    for first in range(0, ROWS, BATCH):
        numbers = np.arange(first, first + BATCH)
        texts = [f"{number:0300}" for number in numbers.tolist()]
        columns = [generator.integers(0, KEYS, BATCH), numbers, texts]
        batch = Batch.from_pydict(dict(zip(schema.names, columns, strict=True)), schema)
        made.append(batch.with_times(numbers * (MS // 10) + 1))
    return made


def joined(join: Any, budget: StateBudget) -> tuple[Emitted, int]:
    """Return what a join emits, and the most bytes that were on the disk."""
    process, out = join(), Emitted()
    process.open(replace(instance_context(operator_id="join"), state_budget=budget))
    spilled = 0
    rights: list[Batch | None] = [*batches(RIGHT, 2)]
    if isinstance(join, AsOfJoin):  # else left rows do not wait for long
        rights[:-1] = [None] * (len(rights) - 1)
    for left, right in zip(batches(LEFT, 1), rights, strict=True):
        hand_over(process, left, right, out)
        spilled = max(spilled, budget.spilled_by("join"))
        assert budget.used_bytes <= budget.limit_bytes
    process.on_watermark(ROWS * MS // 20, out)
    out.watermark_ns = ROWS * MS // 20
    process.close(out)
    assert budget.spilled_by("join") == 0
    return out, spilled


JOINS = {
    "interval": Join(KEY, WITHIN, how="outer", left=LEFT, right=RIGHT),
    "window": Join(KEY, TimeWindow("", 900 * MS, 900 * MS, 0), how="semi", left=LEFT, right=RIGHT),
    "sessions": Join(KEY, SessionWindow("", 150 * MS), how="outer", left=LEFT, right=RIGHT),
    "as-of": AsOfJoin(KEY, "forward", None, how="left", left=LEFT, right=RIGHT),
}


@pytest.mark.parametrize("name", JOINS)
def test_rows_on_the_disk_join_as_those_in_memory(name: str) -> None:
    wanted, nothing = joined(JOINS[name], StateBudget())
    assert nothing == 0
    memory = (3 if name == "window" else 6) << 20  # a semi join keeps a right row of each key
    found, spilled = joined(JOINS[name], StateBudget(memory, 1 << 30))
    assert spilled > 2 << 20
    assert len(wanted.rows) > 1_000
    assert _in_order(found.rows) == _in_order(wanted.rows)


def _in_order(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(tuple(map(str, row.values())) for row in rows)


def test_the_pairs_of_rows_on_the_disk_are_those_of_nested_loops() -> None:
    inner = Join(KEY, WITHIN, how="inner", left=LEFT, right=RIGHT)
    found, spilled = joined(inner, StateBudget(6 << 20, 1 << 30))
    assert spilled > 2 << 20
    sides = []
    for schema, seed in ((LEFT, 1), (RIGHT, 2)):
        rows = Batch.concat(batches(schema, seed))
        sides.append((rows.column("key").data, rows.times))
    (keys, times), (other_keys, other_times) = sides
    wanted = []
    for row in range(ROWS):
        distances = other_times - times[row]
        near = (other_keys == keys[row]) & (distances >= -30 * MS) & (distances <= 3_000 * MS)
        wanted += [(row, int(other)) for other in np.flatnonzero(near)]
    assert sorted((row["n"], row["m"]) for row in found.rows) == wanted
    assert all(row["text"] == f"{row['n']:0300}" for row in found.rows)


def test_memory_and_disk_together_are_named_when_both_are_used_up() -> None:
    with pytest.raises(StateFullError, match=r"'join': .* and 4.0 MiB on disk .* join within a sh"):
        joined(JOINS["interval"], StateBudget(2 << 20, 4 << 20))
