"""`whale-ray bench ride-hailing`: the application at 16 matching instances, and its bottleneck.

The input is the real week where WHALE_RAY_DATA names it, else generated. The same topology runs
inside one process and on plain processes. The suite reports how long each operator's own code
took by the clock, what processor time is beside the workers' loops, and compares the total with
reading the files alone, the least work of any engine.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...metrics.loads import stage_cpu_ns
from ...transport.clock import SystemClock
from .report import Aim, BenchReport, BenchRow, describe_machine

if TYPE_CHECKING:
    from ...control.outcome import JobOutcome

MATCHING_INSTANCES = 16
STREAMING_SECONDS_MAX = 60.0
"""Limit for the real week on two cores."""


@dataclass(frozen=True)
class _BenchInput:
    name: str
    positions: Path
    requests: Path
    rows: int


def run(quick: bool = False) -> BenchReport:
    """Measure; with `quick` on two hours of generated input."""
    rows: list[BenchRow] = []
    machine = describe_machine(("numpy", "numba", "pyarrow"))
    with tempfile.TemporaryDirectory(prefix="whale-ray-") as folder:
        given = _input(Path(folder), quick)
        read_s = _read_alone(given)
        for where, workers in (("inline", 1), ("processes", 2)):
            rows += _rows(given, where, workers, _outcome(given, where, workers), read_s)
    return BenchReport(
        suite="ride-hailing",
        command="whale-ray bench ride-hailing" + (" --quick" if quick else ""),
        machine=machine,
        rows=tuple(rows),
        notes=(
            "seconds are streaming time, from when all workers are up until the output is staged",
            "stage shares refer to the time of operators' own code by the clock, with waiting",
            "latency is from the source's read of a slice's oldest row to the sink",
        ),
    )


def _input(folder: Path, quick: bool) -> _BenchInput:
    """Return the input with only those requests that lie within the positions' time span."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from ...applications.ride_hailing.generator import CabGeneratorSettings, generate

    data = os.environ.get("WHALE_RAY_DATA")
    if data and not quick:
        name, positions = "real week", Path(data) / "sf_taxi_gps.parquet"
        requests = Path(data) / "sf_taxi_requests.parquet"
    else:
        hours = 2.0 if quick else 168.0
        made = generate(folder, CabGeneratorSettings(hours=hours))
        name, positions, requests = f"{hours:g} generated hours", *_paths(made)
    asked = pq.read_table(requests)
    times = pq.read_table(positions, columns=["event_time"])["event_time"]
    span, when = pc.min_max(times), asked["request_time"].cast(times.type)
    within = pc.and_(pc.greater_equal(when, span["min"]), pc.less_equal(when, span["max"]))
    kept = asked.filter(within)
    pq.write_table(kept, folder / "within.parquet")
    return _BenchInput(name, positions, folder / "within.parquet", len(times) + len(kept))


def _paths(made: object) -> tuple[Path, Path]:
    from ...applications.ride_hailing.generator import Generated

    assert isinstance(made, Generated)
    return made.positions_path, made.requests_path


def _read_alone(given: _BenchInput) -> float:
    """Return how long it takes to read both files with one thread, in seconds."""
    import pyarrow.parquet as pq

    clock = SystemClock()
    begin_ns = clock.monotonic_ns()
    for path in (given.positions, given.requests):
        for _ in pq.ParquetFile(path).iter_batches(batch_size=8192, use_threads=False):
            pass
    return (clock.monotonic_ns() - begin_ns) / 1e9


def _outcome(given: _BenchInput, where: str, workers: int) -> JobOutcome:
    from ... import sinks, sources
    from ...api.submission import run as run_here
    from ...api.submission import submit
    from ...applications.ride_hailing.settings import RideHailingSettings
    from ...applications.ride_hailing.topology import build

    settings = RideHailingSettings(matching_instances=MATCHING_INSTANCES)
    topology = build(
        sources.parquet(given.positions), sources.parquet(given.requests), sinks.collect(), settings
    )
    metered = {"runtime.meter_stages": True}
    if where == "inline":
        return run_here(topology, settings=metered).outcome()
    return submit(topology, on="processes", workers=workers, settings=metered).outcome()


def _rows(
    given: _BenchInput, where: str, workers: int, outcome: JobOutcome, read_s: float
) -> list[BenchRow]:
    parameters = {"input": given.name, "on": where, "workers": workers, "rows": given.rows}
    aim = Aim("value", "at most", STREAMING_SECONDS_MAX) if given.name == "real week" else None
    cpu_s = outcome.metrics.cpu_s
    sink = outcome.metrics.operator("out")
    measured = [
        BenchRow(
            "streaming",
            parameters,
            outcome.seconds,
            "s",
            ratio=read_s / outcome.seconds,
            against="reading the files alone, one thread",
            aim=aim,
            cores=cpu_s / outcome.seconds,
        ),
        BenchRow("source tuples", parameters, given.rows / outcome.seconds, "tuples/s"),
        BenchRow("processor time", parameters, cpu_s / given.rows * 1e6, "s per million tuples"),
        BenchRow("latency p50", parameters, sink.latency_p50_ms or 0.0, "ms"),
        BenchRow("latency p99", parameters, sink.latency_p99_ms or 0.0, "ms"),
    ]
    busy_ns = sum(operator.busy_ns for operator in outcome.metrics.operators) or 1
    for operator in outcome.metrics.operators:
        shown = {**parameters, "operator": operator.operator_id}
        measured.append(
            BenchRow(
                "stage",
                shown,
                operator.busy_ns / 1e9,
                "s in its own code, by the clock",
                ratio=operator.busy_ns / busy_ns,
                against="all operators' own code",
            )
        )
    rest_s = cpu_s - sum(stage_cpu_ns(outcome.metrics.loads).values()) / 1e9
    measured.append(
        BenchRow(
            "beside the stages",
            parameters,
            rest_s,
            "s of processor time outside the workers' loops",
            ratio=rest_s / cpu_s if cpu_s else None,
            against="all processor time, start-up included",
        )
    )
    return measured
