"""The order books: worked examples by hand, invariants, and the reference exchange on any flow."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from tests.whale_ray.applications.stock_exchange.exchanges import (
    BUY,
    SELL,
    OrderRow,
    add,
    as_fills,
    cancel,
    flows,
    matched,
    phase,
    referred,
)
from tests.whale_ray.applications.stock_exchange.reference import ReferenceExchange
from whale_ray.applications.stock_exchange.auctions import Fill, uncross
from whale_ray.applications.stock_exchange.matcher import OrderMatcher
from whale_ray.applications.stock_exchange.schemas import Action
from whale_ray.configs.errors import BadRowError

INSTANCES = 7


def fills_of(*rows: OrderRow) -> list[tuple]:
    """Return (aggressor, price, qty, buy, sell) of the fills, which are the reference's, too."""
    made = as_fills(matched(rows)[0])
    assert made == referred(rows)
    return [tuple(fill[1:]) for fill in made]


# --- by hand ------------------------------------------------------------------------------------


def test_the_best_price_comes_first_and_then_who_came_first():
    rows = [add(SELL, 101, 5, 1), add(SELL, 100, 2, 2), add(SELL, 100, 3, 3), add(BUY, 101, 9, 4)]
    assert fills_of(*rows) == [
        ("BUY", 100, 2, 4, 2),
        ("BUY", 100, 3, 4, 3),
        ("BUY", 101, 4, 4, 1),
    ]


def test_a_seller_takes_the_highest_bid_at_its_price():
    rows = [add(BUY, 99, 5, 1), add(BUY, 100, 5, 2), add(SELL, 98, 7, 3)]
    assert fills_of(*rows) == [("SELL", 100, 5, 2, 3), ("SELL", 99, 2, 1, 3)]


def test_what_does_not_trade_stays_and_trades_later():
    rows = [add(BUY, 100, 10, 1), add(SELL, 100, 4, 2), add(SELL, 101, 5, 3), add(SELL, 100, 9, 4)]
    rows.append(add(BUY, 101, 20, 5))
    assert fills_of(*rows) == [
        ("SELL", 100, 4, 1, 2),
        ("SELL", 100, 6, 1, 4),
        ("BUY", 100, 3, 5, 4),
        ("BUY", 101, 5, 5, 3),
    ]


def test_a_limit_that_is_not_reached_does_not_trade():
    assert fills_of(add(BUY, 99, 5, 1), add(SELL, 100, 5, 2)) == []


def test_a_cancel_takes_an_order_out_and_those_behind_it_move_up():
    rows = [add(SELL, 100, 5, 1), add(SELL, 100, 5, 2), cancel(1, 5), add(BUY, 100, 5, 3)]
    assert fills_of(*rows) == [("BUY", 100, 5, 3, 2)]


def test_a_cancel_of_a_part_keeps_the_place():
    rows = [add(SELL, 100, 5, 1), add(SELL, 100, 5, 2), cancel(1, 2), add(BUY, 100, 5, 3)]
    assert fills_of(*rows) == [("BUY", 100, 3, 3, 1), ("BUY", 100, 2, 3, 2)]


def test_cancels_of_filled_and_unknown_orders_change_nothing():
    rows = [add(SELL, 100, 5, 1), add(BUY, 100, 5, 2), cancel(1, 5), cancel(77, 5)]
    assert fills_of(*rows) == [("BUY", 100, 5, 2, 1)]


def test_symbols_have_books_of_their_own():
    rows = [add(SELL, 100, 5, 1, "A"), add(BUY, 100, 5, 2, "B"), add(BUY, 100, 1, 3, "A")]
    assert fills_of(*rows) == [("BUY", 100, 1, 3, 1)]


def test_orders_only_collect_before_an_auction_at_the_price_of_maximum_volume():
    rows = [
        phase(Action.COLLECT),
        *(add(BUY, 102, 10, 1), add(BUY, 100, 20, 2), add(SELL, 99, 5, 3), add(SELL, 101, 20, 4)),
        add(SELL, 99, 3, 5),
        phase(Action.AUCTION),
        add(BUY, 101, 1, 6),
    ]
    # At 99 and 100: 8 sold; at 101 and 102: 10 bought, and 28 offered either way: 101.5, rounded.
    assert fills_of(*rows) == [
        ("AUCTION", 101, 5, 1, 3),
        ("AUCTION", 101, 3, 1, 5),
        ("AUCTION", 101, 2, 1, 4),
        ("BUY", 101, 1, 6, 4),
    ]


def test_an_auction_leaves_least_over_among_equal_volumes():
    rows = [phase(Action.COLLECT), add(BUY, 105, 10, 1), add(SELL, 95, 10, 2), add(SELL, 103, 5, 3)]
    rows += [add(BUY, 97, 2, 4), phase(Action.AUCTION)]
    # 10 at 95 … 105; 2 over up to 97, none up to 102 or so, 5 from 103 on. The prices named: 95,
    # 97, 103, 105.
    assert [fill[:3] for fill in fills_of(*rows)] == [("AUCTION", 96, 10)]


