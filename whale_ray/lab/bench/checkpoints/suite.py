"""The suite: its parts one after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..report import BenchReport, BenchRow, describe_machine, file_system_of
from .latencies import latency_rows
from .rates import rate_rows
from .recovery import recovery_rows
from .sizes import size_rows
from .spilling import spilling_rows
from .stores import store_rows

__all__ = ["PARTS", "run"]

_PARTS: dict[str, Callable[[Path, bool], list[BenchRow]]] = {
    "rates": rate_rows,
    "sizes": size_rows,
    "recovery": recovery_rows,
    "latencies": latency_rows,
    "spilling": spilling_rows,
    "stores": store_rows,
}
PARTS = tuple(_PARTS)
"""What `--only` chooses from."""

_NOTES = (
    "rows/s are without the start of the workers, the cores' seconds are with it",
    "rates: pairs of runs, every second in the other order, behind one that is not measured",
    "rates: a ratio is the median of those of the pairs",
    "rates: CPU of all processes; of a checkpoint: the difference in a pair over their number",
    "recovery: from kill -9 of one of two workers to the first row that the sink gets after it",
    "spilling: the kernel keeps pages of the file in memory as far as there is room",
    "stores: the same batches, added to counts and sums by key, within the same limit of memory",
    "a hard limit of memory: a control group of the budget and 64 MiB for all else, and for pages",
)


def run(quick: bool = False, only: str | None = None) -> BenchReport:
    """Measure; with `quick` on fewer rows, and each once."""
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory(prefix="whale-ray-") as folder:
        where = f"checkpoints go to {tempfile.gettempdir()} ({file_system_of(folder)}), with fsync"
        for name in PARTS if only is None else (only,):
            part = Path(folder) / name
            part.mkdir()
            rows += _PARTS[name](part, quick)
    command = ["whale-ray bench checkpoints", *(["--quick"] if quick else [])]
    return BenchReport(
        suite="checkpoints",
        command=" ".join([*command, *([f"--only {only}"] if only else [])]),
        machine=describe_machine(("numpy", "numba", "pyarrow")),
        rows=tuple(rows),
        notes=(where, *_NOTES),
    )
