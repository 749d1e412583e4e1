"""Drives the application's parts without a runtime; order flows; the real day, read by DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.whale_ray.applications.emitted import Emitted, context
from tests.whale_ray.applications.stock_exchange.reference import OrderRow, ReferenceExchange
from whale_ray.applications.stock_exchange.auctions import Fill
from whale_ray.applications.stock_exchange.calendar import SHANGHAI
from whale_ray.applications.stock_exchange.matcher import OrderMatcher
from whale_ray.applications.stock_exchange.rebuilding import COMPARISON, judge, rebuild
from whale_ray.applications.stock_exchange.schemas import ORDERS, Action
from whale_ray.applications.stock_exchange.splitting import split
from whale_ray.transport.wire.batch import Batch

BUY, SELL = 1, -1
TIME = pa.timestamp("ms", tz="UTC")
START_MS = 1_689_039_000_000


def orders_table(rows: Sequence[OrderRow]) -> pa.Table:
    """Return rows as a source gives them, one a millisecond."""
    columns = [pa.array([START_MS + place for place in range(len(rows))], pa.int64()).cast(TIME)]
    for place, field in enumerate(ORDERS.to_arrow()):
        if place:
            columns.append(pa.array([row[place - 1] for row in rows], field.type))
    return pa.Table.from_arrays(columns, schema=ORDERS.to_arrow())


def timed(table: pa.Table) -> Batch:
    """Return rows as they reach the matcher."""
    batch = Batch.from_arrow(table)
    return split(batch.with_times(batch["event_time"].astype(np.int64) * 1_000_000))


def matched(
    rows: Sequence[OrderRow],
    *,
    instances: Sequence[int] = (0,),
    parallelism: int = 1,
    slices: int = 8192,
) -> tuple[list[dict], OrderMatcher]:
    """Return what a matcher emits for these rows, and the matcher."""
    matcher, out = OrderMatcher(), Emitted()
    matcher.open(context(instances, parallelism))
    batch = timed(orders_table(rows))
    for start in range(0, len(rows), slices):
        matcher.on_batch(batch.slice(start, min(start + slices, len(rows))), out)
    matcher.close(out)
    return out.rows(), matcher


def as_fills(rows: Iterable[Mapping[str, Any]]) -> list[Fill]:
    """Return emitted rows as the reference states fills."""
    names = ("symbol", "aggressor", "price_milli", "qty", "buy_order_no", "sell_order_no")
    return [Fill(*(row[name] for name in names)) for row in rows]


def referred(rows: Iterable[OrderRow]) -> list[Fill]:
    """Return what the reference makes of the rows."""
    exchange = ReferenceExchange()
    return [fill for row in rows for fill in exchange.take(row)]


def add(side: int, price: int, qty: int, order_no: int, symbol: str = "A") -> OrderRow:
    return OrderRow(symbol, Action.ADD, side, price, qty, order_no)


def cancel(order_no: int, qty: int, symbol: str = "A") -> OrderRow:
    return OrderRow(symbol, Action.CANCEL, 0, 0, qty, order_no)


def phase(action: Action, symbol: str = "A") -> OrderRow:
    return OrderRow(symbol, action, 0, 0, 0, 0)


@st.composite
def flows(draw, symbols: Sequence[str] = ("A", "BB", "ä"), most: int = 60) -> list[OrderRow]:
    """Draw order flows near one price, with cancels, also of unknown orders, and auctions."""
    rows: list[OrderRow] = []
    kinds = st.sampled_from(["add"] * 8 + ["cancel"] * 3 + ["collect", "auction", "trade", "end"])
    for number in range(1, draw(st.integers(1, most)) + 1):
        symbol, kind = draw(st.sampled_from(symbols)), draw(kinds)
        qty = draw(st.integers(1, 5)) * draw(st.sampled_from([1, 100]))
        if kind == "add":
            side = draw(st.sampled_from([BUY, SELL]))
            rows.append(add(side, draw(st.integers(95, 105)), qty, number, symbol))
        elif kind == "cancel":
            rows.append(cancel(draw(st.integers(1, number)), qty, symbol))
        else:
            actions = {"collect": Action.COLLECT, "auction": Action.AUCTION}
            actions |= {"trade": Action.TRADE, "end": Action.EXPIRE}
            rows.append(phase(actions[kind], symbol))
    return rows


class DuckDB:
    """DuckDB, as the rebuilding asks for it."""

    millis = "EPOCH_MS(event_time)"

    def __init__(self, database: Any) -> None:
        self._database = database
        self._made = 0
        database.execute("SET TimeZone = 'UTC'")

    def local_millis(self, zone: str) -> str:
        return f"EPOCH_MS(TIMEZONE('{zone}', CAST(event_time AS TIMESTAMPTZ)))"

    def load(self, rows: pa.Table | str) -> str:
        """Make a frame of a table, or of a Parquet file."""
        self._made += 1
        name = f"input_{self._made}"
        if isinstance(rows, str):
            self._database.read_parquet(rows).create_view(name)
        else:
            self._database.register(name, rows)
        return name

    def sql(self, query: str, frames: Mapping[str, str], *, keep: bool) -> str:
        self._made += 1
        for name, table in frames.items():
            query = query.replace(f"{{{name}}}", table)
        self._database.execute(f"CREATE TABLE frame_{self._made} AS {query}")
        return f"frame_{self._made}"

    def rows(self, frame: str) -> list[Mapping[str, Any]]:
        return self._database.sql(f"FROM {frame}").to_arrow_table().to_pylist()

    def table(self, rows: Sequence[tuple[Any, ...]], columns: str) -> str:
        self._made += 1
        self._database.execute(f"CREATE TABLE frame_{self._made} ({columns})")
        if rows:
            places = ", ".join("?" * len(rows[0]))
            self._database.executemany(f"INSERT INTO frame_{self._made} VALUES ({places})", rows)
        return f"frame_{self._made}"

    def stream(self, frame: str) -> pa.Table:
        """Return a rebuilt stream as a source gives it."""
        rows = self._database.sql(
            f"""SELECT MAKE_TIMESTAMPTZ(ms * 1000) AS event_time, symbol, action, side, price_milli,
                       qty, order_no
                FROM {frame} ORDER BY ms, seq, turn, symbol"""
        ).to_arrow_table()
        return rows.cast(ORDERS.to_arrow())


class RealDay:
    """The exchange's two files and the stream that they become."""

    def __init__(self, folder: Path) -> None:
        self._database = duckdb.connect()
        self._engine = DuckDB(self._database)
        self._judged = judge(
            self._engine,
            *(
                self._engine.load(str(folder / f"stock_{side}_sse_20230711.parquet"))
                for side in ("orders", "trades")
            ),
            SHANGHAI,
        )
        self.rows = self._engine.stream(rebuild(self._engine, self._judged, SHANGHAI))

    def compare(self, fills: pa.Table) -> dict:
        frames = {"trades": self._judged.trades, "made": self._engine.load(fills)}
        (answer,) = self._engine.rows(self._engine.sql(COMPARISON, frames, keep=False))
        return dict(answer)

    def auctions_equal(self, fills: pa.Table) -> int:
        """Return how many fills of auctions are the exchange's, at the same time, in its order."""
        frames = {"trades": self._judged.trades, "made": self._engine.load(fills)}
        query = """
            WITH reported AS (
              SELECT *, ROW_NUMBER() OVER (PARTITION BY symbol ORDER BY seq) AS fill_no
              FROM {trades})
            SELECT COUNT(*) AS equal
            FROM reported AS r JOIN {made} AS f ON r.symbol = f.symbol AND r.fill_no = f.fill_no
            WHERE r.aggressor = 'AUCTION' AND f.aggressor = 'AUCTION'
              AND r.price_milli = f.price_milli AND r.qty = f.qty AND r.ms = EPOCH_MS(f.event_time)
              AND r.buy_order_no = f.buy_order_no AND r.sell_order_no = f.sell_order_no"""
        return int(self._engine.rows(self._engine.sql(query, frames, keep=False))[0]["equal"])
