"""Clocks: the virtual one moves only when told, the system's is the machine's."""

from __future__ import annotations

import time

import pytest

from whale_ray.transport.clock import Clock, SystemClock, VirtualClock


def test_the_virtual_clock_stands_until_moved():
    clock = VirtualClock(start_ns=5)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (5, 5)
    clock.advance(10)
    clock.sleep_ns(100)
    clock.sleep_ns(-1)
    assert (clock.monotonic_ns(), clock.wall_ns()) == (115, 115)


def test_the_virtual_clock_does_not_go_back():
    with pytest.raises(ValueError, match="a clock cannot go back by 3 ns"):
        VirtualClock().advance(-3)


def test_the_system_clock_reads_the_machines():
    clock: Clock = SystemClock()
    before = time.monotonic_ns(), time.time_ns()
    now = clock.monotonic_ns(), clock.wall_ns()
    after = time.monotonic_ns(), time.time_ns()
    assert before <= now <= after
    clock.sleep_ns(-5)


def test_the_system_clock_sleeps_at_least_as_long_as_asked():
    clock = SystemClock()
    before = clock.monotonic_ns()
    clock.sleep_ns(1_000_000)
    assert clock.monotonic_ns() - before >= 1_000_000
