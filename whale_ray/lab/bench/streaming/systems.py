"""The systems of the suite: which are here, which workloads each has, and how it runs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ..peers.base import NOT_INSTALLED, has_package, python_path
from . import (
    batch_engines,
    bytewax_flows,
    flink_queries,
    jobs,
    pathway_tables,
    spark_queries,
)
from .mapped_files import Files
from .timing import Runner
from .ways import WAYS, Way
from .workloads import CODED, MAPPED, WORKLOADS, workload_named

__all__ = ["SYSTEMS", "System", "system_named"]

_ALL = tuple(workload.name for workload in WORKLOADS)


def _installed() -> str | None:
    return None


def _lacks(package: str, environment: str, remedy: str) -> Callable[[], str | None]:
    return lambda: None if has_package(environment, package) else remedy


@dataclass(frozen=True)
class System:
    """A system to measure.

    Attributes:
        name: with the number of its workers or threads.
        runner: returns what runs a workload over a folder of streams once; called in the system's
            own process.
        workloads: the names of those that it has.
        missing: returns what to do to install it, None if it is here.
        environment: variables of its process.
        warms_up: whether a second run is faster; else one is measured, as the cold and the warm.
        files: those that it reads.
    """

    name: str
    runner: Callable[[str, Path], Runner]
    workloads: tuple[str, ...] = _ALL
    missing: Callable[[], str | None] = _installed
    environment: Callable[[], Mapping[str, str]] = field(default=dict)
    warms_up: bool = True
    files: Files = "parquet"


def _whale_ray(way: Way) -> System:
    def runner(workload: str, folder: Path) -> Runner:
        return lambda: jobs.run_in(way, workload_named(workload), folder)

    return System(way.name, runner, way.workloads, files=way.files)


SYSTEMS = (
    *map(_whale_ray, WAYS),
    System(
        "Flink DataStream, 2 workers",
        partial(flink_queries.stream_runner, workers=2),
        tuple(name for name, program in flink_queries.PROGRAMS.items() if program.name),
        flink_queries.missing,
    ),
    System(
        "Flink DataStream, 2 workers, mapped columns",
        partial(flink_queries.stream_runner, workers=2, files="mapped"),
        tuple(name for name in MAPPED if flink_queries.PROGRAMS[name].name),
        flink_queries.missing,
        files="mapped",
    ),
    System(
        "Flink DataStream, 2 workers, mapped columns, texts as codes",
        partial(flink_queries.stream_runner, workers=2, files="coded"),
        CODED,
        flink_queries.missing,
        files="coded",
    ),
    System(
        "Flink SQL, 2 workers",
        partial(flink_queries.sql_runner, workers=2),
        tuple(name for name, program in flink_queries.PROGRAMS.items() if program.sql),
        flink_queries.missing,
    ),
    System(
        "Structured Streaming, all cores",
        spark_queries.streaming_runner,
        tuple(spark_queries.QUERIES),
        spark_queries.missing,
    ),
    System(
        "Pathway, 2 threads",
        pathway_tables.runner,
        tuple(pathway_tables.TABLES),
        _lacks("pathway", pathway_tables.ENVIRONMENT, NOT_INSTALLED),
        lambda: {**python_path(pathway_tables.ENVIRONMENT), "PATHWAY_THREADS": "2"},
        warms_up=False,
    ),
    System(
        "Bytewax, 1 worker",
        bytewax_flows.runner,
        tuple(bytewax_flows.FLOWS),
        _lacks("bytewax", bytewax_flows.ENVIRONMENT, NOT_INSTALLED),
        partial(python_path, bytewax_flows.ENVIRONMENT),
        warms_up=False,
    ),
    System(
        "Spark batch, all cores",
        spark_queries.batch_runner,
        tuple(spark_queries.BATCH_QUERIES),
        spark_queries.missing,
    ),
    System(
        "DuckDB batch, 1 thread",
        partial(batch_engines.duckdb_runner, threads=1),
        missing=_lacks("duckdb", "duckdb", "not installed (pip install duckdb)"),
    ),
    System(
        "DuckDB batch, 2 threads",
        partial(batch_engines.duckdb_runner, threads=2),
        missing=_lacks("duckdb", "duckdb", "not installed (pip install duckdb)"),
    ),
    System(
        "Polars batch, 2 threads",
        batch_engines.polars_runner,
        tuple(batch_engines.POLARS),
        _lacks("polars", batch_engines.POLARS_ENVIRONMENT, NOT_INSTALLED),
        lambda: {**python_path(batch_engines.POLARS_ENVIRONMENT), "POLARS_MAX_THREADS": "2"},
    ),
)
"""In the order of the report."""


def system_named(name: str) -> System:
    """Return a system; raises KeyError for an unknown name."""
    return {one.name: one for one in SYSTEMS}[name]
