"""How long changed rows wait in update mode, under a clock whose time of day is set."""

from __future__ import annotations

import dataclasses

import pytest

from tests.operators.windows.driving import AGGREGATES, Emitted, batch_of
from tests.operators.windows.model import Event
from whale_ray.configs.units import NS_PER_S
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.session_windows import SessionWindows
from whale_ray.operators.windows.specifications import SessionWindow, TimeWindow
from whale_ray.testing import VirtualClock, instance_context

START_NS = 7200 * NS_PER_S


class SetClock(VirtualClock):
    """A clock whose time of day may be set, as that of a machine may be."""

    set_by_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.set_by_ns


@pytest.mark.parametrize("kind", [AggregateWindows, SessionWindows])
@pytest.mark.parametrize("set_by_s", [-3600, 3600])
def test_changed_rows_wait_as_long_as_asked_though_the_time_of_day_is_set(kind, set_by_s):
    a_day = 86_400 * NS_PER_S
    window = (
        TimeWindow("time", a_day, a_day, 0)
        if kind is AggregateWindows
        else SessionWindow("time", a_day)
    )
    trigger_ns = 10 * NS_PER_S
    asked = Aggregation(("key",), window, AGGREGATES, output_mode="update", trigger_ns=trigger_ns)
    clock, process, out = SetClock(START_NS), kind(asked), Emitted()
    process.open(dataclasses.replace(instance_context(operator_id="windows"), clock=clock))
    process.on_batch(batch_of([Event(0, 1, 1, 0.5, "text")]), out)
    assert process.deadline_ns() == START_NS + trigger_ns
    clock.set_by_ns = set_by_s * NS_PER_S
    clock.advance(4 * NS_PER_S)
    process.on_batch(batch_of([Event(1, 1, 1, 0.5, "text")]), out)
    assert process.deadline_ns() == clock.wall_ns() + 6 * NS_PER_S
    assert not out.rows
    clock.advance(6 * NS_PER_S)
    process.on_batch(batch_of([Event(2, 1, 1, 0.5, "text")]), out)
    assert [row["rows"] for row in out.rows] == [3]
    assert process.deadline_ns() is None
