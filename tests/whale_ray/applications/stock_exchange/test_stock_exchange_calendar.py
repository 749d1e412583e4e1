"""Calendars of exchanges: reading them, their moments in a zone with summer time, mistakes."""

from __future__ import annotations

from datetime import UTC, date, datetime

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.applications.stock_exchange.calendar import TradingCalendar, TradingPhase
from whale_ray.configs.errors import SettingsError

ZONES = ["UTC", "Asia/Shanghai", "America/New_York", "Europe/Berlin", "Asia/Kolkata"]


def day_of(year: int, month: int, of_month: int) -> int:
    return (date(year, month, of_month) - date(1970, 1, 1)).days


@st.composite
def calendars(draw: st.DrawFn) -> TradingCalendar:
    minutes = [0, *sorted(draw(st.sets(st.integers(1, 1439), max_size=8)))]
    kinds = [draw(st.sampled_from(["trade", "closed"]))]
    for _ in minutes[1:]:  # from the last one back
        others = sorted({"collect", "trade", "closed"} - {kinds[-1]})
        kinds.append(draw(st.sampled_from(others)))
    phases = map(TradingPhase, reversed(kinds), minutes, [*minutes[1:], 1440])
    return TradingCalendar(draw(st.sampled_from(ZONES)), tuple(phases))


@given(calendars())
def test_what_is_shown_reads_back(calendar):
    assert TradingCalendar.parse(str(calendar)) == calendar


@given(calendars(), st.integers(0, 86_399_999))
def test_sql_recognises_times_of_continuous_trading(calendar, ms_of_day):
    (kind,) = {
        phase.kind
        for phase in calendar.phases
        if phase.begin_minute * 60_000 <= ms_of_day < phase.end_minute * 60_000
    }
    found = duckdb.sql(f"SELECT {calendar.continuous_sql(str(ms_of_day))} AS found")
    assert found.to_arrow_table()["found"].to_pylist() == [kind == "trade"]


@pytest.mark.parametrize(
    ("zone", "day", "minute", "moment"),
    [
        ("Asia/Shanghai", day_of(2023, 7, 11), 9 * 60 + 25, "2023-07-11 01:25"),
        ("America/New_York", day_of(2023, 1, 11), 9 * 60 + 30, "2023-01-11 14:30"),
        ("America/New_York", day_of(2023, 7, 11), 9 * 60 + 30, "2023-07-11 13:30"),
        ("America/New_York", day_of(2023, 7, 11), 24 * 60, "2023-07-12 04:00"),
        ("Europe/Berlin", day_of(1969, 12, 31), 0, "1969-12-30 23:00"),
    ],
)
def test_moments_follow_the_exchanges_clock(zone, day, minute, moment):
    calendar = TradingCalendar(zone, ())
    found = calendar.instant_ms(day, minute)
    assert datetime.fromtimestamp(found / 1000, UTC).strftime("%Y-%m-%d %H:%M") == moment


@pytest.mark.parametrize(("hour", "call"), [(7, None), (9, 0), (14, 0), (15, 1), (23, 1)])
def test_a_fill_of_an_auction_is_of_the_last_call_before_it(hour, call):
    written = "Asia/Shanghai: 00:00 closed, 08:00 collect, 09:00 trade, 15:00 collect, 16:00 closed"
    calendar, day = TradingCalendar.parse(written), day_of(2023, 7, 11)
    assert calendar.call_at(day, calendar.instant_ms(day, hour * 60)) == call


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Shanghai: 00:00 trade", "'Shanghai' is no time zone"),
        ("00:00 trade", "'00' is no time zone"),
        ("", "'' is no time zone"),
        ("../etc: 00:00 trade", "'../etc' is no time zone"),
        ("UTC: 0:00 trade", "'0:00 trade' is no phase"),
        ("UTC: 24:00 trade", "'24:00 trade' is no phase"),
        ("UTC: 00:00 rest", "'00:00 rest' is no phase"),
        ("UTC:", "'' is no phase"),
        ("UTC: 09:00 trade", "must go from 00:00 to a last trade"),
        ("UTC: 00:00 trade, 09:00 collect", "must go from 00:00 to a last trade"),
        (
            "UTC: 00:00 collect, 09:00 trade, 08:00 closed",
            "must go from 00:00 to a last trade",
        ),
        ("UTC: 00:00 trade, 09:00 trade", "names trade twice in succession, the second time at"),
    ],
)
def test_an_unreadable_calendar_is_reported_in_one_line(text, told):
    with pytest.raises(SettingsError) as refused:
        TradingCalendar.parse(text)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
