"""A process took its rows in the order of time, and after a restore takes them as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable, PlannedFailureError
from whale_ray.testing import VirtualClock

ROWS = pa.table({"n": list(range(100)), "at": pa.array(range(100), pa.timestamp("s"))})


class Seen(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(n=row.n)


class Both(whale.CoProcess):
    def on_left_row(self, row: Any, out: Any) -> None:
        out.emit_row(n=row.n)

    def on_right_row(self, row: Any, out: Any) -> None:
        out.emit_row(n=-row.n)


def one_input(source: whale.sources.Source, *, in_order: bool) -> whale.Topology:
    topology = whale.Topology("waiting")
    rows = topology.source(source, id="rows", event_time="at", max_out_of_order_ms=30_000)
    seen = rows.key_by("n").process(Seen, id="seen", parallelism=2, event_time_order=in_order)
    seen.sink(whale.sinks.collect(), id="out")
    return topology


def two_inputs(source: whale.sources.Source, *, in_order: bool) -> whale.Topology:
    topology = whale.Topology("waiting")
    rows = topology.source(source, id="rows", event_time="at", max_out_of_order_ms=30_000)
    odd, even = (rows.filter(whale.col("n") % 2 == rest, id=f"rest-{rest}") for rest in (1, 0))
    both = odd.key_by("n").connect(even.key_by("n"))
    both.process(Both, id="both", event_time_order=in_order).sink(whale.sinks.collect(), id="out")
    return topology


@pytest.mark.parametrize("build", [one_input, two_inputs])
def test_rows_that_waited_for_their_turn_are_not_lost(tmp_path: Path, build: Any) -> None:
    clock = VirtualClock(0)
    kept: dict[str, Any] = {"checkpoints": tmp_path / "kept", "checkpoint_interval": "500 ms"}
    with pytest.raises(PlannedFailureError):
        whale.run(build(PacedTable(ROWS, fails_after=3), in_order=True), clock=clock, **kept)
    job = whale.run(build(PacedTable(ROWS), in_order=False), clock=clock, restore="latest", **kept)
    found = job.results("out").to_arrow()["n"].to_pylist()
    assert sorted(map(abs, found)) == list(range(100))
