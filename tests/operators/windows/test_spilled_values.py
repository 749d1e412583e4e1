"""State of texts, lists and whole rows at four times its memory, against DuckDB.

It goes back to a seal, and is handed over to two others, as when a job goes on with more instances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.operators.windows.driving import Emitted
from whale_ray.operators.windows import pending_groups
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.pending_groups import PendingGroups
from whale_ray.operators.windows.specifications import SessionWindow
from whale_ray.operators.windows.top_n import TopN
from whale_ray.state.budget import StateBudget
from whale_ray.state.disk_traffic import DiskTraffic
from whale_ray.testing import instance_context
from whale_ray.transport.wire.arrow import batch_from_arrow, batch_to_arrow
from whale_ray.transport.wire.batch import Batch

F = whale.functions
BATCHES = 8
PICKS = (
    F.min("text").alias("least"),
    F.max("text").alias("greatest"),
    F.last("text").alias("last"),
    F.max_by("text", "n").alias("by_number"),
    F.min_by("n", "text").alias("by_text"),
    F.max("price").alias("dearest"),
    F.min("price").alias("cheapest"),
)


def table(keys: int = 6_000) -> pa.Table:
    """Return rows whose texts begin alike, and differ in length; some are null, as some prices."""
    random = np.random.default_rng(1)
    n = np.arange(5 * keys // BATCHES * BATCHES)
    numbers = random.integers(0, 10_000, len(n))
    drawn = enumerate(numbers.tolist())
    texts = pa.array([f"{'whale ' * (one % 9)}{one:x}é{number}" for number, one in drawn])
    prices = pa.array(numbers - 5_000, pa.int64()).cast(pa.decimal128(21, 2))
    return pa.table({
        "key": random.permutation(n % keys),
        "n": n,
        "text": pa.compute.if_else(numbers % 11 == 0, None, texts),
        "price": pa.compute.if_else(numbers % 7 == 0, None, prices),
    })  # fmt: skip


def driven(asked: Aggregation | TopN, rows: pa.Table, limit_bytes: int) -> pa.Table:
    """Return what an operator makes of rows that lie on the disk by and by."""
    budgets = [StateBudget(limit_bytes, 1 << 30) for _ in range(3)]
    processes: list[Any] = []
    for budget in budgets:
        process: Any = asked()
        process.open(replace(instance_context(operator_id="kept"), state_budget=budget))
        processes.append(process)
    first, *others = processes
    batches = [
        batch_from_arrow(one).with_times(1_000 * one["n"].to_numpy())
        for one in rows.to_batches(max_chunksize=rows.num_rows // BATCHES)
    ]
    out = Emitted()
    for number, batch in enumerate(batches[:6]):
        if number == 4:
            first.seal(1)
            for undone in reversed(batches[:3]):
                first.on_batch(undone, out)
            first.roll_back(1)
        first.on_batch(batch, out)
        assert budgets[0].used_bytes <= limit_bytes
    assert budgets[0].spilled_by("kept") > 3 * limit_bytes
    half = instance_context().virtual_nodes // 2
    chunks = list(first.chunks(2))
    first.on_batch(batches[0], out)  # is not in it
    for other, nodes in zip(others, (range(half), range(half, 2 * half)), strict=True):
        mine = [replace(chunk, held=of_nodes(first, chunk.rows, nodes)) for chunk in chunks]
        other.take(mine, whole=False)
        for batch in batches[6:]:
            other.on_batch(of_nodes(first, batch, nodes), out)
        other.close(out)
    first.close(Emitted())
    assert len(out.batches) > 1 or not out.batches
    return pa.Table.from_batches([batch_to_arrow(one) for one in out.batches])


def of_nodes(process: Any, batch: Batch, nodes: range) -> Batch:
    """Return the rows of some virtual nodes; all of a batch without keys."""
    if "key" not in batch.schema:
        return batch
    return batch.filter(np.isin(process._context.nodes_of(batch, ("key",)), np.array(nodes)))


def let_rows_wait(waits: bool, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let rows wait for a pass over the groups, or not; return a list of who does, as it begins."""
    opened: list[object] = []
    monkeypatch.setattr(DiskTraffic, "is_heavy", True)
    monkeypatch.setattr(pending_groups, "_BYTES_MIN", 1 << 17 if waits else 1 << 30)
    monkeypatch.setattr(PendingGroups, "__init__", noting(PendingGroups.__init__, opened))
    return opened


