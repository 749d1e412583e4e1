"""What stages did between two looks at their workers, against counts by hand."""

from __future__ import annotations

import pytest

import whale_ray as whale
from whale_ray.configs.settings import Settings
from whale_ray.control.stage_loads import LoadsBetween
from whale_ray.metrics.counters import InstanceMetrics, MemberCounters
from whale_ray.metrics.loads import EdgeLoad, WorkerLoad
from whale_ray.plan.planner import plan
from whale_ray.testing import ListSource

S = 1_000_000_000


def test_rates_busy_shares_and_waits_are_those_of_the_time_between():
    topology = whale.Topology("two")
    rows = topology.source(ListSource([{"key": 1}]), id="rows", parallelism=1)
    rows.key_by("key").sink(whale.sinks.collect(), id="out", parallelism=2)
    physical = plan(topology.logical_plan(), Settings(), 2)
    source, sink = physical.stages

    def look(second: int, rows: int, idle_s: tuple[float, float], cpu_s: float):
        """Return counters: each worker has an instance of the sink, the first also the source."""
        found = {}
        for worker in (0, 1):
            instances = [InstanceMetrics("out", worker, worker, rows_in=rows // 2)]
            sent = {}
            if worker in source.workers:
                blocked_ns = int(0.25 * second * S)
                instances.append(InstanceMetrics("rows", 0, worker, rows, blocked_ns=blocked_ns))
                sent = {0: EdgeLoad(rows, rows // 5, rows * 40, rows // 10)}
            load = WorkerLoad(worker, {sink.id: int(cpu_s * S)}, sent, int(idle_s[worker] * S))
            found[worker] = MemberCounters(worker, second * S, 0, tuple(instances), load=load)
        return found

    loads = LoadsBetween(physical, look(10, 1000, (1, 2), 1), look(12, 5000, (1.5, 4), 1.5))
    assert [loads.busy(0), loads.busy(1)] == [0.75, 0]
    (edge,) = physical.edges
    slices = loads.slices_of(edge)
    assert slices is not None
    assert (slices.busy, slices.rows_per_s, slices.slice_rows) == (0.75, 2000, 10)
    assert slices.row_bytes == 40
    quiet = LoadsBetween(physical, look(10, 1000, (1, 2), 1), look(12, 1000, (1, 2), 1))
    assert quiet.slices_of(edge) is None
    work = loads.work_of(sink)
    assert (work.rows_per_s, work.producers_wait, work.waits) == (2000, 0.25, 0)
    assert work.cpu_per_s == pytest.approx(0.5e9)
    assert (work.busy, work.spare) == (0.75, 1.25)
