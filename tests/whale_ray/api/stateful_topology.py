"""One topology with every stateful operator, and what each of its results must be.

A single job runs all of them, so that a runner is compared in little time: with SQL, and with plain
loops where SQL has no word for it. Bids are out of order within their bound; asks are in order,
since which of two duplicates is dropped depends on the order of arrival.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

import whale_ray as whale
from whale_ray import state
from whale_ray.testing import ListSource

F = whale.functions
Rows = Counter[tuple[Any, ...]]
"""How often each row is there; their order differs from runner to runner."""

BOUND_S = 5
GAP_MS = 2_500
LATE_BOUND_S, LATE_WINDOW_S = 2, 10
_BEGIN = datetime(1969, 12, 31, 23, 58, tzinfo=UTC).replace(tzinfo=None)
_KEYS = ["hot", "hot", "hot", "a", "b", "c", "é", "", None]
_SQL: dict[str, str] = {
    "tumbling": """
        SELECT time_bucket(INTERVAL 10 seconds, moment) AS start, start + INTERVAL 10 seconds, k,
            count(*), sum(bid), max(bid) FROM bids GROUP BY ALL""",
    "hopping": """
        SELECT time_bucket(INTERVAL 5 seconds, moment) - INTERVAL 1 second * before AS start,
            start + INTERVAL 20 seconds, k, count(*), sum(bid), max(bid)
        FROM bids, (SELECT unnest([0, 5, 10, 15]) AS before) GROUP BY ALL""",
    "sessions": """
        WITH marked AS (
            SELECT *, coalesce(
                moment - lag(moment) OVER key > INTERVAL 2500 milliseconds, true) AS begins
            FROM bids WINDOW key AS (PARTITION BY k ORDER BY moment, bid)),
        numbered AS (
            SELECT *, count_if(begins) OVER (PARTITION BY k ORDER BY moment, bid) AS session
            FROM marked)
        SELECT min(moment), max(moment) + INTERVAL 2500 milliseconds, k,
            count(*), sum(bid), max(bid)
        FROM numbered GROUP BY k, session""",
    "counts": """
        WITH numbered AS (
            SELECT *, row_number() OVER (PARTITION BY k ORDER BY bid) - 1 AS n FROM bids)
        SELECT k, count(*), sum(bid), max(bid) FROM numbered
        GROUP BY k, n // 4 HAVING count(*) = 4""",
    "updates": "SELECT k, count(*), sum(bid), max(bid) FROM bids GROUP BY k",
    "joined-windows": """
        SELECT bid, ask FROM bids JOIN asks ON k = key
            AND time_bucket(INTERVAL 10 seconds, moment)
                = time_bucket(INTERVAL 10 seconds, time)""",
    "joined-intervals": """
        SELECT bid, ask FROM bids FULL JOIN asks ON k = key
            AND time - moment BETWEEN INTERVAL (-10) seconds AND INTERVAL 2 seconds""",
    "joined-sessions": """
        WITH taken AS (
            SELECT moment AS t, k, bid AS n, 'bid' AS side FROM bids
            UNION ALL SELECT time, key, ask, 'ask' FROM asks),
        begun AS (
            SELECT *, coalesce(
                t - lag(t) OVER key > INTERVAL 2500 milliseconds, true) AS begins
            FROM taken WINDOW key AS (PARTITION BY k ORDER BY t)),
        numbered AS (
            SELECT *, count_if(begins) OVER (PARTITION BY k ORDER BY t) AS session FROM begun)
        SELECT b.n, a.n FROM numbered b JOIN numbered a
            ON b.k = a.k AND b.session = a.session AND b.side = 'bid' AND a.side = 'ask'""",
    "as-of": """
        SELECT bid, CASE WHEN a.time - moment <= INTERVAL 3 seconds THEN ask END
        FROM bids ASOF LEFT JOIN
            (SELECT time, key, min(ask) AS ask FROM asks GROUP BY ALL) a
            ON k = key AND moment <= a.time""",
    "looked-up": "SELECT bid, ask FROM bids LEFT JOIN asks ON k = key",
}
_KEPT: dict[str, tuple[str, ...]] = {"joined-windows": ("bid", "ask")}
_KEPT |= dict.fromkeys(
    ("joined-intervals", "joined-sessions", "as-of", "looked-up"), _KEPT["joined-windows"]
)


