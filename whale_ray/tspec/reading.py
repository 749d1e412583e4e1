"""Reads `tspec` files, and checks them: each mistake is one line with the file and the line."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from ..api.topology import asof_joins, joins, table_joins
from ..api.topology.checks import PARALLELISM_MAX, check_name
from ..configs.errors import InputError, TopologyError, WhaleError
from ..operators.event_time import EventTime
from ..operators.windows.durations import duration_ns
from .conditions import parse_aggregates, parse_columns, parse_condition
from .document import YamlEntry, mistake_at, read_document
from .specification import (
    SIMULATED,
    InputSpec,
    OperatorSpec,
    SpecGrouping,
    SpecKind,
    TopologySpec,
)

__all__ = ["VERSION", "is_import_path", "parse_tspec", "read_tspec"]

VERSION: Final = 1

_NUMBERS: Final = {
    "ppt_us": 1e10,  # almost three hours for a row
    "ppt_each_us": 1e10,
    "fan_out": 1e6,
    "row_bytes": float(16 << 20),  # of the largest slice (`transport.mms_bytes`)
    "rate_per_s": 1e12,
}
"""Fields that are numbers, and the largest of each."""

_COUNTS: Final = {"dop": PARALLELISM_MAX, "batch_rows": 10**9, "rows": 10**15}
"""Fields that are whole numbers, and the largest of each."""

_RATE_PER_S_MIN: Final = 1e-6  # a row in 12 days; schedules are in 64-bit nanoseconds
_SOURCE_ROW_BYTES_MAX: Final = 1 << 16  # a simulated source makes 1,024 rows at once, so 64 MiB
_TIMES: Final = ("event_time", "on_bad_rows", "event_time_order")
_FIELDS: Final = (*SpecKind, "arguments", "inputs", *_NUMBERS, *_COUNTS, *_TIMES)
_OF_SOURCES: Final = ("rate_per_s", "rows", "event_time", "on_bad_rows")
_EVENT_TIME: Final = tuple(one.name for one in fields_of(EventTime) if one.name != "on_null")
_PARSED: Final[Mapping[SpecKind, Callable[[str], Any]]] = {
    SpecKind.SELECT: parse_columns,
    SpecKind.WITH_COLUMN: parse_columns,
    SpecKind.AGG: parse_aggregates,
    SpecKind.DROP_DUPLICATES: partial(duration_ns, what="within"),
}
"""Kinds that are expressions or a time, and what reads them."""

_HOWS: Final[Mapping[SpecKind, Collection[str]]] = {
    SpecKind.JOIN: joins.HOWS,
    SpecKind.JOIN_ASOF: asof_joins.HOWS,
    SpecKind.JOIN_TABLE: table_joins.HOWS,
}
"""How the rows of each kind of join may be joined."""

_BY_KEY: Final = (
    *(SpecKind.AGG, SpecKind.TOP_N, SpecKind.JOIN, SpecKind.JOIN_ASOF),
    SpecKind.DROP_DUPLICATES,
)
"""Kinds that work by key, or on all rows together."""


def read_tspec(path: str | os.PathLike[str]) -> TopologySpec:
    """Return the topology that a file describes.

    Raises:
        InputError: it cannot be read, or says something that makes no sense.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        msg = f"{path}: cannot be read as a tspec file: {why}"
        raise InputError(msg) from error
    return parse_tspec(text, str(path))


def parse_tspec(text: str, where: str) -> TopologySpec:
    """Return the topology that a text describes; `where` names it in messages.

    Raises:
        InputError: it says something that makes no sense.
    """
    document = read_document(text, where)
    try:
        return _parsed(document, where)
    except RecursionError as error:
        msg = f"{where}: its values are nested too deeply, or contain themselves"
        raise InputError(msg) from error


def _parsed(document: YamlEntry, where: str) -> TopologySpec:
    entries = document.check_keys(("tspec", "topology", "operators"))
    for key in ("tspec", "topology", "operators"):
        if key not in entries:
            raise mistake_at(document, f"{key} is missing")
    version = entries["tspec"].value()
    if isinstance(version, bool) or version != VERSION:
        raise mistake_at(entries["tspec"], f"it is of version {version!r:.20}; this is {VERSION}")
    name = _name(entries["topology"], entries["topology"].text(), "topology name")
    operators = {
        _name(entry, one, "operator id"): _operator(one, entry)
        for one, entry in entries["operators"].items().items()
    }
    if not operators:
        raise mistake_at(entries["operators"], "there is no operator")
    at = entries["operators"].items()
    for operator in operators.values():
        _check_inputs(operator, operators, at[operator.id])
    return TopologySpec(name, _in_order(operators, at), where)


