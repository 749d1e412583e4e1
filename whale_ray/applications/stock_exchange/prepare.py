"""Preparation of the input with Spark: read, reject what cannot be used, rebuild the orders.

pyspark is not imported: everything goes through the session and the DataFrames that are passed in.
How orders are rebuilt, and why, stands in `rebuilding`.
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

__all__ = ["Comparison", "InputPaths", "Prepared", "compare", "input_paths", "prepare"]

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
class InputPaths:
    """Where the two inputs lie: Parquet files or folders."""

    orders: str
    trades: str


@dataclass(frozen=True)
class Prepared:
    """The stream as the topology takes it, and what became of the rows."""

    stream: DataFrame
    """Rows of `schemas.ORDERS`, in the order of the exchange."""
    trades: DataFrame
    """The exchange's own executions, judged, to compare with."""
    rows: int
    """Of the stream."""
    rows_in: Mapping[str, int]
    """Input → rows read."""
    rejected: Mapping[str, int]
    """"input: reason" → rows left out; only reasons that occurred."""
    continuous: int
    """Rows of both inputs that lie in continuous trading and can be used."""
    span: str
    """From when to when the rows go, by the exchange's clock."""


@dataclass(frozen=True)
class Comparison:
    """Continuous fills, one by one in the order of each symbol, against the exchange's."""

    compared: int
    """Fills that the exchange reports."""
    equal: int
    """Of these, made by the same aggressor with the same orders, price and quantity, in turn."""
    surplus: int
    """Fills made beyond the last one of a symbol."""
    first_different_seq: int | None
    """Sequence number of the first one that is not equal; None if all are."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return self.compared == self.equal and self.surplus == 0


def input_paths(directory: str | Path) -> InputPaths:
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
    paths = InputPaths(*map(str, whole[0]))
    check_files(asdict(paths))
    return paths


def prepare(
    session: SparkSession,
    paths: InputPaths,
    *,
    calendar: TradingCalendar = SHANGHAI,
    on_bad_rows: OnBadRows = "drop",
) -> Prepared:
    """Read both inputs, reject rows that cannot be used, and rebuild the stream of orders.

    Args:
        session: a session whose time zone is UTC.
        paths: the inputs.
        calendar: when the exchange trades continuously, and when orders only collect.
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
    return Prepared(
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
    """Spark, as the rebuilding asks for it."""

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


def compare(session: SparkSession, prepared: Prepared, made: DataFrame) -> Comparison:
    """Compare the fills that were made, rows of `schemas.FILLS`, with the exchange's own."""
    row = session.sql(COMPARISON, trades=prepared.trades, made=made).first()
    assert row is not None
    return Comparison(row["compared"], row["equal"], row["surplus"], row["first_different"])


@dataclass(frozen=True)
class _Group:
    """Rows of one input with one reason to be left out (None: they pass), in or out of calls."""

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
    counts: Mapping[str, Mapping[str | None, int]], paths: InputPaths, on_bad_rows: OnBadRows
) -> None:
    rejected = rejected_rows(counts)
    if None not in counts["orders"]:
        msg = f"{paths.orders!r} has no order that can be used{in_brackets(rejected)}"
        raise InputError(msg)
    if on_bad_rows == "fail":
        refuse_rejected(rejected)
