"""Slices against the definition of windows, over all of 64-bit time; durations."""

from __future__ import annotations

import datetime
import enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operators.windows.model import windows_of
from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators.windows.durations import describe_ns, duration_ns
from whale_ray.operators.windows.slices import ColumnSlices, TimeSlices
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

US = 1_000
EPOCH = datetime.datetime.fromisoformat("1970-01-01")
LENGTHS = st.integers(1, 10**6) | st.integers(1, 10**13)


@st.composite
def windows(draw) -> TimeWindow:
    slide = draw(LENGTHS)
    size = slide + draw(st.integers(0, 5 * slide))
    return TimeWindow("t", size * US, slide * US, draw(st.integers(0, slide - 1)) * US)


@given(window=windows(), data=st.data())
def test_a_row_is_in_the_windows_of_its_slice(window, data):
    edge = 2**63 - 1 - 2 * window.size_ns
    near = st.integers(-5, 5).map(lambda k: k * window.slide_ns + window.start_ns)
    ends = near.map(lambda time: time + window.size_ns)
    times = data.draw(
        st.lists(st.integers(-edge, edge) | near | ends | near.map(lambda t: t - 1), min_size=1)
    )
    slices = TimeSlices(window)
    batch = Batch(Schema(()), [], len(times)).with_times(np.array(times, np.int64))
    for time, slice_ in zip(times, slices.of(batch).tolist(), strict=True):
        found = [(slices.start_ns(k), slices.end_ns(k)) for k in slices.windows_of(slice_)]
        bounds = (window.size_ns, window.slide_ns, window.start_ns)
        assert sorted(found) == sorted(windows_of(time, *bounds))
        for k in slices.windows_of(slice_):
            assert slice_ in slices.slices_of(k)


@given(window=windows(), watermark=st.integers(-(10**15), 10**15))
def test_slices_are_open_as_long_as_one_of_their_windows_is(window, watermark):
    slices = TimeSlices(window)
    first = slices.first_open(watermark)
    for slice_ in range(first - 4, first + 4):
        is_open = slices.end_ns(slices.windows_of(slice_)[-1]) > watermark + 1
        assert (slice_ >= first) == is_open
    unfired = slices.first_unfired(watermark)
    for slice_ in range(unfired - 4, unfired + 4):
        has_fired = slices.end_ns(slices.windows_of(slice_)[0]) <= watermark + 1
        assert (slice_ < unfired) == has_fired


class Whole(int, enum.Enum):  # not an IntEnum: its text is its name
    SECOND = 1000


class Part(float, enum.Enum):
    SECOND = 0.5


@pytest.mark.parametrize(
    ("given_as", "ns"),
    [
        ("10 seconds", 10**10),
        ("1 minute 30 seconds", 90 * 10**9),
        ("INTERVAL 2 Hours", 7200 * 10**9),
        ("1 week", 7 * 86_400 * 10**9),
        ("1.5 seconds", 1_500_000_000),
        ("250milliseconds", 250_000_000),
        ("200 ms", 200_000_000),
        ("5 min 1 s", 301 * 10**9),
        ("1h30mins", 5400 * 10**9),
        ("3 µs", 3_000),
        ("-10 minutes", -600 * 10**9),
        (datetime.timedelta(days=1, microseconds=1), 86_400 * 10**9 + 1_000),
        (1500, 1_500_000_000),
        (0.5, 500_000),
        (0.2, 200_000),
        (np.int64(5), 5_000_000),
        (Whole.SECOND, 10**9),
        (Part.SECOND, 500_000),
    ],
    ids=str,
)
def test_durations(given_as, ns):
    assert duration_ns(given_as, "gap") == ns


@pytest.mark.parametrize("text", ["5 m", "5 ss", "5", "ms", "5 ms or so"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InputError, match=f"gap is '{text}': .*(is no unit|a number and a unit)"):
        duration_ns(text, "gap")


def test_durations_are_shown_in_the_largest_unit_that_fits():
    shown = [describe_ns(ns) for ns in (10**10, 60 * 10**9, 90 * 10**9, 1_000, 0)]
    assert shown == ["10 seconds", "1 minute", "90 seconds", "1 microsecond", "0 seconds"]


def test_a_row_whose_window_is_null_is_refused():
    batch = Batch.from_pydict({"window_end": [EPOCH, None]}, Schema.of(window_end="timestamp[us]"))
    with pytest.raises(BadRowError, match="'window_end' is null, so the row is in no window"):
        ColumnSlices("window_end", sessions=False).of(batch)
