"""Joins at four times their memory, most of which keys and indexes take: DuckDB's answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from tests.operators.joins.test_join_streams import Emitted
from whale_ray.operators.joins.asof_join import AsOfJoin
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.joins.join import Join
from whale_ray.operators.windows.specifications import SessionWindow, TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.testing.dump_check import hand_over
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

MS = 1_000_000
KEY = (("key", "key"),)
WINDOW_MS, GAP_MS, BEFORE_MS, AFTER_MS = 4_000, 900, 100, 5_000
KINDS = {"text": (12_000, 120), "number": (60_000, 0)}
"""How many rows a side has, a millisecond apart, and how long their keys are, if they are text."""
BATCHES = 12


def joins(left: Schema, right: Schema) -> dict[str, Any]:
    """Return a join of each kind."""
    sides: dict[str, Any] = {"left": left, "right": right}
    near = TimeInterval(-BEFORE_MS * MS, AFTER_MS * MS)
    window = TimeWindow("", WINDOW_MS * MS, WINDOW_MS * MS, 0)
    return {
        "interval": Join(KEY, near, how="outer", **sides),
        "window": Join(KEY, window, how="outer", **sides),
        "sessions": Join(KEY, SessionWindow("", GAP_MS * MS), how="outer", **sides),
        "as-of": AsOfJoin(KEY, "forward", None, how="left", **sides),
    }


ANSWERS = {
    "interval": f"l full join r on l.key = r.key and r.t - l.t between -{BEFORE_MS} and {AFTER_MS}",
    "window": f"l full join r on l.key = r.key and l.t // {WINDOW_MS} = r.t // {WINDOW_MS}",
    "sessions": f"""(
        select *, sum(begins) over (partition by key order by t, m) as session from (
            select *, t - lag(t, 1, -9999) over (partition by key order by t, m) > {GAP_MS}
                as begins from (select key, t, n, null as m from l
                                union all select key, t, null as n, m from r)
        )
    )""",
    "as-of": "l asof left join r on l.key = r.key and l.t <= r.t",
}


def batches(kind: str, name: str, seed: int, first: int = 0) -> tuple[list[Batch], pa.Table]:
    """Return rows of a side in their order, a millisecond apart, and all as a table for DuckDB.

    `first` is the millisecond of the first row.
    """
    rows, width = KINDS[kind]
    numbers = np.arange(rows)
    drawn = np.random.default_rng(seed).integers(0, rows // 4, rows)
    keys: Any = [f"{key:0{width}}" for key in drawn.tolist()] if width else drawn
    schema = Schema.of(key="string" if width else "int64", **{name: "int64"})
    whole = Batch.from_pydict({"key": keys, name: numbers}, schema).with_times(
        (first + numbers) * MS
    )
    step = rows // BATCHES
    made = [whole.slice(row, row + step).copy() for row in range(0, rows, step)]
    return made, pa.table({"key": pa.array(keys), "t": first + numbers, name: numbers})


def emitted(join: Any, lefts: list[Batch], rights: list[Batch], budget: StateBudget) -> Any:
    """Return the results; in the middle, a new object goes on with a snapshot."""
    context = replace(instance_context(operator_id="join"), state_budget=budget)
    out, process = Emitted(), join()
    process.open(context)
    rightmost: list[Batch | None] = list(rights)
    if isinstance(join, AsOfJoin):  # rows of the left wait for these, which are later
        rightmost = [None] * (BATCHES - 1) + [Batch.concat(rights)]
    taken = spilled = 0
    for number, (left, right) in enumerate(zip(lefts, rightmost, strict=True)):
        hand_over(process, left, right, out)
        taken = max(taken, budget.used_bytes + budget.spilled_by("join"))
        spilled = max(spilled, budget.spilled_by("join"))
        assert budget.used_bytes <= budget.limit_bytes
        if number == BATCHES // 2:
            chunks = [replace(one, held=one.rows) for one in process.chunks(1)]
            process._forget()
            assert budget.used_bytes + budget.spilled_by("join") < 1 << 20
            process = join()
            process.open(context)
            process.take(chunks, whole=True)
    process.close(out)
    assert budget.spilled_by("join") == 0
    return out.rows, taken, spilled


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_keys_and_indexes_go_to_the_disk(name: str, kind: str) -> None:
    lefts, left = batches(kind, "n", 1)
    rights, right = batches(kind, "m", 2, first=KINDS[kind][0] if name == "as-of" else 0)
    join = joins(lefts[0].schema, rights[0].schema)[name]
    _, taken, nothing = emitted(join, lefts, rights, StateBudget())
    assert nothing == 0
    rows, _, spilled = emitted(join, lefts, rights, StateBudget(taken // 4, 1 << 30))
    assert spilled > taken // 2
    found = pa.table({"n": [row["n"] for row in rows], "m": [row["m"] for row in rows]})
    database = duckdb.connect()
    for table, columns in (("l", left), ("r", right), ("found", found)):
        database.register(table, columns)
    if name == "sessions":
        database.sql(f"create table s as select * from {ANSWERS[name]}")
        wanted = """select a.n, b.m from (from s where n is not null) a
            full join (from s where m is not null) b using (key, session)"""
    else:
        wanted = f"select n, m from {ANSWERS[name]}"
    assert len(rows) > 10_000
    for one, other in ((wanted, "from found"), ("from found", wanted)):
        assert database.sql(f"({one}) except all ({other})").fetchall() == []