def _name(entry: YamlEntry, name: str, what: Literal["topology name", "operator id"]) -> str:
    try:
        return check_name(name, what)
    except TopologyError as error:
        raise mistake_at(entry, str(error)) from error


def _operator(name: str, entry: YamlEntry) -> OperatorSpec:
    fields = entry.check_keys(_FIELDS)
    kinds = [kind for kind in SpecKind if kind in fields]
    if len(kinds) != 1:
        found = f"found {' and '.join(kinds)}" if kinds else "found none"
        raise mistake_at(entry, f"{name!r} needs one of {', '.join(SpecKind)}; {found}")
    kind = kinds[0]
    made = OperatorSpec(name, kind, fields[kind].text(), line=entry.line)
    changes: dict[str, Any] = _numbers(fields)
    if "inputs" in fields:
        changes["inputs"] = tuple(
            _input(one, kind, side) for one, side in _each_input(fields["inputs"], kind)
        )
    if "arguments" in fields:
        changes["arguments"] = _arguments(fields["arguments"])
    made = replace(made, **changes, **_times(fields))
    _check_what(kind, fields[kind])
    _check_operator(made, fields, entry)
    return made


def _numbers(fields: Mapping[str, YamlEntry]) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, at_most in _NUMBERS.items():
        if key in fields:
            found[key] = fields[key].number(at_most=at_most)
    for key, count_max in _COUNTS.items():
        if key in fields:
            found[key] = fields[key].integer(at_least=1, at_most=count_max)
    return found


def _arguments(entry: YamlEntry) -> Mapping[str, Any]:
    found = entry.value()
    if not isinstance(found, Mapping):
        raise mistake_at(entry, "expected a mapping of names to values")
    if odd := [name for name in found if not isinstance(name, str)]:
        raise mistake_at(entry, f"{odd[0]!r:.60} is no name of an argument")
    return found


def _check_what(kind: SpecKind, entry: YamlEntry) -> None:
    """Check the text of an operator's kind: an expression, a choice, a name or an import path."""
    what = entry.text()
    if kind in _PARSED:
        _check_text(entry, _PARSED[kind])
        if kind is SpecKind.WITH_COLUMN and len(parse_columns(what)) > 1:
            raise mistake_at(entry, "with_column is one expression; write one for each")
    elif kind is SpecKind.FILTER and not is_import_path(what):
        _check_text(entry, parse_condition)
    elif kind in _HOWS:
        entry.choice(str, _HOWS[kind])
    elif kind is not SpecKind.TOP_N and what != SIMULATED:  # of top_n it is a column's name
        _check_import_path(entry)


def _times(fields: Mapping[str, YamlEntry]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "event_time" in fields:
        given = fields["event_time"].check_keys(_EVENT_TIME)
        if "column" not in given:
            raise mistake_at(fields["event_time"], "event_time needs column: that of the times")
        found["event_time"] = {name: one.value() for name, one in given.items()}
    if "on_bad_rows" in fields:
        found["on_bad_rows"] = fields["on_bad_rows"].choice(str, ("fail", "drop"))
    if "event_time_order" in fields:
        found["event_time_order"] = fields["event_time_order"].value()
        if not isinstance(found["event_time_order"], bool):
            raise mistake_at(fields["event_time_order"], "expected true or false")
    return found


def _check_text(entry: YamlEntry, parse: Callable[[str], Any]) -> None:
    try:
        parse(entry.text())
    except WhaleError as error:
        raise mistake_at(entry, str(error)) from error


def is_import_path(text: str) -> bool:
    """Tell whether a text is written as an import path, "module:name"."""
    module, _, name = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), name))


def _check_import_path(entry: YamlEntry) -> None:
    if not is_import_path(entry.text()):
        message = f"{entry.text()!r:.60} is no import path; write module:name, or {SIMULATED}"
        raise mistake_at(entry, message)


