"""Every function, operator and cast, as cases to compare with Spark on `edge_values`.

A case is Python text as in `expression_cases`. `edge_cases.json` has templates of cases, and sets
whose members replace a name in braces; a name used twice is the same member, and `{name#2}` another
one. Cases that Spark refuses (`REFUSED_BY_SPARK`) are left out.

`spark_differences.json` has the intended differences, by their topic in `DIFFERENCES`: case → rows,
each with the arguments, Spark's result and whale-ray's.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.operators.expressions import edge_values
from tests.operators.expressions.expression_cases import same
from whale_ray.configs.errors import ExpressionError
from whale_ray.operators.expressions import functions
from whale_ray.operators.expressions.expression import Expression
from whale_ray.transport.wire.arrow import column_to_arrow
from whale_ray.transport.wire.batch import Batch

MEANT = Path(__file__).with_name("spark_differences.json")
_LISTED = json.loads(Path(__file__).with_name("edge_cases.json").read_text())
_PLACE = re.compile(r"\{(\w+)(?:#\d)?\}")
#: The casts that Spark does not have, and functions that do not take every type here.
REFUSED_BY_SPARK = re.compile(
    r"([yhilfdmpb]|x)\.cast\('(date|timestamp_ntz)'\)|x\.cast\('(?!string|binary)"
    r"|z\.cast\('(?!string|timestamp|date)|([fdmpb]|day|t)\.cast\('binary'\)"
    r"|F\.date_(add|sub)\('day', 'l'\)"
)
#: Functions whose results in Java and C may differ in the last bit.
ROUGH = re.compile(r"F\.(exp|log\w*|pow|a?sin|a?cos|a?tan2?|hypot|radians|degrees)\(|\*\*")

Answer = pa.Array


def _cases(group: str) -> list[str]:
    found: dict[str, None] = {}
    for template in _LISTED[group]:
        places = list(dict.fromkeys(match.group() for match in _PLACE.finditer(template)))
        sets = [_LISTED["sets"][_PLACE.sub(r"\1", place)] for place in places]
        for members in itertools.product(*sets):
            case = template
            for place, member in zip(places, members, strict=True):
                case = case.replace(place, member)
            if not REFUSED_BY_SPARK.match(case):
                found[case] = None
    return list(found)


SINGLES, PAIRS, CLOCKS = _cases("singles"), _cases("pairs"), _cases("clocks")

#: Name → (cases, rows); those of clocks are one per zone.
GROUPS: dict[str, tuple[list[str], pa.Table]] = {
    "singles": (SINGLES, edge_values.SINGLES),
    "pairs": (PAIRS, edge_values.PAIRS),
    **{
        zone: (
            CLOCKS,
            edge_values.CLOCKS.set_column(
                0, "t", edge_values.CLOCKS["t"].cast(pa.timestamp("us", zone))
            ),
        )
        for zone in edge_values.ZONES
    },
}


def differences(group: str, answers: dict[str, Answer]) -> dict[str, list[list[str]]]:
    """Return case → rows in which whale-ray differs from Spark, as in `spark_differences.json`."""
    cases, table = GROUPS[group]
    batch = Batch.from_arrow(table.combine_chunks().to_batches()[0])
    names: dict[str, Any] = {name: functions.col(name) for name in table.column_names}
    names |= {"F": functions, "lit": functions.lit, "when": functions.when}
    names |= {"datetime": datetime, "decimal": decimal, "zoned": f"timestamp[us, tz={group}]"}
    found = {}
    for case in cases:
        expression: Expression = eval(case, names)  # noqa: S307 - our own
        rows = list(_differing(expression, batch, answers[case], bool(ROUGH.search(case))))
        if rows:
            found[case] = rows
    return found


def _differing(
    expression: Expression, batch: Batch, theirs: Answer, rough: bool
) -> Iterator[list[str]]:
    try:
        own = column_to_arrow(expression.evaluate(batch))
    except ExpressionError as error:
        yield ["refused", str(error)]
        return
    if _kind(own) != _kind(theirs):
        yield ["type", _kind(theirs), _kind(own)]
    given = [_plain(column_to_arrow(batch.column(name))) for name in expression.columns]
    pairs = zip(_plain(theirs), _plain(own), strict=True)
    for row, (there, here) in enumerate(pairs):
        if not same(there, here, rough):
            yield [*(_shown(column[row]) for column in given), _shown(there), _shown(here)]


def _kind(array: Answer) -> str:
    """Return a type's name without its zone: Spark's is that of the session, ours the column's."""
    is_instant = pa.types.is_timestamp(array.type) and array.type.tz is not None
    return "timestamp" if is_instant else str(array.type)


def _plain(array: Answer) -> list[Any]:
    """Return Python values: times as numbers, since Python's range is smaller, text as bytes."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_date(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_string(kind):
        array = array.cast(pa.binary())
    values: list[Any] = array.to_pylist()
    return values


def _shown(value: Any) -> str:
    return repr(value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)


def meant() -> dict[str, dict[str, list[list[str]]]]:
    """Return the intended differences: topic → case → rows."""
    listed: dict[str, dict[str, list[list[str]]]] = json.loads(MEANT.read_text())
    return listed
