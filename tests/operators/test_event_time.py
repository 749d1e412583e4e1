"""Event time and watermark, against a model that processes one row at a time."""

from __future__ import annotations

import datetime as dt
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators.event_time import (
    LATE,
    NULL_TIME,
    TIME_AHEAD,
    TIME_OUT_OF_RANGE,
    EventTime,
    EventTimeAssigner,
)
from whale_ray.state.watermarks import WATERMARK_NONE
from whale_ray.transport.wire.batch import Batch

MIN, MAX = -(2**63), 2**63 - 1
NS_PER = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def batch(values: list[Any], kind: pa.DataType | None = None) -> Batch:
    """Return rows with a time column `t` and their number `row`."""
    return Batch.from_arrow(
        pa.record_batch(
            {
                "t": pa.array(values, kind or pa.int64()),
                "row": pa.array(range(len(values)), pa.int64()),
            }
        )
    )


class AssignerModel:
    """The definition, row by row, in Python's integers."""

    def __init__(
        self, behind_ns: int, unit: str, ahead_ns: int | None = None, passes: bool = False
    ) -> None:
        self.behind_ns = behind_ns
        self.unit = unit
        self.ahead_ns = ahead_ns
        self.passes = passes
        self.late = 0
        self.latest_ns: int | None = None
        self.kept: list[tuple[int, int]] = []
        self.dropped: dict[str, int] = {}

    def take(self, row: int, value: int | None, now_ns: int = 0) -> None:
        if value is None:
            return self.drop(NULL_TIME)
        time_ns = value * NS_PER[self.unit]
        if not -MAX <= time_ns < MAX:
            return self.drop(TIME_OUT_OF_RANGE)
        if self.ahead_ns is not None and time_ns > now_ns + self.ahead_ns:
            return self.drop(TIME_AHEAD)
        if self.latest_ns is not None and time_ns < self.latest_ns - self.behind_ns:
            self.late += 1
            if not self.passes:
                return self.drop(LATE)
        self.latest_ns = time_ns if self.latest_ns is None else max(self.latest_ns, time_ns)
        self.kept.append((row, time_ns))
        return None

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    @property
    def watermark_ns(self) -> int:
        if self.latest_ns is None:
            return MIN
        return max(self.latest_ns - self.behind_ns - 1, MIN)


