"""Sinks for results.

Each function returns a small description that is sent to the workers; nothing is created and no
heavy library is imported before rows arrive.
"""

from .base import CommitId, Sink, SinkResult, SinkWriter, Staged
from .collect import collect
from .delta_sink import delta
from .each import EachBatch, EachRow, print
from .files import csv, json_lines, parquet
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
