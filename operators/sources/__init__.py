"""Sources of rows.

Each function returns a small description that is sent to the workers; no file is opened and no
heavy library is imported before a worker opens its share.
"""

from .base import BadRows, Source, SourceReader
from .csv_files import csv
from .growing_folders import growing_folder
from .ipc_files import ipc
from .json_lines_files import json_lines
from .kafka_topics import kafka
from .parquet_files import parquet
from .poisson_rate import poisson
from .rows import iterable
from .tables import arrow, pandas

__all__ = [
    "BadRows",
    "Source",
    "SourceReader",
    "arrow",
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
