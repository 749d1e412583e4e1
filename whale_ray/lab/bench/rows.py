"""`whale-ray bench rows`: functions on rows, against plain Python over the same dicts.

Each workload runs as a job inside this process. The same function then runs in a loop over the rows
as dicts in memory, without columns, batches or operators: the difference is the price of rows,
columns and the way to the sink. Processor time counts, since it varies less than wall time on a
shared machine. The report also has the time to convert the columns into those dicts, with which a
plain loop over columns would begin, and Bytewax, if it is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...operators.process import CoProcess, Output, Process
from .peers import NOT_INSTALLED, bytewax_rows
from .report import BenchReport, BenchRow, describe_machine, median

if TYPE_CHECKING:
    import pyarrow as pa

    from ...api.topology.builder import Topology

ROWS = 200_000
QUICK_ROWS = 20_000
REPETITIONS = 5
_CABS = 500

Dicts = list[dict[str, Any]]


class Total(Process):
    """Emits for every row the total of its cab so far."""

    def open(self, context: object) -> None:
        """Begin with 0."""
        self.km: dict[str, float] = {}

    def on_row(self, row: Any, out: Output) -> None:
        """Add one trip."""
        self.km[row.cab] = total = self.km.get(row.cab, 0.0) + row.km
        out.emit_row(cab=row.cab, total_km=total)


class Latest(CoProcess):
    """Emits for every right row the latest left one of its cab."""

    def open(self, context: object) -> None:
        """Begin with no cab."""
        self.km: dict[str, float] = {}

    def on_left_row(self, row: Any, out: Output) -> None:
        """Keep the row's distance."""
        self.km[row.cab] = row.km

    def on_right_row(self, row: Any, out: Output) -> None:
        """Answer one row."""
        out.emit_row(n=row.n, km=self.km[row.cab])


@dataclass(frozen=True)
class RowWorkload:
    """One workload on rows: as a job and as a plain loop."""

    name: str
    job: Callable[[Topology, pa.Table, Dicts], Any]
    loop: Callable[[Dicts], Iterable[dict[str, Any]]]


def _trips(topology: Topology, table: pa.Table) -> Any:
    from ... import sources

    return topology.source(sources.arrow(table), id="trips")


def _timed_pair(topology: Topology, table: pa.Table) -> Any:
    from ... import sources

    trips = topology.source(sources.arrow(table), id="trips", event_time="at")
    return trips.key_by("cab").connect(trips.key_by("cab")).process(Latest, id="latest")


def _listed(topology: Topology, dicts: Dicts) -> Any:
    from ... import sources

    return topology.source(sources.iterable(dicts), id="trips")


def _in_batches(topology: Topology, table: pa.Table) -> Any:
    from ... import sources

    return topology.source(sources.batches(lambda: [table]), id="trips")


def _doubled(row: Any) -> dict[str, Any]:
    return {"cab": row.cab, "km": 2 * row.km}


def _copied(row: Any) -> dict[str, Any]:
    return {**row, "km": 2 * row["km"]}


def _twice(row: Any) -> list[dict[str, Any]]:
    return [{"cab": row.cab, "k": 0}, {"cab": row.cab, "k": 1}]


def _totals(dicts: Dicts) -> Iterable[dict[str, Any]]:
    kept: dict[str, float] = {}
    for row in dicts:
        kept[row["cab"]] = total = kept.get(row["cab"], 0.0) + row["km"]
        yield {"cab": row["cab"], "total_km": total}


def _latest(dicts: Dicts) -> Iterable[dict[str, Any]]:
    kept = {}
    for row in dicts:
        kept[row["cab"]] = row["km"]
        yield {"n": row["n"], "km": kept[row["cab"]]}