class Streak(whale.KeyedProcess):
    """Emits how many bids of a key have come without a gap."""

    bids = state.count()
    spent = state.sum("int64")
    quiet = state.timer()

    def on_row(self, row: Any, out: Any) -> None:
        self.bids.add(1)
        self.spent.add(row.bid)
        self.quiet.set(row.moment + timedelta(milliseconds=GAP_MS))

    def on_timer(self, timer: Any, out: Any) -> None:
        out.emit_row(k=self.key.k, bids=self.bids.get(), spent=self.spent.get())
        self.clear()


@cache
def bids() -> pa.Table:
    draw = random.Random(7)
    seconds = [n * 240 // 700 + draw.randrange(BOUND_S) for n in range(700)]
    rows = [
        (_BEGIN + timedelta(seconds=second), draw.choice(_KEYS), n)
        for n, second in enumerate(seconds)
    ]
    schema = {"moment": pa.timestamp("us"), "k": pa.string(), "bid": pa.int64()}
    return _table(rows, pa.schema(schema))


@cache
def asks() -> pa.Table:
    draw = random.Random(8)
    rows = [(_BEGIN + timedelta(seconds=n * 240 // 300), draw.choice(_KEYS), n) for n in range(300)]
    schema = {"time": pa.timestamp("us"), "key": pa.string(), "ask": pa.int64()}
    return _table(rows, pa.schema(schema))


@cache
def late_rows() -> list[dict[str, Any]]:
    """Return rows of which a tenth is up to a minute late."""
    draw = random.Random(9)
    behind = [draw.randrange(60) if draw.random() < 0.1 else 0 for _ in range(400)]
    return [
        {"t": max(0, n - late), "word": draw.choice("abc"), "n": n} for n, late in enumerate(behind)
    ]


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table([list(column) for column in columns], schema=schema)


def build(
    parallelism: int,
    stream: Callable[[pa.Table], whale.sources.Source] = whale.sources.arrow,
    texts: whale.sources.Source | None = None,
) -> whale.Topology:
    """Return the topology; its sinks are named as the results of `expected`, and "late".

    Args:
        parallelism: of all its operators.
        stream: makes the sources of bids and asks.
        texts: the source of `late_rows`.
    """
    topology = whale.Topology("stateful")
    of_bids = topology.source(
        stream(bids()),
        id="bids",
        event_time="moment",
        max_out_of_order_ms=1_000 * BOUND_S,
    )
    of_asks = topology.source(stream(asks()), id="asks", event_time="time")
    totals = (F.count().alias("rows"), F.sum("bid").alias("sum"), F.max("bid").alias("most"))
    many: dict[str, Any] = {"parallelism": parallelism}
    made = {
        "tumbling": of_bids.group_by(whale.window("moment", "10 s"), "k").agg(*totals, **many),
        "hopping": of_bids.group_by(whale.window("moment", "20 s", "5 s"), "k").agg(
            *totals, **many
        ),
        "sessions": of_bids.group_by(whale.session_window("moment", GAP_MS), "k").agg(
            *totals, **many
        ),
        "counts": of_bids.group_by(whale.count_window(4), "k").agg(*totals, **many),
        "updates": of_bids.group_by("k").agg(*totals, output_mode="update", **many),
        "joined-windows": of_bids.join(
            of_asks, on={"k": "key"}, within=whale.window("10 s"), **many
        ),
        "joined-intervals": of_bids.join(
            of_asks,
            on={"k": "key"},
            within=whale.interval("-10 s", "2 s"),
            how="outer",
            **many,
        ),
        "joined-sessions": of_bids.join(
            of_asks, on={"k": "key"}, within=whale.session_window(GAP_MS), **many
        ),
        "as-of": of_bids.join_asof(
            of_asks, by={"k": "key"}, strategy="forward", tolerance="3 s", **many
        ),
        "looked-up": of_bids.join_table(
            whale.sources.arrow(asks()), on={"k": "key"}, how="left", **many
        ),
        "once": of_asks.drop_duplicates("key", within="7 s", **many),
        "streaks": of_bids.filter(whale.col("k").is_not_null()).key_by("k").process(Streak, **many),
    }
    words = topology.source(
        texts or ListSource(late_rows(), batch_rows=7),
        id="texts",
        event_time="t",
        event_time_unit="s",
        max_out_of_order_ms=1_000 * LATE_BOUND_S,
        on_late="pass",
    )
    made["words"] = words.group_by(whale.window("t", f"{LATE_WINDOW_S} s"), "word").agg(
        F.count().alias("rows"), **many
    )
    made["late"] = made["words"].late
    for name, result in made.items():
        result.sink(whale.sinks.collect(), id=name)
    return topology


@cache
def expected() -> dict[str, Rows]:
    """Return the rows of each result that does not depend on when late rows arrive."""
    with duckdb.connect() as connection:
        connection.register("bids", bids())
        connection.register("asks", asks())
        found = {name: Counter(connection.sql(query).fetchall()) for name, query in _SQL.items()}
    found["streaks"] = Counter(
        (key, rows, total) for _, _, key, rows, total, _ in found["sessions"] if key is not None
    )
    found["once"] = _once()
    return found


def _once() -> Rows:
    """Return the asks that are no duplicates: they come in order of time."""
    kept: dict[str | None, datetime] = {}
    found: Rows = Counter()
    for at, key, number in zip(*asks().to_pydict().values(), strict=True):
        if key not in kept or at - kept[key] >= timedelta(seconds=7):
            kept[key] = at
            found[at, key, number] += 1
    return found


def check(job: whale.Job) -> None:
    """Assert that a job's results are those of `expected`, and that no late row is lost."""
    for name, rows in expected().items():
        table = job.results(name).to_arrow()
        if name == "updates":
            assert _last_updates(table) == rows
            continue
        names = _KEPT.get(name, table.column_names)
        found = Counter(zip(*(table[column].to_pylist() for column in names), strict=True))
        assert found == rows, name
    _check_late(job)


def _last_updates(table: pa.Table) -> Rows:
    """Return the last row of each key; each update counts more rows than the one before."""
    by_key: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for row in zip(*table.to_pydict().values(), strict=True):
        by_key[row[0]].append(row)
    for rows in by_key.values():
        assert [row[1] for row in rows] == sorted({row[1] for row in rows})
    return Counter(rows[-1] for rows in by_key.values())


def _check_late(job: whale.Job) -> None:
    """Assert that a row is in its window or in "late", and there only behind the watermark.

    How far the watermark has come when a row arrives may differ, but it is never ahead.
    """
    late = {row["n"] for row in job.results("late").to_arrow().to_pylist()}
    in_time: Rows = Counter()
    latest = 0
    for row in late_rows():
        end = row["t"] // LATE_WINDOW_S * LATE_WINDOW_S + LATE_WINDOW_S
        if row["n"] in late:
            assert end <= latest - LATE_BOUND_S, row
        else:
            in_time[end, row["word"]] += 1
        latest = max(latest, row["t"])
    table = job.results("words").to_arrow()
    ends = [round(end.replace(tzinfo=UTC).timestamp()) for end in table["window_end"].to_pylist()]
    rows = zip(ends, table["word"].to_pylist(), table["rows"].to_pylist(), strict=True)
    assert {(end, word): count for end, word, count in rows} == in_time
    assert late
