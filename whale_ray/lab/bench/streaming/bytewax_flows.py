"""Bytewax: keyed state and Yahoo's windows on its operators, in one worker with one thread.

Windows of thousands of keys take it 50 s per million rows: they are left out. The file is read in
batches and turned into dicts, since Bytewax passes Python objects on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ....transport.clock import SystemClock
from .answers import Answer
from .inputs import campaigns_by_ad, stream_path
from .timing import Ran, Runner
from .workloads import workload_named

__all__ = ["ENVIRONMENT", "FLOWS", "run_flow", "runner"]

ENVIRONMENT = "bytewax"

_BATCH = 8192
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


def _spent(op: Any, bids: Any, folder: Path) -> Any:
    del folder

    def add(state: tuple[int, int] | None, bid: Row) -> tuple[tuple[int, int], Row]:
        count, spent = state or (0, 0)
        count, spent = count + 1, spent + bid["price"]
        return (count, spent), {"bidder": bid["bidder"], "bids": count, "spent": spent}

    keyed = op.key_on("key", bids, lambda bid: str(bid["bidder"]))
    return op.key_rm("unkeyed", op.stateful_map("spent", keyed, add))


def _views(op: Any, events: Any, folder: Path) -> Any:
    from bytewax.operators import windowing

    campaigns = campaigns_by_ad(folder)
    views = op.filter("views", events, lambda event: event["event_type"] == "view")
    clock = windowing.EventClock(
        ts_getter=lambda event: event["event_time"],
        wait_for_system_duration=timedelta(0),
        now_getter=lambda: _EPOCH,  # time passes with the rows alone
    )
    windows = windowing.TumblingWindower(length=timedelta(seconds=10), align_to=_EPOCH)
    counts = windowing.count_window(
        "count", views, clock, windows, lambda event: campaigns[event["ad_id"]]
    )
    return op.map("named", counts.down, lambda one: {"campaign_id": one[0], "views": one[1][1]})


FLOWS: dict[str, Callable[[Any, Any, Path], Any]] = {
    "keyed row process, two handles": _spent,
    "Yahoo, views per campaign": _views,
}
"""Workload → its flow, of Bytewax' operators, the stream of rows and the folder."""


def run_flow(workload: str, folder: Path, keep: Callable[[Row], bool]) -> list[Row]:
    """Run a flow to its end; return those of its results that are to be kept."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    made: list[Row] = []
    flow = Dataflow("streaming")
    rows = op.input("rows", flow, TestingSource(_rows(workload, folder), batch_size=_BATCH))
    results = op.filter("kept", FLOWS[workload](op, rows, folder), keep)
    op.output("out", results, TestingSink(made))
    run_main(flow)
    return made


def runner(workload: str, folder: Path) -> Runner:
    """Return what runs a workload's flow once; results are added up and dropped."""
    total = workload_named(workload).total

    def run() -> Ran:
        found = [0, 0]

        def add(row: Row) -> bool:
            found[0] += 1
            found[1] += row[total]
            return False

        clock = SystemClock()
        begin_ns, before_ns = clock.monotonic_ns(), time.process_time_ns()
        run_flow(workload, folder, add)
        cpu_s = (time.process_time_ns() - before_ns) / 1e9
        return Ran((clock.monotonic_ns() - begin_ns) / 1e9, cpu_s, Answer(*found))

    return run


def _rows(workload: str, folder: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ((stream, columns),) = workload_named(workload).reads.items()
    for batch in pq.ParquetFile(stream_path(folder, stream)).iter_batches(
        _BATCH, columns=list(columns)
    ):
        table = pa.table(batch)
        for place, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):  # with a zone, as its clocks want
                zoned = table[field.name].cast(pa.timestamp("us", "UTC"))
                table = table.set_column(place, field.name, zoned)
        yield from table.to_pylist()
