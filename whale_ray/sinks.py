"""Where rows go: pass one of these to `sink` at the end of a stream.

Files (`parquet`, `csv`, `json_lines`: a folder), the caller's memory (`collect`), and what Ray and
Spark hold (`ray_dataset`, `spark`). A sink of your own derives from `Sink`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .operators.sinks import Sink, SinkResult, SinkWriter, Staged, collect, csv, json_lines, parquet

if TYPE_CHECKING:
    from .ray_bridge import ray_dataset_sink as ray_dataset
    from .spark import spark_sink as spark

__all__ = [
    "Sink",
    "SinkResult",
    "SinkWriter",
    "Staged",
    "collect",
    "csv",
    "json_lines",
    "parquet",
    "ray_dataset",
    "spark",
]


def __getattr__(name: str) -> Any:
    """Import what needs Ray or Spark when it is first used (PEP 562)."""
    if name == "ray_dataset":
        from .ray_bridge import ray_dataset_sink

        return ray_dataset_sink
    if name == "spark":
        from .spark import spark_sink

        return spark_sink
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
