"""Maps, lists and timers of a process with two inputs at four times the memory, against DuckDB."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import whale_ray as whale
from whale_ray import state

KEYS, ROWS, STATE_BYTES = 500, 2_000, 1 << 20
HOUR_NS = 3_600_000_000_000


class Heard(whale.KeyedCoProcess):
    """Tells, when all rows have come, what it has kept of both sides."""

    newest = state.map("int64", "int64")
    numbers = state.list("int64")
    text = state.value("string")
    due = state.timer()
    schema = whale.Schema.of(k="int64", newest="string", numbers="string", text="string")

    def on_left_row(self, row: Any, out: Any) -> None:
        self.newest[row.number % 3] = row.number
        self.due.set(out.time_ns + HOUR_NS)

    def on_right_row(self, row: Any, out: Any) -> None:
        self.numbers.append(row.number)
        self.text.set(row.text)
        self.due.set(out.time_ns + HOUR_NS)

    def on_timer(self, timer: Any, out: Any) -> None:
        newest = [str(number) for _, number in sorted(self.newest.items())]
        numbers = [str(number) for number in self.numbers]
        out.emit_row(
            k=self.key.k,
            newest="|".join(newest),
            numbers="|".join(numbers),
            text=self.text.get(""),
        )


def said(side: str, seed: int) -> pa.Table:
    numbers = np.arange(ROWS)
    return pa.table({
        "k": np.random.default_rng(seed).integers(0, KEYS, ROWS),
        "number": numbers,
        "text": [f"{side} {number} {'o' * 10_000}" for number in numbers.tolist()],
        "at": (numbers * 100).astype("datetime64[us]"),
    })  # fmt: skip


def test_maps_lists_and_timers_on_the_disk() -> None:
    tables = {side: said(side, seed) for seed, side in enumerate(("lefts", "rights"))}
    topology = whale.Topology("heard")
    sides = [
        topology.source(whale.sources.arrow(rows), id=name, event_time="at").key_by("k")
        for name, rows in tables.items()
    ]
    heard = sides[0].connect(sides[1]).process(Heard, id="heard")
    heard.sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"runtime.state_bytes": STATE_BYTES})
    assert job.metrics().operator("heard").spilled_bytes > 3 * STATE_BYTES
    with duckdb.connect() as database:
        for name, rows in {**tables, "found": job.results("out").to_arrow()}.items():
            database.register(name, rows)
        expected = database.sql("""
            with newest as (select k, max(number) number from lefts group by k, number % 3),
            one as (
                select k, string_agg(number, '|' order by number % 3) newest
                from newest group by k),
            other as (
                select k, string_agg(number, '|' order by number) numbers, max_by(text, number) text
                from rights group by k)
            select k, coalesce(newest, ''), coalesce(numbers, ''), coalesce(text, '')
            from one full join other using (k) order by k
        """).fetchall()
        assert database.sql("select * from found order by k").fetchall() == expected
