"""Preparation of the input with Spark: read, reject rows that cannot be used, rebuild the orders.

This module does not import pyspark: it uses the session and the DataFrames that are passed in.
`rebuilding` explains how orders are rebuilt, and why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...configs.errors import InputError
from ..shared.parquet_input import check_files
from ..shared.preparing import (
    OnBadRows,
    in_brackets,
    input_folder,
    open_parquet,
    pairs_of_inputs,
    refuse_rejected,
    rejected_rows,
)
from .calendar import SHANGHAI, TradingCalendar
from .rebuilding import COMPARISON, judge, rebuild

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ExchangeInputPaths",
    "FillComparison",
    "PreparedOrders",
    "compare",
    "input_paths",
    "prepare",
]

_ORDERS, _TRADES = "orders.parquet", "trades.parquet"
_REAL_ORDERS, _REAL_TRADES = re.compile(r"stock_orders_.*\.parquet"), "stock_trades_"
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_SHARED_TYPES = {
    "event_time": ("timestamp", "timestamp_ntz"),
    "seq": _INTEGERS,
    "symbol": ("string",),
    "price_milli": _INTEGERS,
    "qty": _INTEGERS,
}
_ORDER_TYPES = {
    **_SHARED_TYPES,
    "action": ("string",),
    "side": ("string",),
    "order_no": _INTEGERS,
}
_TRADE_TYPES = {
    **_SHARED_TYPES,
    "aggressor": ("string",),
    "buy_order_no": _INTEGERS,
    "sell_order_no": _INTEGERS,
}


@dataclass(frozen=True)
class ExchangeInputPaths:
    """Paths of the two inputs: Parquet files or folders."""

    orders: str
    trades: str


@dataclass(frozen=True)
class PreparedOrders:
    """The orders stream, ready for the topology, and the number of rows read and left out."""

    stream: DataFrame
    """Rows of `schemas.ORDERS`, in the exchange's sequence."""
    trades: DataFrame
    """The exchange's own executions, with the column `reason`, for the comparison."""
    rows: int
    """Rows of the stream."""
    rows_in: Mapping[str, int]
    """Input → rows read."""
    rejected: Mapping[str, int]
    """"input: reason" → rows left out; only reasons that occurred."""
    continuous: int
    """Usable rows of both inputs in continuous trading."""
    span: str
    """First and last time of the rows, in the exchange's time zone."""


@dataclass(frozen=True)
class FillComparison:
    """Comparison of the fills in continuous trading with the exchange's, in sequence per symbol."""

    compared: int
    """Fills that the exchange reports."""
    equal: int
    """Of these, the fills that have the same place, aggressor, orders, price and quantity here."""
    surplus: int
    """Fills after the last one that the exchange reports for a symbol."""
    first_different_seq: int | None
    """Sequence number of the first fill that is not equal; None if all are."""


def input_paths(directory: str | Path) -> ExchangeInputPaths:
    """Return the two inputs in a folder.

    Raises:
        InputError: there is no such folder, no pair of inputs in it, more than one, or a damaged
            file.
    """
    wanted = f"{_ORDERS} and {_TRADES}, or stock_orders_NAME.parquet and stock_trades_NAME.parquet,"
    folder = input_folder(directory, wanted)
    names = [(_ORDERS, _TRADES)]
    for path in sorted(folder.iterdir()):
        if _REAL_ORDERS.fullmatch(path.name):
            names.append((path.name, path.name.replace("stock_orders_", _REAL_TRADES)))
    whole = pairs_of_inputs(folder, names, wanted)
    if len(whole) > 1:
        several = ", ".join(orders.name for orders, _ in whole)
        msg = f"{str(folder)!r} has several inputs ({several}): leave one of them there"
        raise InputError(msg)
    paths = ExchangeInputPaths(*map(str, whole[0]))
    check_files(asdict(paths))
    return paths


