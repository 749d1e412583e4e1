"""Preparation of the input with Spark: read, reject what cannot be used, rebuild the orders.

pyspark is not imported: everything goes through the session and the DataFrames that are passed in.
How orders are rebuilt, and why, stands in `rebuilding`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...configs.errors import BadRowError, InputError
from .rebuilding import COMPARISON, judge, rebuild

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Comparison", "InputPaths", "OnBadRows", "Prepared", "compare", "input_paths", "prepare"]

OnBadRows = Literal["drop", "fail"]

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
        InputError: there is no such folder, no pair of inputs in it, or more than one.
    """
    folder = Path(directory)
    if not folder.is_dir():
        msg = f"no folder {str(folder)!r}: give one with {_pair_in_words()}"
        raise InputError(msg)
    pairs = [(folder / _ORDERS, folder / _TRADES)]
    for path in sorted(folder.iterdir()):
        if _REAL_ORDERS.fullmatch(path.name):
            pairs.append((path, folder / path.name.replace("stock_orders_", _REAL_TRADES)))
    whole = [pair for pair in pairs if pair[0].exists() and pair[1].exists()]
    if len(whole) > 1:
        msg = f"{str(folder)!r} has several inputs ({_names(whole)}): leave one of them there"
        raise InputError(msg)
    if whole:
        return InputPaths(*map(str, whole[0]))
    for pair in pairs:
        for present, absent in (pair, pair[::-1]):
            if present.exists():
                msg = f"{str(folder)!r} has {present.name} but no {absent.name}: put it there"
                raise InputError(msg)
    msg = f"{str(folder)!r} has no input: put {_pair_in_words()} there"
    raise InputError(msg)


def prepare(
    session: SparkSession, paths: InputPaths, *, on_bad_rows: OnBadRows = "drop"
) -> Prepared:
    """Read both inputs, reject rows that cannot be used, and rebuild the stream of orders.

    Args:
        session: a session whose time zone is UTC.
        paths: the inputs.
        on_bad_rows: "drop" counts rows that cannot be used, "fail" refuses them.

    Raises:
        InputError: a file or column is missing, a column has another type, or no order is left.
        BadRowError: rows cannot be used and `on_bad_rows` is "fail".
    """
    engine = _Spark(session)
    judged = judge(
        engine,
        _read(session, "orders", paths.orders, _ORDER_TYPES),
        _read(session, "trades", paths.trades, _TRADE_TYPES),
    )
    counts = {"orders": _count(judged.orders), "trades": _count(judged.trades)}
    _check(counts, paths, on_bad_rows)
    stream = rebuild(engine, judged)
    return Prepared(
        stream=stream.selectExpr(
            "TIMESTAMP_MILLIS(ms) AS event_time",
            *("symbol", "action", "side", "price_milli", "qty", "order_no"),
        ),
        trades=judged.trades,
        rows=stream.count(),
        rows_in={side: sum(of_side.values()) for side, of_side in counts.items()},
        rejected=_rejected(counts),
    )


class _Spark:
    """Spark, as the rebuilding asks for it."""

    millis = "UNIX_MILLIS(CAST(event_time AS TIMESTAMP))"

    def __init__(self, session: SparkSession) -> None:
        self._session = session

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


def _read(
    session: SparkSession, side: str, path: str, expected: Mapping[str, tuple[str, ...]]
) -> DataFrame:
    """Open one input and check that its columns are there and of a type that can be used."""
    rows = session.read.parquet(path)
    types = dict(rows.dtypes)
    for name, accepted in expected.items():
        if name not in types:
            near = get_close_matches(name, types, n=1)
            hint = f"is {near[0]!r} it?" if near else f"it has {', '.join(types)}."
            msg = f"{side}: {path!r} has no column {name!r}; {hint} Rename the column"
            raise InputError(msg)
        if types[name] not in accepted:
            msg = (
                f"{side}: column {name!r} of {path!r} is {types[name]}"
                f" where {' or '.join(accepted)} is needed: cast it"
            )
            raise InputError(msg)
    return rows


def _count(judged: DataFrame) -> dict[str | None, int]:
    """Return reason → rows, None being the reason of the rows that pass."""
    return {row["reason"]: row["count"] for row in judged.groupBy("reason").count().collect()}


def _rejected(counts: Mapping[str, Mapping[str | None, int]]) -> dict[str, int]:
    return {
        f"{side}: {reason}": rows
        for side, of_side in counts.items()
        for reason, rows in sorted(of_side.items(), key=lambda item: str(item[0]))
        if reason is not None
    }


def _check(
    counts: Mapping[str, Mapping[str | None, int]], paths: InputPaths, on_bad_rows: OnBadRows
) -> None:
    rejected = _rejected(counts)
    words = "; ".join(f"{reason}: {rows:,}" for reason, rows in rejected.items())
    in_brackets = f" ({words})" if words else ""
    if None not in counts["orders"]:
        msg = f"{paths.orders!r} has no order that can be used{in_brackets}"
        raise InputError(msg)
    if rejected and on_bad_rows == "fail":
        msg = (
            f"{sum(rejected.values()):,} rows cannot be used{in_brackets}."
            " Mend the input, or leave such rows out and count them with on_bad_rows='drop'"
        )
        raise BadRowError(msg)


def _names(pairs: list[tuple[Path, Path]]) -> str:
    return ", ".join(orders.name for orders, _ in pairs)


def _pair_in_words() -> str:
    return f"{_ORDERS} and {_TRADES}, or stock_orders_NAME.parquet and stock_trades_NAME.parquet,"
