"""How long a fresh process takes to the first result of `whale.run`, by what is compiled already.

The process loads whale-ray, builds a topology over a file (filter, projection, a count and a sum
per key and window), and runs it. The clock starts before the process does. It is measured with a
copy of whale-ray: where nothing is compiled; then with the folder that this run has left. Then with
an empty folder: beside what a wheel carries, and what `whale-ray compile` has made.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ....configs.errors import ResourceError
from ....transport.clock import SystemClock
from ....transport.common_processor import has_common_processor
from ..report import Aim, BenchRow, median

__all__ = ["first_result_rows"]

ROWS = 1_000_000
REPETITIONS = 5
QUICK_REPETITIONS = 2
NOTHING = "nothing is compiled"
WHEEL = "an empty folder of compiled functions, beside those that a wheel carries"
INSTALLED = "an empty folder of compiled functions, after `whale-ray compile`"
FILLED = "a filled folder of compiled functions"
MOST_S = {NOTHING: 3.0, WHEEL: 3.0, INSTALLED: 3.0, FILLED: 1.0}
"""What was compiled before → how many seconds the first result may take."""

_PROGRAM = """
import sys, time
import whale_ray as whale
from whale_ray import col, functions

shown = []

def show(row):
    if not shown:
        shown.append(row)
        print(time.time(), flush=True)

topology = whale.Topology("first-result")
events = topology.source(whale.sources.parquet(sys.argv[1]), id="events", event_time="at")
kept = events.filter((col("kind") == "view") & (col("value") > 0.1))
counts = kept.with_column("twice", col("value") * 2).group_by(
    whale.window("at", "10 seconds"), "key"
).agg(functions.count().alias("rows"), functions.sum("twice").alias("total"))
counts.sink(whale.sinks.each(show), id="out")
whale.run(topology)
"""
_VARIABLE = "NUMBA_CACHE_DIR"


def first_result_rows(quick: bool) -> list[BenchRow]:
    """Measure where nothing is compiled, with a filled folder, and with what is installed."""
    repetitions = range(QUICK_REPETITIONS if quick else REPETITIONS)
    with tempfile.TemporaryDirectory() as folder:
        copy, wheel, file = (Path(folder, name) for name in ("copy", "wheel", "events.parquet"))
        _copy_uncompiled(copy)
        _copy_uncompiled(wheel)
        _write(file)

        def measured(whale_ray: Path, kept: str) -> tuple[float, float]:
            return _first_result_s(whale_ray, file, Path(folder, kept))

        compile_all = ("-m", "whale_ray.cli.main", "compile")
        nothing = [measured(copy, f"nothing{n}") for n in repetitions]
        filled = [measured(copy, "nothing0") for _ in repetitions]
        _run(copy, None, *compile_all)
        installed = [measured(copy, f"empty{n}") for n in repetitions]
        made = [_row(NOTHING, nothing), _row(INSTALLED, installed), _row(FILLED, filled)]
        if has_common_processor():  # elsewhere a wheel carries no compiled functions
            _run(wheel, None, *compile_all, "--common-processor")
            made.append(_row(WHEEL, [measured(wheel, f"beside{n}") for n in repetitions]))
    return made


def _copy_uncompiled(folder: Path) -> None:
    """Copy whale-ray with its byte code, but without compiled functions."""
    package = Path(__file__).parents[3]
    shutil.copytree(
        package, folder / package.name, ignore=shutil.ignore_patterns("*.nb?", "frontend")
    )


def _row(name: str, taken: list[tuple[float, float]]) -> BenchRow:
    return BenchRow(
        f"first result: {name}",
        {"rows": ROWS},
        median([seconds for seconds, _ in taken]),
        "s",
        aim=Aim("value", "at most", MOST_S[name]),
        also={"CPU s of the run": median([cpu_s for _, cpu_s in taken])},
    )


def _write(file: Path) -> None:
    drawn = np.random.default_rng(0)
    columns = {
        "at": pa.array(np.arange(ROWS) * 1000, pa.timestamp("us")),
        "key": drawn.integers(0, 100, ROWS),
        "value": drawn.random(ROWS),
        "kind": np.array(["view", "click", "purchase"])[drawn.integers(0, 3, ROWS)],
    }
    pq.write_table(pa.table(columns), file)


def _first_result_s(copy: Path, file: Path, kept: Path) -> tuple[float, float]:
    """Return seconds from the start of a process to its first row, and of processors until its end.

    Those of a process that compiles beside it are among them.
    """
    begin_ns, before_s = SystemClock().wall_ns(), _children_cpu_s()
    at_s = float(_run(copy, kept, "-c", _PROGRAM, str(file)).split()[0])
    return at_s - begin_ns / 1e9, _children_cpu_s() - before_s


def _children_cpu_s() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(copy: Path, kept: Path | None, *arguments: str) -> str:
    """Run Python with a copy of whale-ray; return what it prints."""
    unwanted = {_VARIABLE, "PYTHONDONTWRITEBYTECODE"}  # that would compile all byte code each time
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(copy), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if kept is not None:
        environment[_VARIABLE] = str(kept)
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,  # Python looks there first
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        msg = f"the process that is measured failed: {ran.stderr.strip()[-500:]}"
        raise ResourceError(msg)
    return ran.stdout