near = st.integers(-20, 20)
ends = [MIN + 1, MAX - 1, MAX, MAX // 1000, MAX // 1000 + 1]
far = st.integers(MIN + 1, MAX) | st.sampled_from(ends)


@given(
    cuts=st.lists(
        st.tuples(st.lists(st.none() | near | far, max_size=12), st.integers(0, 10**10)), max_size=5
    ),
    unit=st.sampled_from(list(NS_PER)),
    behind_ms=st.sampled_from([0, 0.000005, 1, 3000]) | st.integers(0, MAX // 10**6),
    ahead_ms=st.none() | st.sampled_from([0, 0.000003, 5000]) | st.integers(0, MAX // 10**6),
    on_late=st.sampled_from(["drop", "pass"]),
)
def test_equals_the_model(
    cuts: list[tuple[list[int | None], int]],
    unit: Any,
    behind_ms: float,
    ahead_ms: float | None,
    on_late: Any,
) -> None:
    behind_ns = round(Fraction(behind_ms) * 10**6)
    ahead_ns = None if ahead_ms is None else round(Fraction(ahead_ms) * 10**6)
    event_time = EventTime(
        "t", behind_ms, unit, on_late=on_late, on_null="drop", max_ahead_ms=ahead_ms
    )
    assert event_time.max_out_of_order_ns == behind_ns
    assigner = EventTimeAssigner(event_time, "s")
    assert assigner.reads_clock == (ahead_ms is not None)
    model = AssignerModel(behind_ns, unit, ahead_ns, on_late == "pass")
    for values, now_ns in cuts:
        model.kept, model.dropped = [], {}
        for row, value in enumerate(values):
            model.take(row, value, now_ns)
        got, dropped = assigner.assign(batch(values), now_ns)
        assert assigner.late_rows == model.late
        assert got.times is not None
        assert list(zip(got["row"].tolist(), got.times.tolist(), strict=True)) == model.kept
        assert dict(dropped) == model.dropped
        assert assigner.watermark_ns == model.watermark_ns


@settings(max_examples=40)
@given(
    rows=st.integers(250, 800),
    seed=st.integers(0, 2**32),
    disorder_ms=st.sampled_from([0, 1, 3, 40]),
    behind_ms=st.sampled_from([0, 1, 3, 40]),
)
def test_rows_of_several_blocks_equal_the_model(
    rows: int, seed: int, disorder_ms: int, behind_ms: int
) -> None:
    random = np.random.default_rng(seed)
    values = np.arange(rows) // 3 - random.integers(0, disorder_ms + 1, rows) * random.choice(
        2, rows, p=[0.99, 0.01]
    )
    assigner = EventTimeAssigner(EventTime("t", behind_ms, "ms", "drop"), "s")
    model = AssignerModel(behind_ns=behind_ms * 10**6, unit="ms")
    for part in np.array_split(values, 2):
        model.kept = []
        for row, value in enumerate(part.tolist()):
            model.take(row, value)
        got, _ = assigner.assign(batch(part.tolist()))
        assert got.times is not None
        assert list(zip(got["row"].tolist(), got.times.tolist(), strict=True)) == model.kept
        assert (assigner.late_rows, assigner.watermark_ns) == (model.late, model.watermark_ns)


@given(
    values=st.lists(st.integers(0, 50), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_the_cut_into_batches_does_not_matter(values: list[int], cuts: list[int]) -> None:
    whole = EventTimeAssigner(EventTime("t", 5, "ms", "drop"), "s")
    expected, _ = whole.assign(batch(values))
    sliced = EventTimeAssigner(EventTime("t", 5, "ms", "drop"), "s")
    bounds = [0, *sorted(cut for cut in cuts if cut < len(values)), len(values)]
    all_rows = batch(values)
    pieces = [sliced.assign(all_rows.slice(a, b))[0] for a, b in itertools.pairwise(bounds)]
    assert [row for piece in pieces for row in piece.to_pylist()] == expected.to_pylist()
    assert sliced.watermark_ns == whole.watermark_ns


DAY = dt.date(2008, 5, 31)
AT = dt.datetime(2008, 5, 31, 7, 0, 0, tzinfo=dt.UTC)
AT_NS = int(AT.timestamp()) * 10**9


@pytest.mark.parametrize(
    ("value", "kind", "unit", "expected_ns"),
    [
        (AT, pa.timestamp("s", "UTC"), None, AT_NS),
        (AT, pa.timestamp("ms", "Asia/Shanghai"), None, AT_NS),
        (AT.replace(tzinfo=None), pa.timestamp("us"), None, AT_NS),
        (AT, pa.timestamp("ns", "UTC"), "ns", AT_NS),
        (DAY, pa.date32(), None, AT_NS - 7 * 3600 * 10**9),
        (DAY, pa.date64(), None, AT_NS - 7 * 3600 * 10**9),
        (1_212_217_200, pa.int32(), "s", AT_NS),
        (1_212_217_200_000, pa.uint64(), "ms", AT_NS),
        (-5, pa.int8(), "us", -5000),
    ],
)
def test_types_and_units(value: Any, kind: pa.DataType, unit: Any, expected_ns: int) -> None:
    assigner = EventTimeAssigner(EventTime("t", 0, unit), "s")
    got, dropped = assigner.assign(batch([value], kind))
    assert got.times is not None
    assert got.times.tolist() == [expected_ns]
    assert got.times.dtype == np.int64
    assert not dropped
    assert assigner.watermark_ns == expected_ns - 1


@pytest.mark.parametrize(
    ("unit", "behind_ms", "late"),
    [("ns", 0, 1), ("ns", 1, 0), ("ns", 10, 0), ("ms", 0, 1), ("ms", 1, 1), ("ms", 10, 0)],
)
def test_no_first_row_is_late_whatever_was_allowed_before_a_checkpoint_without_rows(
    unit: Any, behind_ms: int, late: int
) -> None:
    before = EventTimeAssigner(EventTime("t", 1, unit, "drop"), "s")
    after = EventTimeAssigner(EventTime("t", behind_ms, unit, "drop"), "s")
    after.restore([before.kept()])
    got, dropped = after.assign(batch([50, 40, 10**9]))
    assert got["row"].tolist() == ([0, 2] if late else [0, 1, 2])
    assert dropped == ({"late": late} if late else {})


def test_there_is_no_watermark_before_the_first_row() -> None:
    assigner = EventTimeAssigner(EventTime("t", 0, "ns"), "s")
    assert assigner.watermark_ns == WATERMARK_NONE == MIN
    assigner.assign(batch([]))
    assert assigner.watermark_ns == MIN


def test_equal_times_are_not_late() -> None:
    got, _ = EventTimeAssigner(EventTime("t", 0, "s"), "s").assign(batch([5, 5, 5]))
    assert got.num_rows == 3


def message_of(
    error: type[Exception], values: list[Any], kind: pa.DataType | None = None, **options: Any
) -> str:
    assigner = EventTimeAssigner(EventTime("t", **options), "positions")

    def assign() -> None:
        assigner.assign(batch(values[:1], kind))
        assigner.assign(batch(values[1:], kind))

    with pytest.raises(error) as caught:
        assign()
    return str(caught.value)


def test_golden_messages_about_rows() -> None:
    late = [AT, AT, AT - dt.timedelta(seconds=1.5)]
    assert message_of(BadRowError, late, pa.timestamp("ms", "UTC"), max_out_of_order_ms=20) == (
        "source 'positions', row 2: the event time 2008-05-31T06:59:58.5Z comes after "
        "2008-05-31T07:00:00Z, further behind than max_out_of_order_ms=20 allows; sort the input, "
        "allow 1500 ms or more, or pass on_late='drop' to leave late rows out and count them"
    )
    assert message_of(BadRowError, [AT, AT, None], pa.timestamp("ms", "UTC")) == (
        "source 'positions', row 2: the event time column 't' is null; fill it before, or pass "
        "on_bad_rows='drop' to leave such rows out and count them"
    )
    assert message_of(InputError, [1, 10**15], unit="s") == (
        "source 'positions', row 1: the event time 1000000000000000 s since 1970 of column 't' "
        "lies outside the years 1677 to 2262; correct it or the unit, or pass on_bad_rows='drop' "
        "to leave such rows out and count them"
    )
    assert message_of(InputError, [DAY, dt.date(9999, 12, 31)], pa.date32()).startswith(
        "source 'positions', row 1: the event time 2932896 days since 1970 of column 't' lies "
    )
    assert message_of(InputError, [1, 2**64 - 1], pa.uint64(), unit="ns").startswith(
        "source 'positions', row 1: the event time 18446744073709551615 ns since 1970 of column"
    )
    assert message_of(InputError, [1, MAX], pa.int64(), unit="ns").startswith(
        f"source 'positions', row 1: the event time {MAX} ns since 1970 of column 't' lies outside"
    )


def test_the_late_row_is_counted_among_all_rows() -> None:
    assigner = EventTimeAssigner(EventTime("t", 0, "s", on_null="drop"), "s")
    with pytest.raises(BadRowError, match="^source 's', row 3: "):
        assigner.assign(batch([None, 7, None, 6]))


def test_golden_messages_about_columns() -> None:
    assert message_of(InputError, ["x", "y"], pa.string()) == (
        "the event time column 't' has type string; name a timestamp, a date or an integer "
        "column, or make one with to_timestamp() before"
    )
    assert message_of(InputError, [1, 2]) == (
        "the event time column 't' has type int64; pass event_time_unit='s', 'ms', 'us' or 'ns'"
    )
    assert message_of(InputError, [AT, AT], pa.timestamp("ms", "UTC"), unit="us") == (
        "the event time column 't' has type timestamp[ms, tz=UTC], which counts in ms; "
        "leave out event_time_unit='us'"
    )
    with pytest.raises(InputError, match="no column 'at'"):
        EventTimeAssigner(EventTime("at"), "s").assign(batch([1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_out_of_order_ms": -1},
            "max_out_of_order_ms=-1 is out of range; it says by how many milliseconds a row may "
            "lie behind the latest, 0 for not at all",
        ),
        (
            {"unit": "minutes"},
            "event_time_unit='minutes' is unknown; use 's', 'ms', 'us' or 'ns'",
        ),
        (
            {"on_late": "skip"},
            "on_late='skip' is unknown; use 'fail' or 'drop' or 'pass'",
        ),
        (
            {"idle_after_ms": 0},
            "idle_after_ms=0 is out of range; pass milliseconds from 1e-06 on, or None",
        ),
        (
            {"max_ahead_ms": -1},
            "max_ahead_ms=-1 is out of range; pass milliseconds from 0 on, or None",
        ),
        ({"on_null": "skip"}, "on_bad_rows='skip' is unknown; use 'fail' or 'drop'"),
    ],
)
def test_golden_messages_about_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        EventTime("t", **options)
    assert str(error.value) == message


def test_a_row_far_ahead_of_the_clock_is_refused_and_moves_nothing() -> None:
    event_time = EventTime("t", 0, "s", max_ahead_ms=1000)
    assigner = EventTimeAssigner(event_time, "positions")
    now_ns = 1_300_000_000 * 10**9
    with pytest.raises(BadRowError) as error:
        assigner.assign(batch([1_300_000_000, 1_300_000_002]), now_ns)
    assert str(error.value) == (
        "source 'positions', row 1: the event time 2011-03-13T07:06:42Z of column 't' lies further "
        "ahead of the clock than max_ahead_ms=1000 allows; correct it, allow more (None: any "
        "time), or pass on_bad_rows='drop' to leave such rows out and count them"
    )
    assert assigner.watermark_ns == WATERMARK_NONE


@pytest.mark.parametrize(("before_ms", "after_ms", "late"), [(0, 5, 1), (5, 0, 1), (5, 5, 0)])
def test_a_watermark_that_was_told_holds_though_rows_may_be_more_out_of_order_now(
    before_ms: int, after_ms: int, late: int
) -> None:
    before, after = (
        EventTimeAssigner(EventTime("t", behind_ms, "ms", "drop"), "s")
        for behind_ms in (before_ms, after_ms)
    )
    before.assign(Batch.from_pydict({"t": np.array([1, 9])}))
    after.restore([before.kept()])
    assert after.watermark_ns >= before.watermark_ns
    _, dropped = after.assign(Batch.from_pydict({"t": np.array([8, 9, 10, 11])}))
    assert after.late_rows == late, dropped
    assert after.watermark_ns >= before.watermark_ns
