"""What rows out of order and late rows cost: the same tumbling window over the same bids.

They are read by event time; with a tenth of them up to 3 s behind, which the watermark waits for;
and the same with a bound of 1 s only, so that the rows further behind are late: they are dropped,
or flow on to the windows, which drop those whose windows have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ....api.topology import Topology
from ..report import Aim, BenchRow, median
from .inputs import InputFiles
from .jobs import build
from .workloads import workload_named

__all__ = ["disorder_rows"]

WORKLOAD = "tumbling window, count per auction"
DISORDER_MAX = 1.5
_BOUND_MS = 1_000


def disorder_rows(inputs: InputFiles, repetitions: int) -> list[BenchRow]:
    """Measure processor time of jobs in this process, in turns after a first round."""
    workload, rows = workload_named(WORKLOAD), inputs.rows["bids"]
    ways: dict[str, Callable[[], Topology]] = {
        "in order": partial(build, workload, inputs.in_order),
        "out of order within the bound": partial(build, workload, inputs.folder),
        "out of order, the late ones dropped": partial(
            build, workload, inputs.folder, max_out_of_order_ms=_BOUND_MS, on_late="drop"
        ),
        "out of order, the late ones passed on": partial(
            build, workload, inputs.folder, max_out_of_order_ms=_BOUND_MS, on_late="pass"
        ),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repetitions + 1):
        for way, made in ways.items():
            cpu_s, _ = _run(made())
            if turn:
                taken[way].append(cpu_s)
    in_order_s = median(taken["in order"])
    return [
        BenchRow(
            WORKLOAD,
            {"rows": rows, "arrival": way},
            median(cpu_s) / rows * 1e6,
            "CPU s/M rows",
            ratio=None if way == "in order" else median(cpu_s) / in_order_s,
            against="" if way == "in order" else "rows in order",
            aim=None if way == "in order" else Aim("ratio", "at most", DISORDER_MAX),
            also={"late rows": _run(ways[way]())[1]},
        )
        for way, cpu_s in taken.items()
    ]


def _run(topology: Topology) -> tuple[float, int]:
    """Return the processor time of a job in this process, in s, and its number of late rows."""
    from ....api.submission import run

    before_ns = time.process_time_ns()
    outcome = run(topology).outcome()
    cpu_s = (time.process_time_ns() - before_ns) / 1e9
    return cpu_s, outcome.metrics.operator("bids").rows_late