def noting(call: Callable[..., None], calls: list[object]) -> Callable[..., None]:
    """Return what does the same, and notes that it was called."""
    return lambda *given: (calls.append(given), call(*given))[1]


def rows_of(found: pa.Table, columns: Sequence[str]) -> list[tuple[object, ...]]:
    chosen = ", ".join(columns)
    return duckdb.sql(f"select {chosen} from found order by all").fetchall()


@pytest.mark.parametrize("waits", [False, True])
def test_picks_of_texts_and_decimals(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = let_rows_wait(waits, monkeypatch)
    rows = table(8_000)
    found = driven(Aggregation(("key",), None, PICKS), rows, 1 << 19)
    assert bool(opened) == waits
    expected = duckdb.sql("""
        select key, min(text), max(text), arg_max_null(text, n), arg_max_null(text, n),
               arg_min(n, text), max(price), min(price) from rows group by key order by all
    """).fetchall()
    names = [one.output_name for one in PICKS]
    assert rows_of(found, ["key", *names]) == expected


@pytest.mark.parametrize("waits", [False, True])
def test_lists_and_sets(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = let_rows_wait(waits, monkeypatch)
    rows = table()
    asked = (
        F.collect_list("text").alias("list"),
        F.count_distinct("price").alias("prices"),
        F.count().alias("rows"),
    )
    found = driven(Aggregation(("key",), None, asked), rows, 1 << 20)
    assert bool(opened) == waits
    expected = duckdb.sql("""
        select key, coalesce(to_json(list(text order by n) filter (text is not null)), '[]'),
               count(distinct price), count(*) from rows group by key order by all
    """).fetchall()
    assert rows_of(found, ["key", "list", "prices", "rows"]) == expected


def test_values_of_one_group_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = let_rows_wait(True, monkeypatch)
    rows = table(20_000)
    budget = StateBudget(1 << 20, 1 << 30)
    process = Aggregation(
        (), None, (F.count_distinct("text").alias("n"), F.count().alias("rows"))
    )()
    process.open(replace(instance_context(operator_id="kept"), state_budget=budget))
    out = Emitted()
    for one in rows.to_batches(max_chunksize=2_000):
        process.on_batch(batch_from_arrow(one), out)
    assert budget.spilled_by("kept") > 0
    assert opened
    process.close(out)
    expected = duckdb.sql("select count(distinct text), count(*) from rows").fetchall()
    assert [(row["n"], row["rows"]) for row in out.rows] == expected


@pytest.mark.parametrize(("with_ties", "limit_bytes"), [(False, 1 << 19), (True, 1 << 16)])
def test_first_rows_of_many_groups(with_ties: bool, limit_bytes: int) -> None:
    """With less memory, each batch is written at once, and none is in memory at the end."""
    rows = table()
    asked = TopN(("key",), None, n=4, by="price", with_ties=with_ties)
    found = driven(asked, rows, limit_bytes)
    ranked, last = ("rank()", "") if with_ties else ("row_number()", ", n")
    expected = duckdb.sql(f"""
        select key, n, text, price from rows
        qualify {ranked} over (partition by key order by price desc nulls last{last}) <= 4
        order by all
    """).fetchall()
    assert rows_of(found, ["key", "n", "text", "price"]) == expected


def test_sessions() -> None:
    rows, gap = table(), 8_000
    asked = (F.count().alias("rows"), F.min("text").alias("least"), F.collect_list("n").alias("ns"))
    window = SessionWindow("", 1_000 * gap)
    found = driven(Aggregation(("key",), window, asked), rows, 1 << 20)
    expected = duckdb.sql(f"""
        with begins as (
            select *, n - lag(n) over (partition by key order by n) <= {gap} is not true begin_here
            from rows),
        numbered as (
            select *, sum(begin_here::int) over (partition by key order by n) number from begins)
        select key, min(n), max(n) + {gap}, count(*), min(text), to_json(list(n order by n))
        from numbered group by key, number order by all
    """).fetchall()
    assert len(expected) > 9_000, "few keys have two sessions"
    bounds = [f"epoch_us(window_{end})" for end in ("start", "end")]
    assert rows_of(found, ["key", *bounds, "rows", "least", "ns"]) == expected
