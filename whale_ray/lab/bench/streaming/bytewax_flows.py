"""Bytewax: the stateful map beside keyed processes on rows, in one worker with one thread.

The file is read in batches and turned into dicts, since Bytewax passes Python objects on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .timing import Ran, Runner

__all__ = ["ENVIRONMENT", "FLOWS", "run_flow", "runner"]

ENVIRONMENT = "bytewax"

_BATCH = 8192

Row = dict[str, Any]


def _spent(op: Any, bids: Any) -> Any:
    def add(state: tuple[int, int] | None, bid: Row) -> tuple[tuple[int, int], Row]:
        count, spent = state or (0, 0)
        count, spent = count + 1, spent + bid["price"]
        return (count, spent), {"bidder": bid["bidder"], "bids": count, "spent": spent}

    keyed = op.key_on("key", bids, lambda bid: str(bid["bidder"]))
    return op.key_rm("rows", op.stateful_map("spent", keyed, add))


FLOWS: dict[str, Callable[[Any, Any], Any]] = {"keyed row process, two handles": _spent}
"""Workload → its flow, of Bytewax' operators and the stream of bids."""


def run_flow(workload: str, path: Path, *, keep: bool) -> list[Row]:
    """Run a flow to its end; return its results if they are to be kept."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    made: list[Row] = []
    flow = Dataflow("streaming")
    rows = op.input("bids", flow, TestingSource(_rows(path), batch_size=_BATCH))
    results = FLOWS[workload](op, rows)
    if not keep:
        results = op.filter("none", results, lambda row: False)
    op.output("out", results, TestingSink(made))
    run_main(flow)
    return made


def runner(workload: str, path: Path) -> Runner:
    """Return what runs a workload's flow once."""

    def run() -> Ran:
        before_ns = time.process_time_ns()
        run_flow(workload, path, keep=False)
        return Ran(cpu_s=(time.process_time_ns() - before_ns) / 1e9)

    return run


def _rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(_BATCH, columns=["bidder", "price"]):
        yield from batch.to_pylist()
