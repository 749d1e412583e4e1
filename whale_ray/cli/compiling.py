"""`whale-ray compile`: compiles what most jobs use, so that the first one need not.

It runs small jobs: numba compiles a function for the types that it is called with, and a job calls
all that such jobs do. Where whale-ray is installed for others, who cannot write there, they load
what is kept beside the sources; see `transport/kept_functions.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.errors import ResourceError, UsageError
from ..transport.common_processor import (
    COMPILING_FOR_IT,
    OWN_PROCESSOR_VARIABLE,
    why_not_common,
)
from ..transport.compiled_folder import why_full

if TYPE_CHECKING:
    import argparse

    from ..api.job import Job
    from ..api.topology import Stream, Topology

_REMEDY = "make room there, or set NUMBA_CACHE_DIR to a folder with room"
ROWS = 40
WORKERS = 2


def add_compile(commands: Any) -> None:
    """Add `compile`."""
    command = commands.add_parser(
        "compile",
        help="compile what most jobs use, before the first job has to",
        epilog="For an image of a container, or after installing. It takes a minute at most, once.",
    )
    command.add_argument(
        "--common-processor",
        action="store_true",
        help="compile for all processors of level 3 of x86-64, as in an image that several kinds of"
        " machines use; without it for the processor at hand alone",
    )
    command.set_defaults(function=_compile)


def _compile(parsed: argparse.Namespace) -> int:
    if parsed.common_processor:
        _check_common_processor()
        os.environ.update(COMPILING_FOR_IT)  # numba reads them when it is loaded, below
    from ..transport import compiling

    place = compiling.kept_in()
    if place is None:
        msg = (
            "compiled functions cannot be kept: set NUMBA_CACHE_DIR to a folder that only you can"
            " write"
        )
        raise ResourceError(msg)
    _check_room(place)
    compiling.notice.silent = True  # it is what this command is for
    os.environ[OWN_PROCESSOR_VARIABLE] = "1"  # what is kept for another one does not count
    try:
        run_ordinary_jobs()
    finally:
        del os.environ[OWN_PROCESSOR_VARIABLE]
    _check_room(place)
    if not any(Path(place).glob("*.nbc")):  # numba's files of compiled code
        if _is_kept_elsewhere():
            sys.stdout.write("what most jobs use was compiled before, beside whale-ray's sources\n")
            return 0
        msg = f"nothing was kept in {place}: {_REMEDY}, and compile again"
        raise ResourceError(msg)
    sys.stdout.write(f"what most jobs use is compiled, and kept in folders such as {place}\n")
    return 0


def _is_kept_elsewhere() -> bool:
    """Return whether what all jobs call is kept, be it where whoever installed whale-ray put it."""
    from ..transport.kept_functions import versions_are_kept
    from ..transport.wire import kernels

    return versions_are_kept(kernels.concat_rows)


def _check_common_processor() -> None:
    """Raise UsageError if this machine cannot do what the common processor can."""
    reason = why_not_common()
    if reason:
        msg = (
            f"--common-processor is for processors of level 3 of x86-64, and {reason}: compile"
            " without it"
        )
        raise UsageError(msg)


def _check_room(place: str) -> None:
    """Raise ResourceError if the folder of compiled functions has no room for more."""
    reason = why_full(place)
    if reason:
        msg = f"compiled functions cannot be kept in {place}: {reason}; {_REMEDY}"
        raise ResourceError(msg)


def run_ordinary_jobs() -> None:
    """Run jobs in this process, and in processes that share memory, on rows of common types.

    Two at a time compile different functions. Then they change places: what is left for either
    place is little.

    Raises:
        KeyboardInterrupt: a job was drained by Ctrl-C, and has not compiled all.
    """
    import whale_ray as whale

    with tempfile.TemporaryDirectory() as folder:
        for number, (here, beside) in enumerate(((_windows, _others), (_others, _windows))):
            there = Path(folder, str(number))
            job = whale.submit(beside(there / "beside"), on="processes", workers=WORKERS)
            try:
                _insist_finished(whale.run(here(there / "here")))
                _insist_finished(job.wait())
            finally:
                job.stop(drain=False)


def _insist_finished(job: Job) -> None:
    if job.state != "finished":
        raise KeyboardInterrupt


def _windows(folder: Path) -> Topology:
    """Return a topology with windows of all kinds, on a file that it writes."""
    import whale_ray as whale
    from whale_ray import functions as F  # noqa: N812  # as the documents write it

    topology, kept = _kept_events("windows", folder)
    more = kept.with_column("twice", whale.col("value") * 2)
    for name, window in (
        ("tumbling", whale.window("at", "10 seconds")),
        ("sliding", whale.window("at", "10 seconds", "5 seconds")),
        ("sessions", whale.session_window("at", "2 seconds")),
    ):
        for key in ("key", "kind"):
            counts = more.group_by(window, key).agg(
                F.count().alias("rows"),
                F.sum("twice").alias("total"),
                F.sum("size").alias("sizes"),
                F.avg("value").alias("mean"),
                F.min("size").alias("least"),
                F.max("value").alias("most"),
                id=f"{name}_{key}",
            )
            counts.sink(whale.sinks.collect(), id=f"{name}_{key}_out")
    return topology


def _others(folder: Path) -> Topology:
    """Return a topology with joins, processes and what else many have, on a file that it writes."""
    import whale_ray as whale

    topology, kept = _kept_events("others", folder)
    steps = kept.key_by("kind").process(_running_total(), id="steps", parallelism=2)
    steps.sink(whale.sinks.parquet(folder / "steps"), id="steps_out")
    sent = kept.broadcast().process(_passing_on(), id="sent", parallelism=3)
    sent.sink(whale.sinks.each(_ignore), id="sent_out")
    left, right = kept.select("key", "value"), kept.select("key", "size")
    table = whale.sources.iterable([{"kind": "view", "name": "a"}, {"kind": "click", "name": "b"}])
    highest = kept.group_by(whale.window("at", "10 seconds"), "kind").top_n(2, by="value")
    for name, made in {
        "joined": left.join(right, on="key", within=whale.interval("-2 s", "2 s")),
        "next": left.join_asof(right, by="key"),
        "named": kept.join_table(table, on="kind"),
        "distinct": kept.drop_duplicates("key", within="2 seconds"),
        "highest": highest,
    }.items():
        made.sink(whale.sinks.collect(), id=f"{name}_out")
    return topology


def _kept_events(name: str, folder: Path) -> tuple[Topology, Stream]:
    """Return a topology, and in it some rows of a file in a new folder."""
    import whale_ray as whale

    _write(folder / "events.parquet")
    topology = whale.Topology(name)
    events = topology.source(
        whale.sources.parquet(folder / "events.parquet"), id="events", event_time="at"
    )
    return topology, events.filter((whale.col("kind") != "none") & (whale.col("value") > 0.1))


def _write(file: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = range(ROWS)
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    columns = {
        "at": pa.array([begin + timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC")),
        "key": pa.array([n % 5 for n in numbers], pa.int64()),
        "size": pa.array([n if n % 7 else None for n in numbers], pa.int64()),
        "value": pa.array([n / ROWS for n in numbers], pa.float64()),
        "kind": pa.array(["view" if n % 3 else "click" for n in numbers]),
        "flag": pa.array([n % 2 == 0 for n in numbers]),
    }
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), file)


def _running_total() -> Any:
    import whale_ray as whale

    class TotalSoFar(whale.KeyedProcess):
        total = whale.state.sum("double")
        newest = whale.state.map("int64", "double")
        quiet = whale.state.timer()

        def on_row(self, row: Any, out: Any) -> None:
            self.total.add(row.value)
            self.newest[row.key] = row.value
            self.quiet.set(row.at + timedelta(seconds=9))
            out.emit_row(kind=self.key.kind, total=self.total.get())

        def on_timer(self, _timer: object, out: Any) -> None:
            out.emit_row(kind=self.key.kind, total=self.total.get())
            self.clear()

    return TotalSoFar


def _passing_on() -> Any:
    import whale_ray as whale

    class PassingOn(whale.Process):
        def on_row(self, row: Any, out: Any) -> None:
            out.emit_rows([{"key": row.key, "value": row.value}])

    return PassingOn


def _ignore(_row: object) -> None:
    pass
