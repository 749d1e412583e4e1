"""Session and count windows against a plain Python model, on random rows in random order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows import model
from tests.operators.windows.driving import (
    AGGREGATES,
    Emitted,
    arrivals,
    batch_of,
    bounds,
    check,
    drive,
)
from tests.operators.windows.model import Event
from whale_ray.configs.errors import BadRowError
from whale_ray.operators.windows import row_windows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.count_windows import CountWindows
from whale_ray.operators.windows.session_windows import SessionWindows
from whale_ray.operators.windows.specifications import CountWindow, SessionWindow
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context

F = whale.functions
US = 1_000
TIMES = st.integers(-60, 60).map(lambda at: at * US)


@pytest.fixture(params=[None, 0], ids=["as usual", "compacted whenever possible"])
def compaction(request, monkeypatch):
    """Let a test run with compaction after every batch and watermark, too."""
    if request.param is not None:
        monkeypatch.setattr(row_windows, "_COMPACTED_FROM_BYTES", request.param)
        monkeypatch.setattr(row_windows, "_COMPACTED_FROM_SHARE", 0)


OF_ALL_EXAMPLES = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""What the fixture sets is the same for all of them."""


@pytest.mark.usefixtures("compaction")
@OF_ALL_EXAMPLES
@given(batches=arrivals(TIMES), gap=st.integers(1, 20))
def test_sessions(batches, gap):
    process = SessionWindows(Aggregation(("key",), SessionWindow("time", gap * US), AGGREGATES))
    out = drive(process, batches)
    expected, late = model.sessions(batches, gap * US)
    assert len(out.late) == late
    found = [(*bounds(row), row["key"]) for row in out.rows]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)
    for key, row in zip(found, out.rows, strict=True):
        check(row, expected[key])
    assert out.times == [end for _, end, _ in found]
    assert out.times == sorted(out.times)
    if process._groups is not None:
        assert len(process.pool) == 0


def nothing_but(time: int, number: int | None = None) -> Event:
    return Event(time * US, None, number, None, None)


JOINED = [
    ([nothing_but(-6, 1), nothing_but(-12)], -20 * US),
    ([nothing_but(-9), nothing_but(-6, 2)], 0),
]
"""A row joins two sessions, and the one behind it is as late as one of them: it is the last."""


@pytest.mark.long
@pytest.mark.usefixtures("compaction")
@settings(OF_ALL_EXAMPLES, max_examples=40)
@example(batches=JOINED, gap=5, lateness=0, mode="append", trigger_ns=None)
@given(
    batches=arrivals(TIMES),
    gap=st.integers(1, 20),
    lateness=st.integers(0, 40),
    mode=st.sampled_from(["append", "update"]),
    trigger_ns=st.none() | st.just(1),
)
def test_a_row_of_a_session_replaces_those_within_its_window(
    batches, gap, lateness, mode, trigger_ns
):
    asked = Aggregation(
        ("key",),
        SessionWindow("time", gap * US),
        AGGREGATES,
        output_mode=mode,
        trigger_ns=trigger_ns if mode == "update" else None,
        allowed_lateness_ns=lateness * US,
    )
    process = SessionWindows(asked)
    out = drive(process, batches)
    expected, late = model.sessions(batches, gap * US, lateness * US)
    assert len(out.late) == late
    table = {}
    for row in out.rows:
        start, end, key = *bounds(row), row["key"]
        within = [one for one in table if one[2] == key and start <= one[0] and one[1] <= end]
        for one in within:
            del table[one]
        table[start, end, key] = row
    assert set(table) == set(expected)
    for key, row in table.items():
        check(row, expected[key])
    if process._groups is not None:
        assert len(process.pool) == 0


@pytest.mark.usefixtures("compaction")
@OF_ALL_EXAMPLES
@given(batches=arrivals(TIMES), size=st.integers(1, 5))
def test_counts(batches, size):
    process = CountWindows(Aggregation(("key",), CountWindow(size), AGGREGATES))
    out = drive(process, batches)
    events = [event for rows, _ in batches for event in rows]
    for key in {event.key for event in events}:
        mine = [event for event in events if event.key == key]
        full = [mine[at : at + size] for at in range(0, len(mine) - size + 1, size)]
        found = [row for row in out.rows if row["key"] == key]
        assert len(found) == len(full)
        for row, rows in zip(found, full, strict=True):
            check(row, rows)


