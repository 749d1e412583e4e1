"""Rebuilds one stream of orders from the exchange's two files, in SQL for Spark and DuckDB.

The Shanghai exchange publishes only the part of an order that rests in the book; the part that
trades at once appears as trades. `seq` numbers the messages of both files. So an incoming order is
rebuilt from later messages: its trades, which follow one another, and after them the resting part,
if any. Its quantity is the sum of these; its limit is that of the resting part, else the price of
its worst trade; its place in the stream is that of its first trade. The stream does not contain
which orders it trades with, nor in which order: the matching operator finds out.

The calendar gives the call phases. Where the uniform price of maximum volume reproduces exactly the
exchange's fills of an auction, the stream requests an auction; otherwise it contains the exchange's
own fills, to be applied. The resting orders before an auction are few, so plain Python checks this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ...configs.errors import InputError
from ...configs.units import DAY_MS
from .auctions import Fill, Resting, uncross
from .calendar import TradingCalendar
from .schemas import Action
from .splitting import PRICE_MILLI_MAX, QTY_MAX

__all__ = [
    "COMPARISON",
    "ORDER_RULES",
    "TRADE_RULES",
    "Judged",
    "SqlEngine",
    "judge",
    "rebuild",
]

Frame = TypeVar("Frame")

_DAY_MINUTES = 24 * 60


class SqlEngine(Protocol[Frame]):
    """The operations that rebuilding needs from Spark or DuckDB."""

    millis: str
    """SQL for `event_time` in ms since 1970."""

    def local_millis(self, zone: str) -> str:
        """Return SQL for the local time in that zone at `event_time`, in ms since 1970-01-01."""

    def sql(self, query: str, frames: Mapping[str, Frame], *, keep: bool) -> Frame:
        """Run a query in which `{name}` stands for `frames[name]`; `keep` caches the result."""

    def rows(self, frame: Frame) -> list[Mapping[str, Any]]:
        """Fetch rows."""

    def table(self, rows: Sequence[tuple[Any, ...]], columns: str) -> Frame:
        """Make a frame of rows; columns as `name TYPE, …`, types being those of both engines."""


def _nulls(*columns: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"null {column}", f"{column} IS NULL") for column in columns)


_SIZES = (
    (
        "price out of range",
        f"{{priced}} AND price_milli NOT BETWEEN 1 AND {PRICE_MILLI_MAX}",
    ),
    ("quantity out of range", f"qty NOT BETWEEN 1 AND {QTY_MAX}"),
)
#: (reason, SQL that is true for a rejected row); the first rule that applies gives the reason.
ORDER_RULES = (
    *_nulls("event_time", "seq", "symbol", "action", "side", "price_milli", "qty", "order_no"),
    ("empty symbol", "symbol = ''"),
    ("unknown action", "action NOT IN ('ADD', 'CANCEL')"),
    ("unknown side", "side NOT IN ('BUY', 'SELL')"),
    *((reason, condition.format(priced="action = 'ADD'")) for reason, condition in _SIZES),
    ("order number below 1", "order_no < 1"),
)
TRADE_RULES = (
    *_nulls("event_time", "seq", "symbol", "aggressor", "price_milli", "qty"),
    *_nulls("buy_order_no", "sell_order_no"),
    ("empty symbol", "symbol = ''"),
    ("unknown aggressor", "aggressor NOT IN ('BUY', 'SELL', 'AUCTION')"),
    *((reason, condition.format(priced="TRUE")) for reason, condition in _SIZES),
)


def _reason(rules: tuple[tuple[str, str], ...]) -> str:
    cases = " ".join(f"WHEN {condition} THEN '{reason}'" for reason, condition in rules)
    return f"CASE {cases} END"


_DAY = f"CAST(FLOOR({{local_millis}} / {DAY_MS}.0) AS BIGINT)"

_JUDGED_ORDERS = f"""
WITH dated AS (
  SELECT {{millis}} AS ms, {_DAY} AS day, {{continuous}} AS continuous, *,
         {_reason(ORDER_RULES)} AS first_reason
  FROM {{orders}}),
counted AS (
  SELECT *, SUM(CASE WHEN action = 'ADD' AND first_reason IS NULL THEN 1 ELSE 0 END)
              OVER (PARTITION BY day, symbol, order_no ORDER BY seq ROWS UNBOUNDED PRECEDING)
              AS adds
  FROM dated)
