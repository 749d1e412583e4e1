"""Windows of processing time against a plain Python model, under a clock that the test moves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.windows import model
from tests.operators.windows.driving import AGGREGATES, Emitted, arrivals, batch_of, bounds, check
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.clock_windows import ClockWindows
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.testing import VirtualClock, instance_context

US = 1_000
TIMES = st.integers(-40, 40).map(lambda at: at * US)


class SettableClock(VirtualClock):
    """A clock that may be set back, as that of a machine may be."""

    def set_back(self, duration_ns: int) -> None:
        self._now_ns -= duration_ns


def drive(asked: Aggregation, batches, pauses_us, clock):
    """Hand over batches, and call for deadlines as a worker does; return what came and when."""
    process, out = ClockWindows(asked), Emitted()
    process.open(dataclasses.replace(instance_context(operator_id="windows"), clock=clock))
    came = []
    for (events, watermark_ns), pause_us in zip(batches, pauses_us, strict=False):
        end_ns = clock.wall_ns() + pause_us * US
        while (due := process.deadline_ns()) is not None and due <= end_ns:
            clock.advance(max(0, due - clock.wall_ns()))
            process.on_deadline(clock.wall_ns(), out)
        clock.advance(end_ns - clock.wall_ns())
        if watermark_ns > out.watermark_ns:
            process.on_watermark(watermark_ns, out)
            out.watermark_ns = watermark_ns
        if events:
            process.on_batch(batch_of(events), out)
            came.append((clock.wall_ns(), events))
        if asked.output_mode == "append":
            ends = [bounds(row)[1] for row in out.rows]
            assert all(end <= clock.wall_ns() for end in ends)
    process.close(out)
    return out, came


@settings(max_examples=40)
@given(
    batches=arrivals(TIMES),
    pauses_us=st.lists(st.integers(0, 30), min_size=6, max_size=6),
    slide=st.integers(1, 12),
    more=st.just(0) | st.integers(0, 15),
    mode=st.sampled_from(["append", "update"]),
    trigger_us=st.none() | st.integers(1, 20),
)
def test_rows_are_in_the_windows_in_which_they_come(
    batches, pauses_us, slide, more, mode, trigger_us
):
    window = TimeWindow("", (slide + more) * US, slide * US, 0, by_clock=True)
    trigger_ns = None if trigger_us is None or mode == "append" else trigger_us * US
    asked = Aggregation(("key",), window, AGGREGATES, output_mode=mode, trigger_ns=trigger_ns)
    out, came = drive(asked, batches, pauses_us, VirtualClock(3 * US))
    expected = {}
    for now_ns, events in came:
        for bound in model.windows_of(now_ns, window.size_ns, window.slide_ns, 0):
            for event in events:
                expected.setdefault((*bound, event.key), []).append(event)
    found = {(*bounds(row), row["key"]): row for row in out.rows}
    assert not out.late
    assert len(found) == len(out.rows) or mode == "update"
    assert set(found) == set(expected)
    for key, row in found.items():
        check(row, expected[key])


def test_a_clock_that_is_set_back_stands_still():
    clock = SettableClock(0)
    process, out = (
        ClockWindows(
            Aggregation(("key",), TimeWindow("", 10 * US, 10 * US, 0, by_clock=True), AGGREGATES)
        ),
        Emitted(),
    )
    process.open(dataclasses.replace(instance_context(operator_id="windows"), clock=clock))
    event = model.Event(0, 1, 1, 0.5, "text")
    for advance_us in (12, -9, 3):
        if advance_us > 0:
            clock.advance(advance_us * US)
        else:
            clock.set_back(-advance_us * US)
        process.on_batch(batch_of([event]), out)
    process.close(out)
    assert [(*bounds(row), row["rows"]) for row in out.rows] == [(10 * US, 20 * US, 3)]


def test_windows_that_end_together_after_a_restart_have_the_latest_event_time():
    """Workers that were in different windows leave both to one."""
    window = TimeWindow("", 10 * US, 10 * US, 0, by_clock=True)
    asked, clock = Aggregation(("key",), window, AGGREGATES), VirtualClock(0)
    context = dataclasses.replace(instance_context(operator_id="windows"), clock=clock)
    kept = []
    for time_ns in (5, 7):
        clock.advance(10 * US)
        process = ClockWindows(asked)
        process.open(context)
        process.on_batch(batch_of([model.Event(time_ns, time_ns, 1, 0.5, "text")]), Emitted())
        kept += process.dump(np.arange(context.virtual_nodes))
    process, out = ClockWindows(asked), Emitted()
    process.open(context)
    for batch in kept:
        process.load(batch)
    clock.advance(10 * US)
    process.on_deadline(clock.wall_ns(), out)
    assert [bounds(row)[1] for row in out.rows] == [20 * US, 30 * US]
    assert out.times == [7, 7]


@pytest.mark.long
@settings(max_examples=30)
@given(
    pauses_us=st.lists(st.integers(0, 12), min_size=8, max_size=8),
    slide=st.integers(1, 6),
    more=st.integers(1, 9),
    cut=st.integers(1, 7),
    whole=st.booleans(),
)
def test_a_window_that_has_ended_ends_once_though_its_rows_move(pauses_us, slide, more, cut, whole):
    """Rows of overlapping windows are still needed when the first of these has ended."""
    window = TimeWindow("", (slide + more) * US, slide * US, 0, by_clock=True)
    asked, clock = Aggregation(("key",), window, AGGREGATES), VirtualClock(3 * US)
    context = dataclasses.replace(instance_context(operator_id="windows"), clock=clock)
    process, out, expected = ClockWindows(asked), Emitted(), {}
    process.open(context)
    for number, pause_us in enumerate(pauses_us):
        end_ns = clock.wall_ns() + pause_us * US
        while (due := process.deadline_ns()) is not None and due <= end_ns:
            clock.advance(max(0, due - clock.wall_ns()))
            process.on_deadline(clock.wall_ns(), out)
        clock.advance(end_ns - clock.wall_ns())
        if number == cut:
            before, process = process, ClockWindows(asked)
            process.open(context)
            if whole:
                process.take(before.chunks(1), whole=True)
            else:
                for batch in before.dump(np.arange(context.virtual_nodes)):
                    process.load(batch)
        event = model.Event(number, number % 2, 1, 0.5, "text")
        process.on_batch(batch_of([event]), out)
        for bound in model.windows_of(clock.wall_ns(), window.size_ns, window.slide_ns, 0):
            expected.setdefault((*bound, event.key), []).append(event)
    process.close(out)
    assert sorted((*bounds(row), row["key"]) for row in out.rows) == sorted(expected)
    for row in out.rows:
        check(row, expected[*bounds(row), row["key"]])


def test_a_window_ends_once_though_another_worker_had_no_rows_for_long():
    """An idle clock is where the others are, though no row has told it the time."""
    window = TimeWindow("", 10 * US, 5 * US, 0, by_clock=True)
    asked, clock = Aggregation(("key",), window, AGGREGATES), VirtualClock(0)
    context = dataclasses.replace(instance_context(operator_id="windows"), clock=clock)
    idle, busy, both = ClockWindows(asked), ClockWindows(asked), ClockWindows(asked)
    out = Emitted()
    for process in (idle, busy, both):
        process.open(context)
    for process, at_us in ((idle, 0), (busy, 12)):
        clock.advance(max(0, at_us * US - clock.wall_ns()))
        process.on_batch(batch_of([model.Event(0, at_us, 1, 0.5, "text")]), out)
        while (due := process.deadline_ns()) is not None and due <= 15 * US:
            clock.advance(max(0, due - clock.wall_ns()))
            process.on_deadline(clock.wall_ns(), out)
    for process in (idle, busy):
        process.seal(1)
        for batch in process.dump(np.arange(context.virtual_nodes)):
            both.load(batch)
    both.close(out)
    assert [(*bounds(row), row["key"]) for row in out.rows] == [
        (-5 * US, 5 * US, 0),
        (0, 10 * US, 0),
        (5 * US, 15 * US, 12),
        (10 * US, 20 * US, 12),
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_window_that_has_ended_on_one_worker_only_ends_once_for_each_key(order):
    window = TimeWindow("", 10 * US, 5 * US, 0, by_clock=True)
    asked, clock = Aggregation(("key",), window, AGGREGATES), VirtualClock(7 * US)
    keyed = instance_context(operator_id="windows")
    context = dataclasses.replace(keyed, clock=clock, keys=(("key",),))
    workers, both, out = [ClockWindows(asked) for _ in order], ClockWindows(asked), Emitted()
    for process in (*workers, both):
        process.open(context)
    for key, process in enumerate(workers):
        process.on_batch(batch_of([model.Event(0, key, 1, 0.5, "text")]), out)
    clock.advance(4 * US)
    workers[1].on_deadline(clock.wall_ns(), out)
    for number in order:
        workers[number].seal(1)
        for batch in workers[number].dump(np.arange(context.virtual_nodes)):
            both.load(batch)
    due_ns = both.deadline_ns()
    assert due_ns is not None and due_ns <= clock.wall_ns()  # at once
    both.on_deadline(clock.wall_ns(), out)
    both.close(out)
    assert sorted((*bounds(row), row["key"]) for row in out.rows) == [
        (0, 10 * US, 0),
        (0, 10 * US, 1),
        (5 * US, 15 * US, 0),
        (5 * US, 15 * US, 1),
    ]
