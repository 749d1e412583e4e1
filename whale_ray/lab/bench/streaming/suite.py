"""The suite: every system over every workload, some with skewed keys; parts on whale-ray alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..plots import check_plots
from ..report import BenchReport, BenchRow, describe_machine
from . import pictures
from .aggregating_loops import aggregating_loop_rows
from .application_workloads import APPLICATIONS
from .bandwidth import bandwidth_rows
from .comparison import SystemComparison
from .disorder import disorder_rows
from .first_result import first_result_rows
from .handles import handle_rows
from .hosts import host_rows
from .inputs import InputFiles, write_applications, write_inputs, write_skewed
from .kept_cells import KeptCells, KeptPart, digest_of_sources
from .loops import loop_rows
from .many_keys import many_keys_rows
from .mapped_files import columns_read, map_for_flink, map_streams
from .systems import SYSTEMS
from .workloads import CODED, LONGER, MAPPED, MATRIX, WORKLOADS, workload_named

__all__ = ["PARTS", "run"]

EVENTS = 5_000_000
QUICK_EVENTS = 1_000_000
REPETITIONS = 3
QUICK_REPETITIONS = 1
SKEWS = (1.0, 2.0)
QUICK_SKEWS = (2.0,)
"""Exponents of Zipf's distribution, beside 0, at which the workloads of the matrix are run."""
LENGTH = 4
"""How many times the events the part `mapped` has: from mapped files a run of the other parts takes
so little time that a third of it is its start."""

PARTS = (
    "keyed",
    "windows",
    "nexmark",
    "slash",
    "yahoo",
    "applications",
    "skew",
    "mapped",
    "handles",
    "disorder",
    "hosts",
    "loops",
    "many-keys",
    "first-result",
    "bandwidth",
)
"""What `--only` chooses from; the first six are those of the workloads."""


@dataclass(frozen=True)
class _StreamingRun:
    """What the parts of one run share."""

    folder: Path
    events: int
    repetitions: int
    quick: bool
    cores: int
    kept: KeptCells
    notes: list[str]


