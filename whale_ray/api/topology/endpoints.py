"""Checks of the arguments of `source`, `sink` and `via`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable
from pathlib import PurePath

from ...configs.errors import TopologyError
from ...operators.sinks.base import Sink
from ...operators.sinks.files import FileSink
from ...operators.sources.base import Source
from ...plan.logical import OperatorNode
from ...transport.custom.operators import Transport
from .checks import describe_value, mistake, name_of

_BY_SUFFIX = {".csv": "csv", ".json": "json_lines", ".jsonl": "json_lines", ".ndjson": "json_lines"}
_BY_PACKAGE = {"pandas": "pandas", "pyarrow": "arrow", "pyspark": "spark", "ray": "ray_dataset"}


def check_source(operator_id: str, source: object) -> None:
    """Refuse anything but a `Source`; the message names the function that returns a fitting one."""
    if not isinstance(source, Source):
        raise mistake(operator_id, _instead(source, "source", _source_for(source)))


def as_source(value: object) -> object:
    """Return the source of a table in memory, of Spark, pandas, Arrow or Ray; else the value."""
    name = _BY_PACKAGE.get(type(value).__module__.partition(".")[0])
    if name is None:
        return value
    from ... import sources

    return getattr(sources, name)(value)


def check_sink(operator_id: str, sink: object, earlier: Iterable[OperatorNode]) -> None:
    """Refuse anything but a `Sink`, and a sink into a folder of an earlier operator's."""
    if not isinstance(sink, Sink):
        raise mistake(operator_id, _instead(sink, "sink", _path_call(sink)))
    output = _output_path(sink)
    for node in earlier:
        taken = _output_path(node.payload)
        if output is None or taken is None:
            continue
        if _overlap(os.path.realpath(output), os.path.realpath(taken)):
            raise mistake(
                operator_id,
                f"sink {node.id!r} writes to {taken} already: give each sink its own folder",
            )


def check_transport(where: str, transport: object) -> None:
    """Refuse anything but a `Transport`; `where` names the parameter in the message."""
    if not isinstance(transport, Transport):
        msg = f"{where} takes a whale.transports.Transport, not {describe_value(transport)}"
        raise TopologyError(msg)


def _output_path(payload: object) -> str | None:
    """Return the folder into which a sink writes; None if it writes no files."""
    return payload.folder.path if isinstance(payload, FileSink) else None


def _overlap(one: str, other: str) -> bool:
    """Return whether two folders are the same, or one is inside the other."""
    return os.path.commonpath((one, other)) in (one, other)


def _instead(passed: object, wanted: str, call: str) -> str:
    if isinstance(passed, (Source, Sink)):
        other = "source" if isinstance(passed, Source) else "sink"
        return f"this is a {other}: {wanted} takes one of whale.{wanted}s"
    if isinstance(passed, type) and issubclass(passed, (Source, Sink)):
        return f"{wanted} takes an object, not the class: call it, {passed.__name__}(…)"
    if inspect.isroutine(passed) and wanted == "sink" and not _is_ours(passed):
        # Ray puts a function of its own in the place of `print`.
        name = "print" if passed is print else name_of(passed)
        call = "print()" if passed is print else f"each({name})"
        return f"sink takes a sink, not the function {name}: pass whale.sinks.{call}"
    if inspect.isroutine(passed):
        return f"{wanted} takes what a function returns: call it, {name_of(passed)}(…)"
    fix = f"whale.{wanted}s.{call}" if call else f"one of whale.{wanted}s"
    return f"{wanted} takes a {wanted}, not {describe_value(passed)}: pass {fix}"


def _is_ours(function: object) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "whale_ray"


def _path_call(value: object) -> str:
    """Return the call that reads or writes a path; "" for anything but a path."""
    if not isinstance(value, (str, PurePath)):
        return ""
    return f"{_BY_SUFFIX.get(PurePath(value).suffix, 'parquet')}({str(value)!r})"


def _source_for(value: object) -> str:
    package = type(value).__module__.partition(".")[0]
    if package in _BY_PACKAGE:
        return f"{_BY_PACKAGE[package]}(…)"
    if isinstance(value, (list, tuple)) or inspect.isgenerator(value):
        return "iterable(…)"
    return _path_call(value)
