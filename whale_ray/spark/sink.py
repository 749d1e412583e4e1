"""Rows as a Spark DataFrame with exactly the same values.

They are transferred by Parquet files in a temporary folder, with an explicit schema for Spark. Ray
Data's `Dataset.to_spark` uses pandas instead, in which integers with nulls become floats and lose
digits. The types are those of `types`; a column that Spark cannot represent is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..configs.errors import OutputError, UsageError
from ..configs.extras import require_extra
from ..operators.sinks.base import Sink, SinkResult, SinkWriter, Staged
from ..ray_bridge.dataset import HandoverSink
from ..ray_bridge.folders import new_folder, writing_there
from .driver import session_of_process
from .session import adopt_session, check_same_host
from .types import spark_schema, to_spark_values

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ..operators.process import InstanceContext
    from ..transport.wire.batch import Batch

_GROUP_ROWS = 131_072


@dataclass(frozen=True)
class SparkResult(SinkResult):
    """The rows that a job published through `sinks.spark`."""

    def to_spark(self, session: SparkSession | None = None) -> DataFrame:
        """Return the rows as a Spark DataFrame; see `spark.to_spark`."""
        return to_spark(self, session)


def spark_sink() -> Sink:
    """Keep the rows for a Spark DataFrame: `job.results("out").to_spark()`.

    They are stored in a temporary folder, which is removed when the submitting process ends. A
    column that Spark cannot represent fails the job at its first rows, not at its end.

    Raises:
        ResourceError: Spark, an extra, is not installed.
    """
    require_extra("spark", "sinks.spark", "take sinks.parquet")
    return SparkSink("Spark DataFrame", SparkResult)


@dataclass(frozen=True)
class SparkSink(HandoverSink):
    """Temporary Parquet files with only those types that Spark has."""

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's part."""
        return _SparkWriter(super().open(context, token))

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Publish the parts; an output without rows has Spark's types, too."""
        return super().publish(token, [_with_spark_types(part) for part in staged])

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """See `Sink.publish_partial`."""
        return super().publish_partial(token, [_with_spark_types(part) for part in staged])


class _SparkWriter(SinkWriter):
    """Casts rows to Spark's types and writes them to a file."""

    def __init__(self, file: SinkWriter) -> None:
        self._file = file

    def write(self, batch: Batch) -> None:
        """See `SinkWriter.write`."""
        from ..transport.wire.batch import Batch

        owned = batch if batch.owned else batch.copy()
        self._file.write(Batch.from_arrow(to_spark_values(owned.to_arrow())))

    def stage(self) -> Staged:
        """See `SinkWriter.stage`."""
        return self._file.stage()

    def stage_epoch(self, epoch: int) -> Staged | None:
        """See `SinkWriter.stage_epoch`."""
        return self._file.stage_epoch(epoch)

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """See `SinkWriter.cut_epoch`."""
        return self._file.cut_epoch(epoch)

    def abort(self) -> None:
        """See `SinkWriter.abort`."""
        self._file.abort()

    def publish_part(self) -> Staged | None:
        """See `SinkWriter.publish_part`."""
        return self._file.publish_part()


def _with_spark_types(part: Staged) -> Staged:
    import pyarrow as pa

    if part.rows or part.schema is None:
        return part
    schema = _for_spark(pa.ipc.read_schema(pa.py_buffer(part.schema)))
    return replace(part, schema=schema.serialize().to_pybytes())


def to_spark(rows: SinkResult | pa.Table, session: SparkSession | None = None) -> DataFrame:
    """Return rows as a Spark DataFrame with exactly the same values.

    The DataFrame reads temporary files, which exist until this process ends, or a job's Parquet
    output itself if Spark has its types. Like any DataFrame it has no defined order: sort it if the
    order matters.

    Args:
        rows: a job's result, or an Arrow table.
        session: the session of the DataFrame; by default the active one.

    Raises:
        OutputError: a column's type has no counterpart in Spark, a value cannot be represented
            exactly, or the names of two columns differ only in case.
        UsageError: there is no Spark session, or it has stopped.
        ResourceError: Spark, an extra, is not installed.
    """
    require_extra("spark", "to_spark()")
    session = session or _active_session()
    adopt_session(session)
    check_same_host(session, "making a DataFrame")
    if isinstance(rows, SinkResult):
        schema = rows._schema()
        if rows.parts and rows.format == "parquet" and _for_spark(schema) == schema:
            return _read(session, schema, rows.parts)
        rows = rows.to_arrow()
    return _read(session, _for_spark(rows.schema), (_write(rows),))


def _active_session() -> SparkSession:
    session = session_of_process()
    if session is None:
        msg = "there is no Spark session; pass one, or start one with whale_ray.spark.start_session"
        raise UsageError(msg)
    return session


def _for_spark(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types to which `to_spark_values` casts its columns."""
    import pyarrow as pa

    return to_spark_values(pa.RecordBatch.from_pylist([], schema=schema)).schema


def _write(table: pa.Table) -> str:
    """Write a table with Spark's types to a new file, and return its path."""
    import pyarrow.parquet as pq

    path = os.path.join(new_folder("table"), "rows.parquet")
    with (
        writing_there(),
        pq.ParquetWriter(path, _for_spark(table.schema), compression="zstd") as writer,
    ):
        for batch in table.to_batches(max_chunksize=_GROUP_ROWS):
            writer.write_batch(to_spark_values(batch))
    return path


def _read(session: SparkSession, schema: pa.Schema, paths: tuple[str, ...]) -> DataFrame:
    _check_names(session, schema.names)
    reader = session.read.schema(spark_schema(schema))
    # Without this, dates before 1582 in files that Spark has not written fail or are shifted.
    reader = reader.option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(*[f"file://{path}" for path in paths])


def _check_names(session: SparkSession, names: list[str]) -> None:
    if session.conf.get("spark.sql.caseSensitive", "false") == "true":
        return
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            msg = (
                f"columns {other!r} and {name!r} differ in case alone, which Spark does not tell "
                "apart; rename one before the sink, or set spark.sql.caseSensitive to true"
            )
            raise OutputError(msg)
