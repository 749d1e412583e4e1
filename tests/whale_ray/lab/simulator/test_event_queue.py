"""Virtual time: events happen by time and then in posting order, whatever was cancelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.lab.simulator.clock import EventQueue, SimulatedClock
from whale_ray.transport.clock import Clock

FOREVER_NS = 1 << 60


def run(queue: EventQueue) -> int:
    return queue.run(FOREVER_NS, 1_000_000)


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), max_size=200))
def test_events_happen_by_time_then_by_number_unless_called_off(asked):
    queue, happened, timers = EventQueue(), [], []
    for number, (time_ns, has_timer, is_cancelled) in enumerate(asked):
        if has_timer:
            timers.append((queue.timer(time_ns, happened.append, number), is_cancelled))
        else:
            queue.post(time_ns, happened.append, number)
    for timer, is_cancelled in timers:
        if is_cancelled:
            timer.cancel()
            timer.cancel()
    kept = [
        (time_ns, number)
        for number, (time_ns, has_timer, is_cancelled) in enumerate(asked)
        if not (has_timer and is_cancelled)
    ]
    assert len(queue) == len(kept)
    assert queue.next_ns == min(kept, default=(None,))[0]
    assert run(queue) == len(kept)
    assert happened == [number for _, number in sorted(kept)]
    assert len(queue) == 0 and queue.next_ns is None


def test_the_time_is_that_of_the_event_and_stands_still_in_between():
    queue = EventQueue()
    seen: list[int] = []
    queue.post(5, lambda: seen.append(queue.clock.now_ns))
    queue.post(7, lambda: queue.post(7, lambda: seen.append(queue.clock.now_ns)))
    assert run(queue) == 3
    assert seen == [5, 7]
    with pytest.raises(ValueError, match="an event at 6 ns: it is 7 ns already"):
        queue.post(6, print)
    with pytest.raises(ValueError, match="an event at 6 ns: it is 7 ns already"):
        queue.timer(6, print)


def test_running_stops_at_a_time_at_a_number_of_events_and_when_done():
    queue, happened = EventQueue(), []
    for time_ns in range(10):
        queue.post(time_ns, happened.append, time_ns)
    assert queue.run(2, 100) == 3
    assert queue.run(FOREVER_NS, 2) == 2
    assert queue.run(FOREVER_NS, 100, lambda: len(happened) == 7) == 2
    assert happened == list(range(7))


def test_the_clock_passes_over_no_event_and_does_not_go_back():
    queue = EventQueue()
    queue.post(10, print)
    queue.advance_to(10)
    with pytest.raises(ValueError, match="cannot pass over 10 to 11 ns"):
        queue.advance_to(11)
    with pytest.raises(ValueError, match="cannot pass"):
        queue.advance_to(9)


def test_a_timer_can_be_called_off_within_an_event_and_after_it_happened():
    queue, happened = EventQueue(), []
    first = queue.timer(1, happened.append, "first")
    others = [queue.timer(2, happened.append, number) for number in range(500)]
    queue.post(1, lambda: [other.cancel() for other in others[1:]])
    run(queue)
    first.cancel()
    assert happened == ["first", 0]
    assert len(queue) == 0


def test_called_off_timers_do_not_pile_up():
    queue = EventQueue()
    for time_ns in range(100_000):
        queue.timer(time_ns, print).cancel()
    assert len(queue._heap) < 200


def test_the_simulated_clock_is_a_clock_on_which_nobody_sleeps():
    clock: Clock = SimulatedClock(7)
    assert clock.monotonic_ns() == clock.wall_ns() == 7
    with pytest.raises(RuntimeError, match="a simulated node cannot sleep for 5 ns"):
        clock.sleep_ns(5)
