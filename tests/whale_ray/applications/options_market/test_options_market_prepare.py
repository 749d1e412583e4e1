"""Real contracts: the queries, answered by DuckDB here and by Spark among the long tests.

What they must answer is counted by plain Python from the same rows.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whale_ray.applications.options_market import prepare as preparation
from whale_ray.applications.options_market.contracts import LISTED, ContractBook
from whale_ray.applications.options_market.generated import (
    CONTRACTS,
    TRADES_PER_S,
    generated_contracts,
    trades_of_ranks,
)
from whale_ray.applications.options_market.prepare import (
    ContractInputPaths,
    PreparedContracts,
    input_paths,
    prepare,
)
from whale_ray.applications.shared.preparing import check_types
from whale_ray.configs.errors import BadRowError, InputError, SettingsError

DAILY = pa.schema(
    [
        ("trade_date", pa.date32()),
        ("underlying", pa.string()),
        ("expiry", pa.date32()),
        ("strike_inr", pa.float32()),
        ("right", pa.string()),
        ("close", pa.float32()),
        ("underlying_price", pa.float32()),
        ("num_trades", pa.int64()),
    ]
)
LISTS = pa.schema(
    [
        ("contract", pa.string()),
        ("root", pa.string()),
        ("expiration", pa.date32()),
        ("right", pa.string()),
        ("strike_milli", pa.int32()),
    ]
)
FRIDAY, MONDAY, EXPIRY = (datetime.date(2026, 3, day) for day in (20, 23, 30))
AUGUST = [datetime.date(2023, 8, day) for day in (1, 2)]
GOOD = (FRIDAY, "NIFTY", EXPIRY, 22_900.0, "CALL", 150.5, 22_912.4, 700)
DAILY_ROWS: list[tuple[tuple[Any, ...], str | None]] = [
    (GOOD, None),
    ((MONDAY, "NIFTY", EXPIRY, 22_900.0, "CALL", 160.0, 23_000.0, 300), None),
    ((FRIDAY, "NIFTY", EXPIRY, 22_900.0, "PUT", 140.0, 22_912.4, 1_000), None),
    ((FRIDAY, "NIFTY", EXPIRY, 23_000.0, "PUT", 40.0, 22_912.4, 5), None),
    ((MONDAY, "SAIL", EXPIRY, 145.0, "CALL", 0.35, 145.75, 900), None),
    ((MONDAY, "SAIL", EXPIRY, 150.0, "CALL", 0.0, 145.75, 0), None),  # never traded
    ((None, *GOOD[1:]), "null contract or date"),
    ((FRIDAY, None, *GOOD[2:]), "null contract or date"),
    ((*GOOD[:4], "C", *GOOD[5:]), "unknown right"),
    ((*GOOD[:4], None, *GOOD[5:]), "unknown right"),
    ((*GOOD[:3], math.nan, *GOOD[4:]), "strike out of range"),
    ((*GOOD[:3], 0.0, *GOOD[4:]), "strike out of range"),
    ((*GOOD[:3], 1e6, *GOOD[4:]), "strike out of range"),
    ((*GOOD[:5], None, *GOOD[6:]), "close out of range"),
    ((*GOOD[:5], -1.0, *GOOD[6:]), "close out of range"),
    ((*GOOD[:6], math.nan, 1), "underlying_price out of range"),
    ((*GOOD[:6], 0.0, 1), "underlying_price out of range"),
    ((*GOOD[:7], None), "num_trades out of range"),
    ((*GOOD[:7], -1), "num_trades out of range"),
]
LIST_ROWS: list[tuple[tuple[Any, ...], str | None]] = [
    (("S1", "SPY", AUGUST[0], "CALL", 440_000), None),
    (("S2", "SPY", AUGUST[0], "PUT", 450_000), None),
    (("S3", "SPY", AUGUST[0], "CALL", 451_000), None),
    (("S4", "SPY", AUGUST[1], "CALL", 450_000), None),
    (("S5", "SPY", AUGUST[1], "PUT", 460_000), None),
    (("S2", "SPY", AUGUST[0], "PUT", 450_000), None),  # listed twice
    (("S6", None, AUGUST[0], "PUT", 450_000), "null contract"),
    (("S7", "SPY", AUGUST[0], "put", 450_000), "unknown right"),
    (("S8", "SPY", AUGUST[0], "PUT", 0), "strike_milli out of range"),
]


class DuckEngine:
    """DuckDB in the place of Spark."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._answers = 0

    def read(self, side: str, path: str, types: Mapping[str, tuple[str, ...]]) -> str:
        rows = pq.read_table(path)
        plain = [
            pa.field(one.name, getattr(one.type, "value_type", one.type)) for one in rows.schema
        ]
        rows = rows.cast(pa.schema(plain))
        check_types(
            side, path, {field.name: spark_name(field.type) for field in rows.schema}, types
        )
        rows = rows.select(list(types))
        renamed = {"right": "call_or_put", "strike_inr": "strike"}
        return self._named(rows.rename_columns([renamed.get(one, one) for one in types]))

    def sql(self, query: str, **frames: str) -> str:
        text = re.sub(r"\{(\w+)\}", lambda found: frames[found[1]], query)
        return self._named(self._database.sql(text).arrow().read_all())

    def rows(self, frame: str) -> list[Mapping[str, Any]]:
        return self._database.table(frame).arrow().read_all().to_pylist()

    def _named(self, rows: pa.Table) -> str:
        self._answers += 1
        self._database.register("incoming", rows)
        self._database.sql(f"CREATE TABLE answer_{self._answers} AS FROM incoming")
        return f"answer_{self._answers}"


