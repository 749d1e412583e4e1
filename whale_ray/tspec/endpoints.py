"""Sources and sinks as import paths with arguments, as `tspec` files have them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from ..api.topology.functions import ColumnFunction
from ..configs.errors import UsageError
from ..configs.units import NS_PER_MS, NS_PER_US
from ..operators.kafka.partitions import Places, position_of
from ..operators.sinks.collect import CollectSink
from ..operators.sinks.delta_sink import DeltaSink
from ..operators.sinks.each import EachBatch, EachRow, PrintSink
from ..operators.sinks.files import FileSink
from ..operators.sinks.formats import ParquetFormat
from ..operators.sinks.kafka_sink import IdempotentKafkaSink, TransactionalKafkaSink
from ..operators.sinks.postgres_sink import PostgresSink
from ..operators.sources.csv_files import CsvSource
from ..operators.sources.growing_folders import GrowingFolderSource
from ..operators.sources.ipc_files import IpcSource
from ..operators.sources.json_lines_files import JsonLinesSource
from ..operators.sources.kafka_topics import KafkaSource
from ..operators.sources.parquet_files import ParquetSource
from ..operators.sources.poisson_rate import PoissonSource
from ..operators.sources.rows import IterableSource
from ..operators.sources.tables import ArrowTableSource
from .arguments import constructed, imported, is_marked, plain, schema_types
from .credentials import (
    refuse_credentials,
    without_password,
    without_secrets,
    without_signature,
)
from .simulated import BusyBatches, SimulatedRows
from .specification import SIMULATED

__all__ = ["sink_of", "source_of"]

_ROWS_MAX: Final = 1_000
_Made = tuple[str, dict[str, Any]]
"""An import path, and the other fields of the operator."""


def source_of(source: Any) -> _Made:
    """Return what a source is, and the other fields of its operator.

    Raises:
        UsageError: it cannot be written.
    """
    match source:
        case PoissonSource(columns=SimulatedRows() as rows):
            costs = {"ppt_us": rows.ppt_ns / NS_PER_US, "row_bytes": rows.row_bytes}
            return SIMULATED, {**costs, "rate_per_s": source.rate_per_s, "rows": source.limit}
        case PoissonSource():
            given = {name: getattr(source, name) for name in ("rate_per_s", "columns", "limit")}
            given |= {"seed": source.seed, "time_column": source.time_column}
            return _called("sources:poisson", given, source.given_schema)
        case ParquetSource() | IpcSource() | CsvSource() | JsonLinesSource():
            name, given = _files(source)
            paths = {"path": list(source.paths.absolute)}
            schema = getattr(source, "given_schema", None)
            return _called(f"sources:{name}", {**paths, **given}, schema)
        case GrowingFolderSource():
            name, given = _files(source.of_one)
            given |= {"path": source.folder, "format": name, "order": source.order}
            given |= {"poll_ms": source.poll_ns / NS_PER_MS}
            given["remember_files"] = source.remember_files
            schema = getattr(source.of_one, "given_schema", None)
            return _called("sources:growing_folder", given, schema)
        case KafkaSource():
            return _kafka_source(source)
        case ArrowTableSource():
            return _called("sources:arrow", {"table": _stream(source.table)})
        case IterableSource():
            given = {"rows": _rows(source.rows), "bounded": source.bounded}
            given["resume"] = source.resume
            return _called("sources:iterable", given, source.given_schema)
    return _of_the_user(source)


def sink_of(sink: Any) -> _Made:
    """Return what a sink is, and the other fields of its operator.

    Raises:
        UsageError: it cannot be written.
    """
    match sink:
        case EachBatch(function=ColumnFunction(function=BusyBatches(ppt_ns=ppt_ns))):
            return SIMULATED, {"ppt_us": ppt_ns / NS_PER_US}
        case EachRow(function=function):
            return _called("sinks:each", {"function": function})
        case EachBatch(function=ColumnFunction(function=function)) if is_marked(function):
            return _called("sinks:each", {"function": function})
        case PrintSink(format=None):
            return _called("sinks:print", {})
        case FileSink(format=format_, folder=folder):
            given = {"path": folder.path, "overwrite": folder.overwrite}
            if isinstance(format_, ParquetFormat):
                given["compression"] = format_.compression
            return _called(f"sinks:{format_.name}", given)
        case CollectSink(max_bytes=max_bytes):
            return _called("sinks:collect", {"max_bytes": max_bytes})
        case DeltaSink(folder=table):
            given = {"path_or_url": without_signature(table.url), "mode": sink.mode}
            given["compression"] = sink.compression
            given |= {"partition_by": list(sink.partition_by)}
            given["storage_options"] = without_secrets("storage_options", table.options)
            return _called("sinks:delta", given)
        case PostgresSink(table=table):
            name = table.name if table.schema is None else f"{table.schema}.{table.name}"
            given = {"dsn": without_password(sink.dsn), "table": name, "key": list(table.key)}
            return _called("sinks:postgres", {**given, "mode": "upsert" if table.key else "append"})
        case TransactionalKafkaSink() | IdempotentKafkaSink():
            return _kafka_sink(sink)
    return _of_the_user(sink)


def _of_the_user(made: Any) -> _Made:
    kind = type(made)
    module = kind.__module__
    if module.startswith("whale_ray.") and not module.startswith("whale_ray.applications."):
        msg = f"{kind.__name__} reads or writes what is in memory, or has no form in such files"
        raise UsageError(msg)
    what, given = constructed(made)
    refuse_credentials(given)
    return what, {"arguments": given}


def _called(name: str, given: Mapping[str, Any], schema: Any = None) -> _Made:
    """Return a function of whale_ray and its arguments, without those that it has by default."""
    path = f"whale_ray.{name}"
    parameters = inspect.signature(imported(path)).parameters
    arguments = {
        name: value
        for name, value in plain(given).items()
        if value is not None and not (name in parameters and _is_default(value, parameters[name]))
    }
    if schema is not None:
        arguments["schema"] = schema_types(schema)
    return path, {"arguments": arguments}


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    default = parameter.default
    return bool(value == (list(default) if isinstance(default, tuple) else default))


def _files(source: Any) -> _Made:
    """Return the name of a format, and how its files are read."""
    names: tuple[str, ...] = ("columns",)
    match source:
        case ParquetSource():
            format_ = "parquet"
        case IpcSource():
            format_ = "ipc"
        case CsvSource():
            format_ = "csv"
            names += ("encoding", "delimiter", "null_values", "newlines_in_values")
        case _:
            format_ = "json_lines"
            names += ("encoding",)
    return format_, {name: getattr(source, name) for name in names}


def _kafka_source(source: KafkaSource) -> _Made:
    rows, rules = source.rows, source.rules
    given = {
        "topics": list(source.topics),
        "bootstrap_servers": source.cluster.bootstrap_servers,
        "value": rows.value,
        "columns": dict(rows.columns) or None,
        "start": _place(source.start),
        "end": _place(source.end),
        "on_expired": rules.on_expired,
        "group": rules.group,
        "find_partitions_s": rules.find_partitions_s,
        "config": without_secrets("config", source.cluster.config),
    }
    return _called("sources:kafka", given, None if rows.value == "bytes" else rows.fields)


def _place(place: Any) -> Any:
    return position_of(place.offsets) if isinstance(place, Places) else place


def _kafka_sink(sink: TransactionalKafkaSink | IdempotentKafkaSink) -> _Made:
    messages = sink.format
    given: dict[str, Any] = {
        "topic": sink.topic,
        "bootstrap_servers": sink.cluster.bootstrap_servers,
        "value": messages.value,
        "key": messages.key,
        "headers": dict(messages.headers) or None,
        "timestamp": messages.timestamp,
        "config": without_secrets("config", sink.cluster.config),
    }
    if isinstance(sink, TransactionalKafkaSink):
        given["if_unknown"] = sink.if_unknown
    else:
        given["transactional"] = False
    return _called("sinks:kafka", given)


def _stream(table: Any) -> bytes:
    """Return a table as the bytes of an Arrow IPC stream."""
    import pyarrow as pa

    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return stream.getvalue().to_pybytes()


def _rows(rows: Any) -> Any:
    if callable(rows):
        return rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = "its rows are no list of mappings; pass the function that makes them"
        raise UsageError(msg)
    if len(rows) > _ROWS_MAX:
        msg = (
            f"it has {len(rows):,} rows in memory; such files have {_ROWS_MAX:,} at most: pass the"
            " function that makes them"
        )
        raise UsageError(msg)
    return rows
