"""The inputs of the streaming suite's tests, and the rows that DuckDB makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whale_ray.lab.bench.streaming import batch_engines
from whale_ray.lab.bench.streaming.inputs import InputFiles, write_inputs
from whale_ray.lab.bench.streaming.mapped_files import map_for_flink, map_streams
from whale_ray.lab.bench.streaming.workloads import MAPPED, workload_named

EVENTS = 200_000
"""20 s of event time: two tumbling windows."""


def make_inputs(folder: Path) -> InputFiles:
    """Write two tumbling windows."""
    return write_inputs(folder, EVENTS)


def make_few(folder: Path) -> InputFiles:
    """Write two tumbling windows, the second of them short, also in files to map into memory."""
    made = write_inputs(folder, 105_000)
    mapped = [workload_named(name) for name in MAPPED]
    map_streams(made.folder, mapped)
    map_for_flink(made.folder, mapped)
    return made


def expected(workload: str, folder: Path) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        found = batch_engines.query_duckdb(connection, workload, folder)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def in_order(rows: list[dict[str, Any]], names: set[str]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in sorted(names)) for row in rows)