def spark_name(kind: pa.DataType) -> str:
    names = {"date32[day]": "date", "int64": "bigint", "int32": "int", "int16": "smallint"}
    return names.get(str(kind), str(kind))


def prepared(folder: Path, **options: Any) -> PreparedContracts:
    with duckdb.connect() as database:
        return prepare(DuckEngine(database), input_paths(folder), **options)


def write(folder: Path, rows: list[tuple[Any, ...]], schema: pa.Schema, name: str) -> None:
    columns = [
        pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), folder / name)


def rows_of(cases: list[tuple[tuple[Any, ...], str | None]]) -> list[tuple[Any, ...]]:
    return [row for row, _ in cases]


def reasons(cases: list[tuple[tuple[Any, ...], str | None]], side: str) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for _, reason in cases:
        if reason is not None:
            found[f"{side}: {reason}"] += 1
    return dict(found)


def test_daily_rows_become_contracts_the_busiest_first(tmp_path):
    write(tmp_path, rows_of(DAILY_ROWS), DAILY, "options_daily.parquet")
    found = prepared(tmp_path)
    book = found.book
    assert book.names == (
        "NIFTY 2026-03-30 CALL 22900000",
        "NIFTY 2026-03-30 PUT 22900000",
        "SAIL 2026-03-30 CALL 145000",
        "NIFTY 2026-03-30 PUT 23000000",
    )
    assert book.listed["trades"].tolist() == [1_000, 1_000, 900, 5]
    assert book.listed["right"].tolist() == [1, -1, 1, -1]
    assert book.listed["underlying_milli"].tolist() == [23_000_000, 22_912_400, 145_750, 22_912_400]
    # 160 above 100 exercised; 140 above 0; 0.35 below 0.75 and 40 below 87.6: the least step.
    assert book.listed["time_value_milli"].tolist() == [60_000, 140_000, 50, 50]
    assert book.listed["underlying"].tolist() == [0, 0, 1, 0]
    assert book.trades_per_s == 2_905 / (2 * 22_500)
    assert found.rows_in == {"daily": len(DAILY_ROWS)}
    assert found.rejected == reasons(DAILY_ROWS, "daily")


def test_a_list_alone_is_ranked_and_traded_as_generated_contracts_are(tmp_path):
    write(tmp_path, rows_of(LIST_ROWS), LISTS, "options_universe.parquet")
    found = prepared(tmp_path)
    # The middle is 450: S2 lies there, S3 one off it, S4 there but one expiration further.
    assert found.book.names == ("S2", "S3", "S4", "S1", "S5")
    assert found.book.listed["trades"].tolist() == trades_of_ranks(5).tolist()
    assert found.book.trades_per_s == TRADES_PER_S
    assert set(found.book.listed["underlying_milli"].tolist()) == {450_000}
    assert found.rejected == reasons(LIST_ROWS, "universe")


def test_beside_daily_rows_it_is_traded_as_the_busiest_underlying(tmp_path):
    write(tmp_path, rows_of(DAILY_ROWS), DAILY, "options_daily.parquet")
    write(tmp_path, rows_of(LIST_ROWS), LISTS, "options_universe.parquet")
    book = prepared(tmp_path).book
    counts = dict(zip(book.names, book.listed["trades"].tolist(), strict=True))
    assert {name: counts[name] for name in counts if name[0] == "S" and name[1] in "1234"} == {
        "S2": 1_000,
        "S3": 1_000,
        "S4": 5,
    }
    assert len(book) == 7
    assert book.listed["underlying"][book.names.index("S2")] == 2
    assert prepared(tmp_path, limit=2).book.names == book.names[:2]


def test_rows_that_cannot_be_used_are_refused_if_asked(tmp_path):
    write(tmp_path, rows_of(DAILY_ROWS[:9]), DAILY, "options_daily.parquet")
    with pytest.raises(BadRowError) as refused:
        prepared(tmp_path, on_bad_rows="fail")
    assert str(refused.value) == (
        "3 rows cannot be used (daily: null contract or date: 2; daily: unknown right: 1). Correct "
        "the input, or leave such rows out and count them with on_bad_rows='drop'"
    )


