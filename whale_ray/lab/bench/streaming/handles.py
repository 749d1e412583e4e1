"""What one call of a declared handle costs in `on_row`.

The same process calls a handle never or eight times for each row; the difference is the calls.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

from ....applications.nexmark.generator import tables
from ....applications.nexmark.settings import NexmarkSettings
from ....operators.keyed.keyed_process import KeyedProcess
from ....state import declarations as state
from ..report import Aim, BenchRow, median

if TYPE_CHECKING:
    from ....operators.process import Output

__all__ = ["CALLS", "handle_rows"]

ROWS = 200_000
QUICK_ROWS = 50_000
REPETITIONS = 5
CALL_US_MAX = 0.5
_TIMES = 8


class FourHandles(KeyedProcess):
    """What all variants keep."""

    count = state.count()
    spent = state.sum("int64")
    last = state.value("int64")
    greatest = state.max("int64")


class Untouched(FourHandles):
    """Takes rows and calls nothing."""

    def on_row(self, row: Any, out: Output) -> None:
        """Do nothing."""


CALLS = {
    "count().add(1)": "self.count.add(1)",
    "sum().add(1)": "self.spent.add(1)",
    "sum().get()": "self.spent.get()",
    "value().set(1)": "self.last.set(1)",
    "value().get()": "self.last.get()",
    "max().add(1)": "self.greatest.add(1)",
}
"""Name → the statement that calls a handle."""


def handle_rows(quick: bool) -> list[BenchRow]:
    """Measure each call."""
    rows = QUICK_ROWS if quick else ROWS
    events = NexmarkSettings(events=rows * 2, delayed_percent=0)
    table = next(tables("bids", events)).slice(0, rows)
    measured = []
    for name, statement in CALLS.items():
        ways = (Untouched, _calling(statement))
        taken_ns: dict[type[KeyedProcess], list[float]] = {way: [] for way in ways}
        for _ in range(REPETITIONS):
            for way in ways:
                taken_ns[way].append(_cpu_ns(way, table))
        without, with_calls = (median(taken_ns[way]) for way in ways)
        measured.append(
            BenchRow(
                f"handle called in on_row: {name}",
                {"rows": rows, "calls per row": _TIMES},
                (with_calls - without) / rows / _TIMES / 1e3,
                "CPU us per call",
                aim=Aim("value", "at most", CALL_US_MAX),
                also={"us per row without calls": without / rows / 1e3},
            )
        )
    return measured


@cache
def _calling(statement: str) -> type[KeyedProcess]:
    """Return a process whose `on_row` has the statement, without a loop around it."""
    source = "def on_row(self, row, out):\n" + f"    {statement}\n" * _TIMES
    found: dict[str, Any] = {}
    exec(compile(source, "<calls>", "exec"), found)  # noqa: S102  # of the table above
    return type("Calling", (FourHandles,), {"on_row": found["on_row"]})


def _cpu_ns(process: type[KeyedProcess], table: Any) -> int:
    from .... import Topology, sinks, sources
    from ....api.submission import run

    topology = Topology("handles")
    keyed = topology.source(sources.arrow(table), id="bids").key_by("bidder")
    keyed.process(process, id="calls").sink(sinks.collect(), id="out")
    before_ns = time.process_time_ns()
    run(topology)
    return time.process_time_ns() - before_ns
