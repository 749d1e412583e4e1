"""Runs the cells that are missing: a process of its own for each system and skew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from ....configs.errors import ResourceError
from ..peers.base import Command, printed_by
from .answers import Answer
from .inputs import InputFiles
from .kept_cells import Cell, KeptCells
from .systems import System
from .timing import Measured
from .workload import Workload

__all__ = ["Found", "found_by", "measured"]

TIMEOUT_S = 900.0

Found = Mapping[str, Mapping[str, Measured]]
"""System → workload → what it took."""


def found_by(
    systems: Iterable[System],
    workloads: Sequence[Workload],
    skew: float,
    inputs: Callable[[], InputFiles],
    repetitions: int,
    kept: KeptCells,
    notes: list[str],
) -> dict[str, dict[str, Measured]]:
    """Measure what is not kept, in every system that is here; one that fails is noted.

    Args:
        systems: to run.
        workloads: what each that has it runs.
        skew: of the keys of the input.
        inputs: returns the input; called only if something is to be measured.
        repetitions: of warm runs.
        kept: the cells that are there; receives the others.
        notes: receives what failed.
    """
    found: dict[str, dict[str, Measured]] = {}
    for system in systems:
        if system.missing() is not None:
            continue
        names = [one.name for one in workloads if one.name in system.workloads]
        cells = {name: kept.get(Cell(system.name, name, skew)) for name in names}
        missing = [name for name, cell in cells.items() if cell is None]
        try:
            made = measured(system, missing, inputs(), repetitions) if missing else {}
        except ResourceError as error:
            if system.name.startswith("whale-ray"):
                raise
            notes.append(f"{system.name}, skew {skew:g}: FAILED: {error}")
            continue
        for name, one in made.items():
            kept.add(Cell(system.name, name, skew), one)
        of_system = {name: cell for name, cell in cells.items() if cell is not None} | made
        if of_system:
            found[system.name] = of_system
    return found


def measured(
    system: System, workloads: Sequence[str], inputs: InputFiles, repetitions: int
) -> dict[str, Measured]:
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
