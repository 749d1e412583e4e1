"""Runs the cells that are missing: a process of its own for each system and skew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....configs.errors import ResourceError
from ..peers.base import Command, printed_by
from .answers import Answer
from .inputs import InputFiles
from .kept_cells import KeptCells
from .systems import System
from .timing import Measured

if TYPE_CHECKING:
    from .comparison import SystemComparison

__all__ = ["found_by", "measured"]

TIMEOUT_S = 900.0
"""Of all workloads in a system, if the input has the events of the run."""


def found_by(
    comparison: SystemComparison, repetitions: int, kept: KeptCells, notes: list[str]
) -> dict[str, dict[str, Measured]]:
    """Return system → workload → what it took: kept, or measured now; failures are noted.

    Args:
        comparison: what is to be run in which systems.
        repetitions: of warm runs.
        kept: the cells that are there; receives the others.
        notes: receives what failed.
    """
    found: dict[str, dict[str, Measured]] = {}
    for system in comparison.systems:
        if system.missing() is not None:
            continue
        names = [one.name for one in comparison.workloads if one.name in system.workloads]
        cells = {name: kept.get(comparison.cell(system.name, name)) for name in names}
        missing = [name for name, cell in cells.items() if cell is None]
        try:
            made = (
                measured(
                    system, missing, comparison.inputs(), repetitions, TIMEOUT_S * comparison.length
                )
                if missing
                else {}
            )
        except ResourceError as error:
            if system.name.startswith("whale-ray"):
                raise
            notes.append(f"{system.name}, skew {comparison.skew:g}: FAILED: {error}")
            continue
        for name, one in made.items():
            kept.add(comparison.cell(system.name, name), one)
        of_system = {name: cell for name, cell in cells.items() if cell is not None} | made
        if of_system:
            found[system.name] = of_system
    return found


def measured(
    system: System,
    workloads: Sequence[str],
    inputs: InputFiles,
    repetitions: int,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Measured]:
    """Run a system's workloads in a process of their own."""
    module = "whale_ray.lab.bench.streaming"
    warm = str(repetitions if system.warms_up else 0)
    argv = [sys.executable, "-m", module, system.name, str(inputs.folder), warm, *workloads]
    program = Command(argv, system.environment())
    printed = printed_by(system.name, program, timeout_s)
    return {
        workload: Measured(**{**values, "answer": Answer(**values["answer"])})
        for workload, values in printed.items()
    }
