"""Feed lines: the same seed, the same messages; what a line loses, against a buffer in Python."""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.whale_ray.applications.options_market.markets import (
    START_NS,
    FeedMessage,
    all_trades,
    context,
    decoded,
    messages_of,
    small_book,
)
from whale_ray.applications.options_market.contracts import deal_out
from whale_ray.applications.options_market.generated import generated_contracts
from whale_ray.applications.options_market.lines import FeedLines
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.configs.errors import InputError, SettingsError
from whale_ray.transport.clock import VirtualClock

SMALL = OptionsMarketSettings(rate=20_000, seconds=0.2, feeds=2, line_messages=1 << 16, seed=5)


@pytest.mark.long
def test_the_same_seed_gives_the_same_messages_however_they_are_read():
    book = small_book()
    for line in range(2):
        whole = messages_of(book, SMALL, line)
        looks = range(1_000_000, 200_000_000, 7_300_000)
        assert messages_of(book, SMALL, line, looks_ns=looks) == whole
        assert messages_of(book, SMALL, line, max_rows=17) == whole
    other = OptionsMarketSettings(rate=20_000, seconds=0.2, feeds=2, line_messages=1 << 16, seed=6)
    assert messages_of(book, other, 0) != messages_of(book, SMALL, 0)


def test_a_lines_messages_are_numbered_and_in_the_order_of_time_up_to_its_end():
    messages = messages_of(small_book(), SMALL, 1)
    assert [one.sequence for one in messages] == list(range(1, len(messages) + 1))
    assert {one.line for one in messages} == {1}
    *trades, end = messages
    assert {one.kind for one in trades} == {"T"}
    assert end == FeedMessage("E", 1, len(messages), START_NS + 200_000_000)
    times = [one.due_ns for one in trades]
    assert times == sorted(times)
    assert times[0] > START_NS and times[-1] < START_NS + 200_000_000


@pytest.mark.parametrize("line", [0, 1])
@pytest.mark.parametrize("room", [1 << 16, 16])
def test_a_line_goes_on_behind_the_last_message_that_was_read(line: int, room: int) -> None:
    settings = replace(SMALL, line_messages=room)
    source = FeedLines(small_book(), settings)
    positions, seen, missed = None, [], 0
    random = Random(room + line)
    for stop in (0, 1, 700, 900, 10**6):
        clock = VirtualClock(start_ns=START_NS * (1 + stop))
        here = context(line, 2, clock)
        reader = source.open(here) if positions is None else source.open_at(here, positions)
        while len(seen) < stop and not reader.finished:
            batch = reader.read(random.randint(1, 40))
            seen += (
                []
                if batch is None
                else [decoded(bytes(one)) for one in batch.column("message").data]
            )
            clock.advance(random.choice([10_000, 3_000_000]))
        missed += reader.rejected["missed"]
        told = json.loads(json.dumps(reader.position()))
        positions = [told, told]  # a line goes on from its own
    whole = messages_of(small_book(), SMALL, line)
    by_sequence = {one.sequence: one for one in whole}
    assert [one.sequence for one in seen] == sorted({one.sequence for one in seen})
    assert all(one.contract == by_sequence[one.sequence].contract for one in seen)
    assert len(seen) + missed == len(whole)
    assert missed > 0 if room == 16 else missed == 0
    with pytest.raises(InputError, match="the lines carried other messages"):
        FeedLines(small_book(), replace(SMALL, seed=6)).open_at(here, positions)


def test_messages_come_at_random_at_the_rate():
    settings = OptionsMarketSettings(rate=100_000, seconds=1.0, feeds=1, line_messages=1 << 20)
    times = np.array([one.due_ns for one in all_trades(small_book(), settings)])
    assert len(times) == pytest.approx(100_000, abs=5 * np.sqrt(100_000))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(10_000, rel=0.02)
    assert gaps.std() == pytest.approx(10_000, rel=0.03)  # as of an exponential distribution


def test_contracts_are_traded_as_often_as_the_book_says():
    book = generated_contracts(2_000)
    settings = OptionsMarketSettings(rate=200_000, seconds=1.0, feeds=3, line_messages=1 << 20)
    trades = all_trades(book, settings)
    found = Counter(one.contract for one in trades)
    shares = book.listed["trades"] / book.listed["trades"].sum()
    for contract in range(20):
        expected = shares[contract] * len(trades)
        assert found[contract] == pytest.approx(expected, abs=5 * np.sqrt(expected))
    busiest = sum(found[contract] for contract in range(20)) / len(trades)
    assert busiest == pytest.approx(shares[:20].sum(), abs=0.01)


def test_prices_keep_to_ticks_and_quantities_to_lots():
    book = generated_contracts(500)
    for one in all_trades(book, SMALL):
        listed = book.listed[one.contract]
        assert one.price_milli % listed["tick_milli"] == 0 and one.price_milli > 0
        assert 1 <= one.quantity <= 1_000
        assert one.underlying_milli == pytest.approx(listed["underlying_milli"], rel=0.005)