def test_without_a_traded_contract_there_is_no_book(tmp_path):
    write(tmp_path, [DAILY_ROWS[5][0]], DAILY, "options_daily.parquet")
    with pytest.raises(InputError) as refused:
        prepared(tmp_path)
    path = tmp_path / "options_daily.parquet"
    assert str(refused.value) == f"no contract that was traded in {str(path)!r}"


def test_columns_are_checked(tmp_path):
    write(tmp_path, [GOOD], DAILY, "options_daily.parquet")
    path = tmp_path / "options_daily.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.rename_columns([*rows.schema.names[:7], "trades"]), path)
    with pytest.raises(InputError, match="has no column 'num_trades'; is 'trades' it"):
        prepared(tmp_path)
    pq.write_table(rows.set_column(7, "num_trades", pa.array(["x"])), path)
    with pytest.raises(InputError, match="'num_trades' of .* is string where tinyint or"):
        prepared(tmp_path)


def test_folders_without_one_input_of_a_kind_are_refused(tmp_path):
    with pytest.raises(InputError, match="no folder '.*absent': give one with options_daily"):
        input_paths(tmp_path / "absent")
    with pytest.raises(InputError, match="has no input: put options_daily"):
        input_paths(tmp_path)
    for name in ("options_daily_a.parquet", "options_daily_b.parquet"):
        pq.write_table(pa.table({}), tmp_path / name)
    with pytest.raises(
        InputError, match="several inputs .options_daily_a.parquet, options_daily_b"
    ):
        input_paths(tmp_path)
    (tmp_path / "options_daily_a.parquet").unlink()
    found = ContractInputPaths(str(tmp_path / "options_daily_b.parquet"), None)
    assert input_paths(tmp_path) == found


@pytest.mark.long
def test_the_real_contracts_have_their_real_trades(data_dir):
    path = next(data_dir.glob("options_daily*.parquet"))
    rows = pq.read_table(
        path, columns=["underlying", "expiry", "strike_inr", "right", "num_trades"]
    )
    expected: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows.to_pylist():
        *contract, trades = row.values()
        expected[tuple(contract)] += trades
    counts = sorted((count for count in expected.values() if count), reverse=True)
    found = prepared(data_dir, limit=None)
    real = [not name.startswith("SPY") for name in found.book.names]
    assert found.book.listed["trades"][real].tolist() == counts
    assert len(counts) == CONTRACTS
    assert found.rejected == {}
    spy = [name for name in found.book.names if name.startswith("SPY")]
    nifty = [count for contract, count in expected.items() if contract[0] == "NIFTY" and count]
    assert len(spy) == len(nifty)


def test_generated_contracts_are_traded_as_unevenly_as_the_real_ones(data_dir):
    path = next(data_dir.glob("options_daily*.parquet"))
    rows = pq.read_table(
        path, columns=["underlying", "expiry", "strike_inr", "right", "num_trades"]
    )
    sums = rows.group_by(["underlying", "expiry", "strike_inr", "right"]).aggregate(
        [("num_trades", "sum")]
    )
    real = np.sort(sums["num_trades_sum"].to_numpy())[::-1]
    made = generated_contracts().listed["trades"]
    assert real.sum() / (5 * 22_500) == pytest.approx(TRADES_PER_S, rel=1e-4)
    for top in (1, 10, 100, 1_000, 10_000):
        assert made[:top].sum() / made.sum() == pytest.approx(
            real[:top].sum() / real.sum(), abs=0.02
        )


def test_generated_contracts_are_seeded():
    first, again, other = (generated_contracts(300, seed) for seed in (1, 1, 2))
    assert first.names == again.names and (first.listed == again.listed).all()
    assert (first.listed != other.listed).any()
    with pytest.raises(SettingsError, match="contracts is 0: give 1 to 1,000,000"):
        generated_contracts(0)


def test_a_price_that_no_message_holds_is_refused():
    listed = np.zeros(1, LISTED)
    listed["strike_milli"], listed["underlying_milli"] = 10**8 + 1, 1
    with pytest.raises(InputError) as refused:
        ContractBook(("A",), listed, 1.0, "a test")
    assert str(refused.value) == (
        "A: strike_milli is 100,000,001, where a message holds 1 to 100,000,000: leave it out"
    )


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_answers_as_duckdb_does(data_dir, tmp_path):
    from whale_ray.spark import spark_locally

    write(tmp_path, rows_of(DAILY_ROWS), DAILY, "options_daily.parquet")
    write(tmp_path, rows_of(LIST_ROWS), LISTS, "options_universe.parquet")
    with spark_locally("options-market-test") as session:
        engine = preparation.SparkEngine(session)
        for folder in (tmp_path, data_dir):
            by_spark, expected = prepare(engine, input_paths(folder)), prepared(folder)
            assert by_spark.book.names == expected.book.names
            assert (by_spark.book.listed == expected.book.listed).all()
            assert by_spark.rows_in == expected.rows_in
            assert by_spark.rejected == expected.rejected
