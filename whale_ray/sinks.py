"""Sinks for rows: pass one of these to `sink` at the end of a stream.

They write files (`parquet`, `csv`, `json_lines`: a folder), tables (`delta`, `postgres`), topics
of Kafka (`kafka`), to the caller's memory (`collect`), Ray Datasets (`ray_dataset`), Spark
DataFrames (`spark`), to standard output (`print`), or call a function of your own (`each`). Derive
a sink of your own from `Sink`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .configs.errors import UsageError
from .operators import sinks as _sinks
from .operators.arguments import accepts
from .operators.sinks import (
    CommitId,
    EachBatch,
    EachRow,
    Sink,
    SinkResult,
    SinkWriter,
    Staged,
    collect,
    csv,
    json_lines,
    parquet,
    print,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .api.topology.functions import ColumnFunction
    from .operators.rows import Row
    from .operators.sinks import delta, kafka, postgres
    from .ray_bridge import ray_dataset_sink as ray_dataset
    from .spark import spark_sink as spark

__all__ = [
    "CommitId",
    "Sink",
    "SinkResult",
    "SinkWriter",
    "Staged",
    "collect",
    "csv",
    "delta",
    "each",
    "json_lines",
    "kafka",
    "parquet",
    "postgres",
    "print",
    "ray_dataset",
    "spark",
]


def each(function: Callable[[Row], object] | ColumnFunction[object]) -> Sink:
    """Call a function with every row, or with every batch if it is marked with `whale.columns`.

    The function is called in the workers, as rows arrive: **at least once** for every row, and
    again for rows of an attempt that failed, or after the last checkpoint. So its effect must be
    idempotent, such as to set a value by a key. Its return value is ignored. An error that it
    raises fails the job, with a message that has the operator and the row. A batch is read-only and
    valid only during the call. If a connection must be opened and closed, write a sink of your own
    instead.

    Raises:
        UsageError: `function` is not a function of one argument.
    """
    from .api.topology.checks import describe_value, name_of
    from .api.topology.functions import ColumnFunction

    if isinstance(function, ColumnFunction):
        return EachBatch(function)
    if not callable(function) or isinstance(function, type):
        msg = f"each takes a function of a row, not {describe_value(function)}"
        raise UsageError(msg)
    if not accepts(function, 1):
        msg = f"each calls {name_of(function)}(row): it must take one argument"
        raise UsageError(msg)
    return EachRow(function)


def __getattr__(name: str) -> Any:
    """Import sinks of other systems when they are first used (PEP 562)."""
    if name == "ray_dataset":
        from .ray_bridge import ray_dataset_sink

        return ray_dataset_sink
    if name == "spark":
        from .spark import spark_sink

        return spark_sink
    if name in ("delta", "kafka", "postgres"):
        return getattr(_sinks, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
