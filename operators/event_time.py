"""Event time: assigns each row a time in nanoseconds from a column, and computes the watermark.

An instance's watermark W states that every row with time ≤ W has arrived. It follows the latest
time at a fixed distance::

    W = latest − max_out_of_order − 1 ns

A row is late if its time is not after the watermark, that is, if it is more than
`max_out_of_order_ms` behind the latest time of the rows before it. This is decided row by row, so
it does not depend on how rows are cut into batches.

A single row of the year 2999 would move the watermark past all others. So a row whose time is more
than `max_ahead_ms` ahead of the clock counts as a bad row, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from ..configs.errors import BadRowError, InputError
from ..configs.units import NS_PER_MS
from ..state.watermarks import LATEST_NS, WATERMARK_NONE

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..transport.wire.batch import Batch
    from ..transport.wire.types import DataType

    Int64s: TypeAlias = npt.NDArray[np.int64]

Unit: TypeAlias = Literal["s", "ms", "us", "ns"]
Policy: TypeAlias = Literal["fail", "drop"]
LatePolicy: TypeAlias = Literal["fail", "drop", "pass"]


_NS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_NS_PER_DAY = 86_400 * 1_000_000_000
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

LATE = "late"
NULL_TIME = "null event time"
TIME_OUT_OF_RANGE = "event time out of range"
TIME_AHEAD = "event time too far ahead"

MAX_AHEAD_MS = 86_400_000.0
"""How far ahead of the clock rows may be unless the user says otherwise: a day, which is more than
clocks and time zones differ."""


@dataclass(frozen=True)
class EventTime:
    """The column that holds the event time, and how far rows may be out of order.

    Attributes:
        column: a timestamp of any unit (without a zone: UTC), a date, or integers since 1970.
        max_out_of_order_ms: how far a row's time may be behind the latest time before it.
        unit: the unit of an integer column: `s`, `ms`, `us` or `ns`.
        on_late: `fail` at the first late row, `drop` late rows, or `pass` them on; all are counted.
        on_null: `fail` or `drop` for rows whose time is null, does not fit into 64-bit nanoseconds
            (the years 1677 to 2262), or is too far ahead.
        idle_after_ms: after how long without a row an instance no longer holds the watermark of
            its readers back; None: it always does.
        max_ahead_ms: how far a row's time may be ahead of the clock; None: any time.

    Raises:
        InputError: a value is not allowed.
    """

    column: str
    max_out_of_order_ms: float = 0
    unit: Unit | None = None
    on_late: LatePolicy = "fail"
    on_null: Policy = "fail"
    idle_after_ms: float | None = None
    max_ahead_ms: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_out_of_order_ms * NS_PER_MS <= LATEST_NS:
            msg = (
                f"max_out_of_order_ms={self.max_out_of_order_ms} is out of range; "
                "it says by how many milliseconds a row may lie behind the latest, 0 for not at all"
            )
            raise InputError(msg)
        if self.unit is not None and self.unit not in get_args(Unit):
            msg = f"event_time_unit={self.unit!r} is unknown; use 's', 'ms', 'us' or 'ns'"
            raise InputError(msg)
        for name, given, low in (
            ("idle_after_ms", self.idle_after_ms, 1e-6),
            ("max_ahead_ms", self.max_ahead_ms, 0),
        ):
            if given is not None and not low <= given * 1.0 <= LATEST_NS / NS_PER_MS:
                msg = f"{name}={given} is out of range; pass milliseconds from {low:g} on, or None"
                raise InputError(msg)
        for name, policy, policies in (
            ("on_late", self.on_late, get_args(LatePolicy)),
            ("on_bad_rows", self.on_null, get_args(Policy)),
        ):
            if policy not in policies:
                msg = f"{name}={policy!r} is unknown; use {' or '.join(map(repr, policies))}"
                raise InputError(msg)

    @property
    def max_out_of_order_ns(self) -> int:
        """The same in nanoseconds."""
        return round(self.max_out_of_order_ms * NS_PER_MS)

    @property
    def idle_after_ns(self) -> int | None:
        """The same as `idle_after_ms` in nanoseconds."""
        return None if self.idle_after_ms is None else round(self.idle_after_ms * NS_PER_MS)

    @property
    def max_ahead_ns(self) -> int | None:
        """The same as `max_ahead_ms` in nanoseconds."""
        return None if self.max_ahead_ms is None else round(self.max_ahead_ms * NS_PER_MS)

    def ns_per_tick(self, kind: DataType) -> int:
        """Return the nanoseconds in one tick of a column's integers.

        Raises:
            InputError: a column of this type cannot hold an event time, or not in this unit.
        """
        what = f"the event time column {self.column!r} has type {kind}"
        if kind.family in _INTEGERS:
            if self.unit is None:
                msg = f"{what}; pass event_time_unit='s', 'ms', 'us' or 'ns'"
                raise InputError(msg)
            return _NS_PER_UNIT[self.unit]
        if kind.family == "date32":
            unit, ticks = "days", _NS_PER_DAY
        elif kind.family == "date64":
            unit, ticks = "ms", _NS_PER_UNIT["ms"]
        elif kind.family == "timestamp" and kind.unit is not None:
            unit, ticks = kind.unit, _NS_PER_UNIT[kind.unit]
        else:
            msg = (
                f"{what}; name a timestamp, a date or an integer column, "
                "or make one with to_timestamp() before"
            )
            raise InputError(msg)
        if self.unit is not None and self.unit != unit:
            msg = f"{what}, which counts in {unit}; leave out event_time_unit={self.unit!r}"
            raise InputError(msg)
        return ticks


class EventTimeAssigner:
    """Assigns event times to the rows of one source instance, and computes its watermark.

    Attributes:
        watermark_ns: all rows with a time up to this have arrived; `WATERMARK_NONE` at first.
        late_rows: how many rows were late so far, whatever was done with them.
    """

    def __init__(self, event_time: EventTime, source_id: str, split: str | None = None) -> None:
        """`split` names the part of the input that the rows are of, if it has several."""
        self.late_rows = 0
        self._event_time = event_time
        self._max_ahead_ns = event_time.max_ahead_ns
        self._source = f"source {source_id!r}" + ("" if split is None else f", split {split!r}")
        self._behind_ns = event_time.max_out_of_order_ns
        # The smallest value for which `latest − behind` fits into 64 bits; no row is late then.
        self._latest_ns = WATERMARK_NONE + self._behind_ns
        self._rows = 0
        self.watermark_ns = WATERMARK_NONE

    @property
    def idle_after_ns(self) -> int | None:
        """After how long without a row its instance is idle; None: never."""
        return self._event_time.idle_after_ns

    @property
    def reads_clock(self) -> bool:
        """Whether it needs the present time."""
        return self._max_ahead_ns is not None

    def kept(self) -> dict[str, int]:
        """Return what a snapshot keeps of it."""
        return {
            "latest_ns": self._latest_ns,
            "watermark_ns": self.watermark_ns,
            "late_rows": self.late_rows,
            "rows": self._rows,
        }

    def restore(self, kept: Sequence[Mapping[str, int]]) -> None:
        """Resume from what instances kept: from the one that has come least far in event time."""
        latest_ns = min(one["latest_ns"] for one in kept)
        # Rows may have been less out of order before: see the start value.
        self._latest_ns = max(latest_ns, WATERMARK_NONE + self._behind_ns)
        self.watermark_ns = max(self._latest_ns - self._behind_ns - 1, WATERMARK_NONE)
        # They may be more out of order now; what has been told of the watermark holds all the same.
        self.catch_up(min(one["watermark_ns"] for one in kept))
        self.late_rows = sum(one["late_rows"] for one in kept)
        self._rows = sum(one["rows"] for one in kept)

    def catch_up(self, watermark_ns: int) -> None:
        """Advance to a watermark: rows with a time up to it are late from now on."""
        if watermark_ns > self.watermark_ns:
            self._latest_ns = min(watermark_ns + self._behind_ns + 1, LATEST_NS)
            self.watermark_ns = watermark_ns

    def assign(self, batch: Batch, now_ns: int = 0) -> tuple[Batch, dict[str, int]]:
        """Return the batch with event times, and the number of dropped rows by reason.

        Args:
            batch: the rows.
            now_ns: the present time, ns since 1970, if it `reads_clock`.

        Raises:
            BadRowError: a row is late, has no time or one too far ahead, and the policy is `fail`.
            InputError: the column is missing or of an unsuitable type, or a time is out of range
                and the policy is `fail`.
        """
        column = batch.column(self._event_time.column)
        ticks = self._event_time.ns_per_tick(column.type)
        raw = column.data
        plain = self._plain(raw, column.validity, ticks, now_ns)
        if plain is not None:
            self._rows += batch.num_rows
            return batch.with_times(plain), {}
        dropped: dict[str, int] = {}
        usable = self._usable(column.type, raw, column.validity, ticks, now_ns, dropped)
        if usable is None:
            times = _scaled(raw, ticks)
        else:
            times = _scaled(raw[usable], ticks)
        late = self._late(times, usable)
        self._rows += batch.num_rows
        if late is not None:
            dropped[LATE] = int(np.count_nonzero(late))
            usable = ~late if usable is None else _narrow(usable, ~late)
            times = times[~late]
        if usable is not None:
            batch = batch.filter(usable)
        return batch.with_times(times), dropped

    def _plain(
        self,
        raw: npt.NDArray[np.integer],
        valid: npt.NDArray[np.bool_] | None,
        ticks: int,
        now_ns: int,
    ) -> Int64s | None:
        """Return the times if every row has one and none is late; advance the watermark then.

        None if it is not so, or not to be told in one pass.
        """
        if valid is not None or ticks == 1 or raw.dtype != np.int64 or not raw.size:
            return None
        from .event_time_kernels import scale_times  # numba is not loaded to build a topology

        times = np.empty(raw.size, np.int64)
        earliest, _, ahead = self._range(ticks, now_ns)
        is_plain, latest_ns = scale_times(
            raw, ticks, earliest, ahead, self._latest_ns, self._behind_ns, times
        )
        if not is_plain:
            return None
        self._advance(latest_ns)
        return times

    def _range(self, ticks: int, now_ns: int) -> tuple[int, int, int]:
        """Return the earliest and the latest time that fit, and the latest one that may be used."""
        # Not the last ns: a watermark before it would be WATERMARK_IDLE, and none is after it.
        earliest, latest = -(LATEST_NS // ticks), (LATEST_NS - 1) // ticks
        if self._max_ahead_ns is None:
            return earliest, latest, latest
        return earliest, latest, min(latest, (now_ns + self._max_ahead_ns) // ticks)

    def _usable(
        self,
        kind: DataType,
        raw: npt.NDArray[np.integer],
        valid: npt.NDArray[np.bool_] | None,
        ticks: int,
        now_ns: int,
        dropped: dict[str, int],
    ) -> npt.NDArray[np.bool_] | None:
        """Return which rows have a time that can be used; None if all do."""
        if valid is not None and bool(valid.all()):
            valid = None
        if valid is not None:
            if self._event_time.on_null == "fail":
                raise BadRowError(self._null_message(int(np.argmin(valid))))
            dropped[NULL_TIME] = int(np.count_nonzero(~valid))
        earliest, latest, ahead = self._range(ticks, now_ns)
        if not raw.size or (int(raw.min()) >= earliest and int(raw.max()) <= ahead):
            return valid
        valid = self._in_range(kind, raw, valid, (earliest, latest), dropped)
        return valid if ahead == latest else self._not_ahead(raw, valid, ahead, ticks, dropped)

    def _not_ahead(
        self,
        raw: npt.NDArray[np.integer],
        valid: npt.NDArray[np.bool_] | None,
        latest: int,
        ticks: int,
        dropped: dict[str, int],
    ) -> npt.NDArray[np.bool_] | None:
        """Return which of the usable rows are not too far ahead of the clock."""
        if latest >= np.iinfo(raw.dtype).max:
            return valid
        beyond = raw > latest
        if valid is not None:
            beyond &= valid
        if not beyond.any():
            return valid
        if self._event_time.on_null == "fail":
            row = int(np.argmax(beyond))
            raise BadRowError(self._ahead_message(row, int(raw[row]) * ticks))
        dropped[TIME_AHEAD] = int(np.count_nonzero(beyond))
        return ~beyond if valid is None else valid & ~beyond

    def _in_range(
        self,
        kind: DataType,
        raw: npt.NDArray[np.integer],
        valid: npt.NDArray[np.bool_] | None,
        limits: tuple[int, int],
        dropped: dict[str, int],
    ) -> npt.NDArray[np.bool_] | None:
        """Return which of the usable rows have a time that fits into 64-bit nanoseconds."""
        earliest, latest = limits
        bounds = np.iinfo(raw.dtype)
        beyond = (raw < max(earliest, int(bounds.min))) | (raw > min(latest, int(bounds.max)))
        if valid is not None:
            beyond &= valid
        if not beyond.any():
            return valid
        if self._event_time.on_null == "fail":
            raise InputError(self._range_message(kind, raw, int(np.argmax(beyond))))
        dropped[TIME_OUT_OF_RANGE] = int(np.count_nonzero(beyond))
        return ~beyond if valid is None else valid & ~beyond

    def _late(
        self, times: Int64s, usable: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.bool_] | None:
        """Return which of the times are late, None if none is; advance the watermark."""
        if not times.size:
            return None
        from .event_time_kernels import mark_late  # numba is not loaded to build a topology

        late = np.empty(times.size, np.bool_)
        latest_ns, count, first, before_ns = mark_late(
            times, self._latest_ns, self._behind_ns, late
        )
        self.late_rows += count
        if count and self._event_time.on_late == "fail":
            row = first if usable is None else int(np.flatnonzero(usable)[first])
            raise BadRowError(self._late_message(row, int(times[first]), before_ns))
        self._advance(latest_ns)
        return late if count and self._event_time.on_late == "drop" else None

    def _advance(self, latest_ns: int) -> None:
        self._latest_ns = latest_ns
        self.watermark_ns = max(latest_ns - self._behind_ns - 1, WATERMARK_NONE)

    def _where(self, row: int) -> str:
        return f"{self._source}, row {self._rows + row}"

    def _null_message(self, row: int) -> str:
        return (
            f"{self._where(row)}: the event time column {self._event_time.column!r} is null; "
            "fill it before, or pass on_bad_rows='drop' to leave such rows out and count them"
        )

    def _range_message(self, kind: DataType, raw: npt.NDArray[np.integer], row: int) -> str:
        unit = self._event_time.unit or kind.unit or {"date32": "days", "date64": "ms"}[kind.family]
        return (
            f"{self._where(row)}: the event time {int(raw[row])} {unit} since 1970 of column "
            f"{self._event_time.column!r} lies outside the years 1677 to 2262; correct it or the "
            "unit, or pass on_bad_rows='drop' to leave such rows out and count them"
        )

    def _ahead_message(self, row: int, time_ns: int) -> str:
        return (
            f"{self._where(row)}: the event time {time_as_text(time_ns)} of column "
            f"{self._event_time.column!r} lies further ahead of the clock than "
            f"max_ahead_ms={self._event_time.max_ahead_ms:g} allows; correct it, allow more (None: "
            "any time), or pass on_bad_rows='drop' to leave such rows out and count them"
        )

    def _late_message(self, row: int, time_ns: int, latest_ns: int) -> str:
        allowed_ms = self._event_time.max_out_of_order_ms
        needed_ms = -(-(latest_ns - time_ns) // NS_PER_MS)
        return (
            f"{self._where(row)}: the event time {time_as_text(time_ns)} comes after "
            f"{time_as_text(latest_ns)}, further behind than max_out_of_order_ms={allowed_ms:g} "
            f"allows; sort the input, allow {needed_ms} ms or more, or pass on_late='drop' to "
            "leave late rows out and count them"
        )


def _scaled(raw: npt.NDArray[np.integer], ticks: int) -> Int64s:
    """Return times in nanoseconds; nulls and times out of range must have been removed."""
    if ticks == 1 and raw.dtype == np.int64:
        return raw.view(np.int64)
    return np.multiply(raw, np.int64(ticks), dtype=np.int64, casting="unsafe")


def _narrow(usable: npt.NDArray[np.bool_], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which rows are usable and, by a mask of the usable ones, kept."""
    narrowed = usable.copy()
    narrowed[usable] = kept
    return narrowed


def time_as_text(time_ns: int) -> str:
    """Return a time, ns since 1970, as ISO 8601 without trailing zeros."""
    text = str(np.datetime64(time_ns, "ns"))
    return text.rstrip("0").rstrip(".") + "Z"
