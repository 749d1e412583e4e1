"""From the exchange's two files to one stream: a day made by hand, and rows that cannot be used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest

from tests.whale_ray.applications.stock_exchange.exchanges import DuckDB
from whale_ray.applications.stock_exchange.calendar import SHANGHAI, TradingCalendar
from whale_ray.applications.stock_exchange.rebuilding import judge, rebuild
from whale_ray.applications.stock_exchange.schemas import Action
from whale_ray.configs.errors import InputError

TIME = pa.timestamp("ms", tz="UTC")
ORDER_FIELDS = [
    *[("event_time", TIME), ("seq", pa.int32()), ("symbol", pa.string()), ("action", pa.string())],
    *[("side", pa.string()), ("price_milli", pa.int32()), ("qty", pa.int32())],
    ("order_no", pa.int32()),
]
TRADE_FIELDS = [
    *[("event_time", TIME), ("seq", pa.int32()), ("symbol", pa.string())],
    *[("aggressor", pa.string()), ("price_milli", pa.int32()), ("qty", pa.int32())],
    *[("buy_order_no", pa.int32()), ("sell_order_no", pa.int32())],
]


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2023-07-11 {clock}").replace(tzinfo=UTC)


def table(rows: list[tuple], fields: list[tuple]) -> pa.Table:
    schema = pa.schema(fields)
    columns = [
        pa.array([row[place] for row in rows], kind) for place, (_, kind) in enumerate(fields)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


#: Opening: 5 of order 1 and 2 at 100; then an order of 9 that takes 2 + 4 and leaves 3; one that
#: trades at once and leaves nothing; a cancel; a closing auction.
ORDERS = [
    (at("01:15:00"), 1, "A", "ADD", "BUY", 100, 5, 1),
    (at("01:20:00"), 2, "A", "ADD", "SELL", 100, 7, 2),
    (at("01:30:00"), 4, "A", "ADD", "SELL", 101, 4, 3),
    (at("01:30:01"), 7, "A", "ADD", "BUY", 102, 3, 4),
    (at("01:30:03"), 9, "A", "CANCEL", "BUY", 0, 1, 4),
    (at("06:57:01"), 10, "A", "ADD", "SELL", 90, 1, 6),
]
TRADES = [
    (at("01:25:00.010"), 3, "A", "AUCTION", 100, 5, 1, 2),
    (at("01:30:01"), 5, "A", "BUY", 100, 2, 4, 2),
    (at("01:30:01"), 6, "A", "BUY", 101, 4, 4, 3),
    (at("01:30:02"), 8, "A", "SELL", 102, 1, 4, 5),
    (at("07:00:00.350"), 11, "A", "AUCTION", 102, 1, 4, 6),
]
MIDNIGHT = at("00:00:00") - timedelta(hours=8)  # in Shanghai


def stream_of(
    orders: list[tuple], trades: list[tuple], calendar: TradingCalendar = SHANGHAI
) -> list[tuple]:
    with duckdb.connect() as database:
        engine = DuckDB(database)
        judged = judge(
            engine,
            engine.load(table(orders, ORDER_FIELDS)),
            engine.load(table(trades, TRADE_FIELDS)),
            calendar,
        )
        rows = engine.stream(rebuild(engine, judged, calendar)).to_pylist()
    return [tuple(row.values()) for row in rows]


def reasons_of(orders: list[tuple], trades: list[tuple]) -> tuple[list, list]:
    with duckdb.connect() as database:
        engine = DuckDB(database)
        judged = judge(
            engine,
            engine.load(table(orders, ORDER_FIELDS)),
            engine.load(table(trades, TRADE_FIELDS)),
            SHANGHAI,
        )
        return tuple(
            [row["reason"] for row in sorted(engine.rows(one), key=lambda row: row["order_key"])]
            for one in (
                engine.sql("SELECT *, COALESCE(seq, 0) AS order_key FROM {o}", {"o": judged.orders},
                           keep=False),
                engine.sql("SELECT *, COALESCE(seq, 0) AS order_key FROM {t}", {"t": judged.trades},
                           keep=False),
            )
        )  # fmt: skip


def phase(time: datetime, action: Action) -> tuple:
    return (time, "A", int(action), 0, 0, 0, 0)


def order(time: datetime, side: int, price: int, qty: int, number: int) -> tuple:
    return (time, "A", int(Action.ADD), side, price, qty, number)


COLLECTED = [
    phase(MIDNIGHT, Action.COLLECT),
    order(at("01:15:00"), 1, 100, 5, 1),
    order(at("01:20:00"), -1, 100, 7, 2),
]
TRADED = [
    order(at("01:30:00"), -1, 101, 4, 3),
    order(at("01:30:01"), 1, 102, 9, 4),  # 2 and 4 traded at once, 3 came to rest
    order(at("01:30:02"), -1, 102, 1, 5),  # seen in its trade alone
    (at("01:30:03"), "A", int(Action.CANCEL), 1, 0, 1, 4),
    phase(at("06:57:00"), Action.COLLECT),
    order(at("06:57:01"), -1, 90, 1, 6),
]
CLOSED = phase(MIDNIGHT + timedelta(days=1) - timedelta(milliseconds=1), Action.EXPIRE)


def test_orders_are_rebuilt_and_auctions_that_come_out_equal_are_asked_for():
    # Only order 2 (7 at 100) and order 1 (5 at 100) meet in the morning; in the evening what is
    # left of order 4, 1 at 102, meets order 6 at 90: both prices are as good, so 96 is the middle.
    evening = [(*TRADES[-1][:4], 96, *TRADES[-1][5:])]
    assert stream_of(ORDERS, TRADES[:-1] + evening) == [
        *COLLECTED,
        phase(at("01:25:00.010"), Action.AUCTION),
        *TRADED,
        phase(at("07:00:00.350"), Action.AUCTION),
        CLOSED,
    ]


def test_an_auction_that_does_not_come_out_equal_is_applied():
    close = at("07:00:00.350")
    assert stream_of(ORDERS, TRADES) == [
        *COLLECTED,
        phase(at("01:25:00.010"), Action.AUCTION),
        *TRADED,
        (close, "A", int(Action.FILL), 1, 102, 1, 4),
        (close, "A", int(Action.FILL), -1, 102, 1, 6),
        phase(close, Action.TRADE),
        CLOSED,
    ]


def test_an_auction_without_fills_is_held_to_that():
    """The exchange reports none although orders cross: nothing is traded, and trading goes on."""
    assert stream_of(ORDERS[:2], []) == [
        *COLLECTED,
        phase(at("01:25:00"), Action.TRADE),
        phase(at("06:57:00"), Action.COLLECT),
        phase(at("07:00:00"), Action.TRADE),
        CLOSED,
    ]


def test_an_auction_that_nobody_could_trade_in_is_asked_for_at_its_usual_time():
    assert stream_of(ORDERS[:1], []) == [
        *COLLECTED[:2],
        phase(at("01:25:00"), Action.AUCTION),
        phase(at("06:57:00"), Action.COLLECT),
        phase(at("07:00:00"), Action.AUCTION),
        CLOSED,
    ]


BAD_ORDERS = [
    ((at("01:15:00"), 1, "A", "ADD", "BUY", 100, 5, 1), None),
    ((None, 2, "A", "ADD", "BUY", 100, 5, 2), "null event_time"),
    ((at("01:15:00"), 3, None, "ADD", "BUY", 100, 5, 3), "null symbol"),
    ((at("01:15:00"), 4, "A", None, "BUY", 100, 5, 4), "null action"),
    ((at("01:15:00"), 5, "A", "ADD", None, 100, 5, 5), "null side"),
    ((at("01:15:00"), 6, "A", "ADD", "BUY", None, 5, 6), "null price_milli"),
    ((at("01:15:00"), 7, "A", "ADD", "BUY", 100, None, 7), "null qty"),
    ((at("01:15:00"), 8, "A", "ADD", "BUY", 100, 5, None), "null order_no"),
    ((at("01:15:00"), 9, "", "ADD", "BUY", 100, 5, 9), "empty symbol"),
    ((at("01:15:00"), 10, "A", "MODIFY", "BUY", 100, 5, 10), "unknown action"),
    ((at("01:15:00"), 11, "A", "ADD", "SHORT", 100, 5, 11), "unknown side"),
    ((at("01:15:00"), 12, "A", "ADD", "BUY", 0, 5, 12), "price out of range"),
    ((at("01:15:00"), 13, "A", "ADD", "BUY", 100, 0, 13), "quantity out of range"),
    ((at("01:15:00"), 14, "A", "ADD", "BUY", 100, 5, 0), "order number below 1"),
    ((at("01:15:00"), 15, "A", "ADD", "BUY", 100, 5, 1), "repeated order number"),
    ((at("01:15:00"), 16, "A", "CANCEL", "BUY", 0, 5, 2), "cancel of an unknown order"),
    ((at("01:15:00"), 17, "A", "CANCEL", "BUY", 0, 5, 1), None),
]
BAD_TRADES = [
    ((at("01:30:00"), 20, "A", "BUY", 100, 1, 4, 2), None),
    ((at("01:30:00"), 21, "A", None, 100, 1, 4, 2), "null aggressor"),
    ((at("01:30:00"), 22, "A", "NOBODY", 100, 1, 4, 2), "unknown aggressor"),
    ((at("01:30:00"), 23, "A", "BUY", -1, 1, 4, 2), "price out of range"),
    ((at("01:30:00"), 24, "A", "BUY", 100, 1, None, 2), "null buy_order_no"),
]


def test_rows_that_cannot_be_used_have_a_reason():
    found = reasons_of([row for row, _ in BAD_ORDERS], [row for row, _ in BAD_TRADES])
    assert found == ([reason for _, reason in BAD_ORDERS], [reason for _, reason in BAD_TRADES])


@pytest.mark.parametrize("days", [1, 2])
def test_order_numbers_may_come_again_the_next_day(days):
    later = [(row[0] + timedelta(days=1), row[1] + 100, *row[2:]) for row in ORDERS[:2]]
    rows = stream_of([*ORDERS[:2], *later][: 2 * days], [])
    assert [row[2] for row in rows].count(int(Action.EXPIRE)) == days
    assert [row[2] for row in rows].count(int(Action.ADD)) == 2 * days


def test_another_exchange_has_its_own_day_and_phases():
    """New York's winter day ends at 05:00 UTC; it begins trading at 14:30 and has one auction."""
    calendar = TradingCalendar.parse("America/New_York: 00:00 collect, 09:30 trade")

    def early(clock: str) -> datetime:
        return datetime.fromisoformat(f"2023-01-11 {clock}").replace(tzinfo=UTC)

    orders = [
        (early("14:00:00"), 1, "A", "ADD", "BUY", 100, 5, 1),
        (early("15:00:00"), 2, "A", "ADD", "SELL", 102, 5, 2),
        (early("04:59:59") + timedelta(days=1), 3, "A", "ADD", "SELL", 103, 5, 3),
        (early("05:00:00") + timedelta(days=1), 4, "A", "ADD", "SELL", 104, 5, 4),
    ]
    day = timedelta(days=1)
    end = early("05:00:00") - timedelta(milliseconds=1)
    assert stream_of(orders, [], calendar) == [
        phase(early("05:00:00"), Action.COLLECT),
        order(early("14:00:00"), 1, 100, 5, 1),
        phase(early("14:30:00"), Action.AUCTION),
        order(early("15:00:00"), -1, 102, 5, 2),
        order(early("04:59:59") + day, -1, 103, 5, 3),
        phase(end + day, Action.EXPIRE),
        phase(early("05:00:00") + day, Action.COLLECT),
        order(early("05:00:00") + day, -1, 104, 5, 4),
        phase(early("14:30:00") + day, Action.AUCTION),
        phase(end + 2 * day, Action.EXPIRE),
    ]


def test_an_exchange_without_auctions_only_ends_its_days():
    calendar = TradingCalendar.parse("UTC: 00:00 trade")
    assert stream_of(ORDERS[:1], [], calendar) == [
        COLLECTED[1],
        phase(at("23:59:59.999"), Action.EXPIRE),
    ]


def test_an_auction_that_no_collecting_comes_before_is_refused():
    calendar = TradingCalendar.parse("UTC: 00:00 trade, 12:00 collect, 13:00 trade")
    with pytest.raises(InputError, match=r"trade of seq 3 is of an auction, and the calendar 'UTC"):
        stream_of(ORDERS, TRADES, calendar)