@pytest.mark.long
def test_a_day_of_sessions_leaves_nothing_behind():
    second = 1_000_000 * US
    asked = Aggregation(("key",), SessionWindow("time", 10 * second), AGGREGATES)
    process = SessionWindows(asked)
    batches = [
        ([model.Event(at * second, at // 20, at, 0.5, "text")], (at - 3) * second)
        for at in range(1000)
    ]
    sizes = []
    original = process.on_watermark

    def measured(watermark_ns, out):
        original(watermark_ns, out)
        sizes.append(process.pool.nbytes)

    process.on_watermark = measured
    out = drive(process, batches)
    assert len(out.rows) == 50
    assert max(sizes[300:]) <= max(sizes[:300])


@pytest.mark.long
@pytest.mark.parametrize("rows", [None, 2], ids=["sessions", "counts"])
def test_an_hour_with_a_burst_of_keys_gives_its_memory_back(rows):
    """20 new keys each 10 s, 20,000 once, of two rows each; memory is that of the budget."""
    second, asked = 1_000_000 * US, (F.count(), F.collect_list("number"), F.min("text"))
    window = SessionWindow("time", 25 * second) if rows is None else CountWindow(rows)
    kind = SessionWindows if rows is None else CountWindows
    process, budget, out = kind(Aggregation(("text",), window, asked)), StateBudget(), Emitted()
    process.open(replace(instance_context(operator_id="windows"), state_budget=budget))
    taken, before = [], []
    for turn in range(360):
        keys = [f"key {number} of {turn}" for number in range(20_000 if turn == 100 else 20)]
        time_ns = 10 * turn * second
        events = [model.Event(time_ns, 1, 1, 0.5, text) for text in [*before, *keys]]
        process.on_batch(batch_of(events), out)
        process.on_watermark(time_ns - 1, out)
        taken.append(budget.used_by("windows"))
        before = keys
    assert len(out.rows) > 27_000 - 100
    assert max(taken[:100]) < 1 << 20 < 4 << 20 < max(taken)
    assert max(taken[110:]) < 2 << 20


def test_a_session_that_would_end_beyond_what_nanoseconds_can_tell_is_refused():
    year = 365 * 86_400 * 1_000_000 * US
    process = SessionWindows(Aggregation(("key",), SessionWindow("time", 250 * year), AGGREGATES))
    near, far = (model.Event(at * year, 1, 1, 0.5, "text") for at in (40, 50))
    assert len(drive(process, [([near], 0)]).rows) == 1
    with pytest.raises(BadRowError, match="at 2019-12-20.* would leave the years 1677 to 2262"):
        drive(process, [([near, far], 0)])
    with pytest.raises(BadRowError, match="would leave the years 1677 to 2262"):
        drive(process, [([model.Event(-50 * year, 1, 1, 0.5, "text")], 0)])


@pytest.mark.parametrize("times", [[0, 1], [0, 8, 4]], ids=["in a session", "in a merge of two"])
def test_a_list_longer_than_its_limit_names_operator_and_key(times):
    asked = (F.collect_list("number", len(times) - 1),)
    process = SessionWindows(Aggregation(("key",), SessionWindow("time", 5 * US), asked))
    events = [model.Event(at * US, 7, at, None, None) for at in times]
    with pytest.raises(BadRowError) as raised:
        drive(process, [([model.Event(0, 8, 1, None, None), *events], 0)])
    assert str(raised.value) == (
        f"operator 'windows': {asked[0]} of key {{key=7}}: it has more values than its limit of"
        f" {len(times) - 1}: pass a higher limit=, or use an aggregate of bounded size"
    )


def test_sessions_far_apart_are_not_one():
    process = SessionWindows(Aggregation(("key",), SessionWindow("time", 10 * US), AGGREGATES))
    ends = [model.Event(at, 1, 1, 0.5, "text") for at in (-(2**63) + 10**6, 2**63 - 10**6)]
    assert len(drive(process, [(ends, 0)]).rows) == 2


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_late_row_reopens_a_session_and_merges_it_with_another(mode):
    asked = Aggregation(
        ("key",),
        SessionWindow("time", 10 * US),
        AGGREGATES,
        output_mode=mode,
        allowed_lateness_ns=20 * US,
    )
    at = {time: model.Event(time * US, 1, time, 0.5, "text") for time in (0, 15, 8, 24, 5, 2)}
    batches = [
        ([at[0]], 5 * US),
        ([at[15]], 11 * US),  # 0 has ended
        ([at[8]], 26 * US),  # joins both; 15 has ended, too
        ([at[24]], 34 * US),  # reopens it; it ends again
        ([at[5]], 54 * US),  # changes it; then it is closed
        ([at[2]], 54 * US),
    ]
    out = drive(SessionWindows(asked), batches)
    found = [(*(bound // US for bound in bounds(row)), row["rows"]) for row in out.rows]
    merged, reopened, changed = (0, 25, 3), (0, 34, 4), (0, 34, 5)
    if mode == "append":
        assert found == [(0, 10, 1), merged, reopened, changed]
        assert out.times == [10 * US, 25 * US, 34 * US, 34 * US + 1]
    else:
        assert found == [(0, 10, 1), (15, 25, 1), merged, reopened, changed]
    assert [row["number"] for row in out.late] == [2]
