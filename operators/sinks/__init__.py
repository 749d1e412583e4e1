"""Sinks for results.

Each function returns a small description that is sent to the workers; nothing is created and no
heavy library is imported before rows arrive.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import CommitId, Sink, SinkResult, SinkWriter, Staged
from .collect import collect
from .each import EachBatch, EachRow, print
from .files import csv, json_lines, parquet

if TYPE_CHECKING:
    from .delta_sink import delta
    from .kafka_sink import kafka
    from .postgres_sink import postgres

__all__ = [
    "CommitId",
    "EachBatch",
    "EachRow",
    "Sink",
    "SinkResult",
    "SinkWriter",
    "Staged",
    "collect",
    "csv",
    "delta",
    "json_lines",
    "kafka",
    "parquet",
    "postgres",
    "print",
]

_OF_TABLES_AND_TOPICS = ("delta", "kafka", "postgres")


def __getattr__(name: str) -> Any:
    """Import these sinks when they are first used (PEP 562): they take as long as all others."""
    if name in _OF_TABLES_AND_TOPICS:
        return getattr(import_module(f".{name}_sink", __name__), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
