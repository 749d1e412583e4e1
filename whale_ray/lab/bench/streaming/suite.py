"""The suite: every system over every workload, then the parts on whale-ray alone."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from ..peers.base import Command, printed_by
from ..report import Aim, BenchReport, BenchRow, describe_machine
from .bids import BidFiles, most_keys, write_inputs
from .disorder import disorder_rows
from .handles import handle_rows
from .jobs import build, state_peak_bytes
from .systems import SYSTEMS, System
from .timing import Measured
from .workloads import WORKLOADS, Workload

__all__ = ["PARTS", "run"]

EVENTS = 5_000_000
QUICK_EVENTS = 1_000_000
REPETITIONS = 3
QUICK_REPETITIONS = 1
TIMEOUT_S = 900.0

PARTS = ("engines", "handles", "disorder")

_OURS = ("whale-ray, 1 worker", "whale-ray, 2 workers")
_NOT_COMPARED = (
    "Flink (SQL, DataStream) and Pathway are absent: the suite has no programs for them; `make"
    " peers` installs Flink's DataStream for other suites, pip install pathway"
)
_AIMS = {
    ("keyed row process, two handles", "Bytewax, 1 worker"): Aim("ratio", "at least", 4.0),
}
"""(Workload, peer) → by how much one worker should be ahead of it."""


def run(quick: bool = False, only: str | None = None) -> BenchReport:
    """Measure; with `quick` on fewer rows, and each once cold and once warm."""
    parts = PARTS if only is None else (only,)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    machine = describe_machine(("numpy", "numba", "pyarrow", "duckdb", "pyspark"))
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory(prefix="whale-ray-") as folder:
        inputs = write_inputs(Path(folder), QUICK_EVENTS if quick else EVENTS)
        if "engines" in parts:
            rows += _engine_rows(inputs, repetitions)
        if "handles" in parts:
            rows += handle_rows(quick)
        if "disorder" in parts:
            rows += disorder_rows(inputs, repetitions)
    command = ["whale-ray bench streaming", *(["--quick"] if quick else [])]
    return BenchReport(
        suite="streaming",
        command=" ".join([*command, *([f"--only {only}"] if only else [])]),
        machine=machine,
        rows=tuple(rows),
        notes=(*_notes(repetitions), *_absent()),
    )


def _notes(repetitions: int) -> tuple[str, ...]:
    return (
        f"rows/s are warm: source rows by the seconds of later runs in the process ({repetitions})",
        "whale-ray's rows/s are without the start of its workers, which its cold s and CPU include",
        "cold s: the first run in the process, everything included",
        "CPU: that of all processes and threads of a warm run",
        "state B/key: the operator's most memory, by the keys of the file or of its fullest window",
        "DuckDB and Polars see the whole file at once: a bound, not a stream",
    )


def _absent() -> list[str]:
    """Return a note for each system that is not here."""
    missing = [(system.name, system.missing()) for system in SYSTEMS]
    return [*(f"{name}: {remedy}" for name, remedy in missing if remedy), _NOT_COMPARED]


def _engine_rows(inputs: BidFiles, repetitions: int) -> list[BenchRow]:
    found = {
        system.name: _measured(system, inputs, repetitions)
        for system in SYSTEMS
        if system.missing() is None
    }
    return [row for workload in WORKLOADS for row in _rows_of(workload, inputs, found)]


def _measured(system: System, inputs: BidFiles, repetitions: int) -> dict[str, Measured]:
    """Run a system's workloads in a process of their own."""
    module = "whale_ray.lab.bench.streaming"
    argv = [sys.executable, "-m", module, system.name, str(inputs.out_of_order), str(repetitions)]
    program = Command([*argv, *system.workloads], system.environment())
    printed = printed_by(system.name, program, TIMEOUT_S)
    return {workload: Measured(**values) for workload, values in printed.items()}


def _rows_of(
    workload: Workload, inputs: BidFiles, found: dict[str, dict[str, Measured]]
) -> list[BenchRow]:
    ours = found[_OURS[0]][workload.name]
    rows = []
    for name, by_workload in found.items():
        if workload.name not in by_workload:
            continue
        one = by_workload[workload.name]
        also: dict[str, float] = {"cold s": one.cold_s}
        if one.cpu_s is not None:
            also["CPU s/M rows"] = one.cpu_s / inputs.rows * 1e6
        if name == _OURS[0]:
            also |= _state(workload, inputs)
        rows.append(
            BenchRow(
                workload.name,
                {"system": name, "rows": inputs.rows},
                inputs.rows / one.warm_s / 1e3,
                "k rows/s",
                ratio=None if name == _OURS[0] else one.warm_s / ours.warm_s,
                against="" if name == _OURS[0] else f"{_OURS[0]}, ahead of this by",
                aim=_AIMS.get((workload.name, name)),
                also=also,
            )
        )
    return rows


def _state(workload: Workload, inputs: BidFiles) -> dict[str, Any]:
    peak_bytes = state_peak_bytes(build(workload, inputs.out_of_order))
    keys = most_keys(inputs.in_order, workload.key, workload.window_s)
    return {"keys": keys, "state B/key": peak_bytes / keys}
