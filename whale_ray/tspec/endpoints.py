"""Sources and sinks as import paths with arguments, as `tspec` files have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..api.topology.functions import ColumnFunction
from ..operators.sinks.collect import CollectSink
from ..operators.sinks.each import EachBatch, EachRow, PrintSink
from ..operators.sinks.files import FileSink
from ..operators.sinks.formats import ParquetFormat
from ..operators.sources.csv_files import CsvSource
from ..operators.sources.ipc_files import IpcSource
from ..operators.sources.json_lines_files import JsonLinesSource
from ..operators.sources.parquet_files import ParquetSource
from ..operators.sources.poisson_rate import PoissonSource
from .arguments import constructed, import_path, is_marked, plain, schema_types
from .simulated import BusyBatches, SimulatedRows
from .specification import SIMULATED

__all__ = ["NS_PER_US", "sink_of", "source_of"]

NS_PER_US: Final = 1_000.0


def source_of(source: Any) -> tuple[str, dict[str, Any]]:
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
            return _called("sources:poisson", plain(given), source.given_schema)
        case ParquetSource() | IpcSource():
            columns = None if source.columns is None else list(source.columns)
            given = {"path": list(source.paths.absolute), "columns": columns}
            called = "parquet" if isinstance(source, ParquetSource) else "ipc"
            return _called(f"sources:{called}", given)
        case CsvSource() | JsonLinesSource():
            names: tuple[str, ...] = ("columns", "encoding")
            if isinstance(source, CsvSource):
                names += ("delimiter", "null_values", "newlines_in_values")
            given = plain({name: getattr(source, name) for name in names})
            called = "csv" if isinstance(source, CsvSource) else "json_lines"
            paths = {"path": list(source.paths.absolute)}
            return _called(f"sources:{called}", {**paths, **given}, source.given_schema)
    what, given = constructed(source)
    return what, {"arguments": given}


def sink_of(sink: Any) -> tuple[str, dict[str, Any]]:
    """Return what a sink is, and the other fields of its operator.

    Raises:
        UsageError: it cannot be written.
    """
    match sink:
        case EachBatch(function=ColumnFunction(function=BusyBatches(ppt_ns=ppt_ns))):
            return SIMULATED, {"ppt_us": ppt_ns / NS_PER_US}
        case EachRow(function=function):
            return _called("sinks:each", {"function": {"import": import_path(function)}})
        case EachBatch(function=ColumnFunction(function=function)) if is_marked(function):
            return _called("sinks:each", {"function": {"import": import_path(function)}})
        case PrintSink(format=None):
            return _called("sinks:print", {})
        case FileSink(format=format_, folder=folder):
            given = {"path": folder.path, "overwrite": folder.overwrite}
            if isinstance(format_, ParquetFormat):
                given["compression"] = format_.compression
            return _called(f"sinks:{format_.name}", given)
        case CollectSink(max_bytes=max_bytes):
            return _called("sinks:collect", {"max_bytes": max_bytes})
    what, given = constructed(sink)
    return what, {"arguments": given}


def _called(name: str, given: Mapping[str, Any], schema: Any = None) -> tuple[str, dict[str, Any]]:
    """Return a function of whale_ray and its arguments, without those that are None."""
    arguments = {key: value for key, value in given.items() if value is not None}
    if schema is not None:
        arguments["schema"] = schema_types(schema)
    return f"whale_ray.{name}", {"arguments": arguments}