def test_an_auction_without_a_cross_trades_nothing():
    rows = [phase(Action.COLLECT), add(BUY, 99, 1, 1), add(SELL, 100, 1, 2), phase(Action.AUCTION)]
    assert fills_of(*rows) == []
    assert fills_of(phase(Action.COLLECT), add(BUY, 99, 1, 1), phase(Action.AUCTION)) == []


def test_fills_decided_elsewhere_are_applied():
    rows = [
        phase(Action.COLLECT),
        *(add(BUY, 102, 10, 1), add(SELL, 99, 5, 3)),
        OrderRow("A", Action.FILL, BUY, 100, 4, 1),
        OrderRow("A", Action.FILL, SELL, 100, 4, 3),
        phase(Action.TRADE),
        add(SELL, 102, 10, 4),
    ]
    assert fills_of(*rows) == [("APPLIED", 100, 4, 1, 3), ("SELL", 102, 6, 1, 4)]


def test_all_orders_of_a_symbol_expire():
    rows = [add(BUY, 99, 1, 1), add(SELL, 100, 1, 2), phase(Action.EXPIRE), add(BUY, 100, 1, 3)]
    rows.append(add(SELL, 99, 1, 1))  # the number may come again
    assert fills_of(*rows) == [("SELL", 100, 1, 3, 1)]


def test_fills_are_numbered_by_symbol_and_carry_the_time_of_the_row_that_made_them():
    rows = [add(SELL, 100, 1, 1), add(SELL, 100, 1, 2), add(BUY, 100, 2, 3)]
    rows += [add(SELL, 5, 1, 4, "B"), add(BUY, 5, 1, 5, "B")]
    made = matched(rows)[0]
    assert [(row["symbol"], row["fill_no"]) for row in made] == [("A", 1), ("A", 2), ("B", 1)]
    assert [row["event_time"].microsecond for row in made] == [2_000, 2_000, 4_000]


# --- bad rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [add(BUY, 100, 1, 7), add(BUY, 100, 1, 7)],
            "orders: A adds order 7 while an order of that number is in its book: give each order"
            " of a symbol a number of its own",
        ),
        (
            [add(BUY, 100, 1, 7), OrderRow("A", Action.FILL, BUY, 100, 2, 7)],
            "orders: a fill of A takes 2 from order 7, which has less in the book: apply fills"
            " after the orders that they fill",
        ),
        (
            [add(SELL, 100, 1, 7), OrderRow("A", Action.FILL, SELL, 100, 1, 7)],
            "orders: a fill of A takes 1 from order 7, which has less in the book: apply fills"
            " after the orders that they fill",
        ),
    ],
)
def test_rows_that_contradict_the_book_are_refused(rows, message):
    with pytest.raises(BadRowError) as refused:
        matched(rows)
    assert str(refused.value) == message


# --- any flow -----------------------------------------------------------------------------------


@given(flows())
def test_any_flow_gives_the_fills_of_the_reference(rows):
    made, matcher = matched(rows)
    assert as_fills(made) == referred(rows)
    check_books(matcher, rows)


@given(flows(most=40))
def test_neither_slices_nor_who_owns_what_matter(rows):
    expected = Counter(as_fills(matched(rows)[0]))
    owners = ((0, 1, 2), (3,), (4, 5, 6))
    split = [matched(rows, instances=own, parallelism=INSTANCES, slices=3)[0] for own in owners]
    assert sum((Counter(as_fills(made)) for made in split), Counter()) == expected
    whole = matched(rows, instances=range(INSTANCES), parallelism=INSTANCES, slices=1)[0]
    assert as_fills(whole) == as_fills(matched(rows)[0])


def check_books(matcher: OrderMatcher, rows: list[OrderRow]) -> None:
    """Assert that books hold what the reference holds, in that order, not crossed, well linked."""
    exchange = ReferenceExchange()
    for row in rows:
        exchange.take(row)
    of = matcher._matching.books
    resting = 0
    for book in of.books[: of.counts[0]]:
        symbol = bytes(of.ids[book["id_start"] : book["id_stop"]]).decode()
        levels = {side: levels_of(of, book["best"][place]) for place, side in ((0, BUY), (1, SELL))}
        expected = exchange.orders(symbol)
        resting += len(expected)
        for side, found in levels.items():
            mine = [one for one in expected if one.side == side]
            by_price = sorted(mine, key=lambda one: -one.side * one.price)
            wanted = [(one.price, one.qty, one.order_no) for one in by_price]
            assert [(abs(price), qty, number) for price, qty, number in found] == wanted
        if book["phase"] == 0 and not any(row.action == Action.TRADE for row in rows):
            bids, asks = levels[BUY], levels[SELL]
            assert not bids or not asks or -bids[0][0] < asks[0][0]
        check_tree(of, book)
    live = of.orders[: of.counts[2]]
    assert int((live["book"] >= 0).sum()) == resting
    assert int((of.orders_by_hash > 0).sum()) == resting