def run(
    quick: bool = False,
    only: str | None = None,
    plots: Path | None = None,
    resume: Path | None = None,
) -> BenchReport:
    """Measure.

    Args:
        quick: on fewer rows, each once cold and once warm, and at fewer skews.
        only: one of `PARTS`.
        plots: folder that receives plots.
        resume: file that keeps what is measured; what it has is not measured again.
    """
    check_plots(plots)
    parts = PARTS if only is None else (only,)
    machine = describe_machine(("numpy", "numba", "pyarrow", "duckdb", "pyspark"))
    events, repetitions = (QUICK_EVENTS, QUICK_REPETITIONS) if quick else (EVENTS, REPETITIONS)
    conditions = {
        "events": events,
        "repetitions": repetitions,
        "processor": machine.processor,
        "cores": machine.cores,
        "packages": dict(machine.packages),
        "sources": digest_of_sources(Path(__file__).parents[3]),
    }
    with tempfile.TemporaryDirectory(prefix="whale-ray-") as folder:
        notes = list(_notes(repetitions))
        kept = KeptCells(resume, conditions)
        made = _StreamingRun(Path(folder), events, repetitions, quick, machine.cores, kept, notes)
        rows = _rows(made, parts)
    if plots is not None:
        pictures.draw(plots, rows)
    command = ["whale-ray bench streaming", *(["--quick"] if quick else [])]
    return BenchReport(
        suite="streaming",
        command=" ".join([*command, *([f"--only {only}"] if only else [])]),
        machine=machine,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _rows(run: _StreamingRun, parts: tuple[str, ...]) -> list[BenchRow]:
    """Return the rows of all parts; the files of streams are written when they are needed."""

    @cache
    def inputs() -> InputFiles:
        made = write_inputs(run.folder / "streams", run.events)
        _map(made, MAPPED)
        return made

    rows: list[BenchRow] = []
    for one in _comparisons(run, parts, inputs):
        rows += one.rows(run.repetitions, run.kept, run.notes)
    if rows:
        run.notes.extend(_absent())
    for name, measure in _alone(run, inputs).items():
        if name in parts:
            rows += _kept_rows(run, name, measure)
    return rows


def _comparisons(
    run: _StreamingRun, parts: tuple[str, ...], inputs: Callable[[], InputFiles]
) -> Iterable[SystemComparison]:
    """Yield the parts beside other systems; their files are written when they are needed."""
    workloads = tuple(one for one in WORKLOADS if one.part in parts and one not in APPLICATIONS)
    if workloads:
        yield SystemComparison(workloads, inputs, SYSTEMS)
    if "applications" in parts:
        applications = cache(lambda: write_applications(run.folder / "applications", run.events))
        yield SystemComparison(APPLICATIONS, applications, SYSTEMS)
    if "skew" in parts:
        matrix = tuple(map(workload_named, MATRIX))
        for skew in QUICK_SKEWS if run.quick else SKEWS:
            yield SystemComparison(matrix, _skewed(run, skew), SYSTEMS, skew=skew)
    if "mapped" in parts:
        longer = tuple(map(workload_named, LONGER))
        mapped = tuple(system for system in SYSTEMS if system.files != "parquet")
        yield SystemComparison(longer, _longer(run), mapped, length=LENGTH)


def _alone(
    run: _StreamingRun, inputs: Callable[[], InputFiles]
) -> dict[str, Callable[[], list[BenchRow]]]:
    """Return the parts on whale-ray alone."""
    quick = run.quick
    return {
        "handles": lambda: handle_rows(quick),
        "disorder": lambda: disorder_rows(inputs(), run.repetitions),
        "hosts": lambda: host_rows(inputs(), run.notes),
        "loops": lambda: [*loop_rows(quick), *aggregating_loop_rows(quick)],
        "many-keys": lambda: many_keys_rows(quick),
        "first-result": lambda: first_result_rows(quick),
        "bandwidth": lambda: bandwidth_rows(run.cores, quick),
    }


def _kept_rows(
    run: _StreamingRun, name: str, measure: Callable[[], list[BenchRow]]
) -> Sequence[BenchRow]:
    """Return the rows of a part that has no cells: what is kept of it, or measured now."""
    found = run.kept.part(name)
    if found is None:
        known = len(run.notes)
        rows = measure()
        run.kept.add_part(name, KeptPart(rows, run.notes[known:]))
        return rows
    run.notes.extend(found.notes)
    return found.rows


def _skewed(run: _StreamingRun, skew: float) -> Callable[[], InputFiles]:
    @cache
    def inputs() -> InputFiles:
        made = write_skewed(run.folder / f"skew-{skew:g}", run.events, skew)
        _map(made, MATRIX)
        return made

    return inputs


def _longer(run: _StreamingRun) -> Callable[[], InputFiles]:
    @cache
    def inputs() -> InputFiles:
        columns = columns_read(map(workload_named, LONGER))
        made = write_inputs(run.folder / "longer", run.events * LENGTH, columns)
        _map(made, LONGER)
        return made

    return inputs


def _map(inputs: InputFiles, workloads: Iterable[str]) -> None:
    """Write the files of some workloads that are mapped into memory."""
    found = [workload_named(name) for name in workloads]
    map_streams(inputs.folder, found, "mapped")
    map_for_flink(inputs.folder, found, "mapped")
    coded = [one for one in found if one.name in CODED]
    map_streams(inputs.folder, coded, "coded")
    map_for_flink(inputs.folder, coded, "coded")


def _notes(repetitions: int) -> tuple[str, ...]:
    return (
        f"rows/s are warm: source rows by the seconds of later runs in the process ({repetitions})",
        "a stream's rows/s are without the start of its workers; whale-ray's CPU includes it",
        "cold s: the first run of the workload in the process, everything but the start of Java",
        "Pathway and Bytewax compile nothing: one run, cold and warm",
        "CPU: that of all processes and threads of a warm run",
        "state B/key: the operator's most memory, by the keys of the file or of its fullest window",
        "DuckDB, Polars and Spark batch see the whole file at once: a bound, not a stream",
        "the ratio is that of the faster of one and two workers of whale-ray, from Parquet",
        "mapped: the same rows, read where they lie; Flink's ratio there is that from mapped Arrow",
        "texts as codes: of a dictionary, in Arrow and for Flink, whose rows share a text's object",
        "x mapped: whale-ray from mapped Arrow, beside a peer that reads Parquet",
        "expressions are compiled from the first row on, unless the name says interpreted",
        "skew: exponent of Zipf's distribution of Yahoo's advertisements and of NB8's sellers",
        "every system's number of results and their sum are compared with whale-ray's",
        "Structured Streaming ends with the windows open that its watermark has not passed",
    )


def _absent() -> list[str]:
    """Return a note for each system that is not here."""
    missing = [(system.name, system.missing()) for system in SYSTEMS]
    return [f"{name}: absent, {remedy}" for name, remedy in missing if remedy]
