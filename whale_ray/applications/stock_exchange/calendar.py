"""The phases of an exchange's local day: continuous trading, or collecting orders for an auction.

Example: `Asia/Shanghai: 00:00 collect, 09:25 trade, 14:57 collect, 15:00 closed`. A day begins with
the phase at 00:00. In `collect` orders rest without being matched, and the phase ends with an
auction. `trade` is continuous trading. In `closed` no orders are expected; orders that arrive then
are matched as in `trade`. At the end of a day all orders expire.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ...configs.errors import SettingsError

__all__ = ["SHANGHAI", "TradingCalendar", "TradingPhase"]

_MINUTE_MS = 60_000
_DAY_MINUTES = 24 * 60
_EPOCH = date(1970, 1, 1)
_PHASE = re.compile(r"([01]\d|2[0-3]):([0-5]\d)\s+(collect|trade|closed)")
_EXAMPLE = "Asia/Shanghai: 00:00 collect, 09:25 trade, 14:57 collect, 15:00 closed"


@dataclass(frozen=True)
class TradingPhase:
    """One phase of the local day.

    Attributes:
        kind: collect, trade or closed.
        begin_minute, end_minute: minutes of the local day, the end excluded.
    """

    kind: str
    begin_minute: int
    end_minute: int


@dataclass(frozen=True)
class TradingCalendar:
    """The phases of every trading day.

    Attributes:
        zone: the exchange's time zone, by its IANA name.
        phases: of the day, in order and without gaps.
    """

    zone: str
    phases: tuple[TradingPhase, ...]

    @classmethod
    def parse(cls, text: str) -> TradingCalendar:
        """Read `ZONE: HH:MM collect|trade|closed, …`.

        Raises:
            SettingsError: the zone is unknown, a phase cannot be read, the phases do not ascend
                from 00:00, the last one is `collect`, or one follows another of its kind.
        """
        zone, _, listed = text.strip().partition(":")
        _check_zone(zone)
        begun = [_phase(written.strip()) for written in listed.split(",")]
        minutes = [minute for _, minute in begun]
        if minutes[0] != 0 or begun[-1][0] == "collect" or minutes != sorted(set(minutes)):
            msg = (
                f"the calendar {text!r} must go from 00:00 to a last trade or closed, times"
                f" ascending, as in {_EXAMPLE!r}"
            )
            raise SettingsError(msg)
        for (kind, _), (following, minute) in itertools.pairwise(begun):
            if kind == following:
                msg = (
                    f"the calendar {text!r} names {kind} twice in succession, the second time at"
                    f" {_clock(minute)}: leave that out"
                )
                raise SettingsError(msg)
        ends = [*minutes[1:], _DAY_MINUTES]
        return cls(
            zone, tuple(TradingPhase(*one, end) for one, end in zip(begun, ends, strict=True))
        )

    @cached_property
    def calls(self) -> tuple[TradingPhase, ...]:
        """The call phases: orders collect, and an auction ends the phase."""
        return tuple(phase for phase in self.phases if phase.kind == "collect")

    def instant_ms(self, day: int, minute: int) -> int:
        """Return the moment of a minute of a local day, ms since 1970.

        Args:
            day: local days since 1970-01-01.
            minute: of the day, from 0; 1440 is the next day's beginning.
        """
        extra_days, minute = divmod(minute, _DAY_MINUTES)
        on = _EPOCH + timedelta(days=day + extra_days)
        at = datetime.combine(on, time(minute // 60, minute % 60), ZoneInfo(self.zone))
        return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)

    def continuous_sql(self, ms_of_day: str) -> str:
        """Return SQL that is true in continuous trading, of SQL of the ms of the local day."""
        trading = (
            f"({ms_of_day} >= {phase.begin_minute * _MINUTE_MS}"
            f" AND {ms_of_day} < {phase.end_minute * _MINUTE_MS})"
            for phase in self.phases
            if phase.kind == "trade"
        )
        return f"({' OR '.join(trading) or 'FALSE'})"

    def call_at(self, day: int, ms: int) -> int | None:
        """Return the number of the last call phase that began by `ms` on a local day; None if none.

        An auction's fills are reported after its call phase, so that phase is the last one begun.
        """
        begun = [
            number
            for number, call in enumerate(self.calls)
            if self.instant_ms(day, call.begin_minute) <= ms
        ]
        return begun[-1] if begun else None

    def span(self, first_ms: int, last_ms: int) -> str:
        """Return "first to last" in the exchange's time zone, for two times in ms since 1970."""
        shown = [
            datetime.fromtimestamp(ms // 1000, ZoneInfo(self.zone)).strftime("%Y-%m-%d %H:%M:%S")
            for ms in (first_ms, last_ms)
        ]
        return " to ".join(shown)

    def __str__(self) -> str:
        phases = (f"{_clock(phase.begin_minute)} {phase.kind}" for phase in self.phases)
        return f"{self.zone}: {', '.join(phases)}"


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        msg = f"{zone!r} is no time zone: write a calendar as {_EXAMPLE!r}"
        raise SettingsError(msg) from None


def _phase(written: str) -> tuple[str, int]:
    found = _PHASE.fullmatch(written)
    if not found:
        msg = f"{written!r} is no phase of a calendar: write one as in {_EXAMPLE!r}"
        raise SettingsError(msg)
    return found[3], int(found[1]) * 60 + int(found[2])


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


#: The phases of Shanghai's exchange.
SHANGHAI = TradingCalendar.parse(_EXAMPLE)