SELECT ms, day, continuous, seq, symbol, action, side, price_milli, qty, order_no,
       CASE WHEN first_reason IS NOT NULL THEN first_reason
            WHEN action = 'ADD' AND adds > 1 THEN 'repeated order number'
            WHEN action = 'CANCEL' AND adds = 0 THEN 'cancel of an unknown order'
       END AS reason
FROM counted
"""
_JUDGED_TRADES = f"""
SELECT {{millis}} AS ms, {_DAY} AS day, {{continuous}} AS continuous, seq, symbol, aggressor,
       price_milli, qty, buy_order_no, sell_order_no, {_reason(TRADE_RULES)} AS reason
FROM {{trades}}
"""
#: Complete orders: the part that traded at once, and the part that rests.
_INCOMING = """
WITH parts AS (
  SELECT day, symbol, order_no, ms, seq, side, price_milli AS limit_milli, 0 AS traded_milli, qty
  FROM {orders} WHERE reason IS NULL AND action = 'ADD'
  UNION ALL
  SELECT day, symbol, CASE WHEN aggressor = 'BUY' THEN buy_order_no ELSE sell_order_no END, ms, seq,
         aggressor, NULL, CASE WHEN aggressor = 'BUY' THEN price_milli ELSE -price_milli END, qty
  FROM {trades} WHERE reason IS NULL AND aggressor <> 'AUCTION')
SELECT day, symbol, order_no, MIN(ms) AS ms, MIN(seq) AS seq, MIN(side) AS side,
       COALESCE(MAX(limit_milli), ABS(MAX(CASE WHEN limit_milli IS NULL THEN traded_milli END)))
         AS price_milli,
       SUM(qty) AS qty
FROM parts GROUP BY day, symbol, order_no
"""
#: The open quantity of every order just before each auction; a symbol's `seq` ascends with time.
_RESTING = """
WITH changes AS (
  SELECT day, symbol, order_no, ms, seq, side, price_milli, qty, seq AS place
  FROM {orders} WHERE reason IS NULL AND action = 'ADD'
  UNION ALL
  SELECT day, symbol, order_no, ms, seq, NULL, NULL, -qty, NULL
  FROM {orders} WHERE reason IS NULL AND action = 'CANCEL'
  UNION ALL
  SELECT day, symbol, buy_order_no, ms, seq, NULL, NULL, -qty, NULL
  FROM {trades} WHERE reason IS NULL AND aggressor <> 'BUY'
  UNION ALL
  SELECT day, symbol, sell_order_no, ms, seq, NULL, NULL, -qty, NULL
  FROM {trades} WHERE reason IS NULL AND aggressor <> 'SELL')
SELECT a.day, a.symbol, call, order_no, MAX(side) AS side, MAX(price_milli) AS price_milli,
       SUM(qty) AS qty, MAX(place) AS place
FROM changes AS c JOIN {auctions} AS a ON a.day = c.day AND a.symbol = c.symbol
 AND (c.ms < a.ms OR (c.ms = a.ms AND c.seq < a.seq))
GROUP BY a.day, a.symbol, call, order_no
HAVING SUM(qty) > 0 AND MAX(place) IS NOT NULL
"""
_STREAM = f"""
WITH rows AS (
  SELECT ms, seq, 0 AS turn, symbol, {Action.ADD:d} AS action, side, price_milli, qty, order_no
  FROM {{incoming}}
  UNION ALL
  SELECT ms, seq, 0, symbol, {Action.CANCEL:d}, side, 0, qty, order_no
  FROM {{orders}} WHERE reason IS NULL AND action = 'CANCEL'
  UNION ALL
  SELECT ms, seq, turn, symbol, action, side, price_milli, qty, order_no FROM {{more}})
SELECT ms, seq, turn, symbol, CAST(action AS TINYINT) AS action,
       CAST(CASE side WHEN 'BUY' THEN 1 WHEN 'SELL' THEN -1 ELSE 0 END AS TINYINT) AS side,
       CAST(price_milli AS BIGINT) AS price_milli, CAST(qty AS BIGINT) AS qty,
       CAST(order_no AS BIGINT) AS order_no
