"""What workers are told of their slices: each edge by its own rows, in each attempt."""

from __future__ import annotations

import whale_ray as whale
from whale_ray.configs.settings import Settings
from whale_ray.control.adaptation import Adaptation
from whale_ray.metrics.counters import MemberCounters
from whale_ray.metrics.loads import EdgeLoad, WorkerLoad
from whale_ray.plan.assignment import Assignment
from whale_ray.plan.planner import plan
from whale_ray.testing import ListSource, VirtualClock
from whale_ray.transport.slice_limits import SliceLimits
from whale_ray.worker.limit_slices import LimitSlices

S = 1_000_000_000
SETTINGS = Settings().with_overrides({"runtime.adapt": True, "runtime.adapt_interval_ms": 1_000})
WTL_NS = int(SETTINGS.transport.wtl_ms * 1e6)


def planned() -> Assignment:
    """Return a job with two edges from one stage: batches of ten rows, and as large as fit."""
    topology = whale.Topology("two")
    rows = topology.source(ListSource([{"key": 1}]), id="rows", parallelism=1)
    rows.in_batches_of(10).key_by("key").sink(whale.sinks.collect(), id="small")
    rows.key_by("key").sink(whale.sinks.collect(), id="large")
    return Assignment("job", plan(topology.logical_plan(), SETTINGS, 1), SETTINGS)


def look(second: int) -> dict[int, MemberCounters]:
    """Return the counters of a worker that never sleeps."""
    sent = {
        0: EdgeLoad(1_000 * second, 100 * second, 40_000 * second, 100 * second),
        1: EdgeLoad(65_000 * second, 100 * second, 2_600_000 * second, 100 * second),
    }
    return {0: MemberCounters(0, second * S, 0, (), load=WorkerLoad(0, {}, sent, 0))}


def test_an_edge_follows_its_own_rows_and_no_other_edge() -> None:
    told: list[LimitSlices] = []
    clock = VirtualClock()
    adaptation = Adaptation(planned(), told.append, clock)
    for second in range(4):
        adaptation.turn(0, look(second))
        clock.sleep_ns(S)
    first, last = told
    assert first.by_edge == {0: SliceLimits(WTL_NS, 10), 1: SliceLimits(WTL_NS)}
    assert last.by_edge[0].due_rows == 20
    assert last.by_edge[1].due_rows is None, "its slices have 650 rows, which ten must not cut"
    steps = adaptation.decisions.log.steps
    assert steps[0].operator == "rows"
    assert steps[0].reason.startswith("what goes to small: ")


def test_every_attempt_begins_with_the_limits_that_are_known() -> None:
    told: list[LimitSlices] = []
    clock = VirtualClock()
    adaptation = Adaptation(planned(), told.append, clock)
    for second in range(4):
        adaptation.turn(0, look(second))
        clock.sleep_ns(S)
    adaptation.turn(1, {})
    assert told[-1] == told[-2]
