"""The inputs of the streaming suite's tests, and the rows that DuckDB makes of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from whale_ray.lab.bench.streaming import batch_engines
from whale_ray.lab.bench.streaming.inputs import InputFiles, write_applications, write_inputs
from whale_ray.lab.bench.streaming.mapped_files import map_for_flink, map_streams
from whale_ray.lab.bench.streaming.workloads import CODED, MAPPED, workload_named

MEANS = {"lav_mph", "mean_distance"}
"""Means of fractions: the order in which they are added up shows in the last digit."""

EVENTS = 200_000
"""20 s of event time: two tumbling windows."""


def make_inputs(folder: Path) -> InputFiles:
    """Write two tumbling windows."""
    return write_inputs(folder, EVENTS)


def make_few(folder: Path) -> InputFiles:
    """Write two tumbling windows, the second of them short, also in files to map into memory.

    The streams of the applications are there, too.
    """
    made = write_inputs(folder, 105_000)
    write_applications(folder, 60_000)  # seven minutes of traffic: tolls and accidents
    for files, names in (("mapped", MAPPED), ("coded", CODED)):
        found = [workload_named(name) for name in names]
        map_streams(made.folder, found, files)
        map_for_flink(made.folder, found, files)
    return made


def expected(workload: str, folder: Path) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        found = batch_engines.query_duckdb(connection, workload, folder)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]], names: set[str]) -> None:
    """Compare columns of rows in any order."""
    exact = sorted(names - MEANS)

    def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: [(row[name] is None, row[name]) for name in exact])

    ours, theirs = in_order(found), in_order(wanted)
    assert [[row[name] for name in exact] for row in ours] == [
        [row[name] for name in exact] for row in theirs
    ]
    for name in names & MEANS:
        our_means, means = (
            [math.nan if row[name] is None else row[name] for row in rows]
            for rows in (ours, theirs)
        )
        assert our_means == pytest.approx(means, rel=1e-12, nan_ok=True)