WAYS = (
    RowWorkload("iterable of dicts", lambda t, table, dicts: _listed(t, dicts), list),
    RowWorkload("batches, tables", lambda t, table, dicts: _in_batches(t, table), list),
    RowWorkload(
        "filter, row.km",
        lambda t, table, dicts: _trips(t, table).filter(lambda row: row.km > 5),
        lambda dicts: [row for row in dicts if row["km"] > 5],
    ),
    RowWorkload(
        "filter, row['km']",
        lambda t, table, dicts: _trips(t, table).filter(lambda row: row["km"] > 5),
        lambda dicts: [row for row in dicts if row["km"] > 5],
    ),
    RowWorkload(
        "filter, a timestamp",
        lambda t, table, dicts: _trips(t, table).filter(lambda row: row.at.minute < 30),
        lambda dicts: [row for row in dicts if row["at"].minute < 30],
    ),
    RowWorkload(
        "map, {'cab': row.cab, …}",
        lambda t, table, dicts: _trips(t, table).map(_doubled),
        lambda dicts: [{"cab": row["cab"], "km": 2 * row["km"]} for row in dicts],
    ),
    RowWorkload(
        "map, {**row, …}",
        lambda t, table, dicts: _trips(t, table).map(_copied),
        lambda dicts: [_copied(row) for row in dicts],
    ),
    RowWorkload(
        "flat_map, two rows each",
        lambda t, table, dicts: _trips(t, table).flat_map(_twice),
        lambda dicts: [{"cab": row["cab"], "k": k} for row in dicts for k in (0, 1)],
    ),
    RowWorkload(
        "key_by, on_row, emit_row",
        lambda t, table, dicts: _trips(t, table).key_by("cab").process(Total, id="total"),
        _totals,
    ),
    RowWorkload(
        "on_left_row, on_right_row in event-time order",
        lambda t, table, dicts: _timed_pair(t, table),
        _latest,
    ),
)


def run(quick: bool = False) -> BenchReport:
    """Measure every workload; with `quick` on fewer rows."""
    rows = QUICK_ROWS if quick else ROWS
    table = trips(rows)
    dicts = table.to_pylist()
    peer = bytewax_rows.is_installed()
    measured = []
    for way in WAYS:
        job_ns, loop_ns, dicts_ns = _measure(way, table, dicts)
        also = {
            "CPU ns/row": job_ns / rows,
            "loop CPU ns/row": loop_ns / rows,
            "to_pylist CPU ns/row": dicts_ns / rows,
        }
        if peer and way.name in bytewax_rows.STEPS:
            also["Bytewax CPU ns/row"] = peer_ns = bytewax_rows.cpu_ns_per_row(way.name, rows)
            also["x of Bytewax"] = peer_ns * rows / job_ns
        measured.append(
            BenchRow(
                way.name,
                {"rows": rows},
                rows / job_ns * 1e6,
                "k rows per CPU s",
                ratio=loop_ns / job_ns,
                against="a plain Python loop over the same dicts",
                also=also,
            )
        )
    return BenchReport(
        suite="rows",
        command="whale-ray bench rows" + (" --quick" if quick else ""),
        machine=describe_machine(("numpy", "pyarrow")),
        rows=tuple(measured),
        notes=(
            "processor time of a whole job, start included, from memory to a sink that drops rows",
            f"medians of {REPETITIONS} runs, job, loop and pyarrow's to_pylist in turn",
            "Bytewax: one worker, over dicts in memory" if peer else "Bytewax: " + NOT_INSTALLED,
        ),
    )


def trips(rows: int) -> pa.Table:
    """Return trips of cabs: cab, km, n and at, a microsecond instant in UTC, one a second."""
    import pyarrow as pa

    numbers = np.arange(rows)
    return pa.table(
        {
            "cab": [f"cab {number % _CABS}" for number in range(rows)],
            "km": numbers % 97 / 8,
            "n": numbers,
            "at": pa.array(numbers * 1_000_000, pa.timestamp("us", "UTC")),
        }
    )


def build(way: RowWorkload, table: pa.Table, dicts: Dicts, *, keep: bool) -> Topology:
    """Return a workload's topology; its sink `out` gets the rows if they are to be kept."""
    from ... import Topology, columns, sinks

    topology = Topology("rows")
    made = way.job(topology, table, dicts)
    if not keep:
        made = made.filter(columns(lambda batch: np.zeros(len(batch), np.bool_)), id="none")
    made.sink(sinks.collect(), id="out")
    return topology


def _measure(way: RowWorkload, table: pa.Table, dicts: Dicts) -> tuple[float, float, float]:
    """Return the processor time of the job, of the loop and of making the dicts, in ns."""
    from ...api.submission import run as run_here

    jobs, loops, made = [], [], []
    for _ in range(REPETITIONS):
        topology = build(way, table, dicts, keep=False)
        before_ns = time.process_time_ns()
        run_here(topology)
        ran_ns = time.process_time_ns()
        for _row in way.loop(dicts):
            pass
        looped_ns = time.process_time_ns()
        table.to_pylist()
        jobs.append(ran_ns - before_ns)
        loops.append(looped_ns - ran_ns)
        made.append(time.process_time_ns() - looped_ns)
    return median(jobs), median(loops), median(made)
