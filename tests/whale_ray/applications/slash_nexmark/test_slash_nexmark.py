"""NB7, NB8 and NB11 against SQL over the same rows, and what the generator makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.applications.slash_nexmark.generator import generate, tables
from whale_ray.applications.slash_nexmark.queries import QUERIES, build
from whale_ray.applications.slash_nexmark.schemas import RECORD_BYTES, SCHEMAS
from whale_ray.applications.slash_nexmark.settings import SlashNexmarkSettings
from whale_ray.cli.main import main

#: Some windows of each query: 300 s for the first, 33 hours for the second, pauses for the third.
SETTINGS = {
    "nb7": SlashNexmarkSettings(events=18_000, events_per_s=60),
    "nb8": SlashNexmarkSettings(events=120_000, events_per_s=1),
    "nb11": SlashNexmarkSettings(events=9_000, events_per_s=60, zipf=1.2),
}

SQL = {
    "nb7": """
        SELECT start, start + INTERVAL 60 SECONDS, auction, max(price) FROM (
            SELECT *, time_bucket(INTERVAL 60 SECONDS, date_time) AS start FROM bids)
        GROUP BY start, auction""",
    "nb8": """
        SELECT start, start + INTERVAL 12 HOURS, seller, a.id, a.extra, s.extra
        FROM (SELECT *, time_bucket(INTERVAL 12 HOURS, date_time) AS start FROM auctions) AS a
        JOIN (SELECT id, extra, time_bucket(INTERVAL 12 HOURS, date_time) AS start FROM sellers)
            AS s USING (start) WHERE s.id = a.seller""",
    "nb11": """
        WITH events AS (
            SELECT id AS seller, date_time, NULL AS auction, NULL AS price, extra FROM sellers
            UNION ALL SELECT seller, date_time, auction, price, NULL FROM bids),
        pauses AS (
            SELECT *, date_time - lag(date_time) OVER (PARTITION BY seller ORDER BY date_time)
                > INTERVAL 10 SECONDS AS pause FROM events),
        numbered AS (
            SELECT *, sum(coalesce(pause, false)::INT) OVER (PARTITION BY seller ORDER BY date_time)
                AS session FROM pauses),
        bounded AS (
            SELECT *, min(date_time) OVER same AS first, max(date_time) OVER same AS last
            FROM numbered WINDOW same AS (PARTITION BY seller, session))
        SELECT bid.first, bid.last + INTERVAL 10 SECONDS, bid.seller, bid.auction, bid.price,
            person.extra
        FROM bounded AS bid JOIN bounded AS person USING (seller, session)
        WHERE bid.price IS NOT NULL AND person.extra IS NOT NULL""",
}


@cache
def streams(query: str) -> Mapping[str, pa.Table]:
    return {name: pa.concat_tables(tables(name, SETTINGS[query])) for name in SCHEMAS}


def answered(query: str, rows: Mapping[str, pa.Table]) -> list[tuple]:
    with duckdb.connect() as connection:
        for name, table in rows.items():
            connection.register(name, table)
        return sorted(connection.sql(SQL[query]).fetchall())


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("query", QUERIES)
def test_the_result_is_that_of_sql(query: str, parallelism: int) -> None:
    def source_of(name: str, columns: Sequence[str] | None) -> whale.sources.Source:
        return whale.sources.arrow(streams(query)[name].select(columns or SCHEMAS[name].names))

    topology = build(query, source_of, whale.sinks.collect(), parallelism)
    found = whale.run(topology).results("out").to_arrow()
    expected = answered(query, streams(query))
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == expected
    windows = {row[0] for row in expected}
    assert len(windows) >= 3
    if query != "nb7":  # some rows join with none
        stream = "auctions" if query == "nb8" else "bids"
        assert 0 < len(expected) < streams(query)[stream].num_rows


def test_the_streams_have_the_proportions_of_the_thesis() -> None:
    rows = streams("nb8")
    sellers = rows["sellers"].num_rows
    assert rows["auctions"].num_rows == pytest.approx(4 * sellers, abs=4)
    assert rows["bids"].num_rows == pytest.approx(4 * sellers, abs=4)
    for name, table in rows.items():
        for row in table.slice(0, 100).to_pylist():
            nbytes = sum(len(value) if isinstance(value, str) else 8 for value in row.values())
            assert nbytes == RECORD_BYTES[name]


@pytest.mark.parametrize("stream", ["auctions", "bids"])
def test_every_seller_is_there_before_what_names_it(stream: str) -> None:
    rows = streams("nb11")
    registered = {row["id"]: row["date_time"] for row in rows["sellers"].to_pylist()}
    for row in rows[stream].to_pylist():
        assert registered[row["seller"]] <= row["date_time"]


def test_some_auctions_have_most_bids_and_with_zipf_some_sellers() -> None:
    bids = pa.concat_tables(tables("bids", SlashNexmarkSettings(events=900_000)))
    _, counts = np.unique(bids["auction"].to_numpy(), return_counts=True)
    counts = np.sort(counts)[::-1]
    assert counts[: len(counts) // 5].sum() / counts.sum() > 0.7
    assert len(counts) > 10_000
    skewed = pa.concat_tables(tables("bids", SlashNexmarkSettings(events=90_000, zipf=2.0)))
    newest = 1_000 + (np.arange(40_000) // 4)
    assert np.mean(skewed["seller"].to_numpy() == newest) == pytest.approx(6 / np.pi**2, abs=0.02)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    few = SlashNexmarkSettings(events=2_000)
    one, other = (generate(tmp_path / name, "bids", few).read_bytes() for name in "ab")
    assert one == other
    changed = SlashNexmarkSettings(events=2_000, seed=2)
    assert generate(tmp_path, "bids", changed).read_bytes() != one


def test_the_command_takes_generated_rows_and_a_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = SlashNexmarkSettings(events=9_000, events_per_s=60)
    rows = {name: pq.read_table(generate("given", name, settings)) for name in SCHEMAS}
    expected = answered("nb11", rows)
    for source in ("--events 9000 --events-per-s 60", "--data given"):
        words = ["run", "slash-nexmark", "--query", "nb11", "--on", "inline", "--json"]
        assert main([*words, *source.split()]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["rows_in"] == {"sellers": 1_000, "bids": 4_000}
        assert told["rows_out"] == len(expected)
        found = pq.read_table("out/slash-nexmark")
        assert sorted(tuple(row.values()) for row in found.to_pylist()) == expected
