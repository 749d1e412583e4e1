"""Mistakes are found while building: each with its whole message, which names the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

import whale_ray as whale
from tests.whale_ray.api.mistakes import Fixes, Mistake, assert_message
from tests.whale_ray.nowhere import Nowhere


class Count(whale.Process):
    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


def two(a: Any, b: Any) -> Any:
    return a


async def later(row: Any) -> Any:
    return row


def several(row: Any) -> Any:
    yield row


MISTAKES: dict[str, Mistake] = {
    # names and numbers
    "a topology without a name": (
        lambda rig: whale.Topology(""),
        "topology name '': use 1 to 64 letters, digits, '-', '_' or '.', the first a letter or"
        " digit",
    ),
    "a topology named by a number": (
        lambda rig: whale.Topology(7),  # type: ignore[arg-type] # the mistake under test
        "topology name is 7: pass a text such as 'ride-hailing'",
    ),
    "an id with a slash": (
        lambda rig: rig.fixes.map(dict, id="a/b"),
        "operator id 'a/b': use 1 to 64 letters, digits, '-', '_' or '.', the first a letter or"
        " digit",
    ),
    "an id twice": (
        lambda rig: rig.fixes.map(dict, id="timed"),
        "operator 'timed': the id is taken (source at mistakes.py:LINE): give each"
        " operator its own id=",
    ),
    "parallelism 0": (
        lambda rig: rig.fixes.map(dict, id="m", parallelism=0),
        "operator 'm': parallelism is 0: pass a number from 1 to 65536, or leave it out",
    ),
    "an absurd parallelism": (
        lambda rig: rig.fixes.shuffle().process(Count, id="m", parallelism=10**9),
        "operator 'm': parallelism is 1000000000: pass a number from 1 to 65536, or leave it out",
    ),
    "a parallelism in words": (
        lambda rig: rig.topology.source(Fixes(), id="m", parallelism="four"),
        "operator 'm': parallelism is 'four': pass a whole number, such as parallelism=4",
    ),
    "a parallelism that is a truth value": (
        lambda rig: rig.fixes.sink(Nowhere(), id="m", parallelism=True),
        "operator 'm': parallelism is True: pass a whole number, such as parallelism=4",
    ),
    "many instances behind global_": (
        lambda rig: rig.fixes.global_().process(Count, id="m", parallelism=2),
        "operator 'm': global_() sends every row to one instance, but parallelism is 2: leave"
        " parallelism out, or group by key_by, shuffle or broadcast",
    ),
    # sources
    "a path for a source": (
        lambda rig: rig.topology.source("trips/", id="m"),
        "operator 'm': source takes a source, not 'trips/': pass whale.sources.parquet('trips/')",
    ),
    "a csv path for a source": (
        lambda rig: rig.topology.source(Path("a.csv"), id="m"),
        "operator 'm': source takes a source, not a PosixPath: pass whale.sources.csv('a.csv')",
    ),
    "a pandas frame for a source": (
        lambda rig: rig.topology.source(pandas.DataFrame(), id="m"),
        "operator 'm': source takes a source, not a DataFrame: pass whale.sources.pandas(…)",
    ),
    "an Arrow table for a source": (
        lambda rig: rig.topology.source(pyarrow.table({"a": [1]}), id="m"),
        "operator 'm': source takes a source, not a Table: pass whale.sources.arrow(…)",
    ),
    "a list for a source": (
        lambda rig: rig.topology.source([{"a": 1}], id="m"),
        "operator 'm': source takes a source, not a list: pass whale.sources.iterable(…)",
    ),
    "a number for a source": (
        lambda rig: rig.topology.source(7, id="m"),
        "operator 'm': source takes a source, not 7: pass one of whale.sources",
    ),
    "a source's class": (
        lambda rig: rig.topology.source(Fixes, id="m"),
        "operator 'm': source takes an object, not the class: call it, Fixes(…)",
    ),
    "a source's function": (
        lambda rig: rig.topology.source(whale.sources.parquet, id="m"),
        "operator 'm': source takes what a function returns: call it, parquet(…)",
    ),
    "a sink for a source": (
        lambda rig: rig.topology.source(Nowhere(), id="m"),
        "operator 'm': this is a sink: source takes one of whale.sources",
    ),
    "an event time that is not a column": (
        lambda rig: rig.topology.source(Fixes(), id="m", event_time="att"),
        "operator 'm': event_time names column 'att', which the stream does not have: did you mean"
        " 'at'? (columns: vehicle_id, lat_e5, at)",
    ),
    "an event time that is not a name": (
        lambda rig: rig.topology.source(Fixes(), id="m", event_time=whale.col("at")),
        "operator 'm': event_time is a ColumnReference: pass the name of a column",
    ),
    "an event time of text": (
        lambda rig: rig.topology.source(Fixes(), id="m", event_time="vehicle_id"),
        "operator 'm': the event time column 'vehicle_id' has type string; name a timestamp, a date"
        " or an integer column, or make one with to_timestamp() before",
    ),
    "an event time of integers without a unit": (
        lambda rig: rig.topology.source(Fixes(), id="m", event_time="lat_e5"),
        "operator 'm': the event time column 'lat_e5' has type int32; pass event_time_unit='s',"
        " 'ms', 'us' or 'ns'",
    ),
    "a negative disorder": (
        lambda rig: rig.topology.source(Fixes(), id="m", event_time="at", max_out_of_order_ms=-1),
        "operator 'm': max_out_of_order_ms=-1 is out of range; it says by how many milliseconds a"
        " row may lie behind the latest, 0 for not at all",
    ),
    "a disorder in words": (
        lambda rig: rig.topology.source(Fixes(), id="m", event_time="at", max_out_of_order_ms="1s"),
        "operator 'm': max_out_of_order_ms is '1s': pass milliseconds",
    ),
    "disorder without event time": (
        lambda rig: rig.topology.source(Fixes(), id="m", max_out_of_order_ms=5),
        "operator 'm': max_out_of_order_ms has no effect without event times: add"
        " event_time='column'",
    ),
    "an unknown policy": (
        lambda rig: rig.topology.source(Fixes(), id="m", event_time="at", on_late="ignore"),
        "operator 'm': on_late is 'ignore': pass on_late='fail' or on_late='drop' or"
        " on_late='pass'",
    ),
    # functions and expressions
    "a map without a function": (
        lambda rig: rig.fixes.map("upper", id="m"),
        "operator 'm': map takes a function (row) → a mapping of column name → value, not 'upper'",
    ),
    "a map by an expression": (
        lambda rig: rig.fixes.map(whale.col("lat_e5") * 2, id="m"),
        "operator 'm': map takes a function, not an expression: use select(…) or"
        " with_column('name', …)",
    ),
    "a function of two": (
        lambda rig: rig.fixes.map(two, id="m"),
        "operator 'm': two(a: 'Any', b: 'Any') cannot be called with one argument: map calls it as"
        " two(row) → a mapping of column name → value",
    ),
    "a function of none": (
        lambda rig: rig.fixes.filter(lambda: True, id="m"),
        "operator 'm': lambda() cannot be called with one argument: filter calls it as lambda(row)"
        " → True or False",
    ),
    "an async function": (
        lambda rig: rig.fixes.map(later, id="m"),
        "operator 'm': later is an async function: map takes a plain one, written with def",
    ),
    "a generator in map": (
        lambda rig: rig.fixes.map(several, id="m"),
        "operator 'm': several is a generator, which yields any number of rows: use flat_map",
    ),
    "columns of two arguments": (
        lambda rig: whale.columns(two),  # type: ignore[arg-type] # the mistake under test
        "columns calls two(batch): it must take one argument",
    ),
    "columns of an array": (
        lambda rig: whale.columns(np.zeros(2)),  # type: ignore[arg-type] # the mistake under test
        "columns takes a function (batch), not a ndarray",
    ),
    "a filter by a column's name": (
        lambda rig: rig.fixes.filter("lat_e5", id="m"),
        "operator 'm': filter takes an expression such as whale.col('lat_e5') > 0, or a function"
        " (row) → True or False, not 'lat_e5'",
    ),
    "a filter by a missing column": (
        lambda rig: rig.fixes.filter(whale.col("lat") > 0, id="m"),
        "operator 'm': filter names column 'lat', which the stream does not have: did you mean"
        " 'at'? (columns: vehicle_id, lat_e5, at)",
    ),
    "an empty select": (
        lambda rig: rig.fixes.select(id="m"),
        "operator 'm': select needs at least one column: select('vehicle_id', …)",
    ),
    "a select of all columns": (
        lambda rig: rig.fixes.select("*", id="m"),
        "operator 'm': select has no '*': name the columns, or add one to all that there are by"
        " with_column('name', …)",
    ),
    "a select of a number": (
        lambda rig: rig.fixes.select(3, id="m"),
        "operator 'm': select takes column names and expressions, not 3",
    ),
    "a select of a missing column": (
        lambda rig: rig.fixes.select("vehicle", id="m"),
        "operator 'm': select names column 'vehicle', which the stream does not have: did you mean"
        " 'vehicle_id'? (columns: vehicle_id, lat_e5, at)",
    ),
    "with_column without an expression": (
        lambda rig: rig.fixes.with_column("x", 3, id="m"),
        "operator 'm': with_column takes a name and an expression, not 3: for a constant pass"
        " whale.lit(3)",
    ),
    "a schema of the wrong kind": (
        lambda rig: rig.fixes.map(dict, id="m", schema=["a", "b"]),
        "operator 'm': schema is a list: pass a whale.Schema or a mapping, {'column': 'int64'}",
    ),
    "a schema with an unknown type": (
        lambda rig: rig.fixes.map(dict, id="m", schema={"a": "in64"}),
        "operator 'm': schema: TYPE",
    ),
    # groupings
    "no key": (
        lambda rig: rig.fixes.key_by(),
        "operator 'fixes': key_by needs at least one column: key_by('vehicle_id')",
    ),
    "a missing key": (
        lambda rig: rig.fixes.key_by("vehicleid"),
        "operator 'fixes': key_by names column 'vehicleid', which the stream does not have: did you"
        " mean 'vehicle_id'? (columns: vehicle_id, lat_e5, at)",
    ),
    "a key by expression": (
        lambda rig: rig.plain.key_by(whale.col("a") + 1),
        "operator 'plain': key_by takes column names, not FunctionCall (a + 1): compute the key"
        " with with_column first, then name it",
    ),
    "direct by text": (
        lambda rig: rig.fixes.direct("vehicle_id"),
        "operator 'fixes': direct needs a column of integers, 'vehicle_id' is string",
    ),
    "partition_by a function of one": (
        lambda rig: rig.fixes.partition_by(several),
        "operator 'fixes': several(row: 'Any') cannot be called with two arguments: partition_by"
        " calls it as several(batch, parallelism) → instance numbers",
    ),
    "a broadcast of a broadcast": (
        lambda rig: rig.fixes.broadcast().broadcast(),
        "operator 'fixes': the stream is grouped already (all): drop .broadcast(…) or the grouping"
        " before it",
    ),
    "a key after a shuffle": (
        lambda rig: rig.fixes.shuffle().key_by("at"),
        "operator 'fixes': the stream is grouped already (shuffle): drop .key_by(…) or the grouping"
        " before it",
    ),
    # sinks and the whole
    "a path for a sink": (
        lambda rig: rig.fixes.sink("out.csv", id="m"),
        "operator 'm': sink takes a sink, not 'out.csv': pass whale.sinks.csv('out.csv')",
    ),
    "a source for a sink": (
        lambda rig: rig.fixes.sink(Fixes(), id="m"),
        "operator 'm': this is a source: sink takes one of whale.sinks",
    ),
    "two sinks for one folder": (
        lambda rig: (
            rig.fixes.sink(whale.sinks.parquet("/nowhere/out"), id="first"),
            rig.fixes.sink(whale.sinks.csv("/nowhere/out/"), id="m"),
        ),
        "operator 'm': sink 'first' writes to /nowhere/out already: give each sink its own folder",
    ),
    "a sink after a sink": (
        lambda rig: rig.fixes.sink(Nowhere(), id="m").sink(Nowhere()),
        "operator 'm': nothing follows a sink: call .sink(…) on the stream that .sink(…) was called"
        " on (a stream may be used any number of times)",
    ),
    "nothing at all": (
        lambda rig: whale.Topology("t").logical_plan(),
        "topology 't' is empty: begin with .source(whale.sources.…)",
    ),
    "no sink": (
        lambda rig: rig.topology.explain(),
        "topology 't' has no sink, so nothing would come of it: end a stream with"
        " .sink(whale.sinks.…)",
    ),
    "a loose end": (
        lambda rig: (rig.fixes.sink(Nowhere()), rig.topology.logical_plan()),
        "operator 'timed': nothing reads its output (source at mistakes.py:LINE): end"
        " it with .sink(whale.sinks.…), or remove it",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_names_the_thing_and_the_fix(mistake: str) -> None:
    is_added = mistake in ("a sink after a sink", "a loose end", "two sinks for one folder")
    assert_message(*MISTAKES[mistake], is_added=is_added)
