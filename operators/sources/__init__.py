"""Sources of rows.

Each function returns a small description that is sent to the workers; no file is opened and no
heavy library is imported before a worker opens its share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import BadRows, Source, SourceReader
from .batch_source import batches
from .csv_files import csv
from .growing_folders import growing_folder
from .ipc_files import ipc
from .json_lines_files import json_lines
from .parquet_files import parquet
from .poisson_rate import poisson
from .rows import iterable
from .tables import arrow, pandas

if TYPE_CHECKING:
    from .kafka_topics import kafka

__all__ = [
    "BadRows",
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
    "pandas",
    "parquet",
    "poisson",
]


def __getattr__(name: str) -> Any:
    """Import the source of Kafka's topics, and what it needs, when it is first used (PEP 562)."""
    if name == "kafka":
        from .kafka_topics import kafka

        return kafka
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