FROM rows ORDER BY ms, seq, turn, symbol
"""
_AUCTION_COLUMNS = "day BIGINT, symbol STRING, call INT, ms BIGINT, seq BIGINT"
_STREAM_COLUMNS = (
    "ms BIGINT, seq BIGINT, turn INT, symbol STRING, action INT, side STRING, price_milli BIGINT,"
    " qty BIGINT, order_no BIGINT"
)
_StreamRow = tuple[int, int, int, str, int, str, int, int, int]


@dataclass(frozen=True)
class Judged(Generic[Frame]):
    """The two inputs with the column `reason`, null for rows that pass."""

    orders: Frame
    trades: Frame


def judge(
    engine: SqlEngine[Frame], orders: Frame, trades: Frame, calendar: TradingCalendar
) -> Judged[Frame]:
    """Add to each row the reason for rejection, local day, whether trading is continuous."""
    local_millis = engine.local_millis(calendar.zone)
    of_day = f"({local_millis} - {_DAY.format(local_millis=local_millis)} * {DAY_MS})"
    terms = {
        "{millis}": engine.millis,
        "{local_millis}": local_millis,
        "{continuous}": calendar.continuous_sql(of_day),
    }

    def judged(query: str, name: str, rows: Frame) -> Frame:
        for term, meant in terms.items():
            query = query.replace(term, meant)
        return engine.sql(query, {name: rows}, keep=True)

    return Judged(
        judged(_JUDGED_ORDERS, "orders", orders), judged(_JUDGED_TRADES, "trades", trades)
    )


def rebuild(engine: SqlEngine[Frame], judged: Judged[Frame], calendar: TradingCalendar) -> Frame:
    """Return the sorted stream: columns of `schemas.ORDERS`, with `ms` in place of the time."""
    frames = {"orders": judged.orders, "trades": judged.trades}
    frames["incoming"] = engine.sql(_INCOMING, frames, keep=True)
    days = [
        (int(row["day"]), str(row["symbol"]))
        for row in engine.rows(
            engine.sql("SELECT DISTINCT day, symbol FROM {incoming}", frames, keep=False)
        )
    ]
    auctions = _auctions(engine, frames, days, calendar)
    places = [(one.day, one.symbol, one.call, one.ms, one.seq) for one in auctions]
    frames["auctions"] = engine.table(places, _AUCTION_COLUMNS)
    resting: dict[tuple[int, str, int], list[Resting]] = {}
    for row in sorted(
        engine.rows(engine.sql(_RESTING, frames, keep=False)), key=lambda row: int(row["place"])
    ):
        order = Resting(
            row["order_no"], 1 if row["side"] == "BUY" else -1, row["price_milli"], int(row["qty"])
        )
        resting.setdefault((row["day"], row["symbol"], row["call"]), []).append(order)
    more: list[_StreamRow] = []
    for auction in auctions:
        orders = resting.get((auction.day, auction.symbol, auction.call), [])
        more += _phase(auction, is_reproduced=uncross(auction.symbol, orders) == auction.fills)
    for day, symbol in sorted({*days, *((one.day, one.symbol) for one in auctions)}):
        end_ms = calendar.instant_ms(day, _DAY_MINUTES) - 1
        more.append(_row((end_ms, 0), 0, symbol, Action.EXPIRE))
    frames["more"] = engine.table(more, _STREAM_COLUMNS)
    return engine.sql(_STREAM, frames, keep=True)


@dataclass(frozen=True)
class _Auction:
    """One auction of one symbol, as the exchange reports it."""

    day: int
    """Local days since 1970-01-01."""
    symbol: str
    call: int
    """Number of the calendar's call phase that it ends."""
    begin_ms: int
    """Beginning of that call phase."""
    ms: int
    seq: int
    """Time and `seq` of its first fill; the end of the call phase and 0 if it has none."""
    places: tuple[tuple[int, int], ...]
    """Time in ms and `seq` of each fill."""
    fills: list[Fill]