def prepare(
    session: SparkSession,
    paths: ExchangeInputPaths,
    *,
    calendar: TradingCalendar = SHANGHAI,
    on_bad_rows: OnBadRows = "drop",
) -> PreparedOrders:
    """Read both inputs, reject rows that cannot be used, and rebuild the stream of orders.

    Args:
        session: a session whose time zone is UTC.
        paths: the inputs.
        calendar: the exchange's phases of continuous trading and of collecting orders.
        on_bad_rows: "drop" counts rows that cannot be used, "fail" refuses them.

    Raises:
        InputError: a file or column is missing, a column has another type, no order is left, or an
            auction comes before the calendar's first time of collecting.
        BadRowError: rows cannot be used and `on_bad_rows` is "fail".
    """
    engine = _Spark(session)
    judged = judge(
        engine,
        open_parquet(session, "orders", paths.orders, _ORDER_TYPES),
        open_parquet(session, "trades", paths.trades, _TRADE_TYPES),
        calendar,
    )
    groups = {"orders": _groups(session, judged.orders), "trades": _groups(session, judged.trades)}
    counts = {side: _rows_by_reason(of_side) for side, of_side in groups.items()}
    _check(counts, paths, on_bad_rows)
    usable = [one for of_side in groups.values() for one in of_side if one.reason is None]
    stream = rebuild(engine, judged, calendar)
    return PreparedOrders(
        stream=stream.selectExpr(
            "TIMESTAMP_MILLIS(ms) AS event_time",
            *("symbol", "action", "side", "price_milli", "qty", "order_no"),
        ),
        trades=judged.trades,
        rows=stream.count(),
        rows_in={side: sum(of_side.values()) for side, of_side in counts.items()},
        rejected=rejected_rows(counts),
        continuous=sum(one.rows for one in usable if one.continuous),
        span=calendar.span(min(one.first_ms for one in usable), max(one.last_ms for one in usable)),
    )


class _Spark:
    """Spark as an `SqlEngine`."""

    millis = "UNIX_MILLIS(CAST(event_time AS TIMESTAMP))"

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def local_millis(self, zone: str) -> str:
        return f"UNIX_MILLIS(FROM_UTC_TIMESTAMP(CAST(event_time AS TIMESTAMP), '{zone}'))"

    def sql(self, query: str, frames: Mapping[str, DataFrame], *, keep: bool) -> DataFrame:
        used = {name: frames[name] for name in re.findall(r"\{(\w+)\}", query)}
        frame = self._session.sql(query, **used)
        return frame.cache() if keep else frame

    def rows(self, frame: DataFrame) -> list[Mapping[str, Any]]:
        return [row.asDict() for row in frame.collect()]

    def table(self, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
        return self._session.createDataFrame(list(rows), columns)


def compare(session: SparkSession, prepared: PreparedOrders, made: DataFrame) -> FillComparison:
    """Compare the application's fills, rows of `schemas.FILLS`, with the exchange's own."""
    row = session.sql(COMPARISON, trades=prepared.trades, made=made).first()
    assert row is not None
    return FillComparison(row["compared"], row["equal"], row["surplus"], row["first_different"])


@dataclass(frozen=True)
class _Group:
    """Row count and time span for one reason (None: rows pass), in or outside of call phases."""

    reason: str | None
    continuous: bool
    rows: int
    first_ms: int
    last_ms: int


def _groups(session: SparkSession, judged: DataFrame) -> list[_Group]:
    counted = session.sql(
        """
        SELECT reason, COALESCE(continuous, FALSE) AS continuous, COUNT(*) AS rows,
               COALESCE(MIN(ms), 0) AS first_ms, COALESCE(MAX(ms), 0) AS last_ms
        FROM {judged} GROUP BY ALL
        """,
        judged=judged,
    )
    return [_Group(**row.asDict()) for row in counted.collect()]


def _rows_by_reason(groups: Sequence[_Group]) -> dict[str | None, int]:
    """Return reason → rows, None being the reason of the rows that pass."""
    rows: dict[str | None, int] = {}
    for group in groups:
        rows[group.reason] = rows.get(group.reason, 0) + group.rows
    return rows


def _check(
    counts: Mapping[str, Mapping[str | None, int]],
    paths: ExchangeInputPaths,
    on_bad_rows: OnBadRows,
) -> None:
    rejected = rejected_rows(counts)
    if None not in counts["orders"]:
        msg = f"{paths.orders!r} has no order that can be used{in_brackets(rejected)}"
        raise InputError(msg)
    if on_bad_rows == "fail":
        refuse_rejected(rejected)
