"""Sources of rows: pass one of these to `Topology.source`.

They read files (`parquet`, `ipc`, `csv`, `json_lines`: a file, a folder or a glob), files that
appear in a folder (`growing_folder`), tables in memory (`arrow`, `pandas`), what Python functions
yield (`iterable`: rows, `batches`: columns), generated rows at a rate (`poisson`), Kafka's topics
(`kafka`), Ray Datasets (`ray_dataset`), Spark DataFrames (`spark`) and the micro-batches of its
streams (`micro_batches`). Derive a source of your own from `Source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .operators.sources import (
    Source,
    SourceReader,
    arrow,
    batches,
    csv,
    growing_folder,
    ipc,
    iterable,
    json_lines,
    pandas,
    parquet,
    poisson,
)

if TYPE_CHECKING:
    from .operators.sources import kafka
    from .ray_bridge import ray_dataset_source as ray_dataset
    from .spark import micro_batches
    from .spark import spark_source as spark

__all__ = [
    "Source",
    "SourceReader",
    "arrow",
    "batches",
    "csv",
    "growing_folder",
    "ipc",
    "iterable",
    "json_lines",
    "kafka",
    "micro_batches",
    "pandas",
    "parquet",
    "poisson",
    "ray_dataset",
    "spark",
]


def __getattr__(name: str) -> Any:
    """Import sources of other systems when they are first used (PEP 562)."""
    if name == "kafka":
        from .operators.sources import kafka

        return kafka
    if name == "ray_dataset":
        from .ray_bridge import ray_dataset_source

        return ray_dataset_source
    if name == "micro_batches":
        from .spark import micro_batches

        return micro_batches
    if name == "spark":
        from .spark import spark_source

        return spark_source
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