def levels_of(of, level: int) -> list[tuple[int, int, int]]:
    """Return (rank, quantity, number) of a side's orders as they are linked."""
    found, ranks = [], []
    while level >= 0:
        here = of.levels[level]
        ranks.append(int(here["rank"]))
        order, qty, before = int(here["first"]), 0, -1
        while order >= 0:
            one = of.orders[order]
            assert one["before"] == before and one["level"] == level
            found.append((int(here["rank"]), int(one["qty"]), int(one["number"])))
            qty += int(one["qty"])
            before, order = order, int(one["after"])
        assert before == here["last"] and qty == here["qty"] > 0
        level = int(here["worse"])
    assert ranks == sorted(set(ranks))
    return found


def check_tree(of, book) -> None:
    """Assert that the levels' tree is ordered by rank, a heap by priority, and complete."""
    for side in (0, 1):
        ranks: list[int] = []

        def walk(node: int, up: int, ranks: list[int] = ranks) -> None:
            if node < 0:
                return
            here = of.levels[node]
            assert here["up"] == up
            assert up < 0 or here["priority"] <= of.levels[up]["priority"]
            walk(int(here["left"]), node)
            ranks.append(int(here["rank"]))
            walk(int(here["right"]), node)

        walk(int(book["root"][side]), -1)
        listed, level = [], int(book["best"][side])
        while level >= 0:
            listed.append(int(of.levels[level]["rank"]))
            level = int(of.levels[level]["worse"])
        assert ranks == listed


@given(flows(symbols=("A",)))
def test_quantities_are_conserved(rows):
    """What was ordered has traded, or rests, or was withdrawn: never more than was there."""
    made, matcher = matched(rows)
    ordered = {row.order_no: row.qty for row in rows if row.action == Action.ADD}
    traded: Counter[int] = Counter()
    for fill in as_fills(made):
        assert fill.qty > 0
        traded[fill.buy] += fill.qty
        traded[fill.sell] += fill.qty
    of = matcher._matching.books
    for one in of.orders[: of.counts[2]]:
        if one["book"] >= 0:
            traded[int(one["number"])] += int(one["qty"])
    may_go = {row.order_no for row in rows if row.action == Action.CANCEL}
    expires = any(row.action == Action.EXPIRE for row in rows)
    for number, qty in ordered.items():
        assert traded[number] <= qty
        assert traded[number] == qty or number in may_go or expires


def test_books_grow_with_what_rests_and_use_freed_room_again():
    symbols = [f"S{number}" for number in range(200)]
    random = np.random.default_rng(5)
    rows, number = [], 0
    for _ in range(3):
        for _ in range(12_000):
            number += 1
            side = BUY if random.random() < 0.5 else SELL
            price = 10_000 - side * int(random.integers(1, 400))
            rows.append(add(side, price, 100, number, symbols[int(random.integers(200))]))
        rows += [phase(Action.EXPIRE, symbol) for symbol in symbols]
    made, matcher = matched(rows)
    of = matcher._matching.books
    assert made == []
    assert of.counts[0] == 200
    assert 11_000 < of.counts[2] <= 12_000  # records used at least once
    assert (of.orders["book"] < 0).sum() >= of.counts[2] - 1
    assert not of.orders_by_hash.any()


def test_one_order_may_fill_more_than_fits_into_one_piece():
    rows = [add(SELL, 100 + number % 7, 1, number) for number in range(1, 20_001)]
    rows.append(add(BUY, 200, 30_000, 20_001))
    made = as_fills(matched(rows)[0])
    expected = sorted(range(1, 20_001), key=lambda number: (100 + number % 7, number))
    assert made == [Fill("A", "BUY", 100 + n % 7, 1, 20_001, n) for n in expected]


def test_an_auction_may_fill_more_than_fits_into_one_piece():
    rows = [phase(Action.COLLECT)]
    rows += [add(BUY, 100, 1, number) for number in range(1, 10_001)]
    rows += [add(SELL, 100, 1, 10_000 + number) for number in range(1, 10_001)]
    rows.append(phase(Action.AUCTION))
    made = as_fills(matched(rows)[0])
    assert made == [Fill("A", "AUCTION", 100, 1, n, 10_000 + n) for n in range(1, 10_001)]


def test_the_reference_asks_nothing_of_an_empty_book():
    assert uncross("A", []) == []
    assert ReferenceExchange().orders("A") == []
