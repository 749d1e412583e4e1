"""Joins within sessions against a plain Python model, on random rows in random order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.joins import joined_sessions
from tests.operators.joins.nested_loops import LEFT, RIGHT, Event
from tests.operators.joins.test_join_streams import (
    HOWS,
    KEYS,
    MS,
    SECOND,
    TIMES,
    drive,
    found_rows,
    join_of,
)
from whale_ray.configs.errors import StateFullError
from whale_ray.operators.joins import row_queue, session_streams
from whale_ray.operators.joins.session_streams import JoinSessions
from whale_ray.operators.windows.specifications import SessionWindow
from whale_ray.state.budget import StateBudget


@pytest.mark.long
@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=60)
@given(data=st.data(), gap=st.integers(1, 15), lateness=st.integers(0, 9))
def test_every_join_equals_a_loop_over_all_sessions(how, data, gap, lateness):
    types = data.draw(st.sampled_from(list(KEYS)))
    event = st.builds(Event, side=st.integers(0, 1), time_ns=TIMES, key=KEYS[types][1])
    batches = data.draw(st.lists(st.tuples(st.lists(event, max_size=12), TIMES), max_size=6))
    join = join_of(types, SessionWindow("", gap * MS), how, lateness * MS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_queue, "_ROWS_MIN", data.draw(st.sampled_from([1, 1024])))
        patch.setattr(session_streams, "_EMITTED_ROWS", data.draw(st.sampled_from([1, 3, 1 << 16])))
        out = drive(JoinSessions(join), batches, types, empties=True)
    expected = joined_sessions.join_sessions(batches, gap * MS, how, lateness * MS)
    us = [
        (n, m, (start // 1000 * 1000, -(-end // 1000) * 1000))  # an end is rounded up
        for n, m, (start, end) in expected.rows
    ]
    assert found_rows(out) == Counter(us)
    assert len(out.late) == expected.late
    for row in out.rows:
        if row.get("m") is not None:
            assert row["word"] == f"w{row['m']:05}"


@pytest.mark.long
def test_an_hour_of_rows_leaves_nothing_behind():
    process = JoinSessions(join_of(("string",), SessionWindow("", 5 * SECOND), "outer"))
    sizes: list[int] = []
    batches = [
        (
            [
                *(Event(side, at * SECOND, (f"{at // 20:03}",)) for side in (LEFT, RIGHT)),
                Event(LEFT, at * SECOND, (None,)),
            ],
            at * SECOND - 1,
        )
        for at in range(3600)
        if at % 20 < 12
    ]
    original = process.on_watermark
    budget = StateBudget()

    def measured(watermark_ns, out):
        original(watermark_ns, out)
        sizes.append(budget.used_by("join") + budget.spilled_by("join"))

    process.on_watermark = measured
    out = drive(process, batches, ("string",), budget, empties=True)
    assert max(sizes[1200:]) <= max(sizes[:1200])
    assert len(out.rows) == 180 * (12 * 12 + 12)


def test_state_that_exceeds_its_budget_names_operator_and_setting():
    events = [Event(LEFT, at, (1,)) for at in range(50_000)]
    with pytest.raises(StateFullError) as raised:
        drive(
            JoinSessions(join_of(("int32",), SessionWindow("", SECOND), "inner")),
            [(events, 0)],
            budget=StateBudget(1 << 20),
        )
    for part in ("join", "runtime.state_bytes"):
        assert part in str(raised.value)
