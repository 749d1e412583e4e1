"""Preparation of real contracts with Spark: read, reject rows that cannot be used, count trades.

There are two kinds of input, of which at least one is needed. The daily file of an exchange has a
row for every contract and day, with the number of trades. A list of contracts has no numbers of
trades, so its contracts are ranked: first those that expire soon and whose strike is near the
middle of all strikes; one expiration later weighs as much as one unit of currency. The contract of
rank r gets the trades of rank r in the daily file's busiest underlying, or, without a daily file,
those of rank r among generated contracts.

This module does not import pyspark: it uses the session that is passed in. All queries are SQL for
both Spark and DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...configs.errors import InputError
from ..shared.parquet_input import check_files
from ..shared.preparing import (
    OnBadRows,
    in_brackets,
    input_folder,
    open_parquet,
    refuse_rejected,
    rejected_rows,
)
from .contracts import LISTED, ContractBook
from .generated import SECONDS_A_DAY, TRADES_PER_S, trades_of_ranks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ContractInputPaths", "PreparedContracts", "SparkEngine", "input_paths", "prepare"]

Row = Mapping[str, Any]

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")
_INTEGERS = _NUMBERS[:4]
_DAILY_TYPES = {
    "trade_date": ("date",),
    "underlying": ("string",),
    "expiry": ("date",),
    "strike_inr": _NUMBERS,
    "right": ("string",),
    "close": _NUMBERS,
    "underlying_price": _NUMBERS,
    "num_trades": _INTEGERS,
}
_LIST_TYPES = {
    "contract": ("string",),
    "root": ("string",),
    "expiration": ("date",),
    "right": ("string",),
    "strike_milli": _INTEGERS,
}
_DAILY_TICK_MILLI, _LIST_TICK_MILLI = 50, 10
#: Time value at the money ÷ underlying, and the distance at which it has fallen to 1/e of that.
_TIME_VALUE, _TIME_VALUE_REACH = 0.012, 0.02

_PRICE_MAX = "100000"
_RIGHT_RULE = "WHEN call_or_put IS NULL OR call_or_put NOT IN ('CALL', 'PUT') THEN 'unknown right'"
_JUDGE_DAILY = f"""
    SELECT *, CASE
      WHEN underlying IS NULL OR expiry IS NULL OR trade_date IS NULL THEN 'null contract or date'
      {_RIGHT_RULE}
      WHEN strike IS NULL OR isnan(strike) OR strike < 0.001 OR strike > {_PRICE_MAX}
        THEN 'strike out of range'
      WHEN close IS NULL OR isnan(close) OR close < 0 OR close > {_PRICE_MAX}
        THEN 'close out of range'
      WHEN underlying_price IS NULL OR isnan(underlying_price) OR underlying_price < 0.001
        OR underlying_price > {_PRICE_MAX} THEN 'underlying_price out of range'
      WHEN num_trades IS NULL OR num_trades < 0 THEN 'num_trades out of range'
    END AS reason
    FROM {{daily}}"""
_JUDGE_LIST = f"""
    SELECT *, CASE
      WHEN contract IS NULL OR root IS NULL OR expiration IS NULL THEN 'null contract'
      {_RIGHT_RULE}
      WHEN strike_milli IS NULL OR strike_milli < 1 OR strike_milli > {_PRICE_MAX}000
        THEN 'strike_milli out of range'
    END AS reason
    FROM {{listed}}"""
_COUNT = "SELECT reason, COUNT(*) AS count FROM {judged} GROUP BY reason"
_TRADED = """
    SELECT underlying, call_or_put, CAST(ROUND(strike * 1000) AS BIGINT) AS strike_milli,
      CONCAT_WS(' ', underlying, CAST(expiry AS VARCHAR(10)), call_or_put,
                CAST(CAST(ROUND(strike * 1000) AS BIGINT) AS VARCHAR(12))) AS name,
      SUM(num_trades) AS trades,
      MAX_BY(close, trade_date) AS close, MAX_BY(underlying_price, trade_date) AS underlying_price
    FROM {judged} WHERE reason IS NULL
    GROUP BY underlying, call_or_put, expiry, strike
    HAVING SUM(num_trades) > 0"""
_DAYS = "SELECT COUNT(DISTINCT trade_date) AS days FROM {judged} WHERE reason IS NULL"
_RANKED = """
    WITH distinct_ones AS (
      SELECT contract, root, expiration, call_or_put, MAX(strike_milli) AS strike_milli
      FROM {judged} WHERE reason IS NULL GROUP BY contract, root, expiration, call_or_put),
    middle AS (
      SELECT root, (MIN(strike_milli) + MAX(strike_milli)) / 2 AS middle_milli
      FROM distinct_ones GROUP BY root),
    measured AS (
      SELECT contract AS name, one.root AS underlying, call_or_put, strike_milli, middle_milli,
        1000 * DENSE_RANK() OVER (PARTITION BY one.root ORDER BY expiration)
        + ABS(strike_milli - middle_milli) AS distance
      FROM distinct_ones AS one JOIN middle ON one.root = middle.root)
    SELECT *, ROW_NUMBER() OVER (ORDER BY distance, name) AS place FROM measured"""


@dataclass(frozen=True)
class ContractInputPaths:
    """Paths of the inputs: Parquet files; None for an input that is not there."""

    daily: str | None
    listed: str | None


@dataclass(frozen=True)
class PreparedContracts:
    """The contracts, and the number of rows read and left out."""

    book: ContractBook
    rows_in: Mapping[str, int]
    """Input → rows read."""
    rejected: Mapping[str, int]
    """"input: reason" → rows left out; only reasons that occurred."""


class QueryEngine(Protocol):
    """The operations that the preparation needs from Spark or DuckDB."""

    def read(self, side: str, path: str, types: Mapping[str, tuple[str, ...]]) -> Any:
        """Open an input; `right` is renamed to call_or_put and `strike_inr` to strike.

        Raises:
            InputError: a column is missing or has another type.
        """

    def sql(self, query: str, **frames: Any) -> Any:
        """Return the result of a query, in which {name} stands for a frame."""

    def rows(self, frame: Any) -> Sequence[Row]:
        """Return the rows of a frame."""


class SparkEngine:
    """Spark as an `QueryEngine`."""

    def __init__(self, session: SparkSession) -> None:
        """Take a session whose time zone is UTC."""
        self._session = session

    def read(self, side: str, path: str, types: Mapping[str, tuple[str, ...]]) -> DataFrame:
        """Open an input, see `QueryEngine.read`."""
        rows = open_parquet(self._session, side, path, types)
        renamed = rows.select(*types).withColumnRenamed("right", "call_or_put")
        return renamed.withColumnRenamed("strike_inr", "strike")

    def sql(self, query: str, **frames: DataFrame) -> DataFrame:
        """Return the result, cached in memory, since every result is used twice."""
        return self._session.sql(query, **frames).cache()

    def rows(self, frame: DataFrame) -> Sequence[Row]:
        """Return the rows."""
        return [row.asDict() for row in frame.collect()]


def input_paths(directory: str | Path) -> ContractInputPaths:
    """Return the inputs in a folder.

    Raises:
        InputError: there is no such folder, no input in it, more than one of a kind, or a damaged
            file.
    """
    names = "options_daily*.parquet or options_universe*.parquet"
    folder = input_folder(directory, names)
    found: list[str | None] = []
    for kind in ("daily", "universe"):
        pattern = re.compile(rf"options_{kind}.*\.parquet")
        paths = [path for path in sorted(folder.iterdir()) if pattern.fullmatch(path.name)]
        if len(paths) > 1:
            several = ", ".join(path.name for path in paths)
            msg = f"{str(folder)!r} has several inputs ({several}): leave one of them there"
            raise InputError(msg)
        found.append(str(paths[0]) if paths else None)
    if found == [None, None]:
        msg = f"{str(folder)!r} has no input: put {names} there"
        raise InputError(msg)
    inputs = ContractInputPaths(*found)
    check_files(asdict(inputs))
    return inputs


def prepare(
    engine: QueryEngine,
    paths: ContractInputPaths,
    *,
    limit: int | None = None,
    on_bad_rows: OnBadRows = "drop",
) -> PreparedContracts:
    """Read the inputs, reject rows that cannot be used, and return the busiest contracts.

    Args:
        engine: a `SparkEngine`.
        paths: the inputs.
        limit: number of contracts; None takes all that were traded.
        on_bad_rows: "drop" counts rows that cannot be used, "fail" refuses them.

    Raises:
        InputError: a column is missing or has another type, or no contract is left.
        BadRowError: rows cannot be used and `on_bad_rows` is "fail".
    """
    counts: dict[str, dict[str | None, int]] = {}
    names: list[str] = []
    parts: list[np.ndarray[Any, Any]] = []
    days, busiest = 1, None
    if paths.daily is not None:
        frame = engine.read("daily", paths.daily, _DAILY_TYPES)
        judged = engine.sql(_JUDGE_DAILY, daily=frame)
        counts["daily"] = _count(engine, judged)
        rows = engine.rows(engine.sql(_TRADED, judged=judged))
        days = max(engine.rows(engine.sql(_DAYS, judged=judged))[0]["days"], 1)
        names += [row["name"] for row in rows]
        parts.append(_daily(rows))
        busiest = _busiest(rows)
    if paths.listed is not None:
        frame = engine.read("universe", paths.listed, _LIST_TYPES)
        judged = engine.sql(_JUDGE_LIST, listed=frame)
        counts["universe"] = _count(engine, judged)
        rows = engine.rows(engine.sql(_RANKED, judged=judged))
        trades = trades_of_ranks(len(rows)) if busiest is None else busiest
        rows = sorted(rows, key=lambda row: int(row["place"]))[: len(trades)]
        names += [row["name"] for row in rows]
        parts.append(_ranked(rows, trades))
    _check(counts, paths, on_bad_rows, bool(names))
    listed = _numbered(parts)
    per_s = float(listed["trades"].sum()) / (days * SECONDS_A_DAY)
    if paths.daily is None:
        per_s = TRADES_PER_S
    origin = " and ".join(Path(path).name for path in (paths.daily, paths.listed) if path)
    return PreparedContracts(
        ContractBook.busiest_first(names, listed, limit, per_s, origin),
        {side: sum(of_side.values()) for side, of_side in counts.items()},
        rejected_rows(counts),
    )


def _daily(rows: Sequence[Row]) -> np.ndarray[Any, Any]:
    """Return the traded contracts of the daily file; `underlying` is numbered from 0."""
    listed = np.zeros(len(rows), LISTED)
    underlying = np.array([float(row["underlying_price"]) for row in rows])
    listed["right"] = [1 if row["call_or_put"] == "CALL" else -1 for row in rows]
    listed["strike_milli"] = [row["strike_milli"] for row in rows]
    listed["underlying_milli"] = np.round(underlying * 1_000)
    closes_milli = np.round([float(row["close"]) * 1_000 for row in rows])
    exercised = (listed["underlying_milli"] - listed["strike_milli"]) * listed["right"]
    # The close may be hours older than the underlying's, so the difference can be negative.
    beyond = closes_milli - np.maximum(exercised, 0)
    listed["time_value_milli"] = np.maximum(beyond, _DAILY_TICK_MILLI)
    listed["tick_milli"] = _DAILY_TICK_MILLI
    listed["trades"] = [int(row["trades"]) for row in rows]
    listed["underlying"] = _numbers([row["underlying"] for row in rows])
    return listed


def _busiest(rows: Sequence[Row]) -> np.ndarray[Any, Any] | None:
    """Return the trades of each contract of the busiest underlying, the most first."""
    if not rows:
        return None
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["underlying"]] = sums.get(row["underlying"], 0) + int(row["trades"])
    most = min(sums, key=lambda name: (-sums[name], name))
    trades = sorted((int(row["trades"]) for row in rows if row["underlying"] == most), reverse=True)
    return np.array(trades, np.float64)


def _ranked(rows: Sequence[Row], trades: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the listed contracts by rank, with the trades of each rank."""
    listed = np.zeros(len(rows), LISTED)
    listed["right"] = [1 if row["call_or_put"] == "CALL" else -1 for row in rows]
    listed["strike_milli"] = [row["strike_milli"] for row in rows]
    listed["underlying_milli"] = [round(float(row["middle_milli"])) for row in rows]
    distance = np.abs(listed["strike_milli"] / np.maximum(listed["underlying_milli"], 1) - 1.0)
    value = listed["underlying_milli"] * _TIME_VALUE * np.exp(-distance / _TIME_VALUE_REACH)
    listed["time_value_milli"] = np.maximum(value, _LIST_TICK_MILLI)
    listed["tick_milli"] = _LIST_TICK_MILLI
    listed["trades"] = trades[: len(rows)]
    listed["underlying"] = _numbers([row["underlying"] for row in rows])
    return listed


def _numbers(names: Sequence[str]) -> list[int]:
    """Return the number of each name among all of them, in their order."""
    number = {name: place for place, name in enumerate(sorted(set(names)))}
    return [number[name] for name in names]


def _numbered(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Concatenate the inputs, and renumber underlyings so that each input has its own."""
    first = 0
    for part in parts:
        part["underlying"] += first
        first = int(part["underlying"].max()) + 1 if len(part) else first
    return np.concatenate(parts)


def _count(engine: QueryEngine, judged: Any) -> dict[str | None, int]:
    """Return reason → rows, None being the reason of the rows that pass."""
    rows = engine.rows(engine.sql(_COUNT, judged=judged))
    return {row["reason"]: row["count"] for row in rows}


def _check(
    counts: Mapping[str, Mapping[str | None, int]],
    paths: ContractInputPaths,
    on_bad_rows: OnBadRows,
    is_any: bool,
) -> None:
    rejected = rejected_rows(counts)
    if not is_any:
        files = " and ".join(repr(path) for path in (paths.daily, paths.listed) if path)
        msg = f"no contract that was traded in {files}{in_brackets(rejected)}"
        raise InputError(msg)
    if on_bad_rows == "fail":
        refuse_rejected(rejected)
