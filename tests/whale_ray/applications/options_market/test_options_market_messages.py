"""The format of messages: golden bytes; parsing and counting against `struct` and plain Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.applications.options_market.markets import (
    FeedMessage,
    batch_of,
    decoded,
    encoded,
)
from whale_ray.applications.options_market.handlers import FeedHandler, IngestMetrics
from whale_ray.applications.options_market.schemas import INGEST, TRADE, TRADES
from whale_ray.transport.clock import VirtualClock

LINES, CONTRACTS = 3, 5
GOLDEN = FeedMessage("T", 2, 7, 123_456_789, 4, 65, 1_650, 22_912_400)
GOLDEN_HEX = """
    4f4d 01 54 0200 6d1b 0700000000000000 15cd5b0700000000
    04000000 41000000 7206000000000000 909d5d0100000000
"""

trades = st.builds(
    FeedMessage,
    kind=st.just("T"),
    line=st.integers(0, LINES - 1),
    sequence=st.integers(1, 1 << 40),
    due_ns=st.integers(0, 1 << 60),
    contract=st.integers(0, CONTRACTS - 1),
    quantity=st.integers(1, 1_000),
    price_milli=st.integers(1, 10**8),
    underlying_milli=st.integers(1, 10**8),
)


def parsed(messages: list[bytes]) -> list[tuple[int, ...]]:
    """Return the trades that a handler makes: contract, line, … as in `FeedMessage`."""
    made = FeedHandler(LINES, CONTRACTS, VirtualClock(99))(batch_of(messages))
    if made is None:
        return []
    assert made.schema == TRADES
    records = made.column("trade").data.view(TRADE)
    assert set(records["handler_in_ns"]) == set(records["handler_out_ns"]) == {99}
    names = ("line", "sequence", "due_ns", "quantity", "price_milli", "underlying_milli")
    columns = [records[name].tolist() for name in names]
    return list(zip(made["contract"].tolist(), *columns, strict=True))


def as_parsed(message: FeedMessage) -> tuple[int, ...]:
    _, line, sequence, due_ns, contract, *others = message
    return (contract, line, sequence, due_ns, *others)


def counted(ingest: IngestMetrics, messages: list[bytes]) -> list[dict[str, int]]:
    made = ingest(batch_of(messages))
    if made is None:
        return []
    assert made.schema == INGEST
    return made.to_pylist()


def test_a_message_has_the_documented_bytes():
    data = bytes.fromhex(GOLDEN_HEX)
    assert encoded(GOLDEN) == data
    assert decoded(data) == GOLDEN
    assert parsed([data]) == [as_parsed(GOLDEN)]


@given(st.lists(trades, max_size=20))
def test_trades_come_out_as_they_went_in(messages):
    assert parsed([encoded(one) for one in messages]) == [as_parsed(one) for one in messages]


@given(trades, st.integers(0, 47), st.integers(1, 255))
def test_a_changed_byte_is_noticed(message, place, change):
    """Any single byte: the sum of 16-bit words changes by less than 2¹⁶, and never by 0."""
    data = bytearray(encoded(message))
    data[place] ^= change
    whole = encoded(GOLDEN._replace(sequence=1))
    assert parsed([bytes(data), whole]) == [as_parsed(GOLDEN._replace(sequence=1))]


@pytest.mark.parametrize(
    "data",
    [
        encoded(GOLDEN, magic=0x4D4E),
        encoded(GOLDEN, version=2),
        encoded(GOLDEN._replace(kind="Q")),
        encoded(GOLDEN._replace(line=LINES)),
        encoded(GOLDEN._replace(sequence=0)),
        encoded(GOLDEN._replace(contract=CONTRACTS)),
        encoded(GOLDEN._replace(contract=2**32 - 1)),
        encoded(GOLDEN._replace(quantity=0)),
        encoded(GOLDEN._replace(quantity=1_001)),
        encoded(GOLDEN._replace(quantity=2**32 - 1)),
        encoded(GOLDEN._replace(price_milli=0)),
        encoded(GOLDEN._replace(price_milli=10**8 + 1)),
        encoded(GOLDEN._replace(underlying_milli=-5)),
        bytes(48),
        b"\xff" * 48,
    ],
)
def test_what_is_out_of_range_is_damaged(data):
    """It is left out, counted, and its place in the sequence is a gap."""
    first, third = (encoded(GOLDEN._replace(sequence=number)) for number in (1, 3))
    end = encoded(FeedMessage("E", 2, 4, 0))
    assert [one[2] for one in parsed([first, data, third, end])] == [1, 3]
    ingest = IngestMetrics(LINES, CONTRACTS)
    assert counted(ingest, [first, data]) == []
    rows = counted(ingest, [third, end])
    expected = {"line": 2, "offered": 3, "taken": 2, "missed": 1, "gaps": 1}
    assert {name: rows[0][name] for name in expected} == expected
    named = int.from_bytes(data[4:6], "little") % LINES
    assert rows[0]["damaged"] == (named == 2)


@given(
    st.lists(st.lists(st.integers(1, 200), unique=True, max_size=30), min_size=3, max_size=3),
    st.integers(1, 50),
)
def test_gaps_are_counted_as_one_would_by_hand(taken, cut):
    """Lines end with number 201; the messages come in pieces."""
    lines = [sorted(numbers) for numbers in taken]
    messages = [
        encoded(GOLDEN._replace(line=line, sequence=number))
        for line, numbers in enumerate(lines)
        for number in numbers
    ]
    messages += [encoded(FeedMessage("E", line, 201, 0)) for line in range(LINES)]
    ingest = IngestMetrics(LINES, CONTRACTS)
    rows = [
        row
        for start in range(0, len(messages), cut)
        for row in counted(ingest, messages[start : start + cut])
    ]
    assert rows == [
        {
            "line": line,
            "offered": 200,
            "taken": len(numbers),
            "missed": 200 - len(numbers),
            "gaps": sum(b - a > 1 for a, b in zip([0, *numbers], [*numbers, 201], strict=True)),
            "damaged": 0,
        }
        for line, numbers in enumerate(lines)
    ]
