"""Bytewax: functions on rows, in one worker with one thread, over dicts in memory.

It passes Python objects from operator to operator, so its rows are the dicts themselves: nothing is
converted, but rows for another process would have to be pickled. As in `bench rows` the processor
time of the whole flow counts, and a filter at the end drops all results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ....configs.errors import ResourceError
from ....transport.clock import SystemClock
from .base import (
    NOT_INSTALLED,
    Command,
    PeerOutput,
    end_with_parent,
    has_package,
    python_path,
    python_program,
    run_program,
)

ENVIRONMENT = "bytewax"

_BATCH = 8192
_REPETITIONS = 5
_TIMEOUT_S = 120.0

Step = Callable[[Any, Any], Any]
"""A step with Bytewax's operators: (operators, stream) → stream."""


def _filter_km(op: Any, rows: Any) -> Any:
    return op.filter("filter", rows, lambda row: row["km"] > 5)


def _filter_time(op: Any, rows: Any) -> Any:
    return op.filter("filter", rows, lambda row: row["at"].minute < 30)


def _map_few(op: Any, rows: Any) -> Any:
    return op.map("map", rows, lambda row: {"cab": row["cab"], "km": 2 * row["km"]})


def _map_copy(op: Any, rows: Any) -> Any:
    return op.map("map", rows, lambda row: {**row, "km": 2 * row["km"]})


def _flat_map(op: Any, rows: Any) -> Any:
    return op.flat_map("twice", rows, lambda row: [{"cab": row["cab"], "k": k} for k in (0, 1)])


def _totals(op: Any, rows: Any) -> Any:
    def add(total: float | None, row: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        total = (total or 0.0) + row["km"]
        return total, {"cab": row["cab"], "total_km": total}

    keyed = op.key_on("key", rows, lambda row: row["cab"])
    return op.key_rm("rows", op.stateful_map("total", keyed, add))


STEPS: dict[str, Step] = {
    "iterable of dicts": lambda op, rows: rows,
    "filter, row['km']": _filter_km,
    "filter, a timestamp": _filter_time,
    "map, {'cab': row.cab, …}": _map_few,
    "map, {**row, …}": _map_copy,
    "flat_map, two rows each": _flat_map,
    "key_by, on_row, emit_row": _totals,
}
"""The workloads of `bench rows` that Bytewax has too, by name; its rows have no attributes."""


def is_installed() -> bool:
    """Whether `make peers` has installed Bytewax."""
    return has_package(ENVIRONMENT, "bytewax")


def cpu_ns_per_row(name: str, rows: int) -> float:
    """Measure one workload in a process of its own; return its processor time per row in ns.

    Raises:
        ResourceError: it is not installed, fails, or does not end in time.
    """
    if not is_installed():
        msg = f"the peer bytewax: {NOT_INSTALLED}"
        raise ResourceError(msg)
    program = Command(python_program("bytewax_rows", name, rows), python_path(ENVIRONMENT))
    found = run_program("bytewax", program, _TIMEOUT_S)
    assert found.cpu_s is not None
    return found.cpu_s / found.tuples * 1e9


def run_step(name: str, dicts: list[dict[str, Any]], *, keep: bool) -> list[dict[str, Any]]:
    """Run one workload over dicts; return its results if they are to be kept."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    made: list[dict[str, Any]] = []
    flow = Dataflow("rows")
    rows = STEPS[name](op, op.input("trips", flow, TestingSource(dicts, batch_size=_BATCH)))
    if not keep:
        rows = op.filter("none", rows, lambda row: False)
    op.output("out", rows, TestingSink(made))
    run_main(flow)
    return made


def main(arguments: list[str]) -> None:
    """Measure; the arguments are the workload's name and the number of rows."""
    from ..report import median
    from ..rows import trips

    name, rows = arguments[0], int(arguments[1])
    end_with_parent()
    dicts = trips(rows).to_pylist()
    clock, taken_ns = SystemClock(), []
    begin_ns = clock.monotonic_ns()
    for _ in range(_REPETITIONS):
        before_ns = time.process_time_ns()
        run_step(name, dicts, keep=False)
        taken_ns.append(time.process_time_ns() - before_ns)
    wall_s = (clock.monotonic_ns() - begin_ns) / _REPETITIONS / 1e9
    PeerOutput(rows, wall_s, None, median(taken_ns) / 1e9, "one worker, one thread").print()


if __name__ == "__main__":
    main(sys.argv[1:])