def _auctions(
    engine: SqlEngine[Frame],
    frames: Mapping[str, Frame],
    days: Sequence[tuple[int, str]],
    calendar: TradingCalendar,
) -> list[_Auction]:
    """Return the auctions of every symbol and day, with their fills."""
    reported = engine.rows(
        engine.sql(
            "SELECT * FROM {trades} WHERE reason IS NULL AND aggressor = 'AUCTION'",
            frames,
            keep=False,
        )
    )
    by_auction: dict[tuple[int, str, int], list[Mapping[str, Any]]] = {
        (day, symbol, call): [] for day, symbol in days for call in range(len(calendar.calls))
    }
    for row in sorted(reported, key=lambda row: int(row["seq"])):
        call = calendar.call_at(int(row["day"]), int(row["ms"]))
        if call is None:
            msg = (
                f"the trade of seq {row['seq']} is of an auction, and the calendar"
                f" {str(calendar)!r} has no collecting before it: give the exchange's own"
            )
            raise InputError(msg)
        by_auction.setdefault((int(row["day"]), row["symbol"], call), []).append(row)
    return [
        _auction(day, symbol, call, rows, calendar)
        for (day, symbol, call), rows in sorted(by_auction.items())
    ]


def _auction(
    day: int, symbol: str, call: int, rows: list[Mapping[str, Any]], calendar: TradingCalendar
) -> _Auction:
    hours = calendar.calls[call]
    places = tuple((int(row["ms"]), int(row["seq"])) for row in rows)
    usual = (calendar.instant_ms(day, hours.end_minute), 0)
    fills = [
        Fill(
            symbol,
            "AUCTION",
            row["price_milli"],
            row["qty"],
            row["buy_order_no"],
            row["sell_order_no"],
        )
        for row in rows
    ]
    begin_ms = calendar.instant_ms(day, hours.begin_minute)
    first = places[0] if places else usual
    return _Auction(day, symbol, call, begin_ms, *first, places, fills)


def _phase(auction: _Auction, *, is_reproduced: bool) -> Iterator[_StreamRow]:
    """Yield the rows that begin and end a call phase."""
    symbol = auction.symbol
    yield _row((auction.begin_ms, 0), 0, symbol, Action.COLLECT)
    if is_reproduced:
        yield _row((auction.ms, auction.seq), 0, symbol, Action.AUCTION)
        return
    for place, fill in zip(auction.places, auction.fills, strict=True):
        for turn, side, order_no in ((0, "BUY", fill.buy), (1, "SELL", fill.sell)):
            yield (
                *(*place, turn, symbol, int(Action.FILL)),
                *(side, fill.price, fill.qty, order_no),
            )
    last = auction.places[-1] if auction.places else (auction.ms, auction.seq)
    yield _row(last, 2, symbol, Action.TRADE)


def _row(place: tuple[int, int], turn: int, symbol: str, action: Action) -> _StreamRow:
    """Return a row with an action for a whole symbol."""
    return (*place, turn, symbol, int(action), "", 0, 0, 0)


#: Compares the fills of a run (`made`, rows of `schemas.FILLS`) with the exchange's (`trades`, with
#: `reason`), in continuous trading, by their sequence per symbol.
COMPARISON = """
WITH reported AS (
  SELECT symbol, aggressor, price_milli, qty, buy_order_no, sell_order_no, seq,
         ROW_NUMBER() OVER (PARTITION BY symbol ORDER BY seq) AS turn
  FROM {trades} WHERE reason IS NULL AND aggressor <> 'AUCTION'),
found AS (
  SELECT symbol, aggressor, price_milli, qty, buy_order_no, sell_order_no,
         ROW_NUMBER() OVER (PARTITION BY symbol ORDER BY fill_no) AS turn
  FROM {made} WHERE aggressor IN ('BUY', 'SELL')),
judged AS (
  SELECT COALESCE(r.symbol, f.symbol) AS symbol, COALESCE(r.turn, f.turn) AS turn, r.seq,
         r.turn IS NOT NULL AS is_reported, f.turn IS NOT NULL AS is_found,
         COALESCE(r.aggressor = f.aggressor AND r.price_milli = f.price_milli AND r.qty = f.qty
           AND r.buy_order_no = f.buy_order_no AND r.sell_order_no = f.sell_order_no, FALSE)
           AS is_equal
  FROM reported AS r FULL OUTER JOIN found AS f ON r.symbol = f.symbol AND r.turn = f.turn)
SELECT COUNT(CASE WHEN is_reported THEN 1 END) AS compared,
       COUNT(CASE WHEN is_equal THEN 1 END) AS equal,
       COUNT(CASE WHEN is_found AND NOT is_reported THEN 1 END) AS surplus,
       MIN(CASE WHEN is_reported AND NOT is_equal THEN seq END) AS first_different
FROM judged
"""
