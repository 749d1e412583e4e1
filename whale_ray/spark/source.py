"""A Spark DataFrame as a source.

At submission the DataFrame is evaluated once. If its session runs on Ray (RayDP), its partitions
become Arrow tables in Ray's object store, which worker actors on the node read in place. In any
other case (a Spark that is not on Ray, a job on plain processes, `whale.run`) they become Parquet
files in a temporary folder. Both preserve every value exactly, and the order of the rows; but Spark
writes all NaNs to Parquet with the same bits.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ..configs.errors import InputError, ResourceError, UsageError
from ..operators.sources.arrow_reader import kept_columns, wanted_columns
from ..operators.sources.base import Source, SourceReader
from ..ray_bridge.blocks import FileSource, ObjectRefs, ObjectSource
from ..ray_bridge.dataset import quiet_ray_data
from ..ray_bridge.folders import new_folder
from .interrupts import ended_by_interrupt
from .java_errors import reason_of
from .session import RowTransfer, adopt_session, check_same_host
from .types import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..operators.process import InstanceContext
    from ..transport.wire.types import Schema

_PART = re.compile(r"part-(\d+)-.*\.parquet")


def spark_source(frame: DataFrame, columns: Sequence[str] | None = None) -> Source:
    """Read a Spark DataFrame, evaluated once, when the topology is submitted.

    Rows are read in the DataFrame's order (by partition, and within each); with several instances,
    partitions are assigned round-robin. Timestamps keep their instant and have the session's time
    zone.

    Args:
        frame: a DataFrame of a classic session; for a streaming one see `foreach_batch`.
        columns: the columns to read, in this order; by default all.

    Raises:
        InputError: a column is missing, or has an unsupported type.
        UsageError: it is no DataFrame, or a streaming one, or its session cannot be used.
    """
    if not hasattr(frame, "isStreaming"):
        msg = (
            f"sources.spark() got a {type(frame).__name__}: pass a DataFrame of Spark; for one of "
            "pandas there is sources.pandas"
        )
        raise UsageError(msg)
    source = SparkSource(frame if columns is None else _select(frame, columns))
    source.check()
    return source


def _select(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    wanted = wanted_columns(frame.columns, columns, "the Spark DataFrame")
    return frame.select([frame[f"`{name.replace('`', '``')}`"] for name in wanted])


@dataclass(frozen=True, eq=False)
class SparkSource(Source):
    """A DataFrame in the driver, before submission."""

    frame: DataFrame

    def check(self) -> None:
        """Raise for a DataFrame that cannot be read; see `spark_source`."""
        if self.frame.isStreaming:
            msg = (
                "this is a streaming DataFrame, which has no end; start it with "
                "writeStream.foreachBatch(whale_ray.spark.foreach_batch(…))"
            )
            raise UsageError(msg)
        self.schema()

    def schema(self) -> Schema:
        """Return the columns; Spark plans the query for this, but does not run it."""
        zone = self.frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
        return columns_of(self.frame.schema, zone)

    def with_columns_needed(self, columns: frozenset[str]) -> SparkSource:
        """See `Source.with_columns_needed`: Spark does not compute the other columns."""
        return SparkSource(_select(self.frame, kept_columns(self.schema(), columns)))

    def materialize(self, *, cluster: bool) -> Source:
        """Evaluate the DataFrame and return a source of its rows that workers can read.

        Raises:
            UsageError: its session cannot be used; see `adopt_session`.
            ResourceError: Ray has no free processor for the transfer.
        """
        transfer = adopt_session(self.frame.sparkSession)
        with ended_by_interrupt(self.frame.sparkSession):
            if cluster and transfer is RowTransfer.OBJECTS:
                return _as_objects(self.frame, self.schema(), self.describe())
            return _as_files(self.frame, self.schema(), self.describe())

    def resumption(self) -> str:
        """Return that the source of its partitions seeks."""
        return "evaluates the DataFrame again and seeks to the partition"

    def open(self, context: InstanceContext) -> SourceReader:
        """Raise UsageError: only the source that `materialize` returns can be read."""
        _only_in_driver()

    def __reduce__(self) -> NoReturn:
        _only_in_driver()

    def describe(self) -> str:
        """Return the columns' names."""
        names = self.frame.columns
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"Spark DataFrame ({shown})"


def _only_in_driver() -> NoReturn:
    msg = "a Spark DataFrame can only be read where it was made; submit the topology from there"
    raise UsageError(msg)


def _as_objects(frame: DataFrame, columns: Schema, origin: str) -> ObjectSource:
    """Move the partitions into Ray's object store, as Ray Datasets do."""
    from raydp.spark.dataset import from_spark_recoverable, release_spark_recoverable

    if frame.rdd.getNumPartitions() == 0:
        return ObjectSource(ObjectRefs(()), columns, origin)
    _check_processor_free()
    with warnings.catch_warnings(), quiet_ray_data():
        warnings.filterwarnings("ignore", message="DataFrame.sql_ctx is an internal property")
        try:
            refs = from_spark_recoverable(frame).get_internal_block_refs()
        except Exception as error:  # py4j's, Ray's or Spark's
            raise InputError(_why_not_evaluated(origin, error)) from error
        finally:
            # Spark caches the rows until they are released.
            release_spark_recoverable(frame)
    return ObjectSource(ObjectRefs(refs), columns, origin)


def _check_processor_free() -> None:
    """Raise ResourceError if no processor is free: Ray's tasks would wait for one for ever."""
    import ray

    free = ray.available_resources().get("CPU", 0.0)
    if free < 1:
        total = ray.cluster_resources().get("CPU", 0.0)
        msg = (
            f"Ray has {free:g} of {total:g} processors free and needs 1 to take over a Spark "
            "DataFrame; start Ray with more, or give Spark fewer executors or cores"
        )
        raise ResourceError(msg)


def _as_files(frame: DataFrame, columns: Schema, origin: str) -> FileSource:
    """Let Spark write its partitions as Parquet files, one or more each.

    Dates and timestamps are written as integers: depending on the session's settings, Spark's
    Parquet writer would convert them to another calendar or to nanoseconds.
    """
    check_same_host(frame.sparkSession, "reading this DataFrame")
    folder = new_folder("frame")
    target = os.path.join(folder, "rows")
    write_parts(frame, columns, target, origin)
    parts = sorted(
        (int(match[1]), name) for name in os.listdir(target) if (match := _PART.fullmatch(name))
    )
    return FileSource(folder, tuple(f"rows/{name}" for _, name in parts), columns, origin)


def write_parts(frame: DataFrame, columns: Schema, target: str, origin: str) -> None:
    """Let Spark write a DataFrame's partitions into a new folder, see `_as_files`.

    Raises:
        InputError: Spark cannot evaluate it.
    """
    try:
        plain = frame.toDF(*[f"c{number}" for number in range(len(columns))])
        written = plain.selectExpr(*_as_integers(columns)).write
        written.option("parquet.enable.dictionary", "false").parquet(f"file://{target}")
    except Exception as error:  # py4j's or Spark's
        raise InputError(_why_not_evaluated(origin, error)) from error


def _as_integers(columns: Schema) -> list[str]:
    expressions = []
    for number, field in enumerate(columns):
        name = f"c{number}"
        if field.type.family == "date32":
            expressions.append(f"unix_date({name}) AS {name}")
        elif field.type.family == "timestamp" and field.type.timezone is not None:
            expressions.append(f"unix_micros({name}) AS {name}")
        else:
            expressions.append(name)
    return expressions


def _why_not_evaluated(origin: str, error: Exception) -> str:
    return f"{origin}: Spark cannot evaluate it: {reason_of(error)}"
