"""Makes topologies of `tspec` files."""

from __future__ import annotations

import importlib
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from ..api.topology import GroupedStream, Stream, Topology, columns
from ..configs.errors import InputError, WhaleError
from .conditions import parse_condition
from .simulated import BusyBatches, SimulatedProcess, SimulatedRows
from .specification import SIMULATED, InputSpec, OperatorSpec, SpecGrouping, SpecKind, TopologySpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..operators.process import Process

__all__ = ["build_topology"]

_NS_PER_US = 1_000.0


def build_topology(spec: TopologySpec) -> Topology:
    """Return the topology that a file describes.

    Raises:
        InputError: something cannot be imported, or an operator cannot be made as the file says;
            it names the line.
    """
    topology = Topology(spec.name)
    streams: dict[str, Stream] = {}
    for one in spec.operators:
        try:
            added = _add(topology, streams, one)
        except WhaleError as error:
            msg = f"{spec.where}, line {one.line}: {error}"
            raise InputError(msg) from error
        if added is not None:
            batched = one.batch_rows
            streams[one.id] = added if batched is None else added.in_batches_of(batched)
    return topology


def _add(topology: Topology, streams: dict[str, Stream], one: OperatorSpec) -> Stream | None:
    """Add an operator; return its output, None for a sink."""
    match one.kind:
        case SpecKind.SOURCE:
            return topology.source(_source(one), id=one.id, parallelism=one.dop)
        case SpecKind.FILTER:
            return streams[one.inputs[0].upstream].filter(parse_condition(one.what), id=one.id)
        case SpecKind.PROCESS:
            grouped = _grouped(_input_of(streams, one), one.inputs[0])
            return grouped.process(_process(one), id=one.id, parallelism=one.dop)
    stream, feed = streams[one.inputs[0].upstream], one.inputs[0]
    is_grouped = feed.grouping is not SpecGrouping.FORWARD
    written = _grouped(stream, feed) if is_grouped else stream
    written.sink(_sink(one), id=one.id, parallelism=one.dop)
    return None


def _input_of(streams: dict[str, Stream], one: OperatorSpec) -> Stream:
    """Return what a process reads: one stream, or the union of several."""
    first, *others = (streams[feed.upstream] for feed in one.inputs)
    if not others:
        return first
    if len({(feed.grouping, feed.by) for feed in one.inputs}) > 1:
        msg = f"{one.id!r} groups its inputs in several ways, but they are read as one stream"
        raise InputError(msg)
    return first.union(*others, id=f"{one.id}-inputs")


def _grouped(stream: Stream, feed: InputSpec) -> GroupedStream:
    match feed.grouping:
        case SpecGrouping.KEY:
            return stream.key_by(*feed.by)
        case SpecGrouping.ALL:
            return stream.broadcast()
        case SpecGrouping.GLOBAL:
            return stream.global_()
    return stream.shuffle()


def _source(one: OperatorSpec) -> Any:
    from .. import sources

    if one.what != SIMULATED:
        return _called(one)
    assert one.rate_per_s is not None
    assert one.row_bytes is not None
    return sources.poisson(
        one.rate_per_s,
        SimulatedRows(one.row_bytes, (one.ppt_us or 0.0) * _NS_PER_US),
        limit=one.rows,
    )


def _process(one: OperatorSpec) -> Callable[[], Process]:
    if one.what != SIMULATED:
        made = imported(one.what)
        _check_arguments(one, made)
        return partial(made, **one.arguments) if one.arguments else made
    return partial(
        SimulatedProcess,
        (one.ppt_us or 0.0) * _NS_PER_US,
        one.ppt_each_us * _NS_PER_US,
        one.fan_out,
        one.row_bytes or 0.0,
        for_all=any(feed.grouping is SpecGrouping.ALL for feed in one.inputs),
    )


def _sink(one: OperatorSpec) -> Any:
    from .. import sinks

    if one.what != SIMULATED:
        return _called(one)
    return sinks.each(columns(BusyBatches((one.ppt_us or 0.0) * _NS_PER_US)))


def _called(one: OperatorSpec) -> Any:
    made = imported(one.what)
    _check_arguments(one, made)
    try:
        return made(**one.arguments)
    except WhaleError:
        raise
    except Exception as error:  # whatever the user's function does
        msg = f"{one.what!r} raised {type(error).__name__}: {error}"
        raise InputError(msg) from error


def _check_arguments(one: OperatorSpec, made: Any) -> None:
    if not callable(made):
        msg = f"{one.what!r} is {made!r:.60}, which cannot be called; name a class or a function"
        raise InputError(msg)
    try:
        signature = inspect.signature(made)
    except ValueError:  # some of the classes in C tell none
        return
    try:
        signature.bind(**one.arguments)
    except TypeError as error:
        msg = f"{one.what!r} does not take these arguments: {error}; it takes {signature}"
        raise InputError(msg) from error


def imported(path: str) -> Any:
    """Return what an import path "module:name" names.

    Raises:
        InputError: there is no such module, or it has no such name.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        msg = f"{path!r} is no import path; write module:name"
        raise InputError(msg)
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the user's module does
        why = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        msg = f"{path!r} cannot be imported: {why}"
        raise InputError(msg) from error
    try:
        return getattr(found, name)
    except AttributeError as error:
        msg = f"module {module!r} has no {name!r}"
        raise InputError(msg) from error