def _check_operator(made: OperatorSpec, fields: Mapping[str, YamlEntry], entry: YamlEntry) -> None:
    is_source = made.kind is SpecKind.SOURCE
    for key in _OF_SOURCES:
        if key in fields and not is_source:
            raise mistake_at(fields[key], f"only a source has {key}")
    if made.rate_per_s == 0:
        raise mistake_at(fields["rate_per_s"], "nothing comes at a rate of 0; it must be greater")
    if made.rate_per_s is not None and made.rate_per_s < _RATE_PER_S_MIN:
        raise mistake_at(fields["rate_per_s"], f"the smallest rate is {_RATE_PER_S_MIN:g} per s")
    if is_source and made.inputs:
        raise mistake_at(
            fields["inputs"], f"{made.id!r} is a source, so it reads no other operator"
        )
    if not is_source and not made.inputs:
        raise mistake_at(entry, f"nobody feeds {made.id!r}: give it inputs")
    if not is_source:
        _check_groupings(made, fields["inputs"])
    if "event_time_order" in fields and made.kind not in (SpecKind.PROCESS, SpecKind.CO_PROCESS):
        raise mistake_at(fields["event_time_order"], "only a process has event_time_order")
    if made.what == SIMULATED:
        _check_simulated(made, fields, entry)


def _check_groupings(made: OperatorSpec, entry: YamlEntry) -> None:
    kind = made.kind
    feeds = tuple(together[0] for together in made.sides) if kind.inputs_max else made.inputs
    groupings = [feed.grouping for feed in feeds]
    if kind is SpecKind.JOIN_TABLE:
        _check_table_join(feeds, entry)
        return
    if kind.inputs_max is not None and len(feeds) != kind.inputs_max:
        raise mistake_at(entry, f"a {kind} has two inputs, the left one first")
    if kind in _HOWS and len({len(feed.by) for feed in feeds}) > 1:
        raise mistake_at(entry, f"a {kind} needs as many columns in by on both sides")
    if kind.is_stateless or kind is SpecKind.SINK:
        return
    if SpecGrouping.FORWARD in groupings:
        raise mistake_at(entry, f"a {kind} needs a grouping: which instance gets a row?")
    if kind in _BY_KEY and not {SpecGrouping.KEY, SpecGrouping.GLOBAL}.issuperset(groupings):
        raise mistake_at(entry, f"a {kind} works by key, or on all rows: grouping key or global")
    if kind is SpecKind.DROP_DUPLICATES and SpecGrouping.GLOBAL in groupings:
        raise mistake_at(entry, "drop_duplicates needs by: the columns in which rows are equal")


def _check_table_join(feeds: Sequence[InputSpec], entry: YamlEntry) -> None:
    stream, *beside = (feed.grouping for feed in feeds)
    is_sided = len(beside) in (1, 2) and set(beside) == {SpecGrouping.ALL}
    if stream is not SpecGrouping.FORWARD or not is_sided:
        message = (
            "a join_table has a stream, which is not grouped, then a table, and perhaps its"
            " changes, both with grouping: all"
        )
        raise mistake_at(entry, message)
    mine, theirs, *others = (len(feed.by) for feed in feeds)
    if not mine or mine != theirs or any(others):
        raise mistake_at(entry, "a join_table needs as many columns in by of both, and no more")


def _check_simulated(made: OperatorSpec, fields: Mapping[str, YamlEntry], entry: YamlEntry) -> None:
    needed = {SpecKind.SOURCE: ("rate_per_s", "row_bytes", "dop"), SpecKind.SINK: ("ppt_us",)}
    if made.kind not in (SpecKind.SOURCE, SpecKind.PROCESS, SpecKind.SINK):
        raise mistake_at(entry, "only sources, processes and sinks can be simulated")
    for key in needed.get(made.kind, ("ppt_us", "row_bytes")):
        if key not in fields:
            raise mistake_at(entry, f"{made.id!r} is simulated, so it needs {key}")
    if made.kind is SpecKind.SOURCE and (made.row_bytes or 0.0) > _SOURCE_ROW_BYTES_MAX:
        message = f"rows of a simulated source have at most {_SOURCE_ROW_BYTES_MAX:,} bytes"
        raise mistake_at(fields["row_bytes"], message)
    if made.arguments:
        raise mistake_at(fields["arguments"], f"{made.id!r} is simulated, and takes no arguments")


