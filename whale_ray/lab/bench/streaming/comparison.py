"""Workloads in systems that read the same rows: the rows of the report, and their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..report import BenchRow
from .aims import TARGETS
from .cells import found_by
from .inputs import InputFiles, most_keys
from .jobs import build, state_peak_bytes
from .kept_cells import Cell, KeptCells
from .mapped_files import Files, mapped_bytes
from .systems import System
from .timing import Measured
from .workload import Workload

__all__ = ["SystemComparison"]

_KEEPS_STATE = "whale-ray, 1 worker"
"""The way whose state is reported."""


@dataclass(frozen=True)
class SystemComparison:
    """What is compared: the first of the systems has the answer and the rate to compare with.

    Attributes:
        workloads: what each system that has it runs.
        inputs: returns the streams' files.
        systems: in the order of the report.
        skew: of the keys of the input.
        length: how many times the events of the run the input has.
    """

    workloads: Sequence[Workload]
    inputs: Callable[[], InputFiles]
    systems: Sequence[System]
    skew: float = 0.0
    length: int = 1

    def rows(self, repetitions: int, kept: KeptCells, notes: list[str]) -> list[BenchRow]:
        """Measure what is not kept; return a row for each workload in each system.

        Args:
            repetitions: of warm runs.
            kept: the cells that are there; receives the others.
            notes: receives which systems failed, and which have another answer.
        """
        return self.compared(found_by(self, repetitions, kept, notes), kept, notes)

    def compared(
        self, found: Mapping[str, Mapping[str, Measured]], kept: KeptCells, notes: list[str]
    ) -> list[BenchRow]:
        """Return the rows of what was measured: system → workload → what it took."""
        rows = []
        for workload in self.workloads:
            by_system = {
                name: measured[workload.name]
                for name, measured in found.items()
                if workload.name in measured
            }
            notes.extend(self._other_answers(workload, by_system))
            rows += [self._row(name, workload, by_system, kept) for name in by_system]
        return rows

    def cell(self, system: str, workload: str) -> Cell:
        """Return the cell of a system and a workload."""
        return Cell(system, workload, self.skew, self.length)

    def _other_answers(
        self, workload: Workload, by_system: Mapping[str, Measured]
    ) -> Sequence[str]:
        answer = by_system[self._ours].answer
        return [
            f"{name}, {workload.name}, skew {self.skew:g}: ANOTHER ANSWER: {one.answer};"
            f" whale-ray {answer}"
            for name, one in by_system.items()
            if one.answer != answer
        ]

    @property
    def _ours(self) -> str:
        return self.systems[0].name

    def _row(
        self, name: str, workload: Workload, by_system: Mapping[str, Measured], kept: KeptCells
    ) -> BenchRow:
        one, ours = by_system[name], by_system[self._ours]
        rows = self._source_rows(workload)
        is_peer = not name.startswith("whale-ray")
        best_s = self._best_s(by_system, self._files[name])
        if is_peer:
            ratio, against = one.warm_s / best_s, "ahead of it, whale-ray by"
        else:
            ratio, against = ours.warm_s / one.warm_s, self._ours
        target = TARGETS.get(Cell(name, workload.name, self.skew))
        aim = None if target is None else target.aim
        if target is not None and (beside := target.beside) is not None:
            if (other := kept.get(replace(beside, length=self.length))) is None:
                aim = None  # that part was not asked for
            else:
                ratio, against = other.warm_s / one.warm_s, f"{beside.system}, skew {beside.skew:g}"
        longer = "" if self.length == 1 else f", {self.length} x the events"
        return BenchRow(
            workload.name + longer,
            {
                "system": name,
                "skew": self.skew,
                "rows": rows,
                "answer": "the same" if one.answer == ours.answer else "ANOTHER",
            },
            rows / one.warm_s / 1e3,
            "k rows/s",
            ratio=None if name == self._ours else ratio,
            against="" if name == self._ours else against,
            aim=aim,
            also=self._also(name, workload, by_system),
        )

    def _also(
        self, name: str, workload: Workload, by_system: Mapping[str, Measured]
    ) -> dict[str, float]:
        one = by_system[name]
        also: dict[str, float] = {"cold s": one.cold_s}
        if one.cpu_s is not None:
            also["CPU s/M rows"] = one.cpu_s / self._source_rows(workload) * 1e6
        if name == _KEEPS_STATE and not self.skew:
            also |= _state(workload, self.inputs())
        is_ours, files = name.startswith("whale-ray"), self._files[name]
        if is_ours and files != "parquet":
            folder = self.inputs().folder
            nbytes = sum(mapped_bytes(folder, *stream, files) for stream in workload.reads.items())
            also["GB/s"] = nbytes / one.warm_s / 1e9
        elif not is_ours and files == "parquet" and "mapped" in map(self._files.get, by_system):
            also["x mapped"] = one.warm_s / self._best_s(by_system, "mapped")
        return also

    @property
    def _files(self) -> dict[str, Files]:
        return {system.name: system.files for system in self.systems}

    def _best_s(self, by_system: Mapping[str, Measured], files: Files) -> float:
        """Return the seconds of whale-ray's fastest way that reads such files."""
        return min(
            one.warm_s
            for name, one in by_system.items()
            if name.startswith("whale-ray") and self._files[name] == files
        )

    def _source_rows(self, workload: Workload) -> int:
        return sum(self.inputs().rows[stream] for stream in workload.reads)


def _state(workload: Workload, inputs: InputFiles) -> dict[str, Any]:
    if workload.key is None:
        return {}
    peak_bytes = state_peak_bytes(build(workload, inputs.folder))
    stream = next(iter(workload.reads))
    keys = most_keys(inputs.folder, stream, workload.key, workload.window_s)
    return {"keys": keys, "state B/key": peak_bytes / keys}