def kept_of(offered: list[FeedMessage], room: int, looks_ns: list[int], max_rows: int) -> list[int]:
    """Return the numbers that a reader with these looks gets, of a buffer with so much room."""
    buffer: deque[int] = deque()
    taken: list[int] = []
    coming = deque(offered)
    for look_ns in looks_ns:
        while coming and coming[0].due_ns - START_NS <= look_ns:
            message = coming.popleft()
            if len(buffer) < room:
                buffer.append(message.sequence)
        taken += [buffer.popleft() for _ in range(min(len(buffer), max_rows))]
    return taken


@pytest.mark.parametrize("room", [1, 5, 40, 300])
@pytest.mark.parametrize("max_rows", [7, 1 << 20])
def test_what_finds_no_room_is_missed_and_nothing_else(room, max_rows):
    book = small_book()
    offered = [one for one in messages_of(book, SMALL, 0) if one.kind == "T"]
    settings = OptionsMarketSettings(rate=20_000, seconds=0.2, feeds=2, line_messages=room, seed=5)
    random = np.random.default_rng(room)
    looks = np.cumsum(random.integers(1_000_000, 9_000_000, 40)).tolist()
    end_ns = 200_000_000
    looks = [look for look in looks if look < end_ns]
    late = range(end_ns, end_ns + 10**9, 1_000_000)  # until all that is left has been read
    clock = VirtualClock(START_NS)
    reader = FeedLines(book, settings).open(context(0, 2, clock))
    reader.read(max_rows)
    read: list[tuple[int, bytes]] = []
    for look in (*looks, *late):
        clock.advance(START_NS + look - clock.monotonic_ns())
        batch = reader.read(max_rows)
        if batch is not None:
            read += [
                (int.from_bytes(bytes(one)[8:16], "little"), bytes(one)[3:4])
                for one in batch.column("message").data
            ]
    *trades, end = read
    assert [number for number, _ in trades] == kept_of(offered, room, [*looks, *late], max_rows)
    assert end == (len(offered) + 1, b"E")
    assert reader.finished
    assert reader.rejected == {"missed": len(offered) - len(trades)}
    assert room > 40 or reader.rejected["missed"] > 0


def test_a_reader_sleeps_until_the_next_message():
    clock = VirtualClock(START_NS)
    settings = OptionsMarketSettings(rate=10, seconds=5, feeds=1)
    reader = FeedLines(small_book(), settings).open(context(0, 1, clock))
    assert reader.read(100) is None
    ready_ns = reader.next_ready_ns()
    assert ready_ns is not None
    clock.advance(ready_ns - 1 - clock.monotonic_ns())
    assert reader.read(100) is None
    clock.advance(1_000_000)
    batch = reader.read(100)
    assert batch is not None and batch.num_rows == 1


def test_contracts_are_dealt_out_evenly_and_each_to_one_line():
    trades = generated_contracts(5_000).listed["trades"]
    dealt = deal_out(trades, 4)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(5_000))
    loads = [trades[mine].sum() for mine in dealt]
    assert max(loads) <= 1.001 * min(loads)
    assert all((np.diff(mine) > 0).all() for mine in dealt)


def test_more_lines_than_contracts_are_refused():
    with pytest.raises(InputError) as refused:
        deal_out(np.ones(2), 3)
    assert str(refused.value) == "3 feed lines for 2 contracts: give every line one or more"


def test_lines_are_read_by_as_many_instances():
    with pytest.raises(InputError) as refused:
        FeedLines(small_book(), SMALL).open(context(0, 3))
    assert str(refused.value) == "2 feed lines are read by as many instances, not by 3"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0}, "rate is 0: give 1 to 100,000,000 messages per second"),
        ({"rate": "x"}, "rate is 'x': give a number of messages per second"),
        ({"seconds": float("nan")}, "seconds is nan: give a number of seconds"),
        ({"feeds": 0}, "feeds is 0: give 1 to 1,024 feed lines"),
        ({"feeds": 1.5}, "feeds is 1.5: give a whole number"),
        ({"engines": 5_000}, "engines is 5000: give 1 to 4,096 instances"),
        ({"seed": -1}, "seed is -1: give 0 to 9,223,372,036,854,775,807"),
        ({"threshold_bp": 0}, "threshold_bp is 0: give 1 to 9,999 basis points"),
        ({"look_us": -1}, "look_us is -1: give 0 to 1,000,000 microseconds"),
        ({"line_messages": 0}, "line_messages is 0: give 1 to 16,777,216 messages"),
        (
            {"rate": 1e6, "seconds": 100},
            "rate 1,000,000 for 100 seconds would be 100,000,000 messages: 90,000,000 at most",
        ),
    ],
)
def test_settings_out_of_range_are_refused(values, message):
    with pytest.raises(SettingsError) as refused:
        OptionsMarketSettings(**values)
    assert str(refused.value) == message