def _each_input(entry: YamlEntry, kind: SpecKind) -> Iterator[tuple[YamlEntry, int]]:
    """Yield each input and its side; a side of a join may be a sequence of several."""
    for place, one in enumerate(entry.each()):
        if kind.inputs_max is None:
            yield one, 0
        elif one.is_sequence:
            together = tuple(one.each())
            if not together:
                raise mistake_at(one, "this side has no input")
            yield from ((of_side, place) for of_side in together)
        else:
            yield one, place


def _input(entry: YamlEntry, kind: SpecKind, side: int) -> InputSpec:
    fields = entry.check_keys(("from", "grouping", "by", "largest_share", "output", "on_null"))
    if "from" not in fields:
        raise mistake_at(entry, "an input needs from: the id of an operator")
    grouping = SpecGrouping.FORWARD
    if "grouping" in fields:
        grouping = fields["grouping"].choice(SpecGrouping, tuple(SpecGrouping))
    by: tuple[str, ...] = ()
    if "by" in fields:
        each = fields["by"].each() if fields["by"].is_sequence else [fields["by"]]
        by = tuple(one.text() for one in each)
        if not all(by):
            raise mistake_at(fields["by"], "the name of a column is empty")
    if (grouping is SpecGrouping.KEY) != bool(by) and kind is not SpecKind.JOIN_TABLE:
        raise mistake_at(entry, "grouping: key and by (its columns) go together")
    share = fields["largest_share"].number(at_most=1.0) if "largest_share" in fields else 0.0
    output = fields["output"].text() if "output" in fields else ""
    on_null = "fail"
    if "on_null" in fields:
        on_null = fields["on_null"].choice(str, ("fail", "drop"))
    return InputSpec(fields["from"].text(), grouping, by, share, output, on_null, side)


def _check_inputs(
    operator: OperatorSpec, operators: Mapping[str, OperatorSpec], entry: YamlEntry
) -> None:
    if not operator.inputs:
        return
    entries = _each_input(entry.items()["inputs"], operator.kind)
    for one, (at, _) in zip(operator.inputs, entries, strict=True):
        upstream = operators.get(one.upstream)
        if upstream is None:
            raise mistake_at(at, f"{operator.id!r} reads {one.upstream!r}, which is no operator")
        if upstream.kind is SpecKind.SINK:
            raise mistake_at(at, f"{operator.id!r} reads {one.upstream!r}, which is a sink")


def _in_order(
    operators: Mapping[str, OperatorSpec], at: Mapping[str, YamlEntry]
) -> tuple[OperatorSpec, ...]:
    """Return the operators, each after those that it reads; InputError for a cycle.

    Those that are in such an order keep it.
    """
    missing = {one.id: {feed.upstream for feed in one.inputs} for one in operators.values()}
    readers: dict[str, list[str]] = {}
    for one in operators.values():
        for upstream in missing[one.id]:
            readers.setdefault(upstream, []).append(one.id)
    places = {name: place for place, name in enumerate(operators)}
    ready = [places[name] for name, upstreams in missing.items() if not upstreams]
    by_place, found = tuple(operators.values()), []
    while ready:  # a heap: always the first one in the file whose inputs are there
        one = by_place[heapq.heappop(ready)]
        found.append(one)
        for reader in readers.get(one.id, ()):
            missing[reader].discard(one.id)
            if not missing[reader]:
                heapq.heappush(ready, places[reader])
    if len(found) < len(operators):
        cycle = _cycle_among({name: operators[name] for name in missing if missing[name]})
        named = " → ".join((*cycle, cycle[0]))
        raise mistake_at(at[cycle[0]], f"there is a cycle, {named}; a topology has none")
    return tuple(found)


def _cycle_among(operators: Mapping[str, OperatorSpec]) -> tuple[str, ...]:
    """Return a cycle in the order of its rows; each of the operators reads one of them."""
    walked = [next(iter(operators))]
    while walked[-1] not in walked[:-1]:
        feeds = operators[walked[-1]].inputs
        walked.append(next(one.upstream for one in feeds if one.upstream in operators))
    return tuple(reversed(walked[walked.index(walked[-1]) + 1 :]))
