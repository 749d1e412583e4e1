"""The suite: every system over every workload, then the parts on whale-ray alone."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....configs.errors import ResourceError
from ..peers.base import Command, printed_by
from ..report import Aim, BenchReport, BenchRow, describe_machine
from .answers import Answer
from .disorder import disorder_rows
from .handles import handle_rows
from .inputs import InputFiles, most_keys, write_inputs
from .jobs import build, state_peak_bytes
from .loops import loop_rows
from .systems import SYSTEMS, System
from .timing import Measured
from .workloads import WORKLOADS, Workload

__all__ = ["PARTS", "run"]

EVENTS = 5_000_000
QUICK_EVENTS = 1_000_000
REPETITIONS = 3
QUICK_REPETITIONS = 1
TIMEOUT_S = 900.0

PARTS = ("keyed", "windows", "nexmark", "yahoo", "handles", "disorder", "loops")
"""What `--only` chooses from; the first four are those of the workloads."""

_OURS = "whale-ray, 1 worker"
_AHEAD = Aim("ratio", "at least", 1.0)
_FLINK = ("Flink DataStream, 2 workers", "Flink SQL, 2 workers")
_AIMS = {
    ("keyed row process, two handles", "Bytewax, 1 worker"): Aim("ratio", "at least", 4.0),
    ("Yahoo, views per campaign", "Structured Streaming, all cores"): _AHEAD,
    **{
        (workload.name, flink): _AHEAD
        for workload in WORKLOADS
        if workload.part == "nexmark"
        for flink in _FLINK
    },
}
"""(Workload, peer) → by how much the better of one and two workers should be ahead of it."""

_Found = Mapping[str, Measured]
"""Workload → what a system took for it."""


def run(quick: bool = False, only: str | None = None) -> BenchReport:
    """Measure; with `quick` on fewer rows, and each once cold and once warm."""
    parts = PARTS if only is None else (only,)
    workloads = tuple(workload for workload in WORKLOADS if workload.part in parts)
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    machine = describe_machine(("numpy", "numba", "pyarrow", "duckdb", "pyspark"))
    rows: list[BenchRow] = []
    notes = list(_notes(repetitions))
    with tempfile.TemporaryDirectory(prefix="whale-ray-") as folder:
        inputs = write_inputs(Path(folder), QUICK_EVENTS if quick else EVENTS)
        if workloads:
            found = _found(workloads, inputs, repetitions, notes)
            rows += [row for one in workloads for row in _rows_of(one, inputs, found, notes)]
            notes += _absent()
        if "handles" in parts:
            rows += handle_rows(quick)
        if "disorder" in parts:
            rows += disorder_rows(inputs, repetitions)
        if "loops" in parts:
            rows += loop_rows(quick)
    command = ["whale-ray bench streaming", *(["--quick"] if quick else [])]
    return BenchReport(
        suite="streaming",
        command=" ".join([*command, *([f"--only {only}"] if only else [])]),
        machine=machine,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _notes(repetitions: int) -> tuple[str, ...]:
    return (
        f"rows/s are warm: source rows by the seconds of later runs in the process ({repetitions})",
        "a stream's rows/s are without the start of its workers; whale-ray's CPU includes it",
        "cold s: the first run of the workload in the process, everything but the start of Java",
        "Pathway and Bytewax compile nothing: one run, cold and warm",
        "CPU: that of all processes and threads of a warm run",
        "state B/key: the operator's most memory, by the keys of the file or of its fullest window",
        "DuckDB, Polars and Spark batch see the whole file at once: a bound, not a stream",
        "the ratio is that of the faster of one and two workers of whale-ray",
        "every system's number of results and their sum are compared with whale-ray's",
        "Structured Streaming ends with the windows open that its watermark has not passed",
    )


def _absent() -> list[str]:
    """Return a note for each system that is not here."""
    missing = [(system.name, system.missing()) for system in SYSTEMS]
    return [f"{name}: absent, {remedy}" for name, remedy in missing if remedy]


def _found(
    workloads: Sequence[Workload], inputs: InputFiles, repetitions: int, notes: list[str]
) -> dict[str, _Found]:
    """Run every system that is here; one that fails is named in the notes."""
    found: dict[str, _Found] = {}
    for system in SYSTEMS:
        names = [one.name for one in workloads if one.name in system.workloads]
        if system.missing() is not None or not names:
            continue
        try:
            found[system.name] = _measured(system, names, inputs, repetitions)
        except ResourceError as error:
            if system.name.startswith("whale-ray"):
                raise
            notes.append(f"{system.name}: FAILED: {error}")
    return found


def _measured(
    system: System, workloads: Sequence[str], inputs: InputFiles, repetitions: int
) -> _Found:
    """Run a system's workloads in a process of their own."""
    module = "whale_ray.lab.bench.streaming"
    warm = str(repetitions if system.warms_up else 0)
    argv = [sys.executable, "-m", module, system.name, str(inputs.folder), warm, *workloads]
    program = Command(argv, system.environment())
    printed = printed_by(system.name, program, TIMEOUT_S)
    return {
        workload: Measured(**{**values, "answer": Answer(**values["answer"])})
        for workload, values in printed.items()
    }


def _rows_of(
    workload: Workload, inputs: InputFiles, found: Mapping[str, _Found], notes: list[str]
) -> list[BenchRow]:
    by_system = {
        name: measured[workload.name]
        for name, measured in found.items()
        if workload.name in measured
    }
    answer = by_system[_OURS].answer
    for name, one in by_system.items():
        if one.answer != answer:
            notes.append(
                f"{name}, {workload.name}: ANOTHER ANSWER: {one.answer}; whale-ray {answer}"
            )
    return [_row(name, workload, inputs, by_system) for name in by_system]


def _row(
    name: str,
    workload: Workload,
    inputs: InputFiles,
    by_system: Mapping[str, Measured],
) -> BenchRow:
    one, ours = by_system[name], by_system[_OURS]
    rows = sum(inputs.rows[stream] for stream in workload.reads)
    also: dict[str, float] = {"cold s": one.cold_s}
    if one.cpu_s is not None:
        also["CPU s/M rows"] = one.cpu_s / rows * 1e6
    if name == _OURS:
        also |= _state(workload, inputs)
    is_peer = not name.startswith("whale-ray")
    best_s = min(one.warm_s for system, one in by_system.items() if "whale-ray" in system)
    ratio = one.warm_s / best_s if is_peer else ours.warm_s / one.warm_s
    against = "ahead of it, whale-ray by" if is_peer else f"{_OURS}"
    return BenchRow(
        workload.name,
        {
            "system": name,
            "rows": rows,
            "answer": "the same" if one.answer == ours.answer else "ANOTHER",
        },
        rows / one.warm_s / 1e3,
        "k rows/s",
        ratio=None if name == _OURS else ratio,
        against="" if name == _OURS else against,
        aim=_AIMS.get((workload.name, name)),
        also=also,
    )


def _state(workload: Workload, inputs: InputFiles) -> dict[str, Any]:
    peak_bytes = state_peak_bytes(build(workload, inputs.folder))
    stream = next(iter(workload.reads))
    keys = most_keys(inputs.folder, stream, workload.key, workload.window_s)
    return {"keys": keys, "state B/key": peak_bytes / keys}
