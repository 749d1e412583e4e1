"""Makes topologies of `tspec` files."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ..api.topology import GroupedStream, Stream, Topology, columns
from ..api.topology.checks import NAME_LENGTH_MAX
from ..configs.errors import InputError, WhaleError
from ..configs.units import NS_PER_US
from ..operators.expressions.expression import Alias
from .arguments import called, check_arguments, imported, resolved
from .conditions import parse_aggregates, parse_columns, parse_condition, parse_value
from .reading import is_import_path
from .simulated import BusyBatches, SimulatedProcess, SimulatedRows
from .specification import SIMULATED, InputSpec, OperatorSpec, SpecGrouping, SpecKind, TopologySpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["build_topology"]


def build_topology(spec: TopologySpec) -> Topology:
    """Return the topology that a file describes.

    Raises:
        InputError: something cannot be imported, or an operator cannot be made as the file says;
            it names the line.
    """
    topology = Topology(spec.name)
    made: dict[str, _Made] = {}
    ids = {one.id for one in spec.operators}
    for one in spec.operators:
        try:
            added = _add(topology, made, one, ids)
        except WhaleError as error:
            msg = f"{spec.where}, line {one.line}: {error}"
            raise InputError(msg) from error
        if added is not None:
            made[one.id] = _Made(added, one.batch_rows)
    return topology


@dataclass(frozen=True)
class _Made:
    """The main output of an operator, and the batches in which its outputs are sent."""

    stream: Stream
    batch_rows: int | None

    def read_by(self, feed: InputSpec) -> Stream:
        """Return the output that an input names."""
        found = self.stream.side_output(feed.output) if feed.output else self.stream
        return found if self.batch_rows is None else found.in_batches_of(self.batch_rows)


def _add(
    topology: Topology, made: dict[str, _Made], one: OperatorSpec, ids: set[str]
) -> Stream | None:
    """Add an operator; return its main output, None for a sink. `ids` are taken."""
    if one.kind is SpecKind.SOURCE:
        return topology.source(
            _source(one),
            id=one.id,
            parallelism=one.dop,
            on_bad_rows=one.on_bad_rows,
            **_event_time(one),
        )
    read = [_one_stream(one.id, together, made, ids) for together in one.sides]
    named: dict[str, Any] = {"id": one.id, "parallelism": one.dop}
    if one.kind.inputs_max is not None:
        return _joined(one, read, named)
    stream, feed = read[0], one.inputs[0]
    if one.kind in (SpecKind.AGG, SpecKind.TOP_N):
        return _aggregated(one, stream, named)
    if one.kind is SpecKind.DROP_DUPLICATES:
        named["within"] = one.what
        return _with_arguments(stream.drop_duplicates, one, feed.by, one.arguments, named)
    if one.kind is SpecKind.PROCESS:
        named["event_time_order"] = one.event_time_order
        return _grouped(stream, feed).process(_process(one), **named)
    is_grouped = feed.grouping is not SpecGrouping.FORWARD
    reader = _grouped(stream, feed) if is_grouped else stream
    if one.kind is SpecKind.SINK:
        reader.sink(_sink(one), **named)
        return None
    return _transformed(one, reader, named)


def _one_stream(
    reader: str, together: tuple[InputSpec, ...], made: dict[str, _Made], ids: set[str]
) -> Stream:
    """Return what an operator reads, or one side of it: one stream, or the union of several."""
    if len({(feed.grouping, feed.by, feed.on_null) for feed in together}) > 1:
        msg = f"{reader!r} groups its inputs in several ways, but they are read as one stream"
        raise InputError(msg)
    first, *others = (made[feed.upstream].read_by(feed) for feed in together)
    return first.union(*others, id=_union_id(reader, ids)) if others else first


def _union_id(reader: str, ids: set[str]) -> str:
    """Return an id that no operator has, and add it to those that are taken."""
    for number in count(1):
        end = "-inputs" if number == 1 else f"-inputs-{number}"
        name = reader[: NAME_LENGTH_MAX - len(end)] + end
        if name not in ids:
            break
    ids.add(name)
    return name


def _grouped(stream: Stream, feed: InputSpec) -> GroupedStream:
    match feed.grouping:
        case SpecGrouping.KEY:
            on_null: Any = feed.on_null
            return stream.key_by(*feed.by, on_null=on_null)
        case SpecGrouping.ALL:
            return stream.broadcast()
        case SpecGrouping.GLOBAL:
            return stream.global_()
    return stream.shuffle()


def _joined(one: OperatorSpec, read: list[Stream], named: dict[str, Any]) -> Stream:
    left, right, *changes = read
    sides = [together[0] for together in one.sides]
    if one.kind is SpecKind.CO_PROCESS:
        first, second = (_grouped(stream, feed) for stream, feed in zip(read, sides, strict=True))
        named["event_time_order"] = one.event_time_order
        return first.connect(second).process(_process(one), **named)
    given = dict(one.arguments)
    named["how"] = one.what
    keys = dict(zip(sides[0].by, sides[1].by, strict=True))
    if one.kind is SpecKind.JOIN_TABLE:
        named |= {"table": right, "on": keys, "changes": changes[0] if changes else None}
        if "delete_when" in given:
            named["delete_when"] = parse_condition(str(given.pop("delete_when")))
        return _with_arguments(left.join_table, one, (), given, named)
    if one.kind is SpecKind.JOIN_ASOF:
        named |= {"other": right, "by": keys or None}
        return _with_arguments(left.join_asof, one, (), given, named)
    named |= {"other": right, "on": keys, "within": parse_value(str(given.pop("within", "")))}
    return _with_arguments(left.join, one, (), given, named)


def _aggregated(one: OperatorSpec, stream: Stream, named: dict[str, Any]) -> Stream:
    given = dict(one.arguments)
    window = given.pop("window", None)
    by = one.inputs[0].by if window is None else (parse_value(str(window)), *one.inputs[0].by)
    grouped = stream.group_by(*by)
    if one.kind is SpecKind.TOP_N:
        return _with_arguments(grouped.top_n, one, (), given, {"by": one.what, **named})
    return _with_arguments(grouped.agg, one, parse_aggregates(one.what), given, named)


def _transformed(
    one: OperatorSpec, reader: Stream | GroupedStream, named: dict[str, Any]
) -> Stream:
    match one.kind:
        case SpecKind.SELECT:
            return reader.select(*parse_columns(one.what), **named)
        case SpecKind.WITH_COLUMN:
            (column,) = parse_columns(one.what)
            computed = column.expression if isinstance(column, Alias) else column
            return reader.with_column(column.output_name, computed, **named)
        case SpecKind.FILTER if not is_import_path(one.what):
            return reader.filter(parse_condition(one.what), **named)
    given = dict(one.arguments)
    function = imported(one.what)
    if given.pop("columns", False):
        function = columns(function)
    return _with_arguments(getattr(reader, str(one.kind)), one, (function,), given, named)


def _with_arguments(
    method: Callable[..., Any],
    one: OperatorSpec,
    args: tuple[Any, ...],
    given: Mapping[str, Any],
    named: Mapping[str, Any],
) -> Any:
    """Call a method of a stream with the arguments that the file gives, and those of its fields."""
    try:
        if twice := given.keys() & named.keys():
            msg = f"{min(twice)} is none of them: other fields of the operator say it"
            raise TypeError(msg)
        inspect.signature(method).bind(*args, **given, **named)
    except TypeError as error:
        msg = f"{one.kind} {one.id!r} does not take these arguments: {error}"
        raise InputError(msg) from error
    return method(*args, **given, **named)


def _event_time(one: OperatorSpec) -> dict[str, Any]:
    """Return the arguments of `Topology.source` for event times."""
    given = dict(one.event_time or {})
    if not given:
        return {}
    renamed = {"event_time": given.pop("column")}
    if "unit" in given:
        renamed["event_time_unit"] = given.pop("unit")
    return {**renamed, **given}


def _source(one: OperatorSpec) -> Any:
    from .. import sources

    if one.what != SIMULATED:
        return called(one.what, one.arguments)
    assert one.rate_per_s is not None
    assert one.row_bytes is not None
    return sources.poisson(
        one.rate_per_s,
        SimulatedRows(one.row_bytes, (one.ppt_us or 0.0) * NS_PER_US),
        limit=one.rows,
    )


def _process(one: OperatorSpec) -> Any:
    if one.what != SIMULATED:
        made = imported(one.what)
        check_arguments(one.what, made, one.arguments)
        return partial(made, **resolved(one.arguments)) if one.arguments else made
    return partial(
        SimulatedProcess,
        (one.ppt_us or 0.0) * NS_PER_US,
        one.ppt_each_us * NS_PER_US,
        one.fan_out,
        one.row_bytes or 0.0,
        for_all=any(feed.grouping is SpecGrouping.ALL for feed in one.inputs),
    )


def _sink(one: OperatorSpec) -> Any:
    from .. import sinks

    if one.what != SIMULATED:
        return called(one.what, one.arguments)
    return sinks.each(columns(BusyBatches((one.ppt_us or 0.0) * NS_PER_US)))
