"""Jobs whose slices follow their rate while they run, and the one log of what was decided."""

from __future__ import annotations

import numpy as np

import whale_ray as whale
from whale_ray.metrics.loads import EdgeLoad
from whale_ray.optimizer.decisions import Decides, log_from_yaml
from whale_ray.transport.clock import SystemClock, VirtualClock

PATIENCE_NS = 120_000_000_000
ADAPT = {
    "runtime.adapt": True,
    "runtime.adapt_interval_ms": 40,
    "runtime.poll_interval_ms": 20,
}


def passed_on(source: whale.Source, batch: int | None = None) -> whale.Topology:
    """Return a topology that collects rows behind an edge."""
    topology = whale.Topology("passed-on")
    rows = topology.source(source, id="rows", parallelism=1)
    if batch is not None:
        rows = rows.in_batches_of(batch)
    rows.key_by("key").sink(whale.sinks.collect(), id="out", parallelism=2)
    return topology


def columns(numbers: np.ndarray, _random: np.random.Generator) -> dict[str, np.ndarray]:
    return {"key": numbers % 4, "value": numbers}


def test_rows_of_a_slow_source_are_sent_as_soon_as_they_come():
    """In virtual time nothing takes time but waiting, so the worker is idle."""
    source = whale.sources.poisson(1_000, columns, limit=1_000, seed=1)
    slow = {"transport.wtl_ms": 20.0}
    job = whale.run(passed_on(source), settings={**ADAPT, **slow}, clock=VirtualClock())
    fixed = whale.run(passed_on(source), settings=slow, clock=VirtualClock())
    batches = batches_of("rows", job)
    assert batches == sorted(batches, reverse=True)
    assert batches[-1] == 1
    assert fixed.decisions.steps == ()
    sent, sent_fixed = (one.metrics().loads[0].sent[0] for one in (job, fixed))
    assert sent.rows == sent_fixed.rows == 1_000
    assert sent.slices > 3 * sent_fixed.slices
    assert values(job) == values(fixed) == list(range(1_000))


def test_single_rows_of_a_source_that_never_rests_become_batches_while_the_job_runs():
    source = whale.sources.poisson(10_000_000, columns, limit=1 << 40, seed=1)
    topology = passed_on(source, batch=1)
    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + PATIENCE_NS
    job = whale.submit(topology, on="processes", workers=2, settings=ADAPT)
    try:
        while (sent := sent_by(job)).rows <= sent.slices:
            assert clock.monotonic_ns() < deadline_ns, job.decisions
            clock.sleep_ns(20_000_000)
    finally:
        job.stop()
    batches = batches_of("rows", job)
    assert batches[:1] == [2], job.decisions  # later ones depend on what else the machine does
    found = values(job)
    assert found == list(range(len(found)))
    name, again = log_from_yaml(job.decisions.to_yaml(), "log")
    assert name == "passed-on"
    assert [one.value for one in again] == [one.value for one in job.decisions.steps]
    assert all(one.at_s is not None and one.at_s >= 0 for one in again)


def sent_by(job: whale.Job) -> EdgeLoad:
    """Return what has been sent on the only edge so far."""
    loads = [one.sent[0] for one in job.metrics().loads if 0 in one.sent]
    return loads[0] if loads else EdgeLoad()


def batches_of(operator: str, job: whale.Job) -> list[float]:
    """Return the batches that were decided for an operator, in their order."""
    return [
        one.value
        for one in job.decisions.steps
        if one.operator == operator and one.decides is Decides.BATCH_ROWS
    ]


def values(job: whale.Job) -> list[int]:
    return sorted(job.results("out").to_arrow()["value"].to_pylist())
