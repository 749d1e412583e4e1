"""A workload as a job of whale-ray, inside this process or on processes of this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from unittest import mock

import numpy as np

from ....state.budget import StateBudget
from .bids import MAX_OUT_OF_ORDER_MS
from .timing import Ran
from .workloads import Workload

if TYPE_CHECKING:
    from ....api.topology import Topology

__all__ = ["PeakBudget", "build", "run_inline", "run_on_processes", "state_peak_bytes"]


class PeakBudget(StateBudget):
    """A budget that knows the most that was taken of it."""

    peak_bytes = 0

    def take(self, operator: str, nbytes: int, keys: int) -> None:
        """See `StateBudget.take`."""
        super().take(operator, nbytes, keys)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)


def build(
    workload: Workload,
    path: Path,
    *,
    max_out_of_order_ms: int = MAX_OUT_OF_ORDER_MS,
    on_late: Literal["fail", "drop", "pass"] = "fail",
    parallelism: int = 1,
    keep: bool = False,
) -> Topology:
    """Return the topology; with `keep` the sink `out` gets the results even of each row.

    Args:
        workload: what to run.
        path: the bids.
        max_out_of_order_ms: of the source.
        on_late: of the source.
        parallelism: how many instances share the file.
        keep: whether results that `Workload.drops` are kept.
    """
    from .... import Topology, columns, sinks, sources

    topology = Topology("streaming")
    bids = topology.source(
        sources.parquet(path, columns=_columns(workload)),
        id="bids",
        event_time="date_time" if workload.timed else None,
        max_out_of_order_ms=max_out_of_order_ms if workload.timed else 0,
        on_late=on_late,
        parallelism=parallelism,
    )
    made = workload.build(bids)
    if workload.drops and not keep:
        made = made.filter(columns(lambda batch: np.zeros(len(batch), np.bool_)), id="none")
    made.sink(sinks.collect(), id="out")
    return topology


def run_inline(topology: Topology) -> Ran:
    """Run a topology in this process; its processor time includes building and starting it."""
    from ....api.submission import run

    before_ns = time.process_time_ns()
    outcome = run(topology).outcome()
    return Ran(outcome.seconds, (time.process_time_ns() - before_ns) / 1e9)


def run_on_processes(topology: Topology, workers: int) -> Ran:
    """Run a topology on processes that are started for it; their processor time includes that."""
    from ....api.submission import submit

    outcome = submit(topology, on="processes", workers=workers).outcome()
    return Ran(outcome.seconds, outcome.metrics.cpu_s)


def state_peak_bytes(topology: Topology) -> int:
    """Run a topology in this process; return the most memory that its state took."""
    from ....api.submission import run
    from ....tasks import task_builder

    budget = PeakBudget()
    with mock.patch.object(task_builder, "StateBudget", return_value=budget):
        run(topology)
    return budget.peak_bytes


def _columns(workload: Workload) -> list[str]:
    return [workload.key, *(["date_time"] if workload.timed else []), *workload.columns]
