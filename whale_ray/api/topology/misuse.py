"""Messages for methods that are called on an object that does not have them.

A type checker finds these mistakes by the classes. At runtime, the message of the `AttributeError`
or `TopologyError` says what to write instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

GROUPINGS = (
    "key_by",
    "shuffle",
    "broadcast",
    "global_",
    "local_or_shuffle",
    "direct",
    "partition_by",
)
"""The methods that group a stream."""

TRANSFORMS = ("map", "filter", "flat_map", "select", "with_column")
"""The methods that need no state."""

STREAM_METHODS = frozenset(
    {
        *GROUPINGS,
        *TRANSFORMS,
        *(
            "connect",
            "drop_duplicates",
            "group_by",
            "join",
            "join_asof",
            "join_table",
            "process",
            "side_output",
            "sink",
            "union",
            "via",
        ),
    }
)
"""The methods of all kinds of streams."""

OTHER_NAMES: Mapping[str, str] = {
    "withColumn": "with_column",
    "with_columns": "with_column",
    "withColumns": "with_column",
    "assign": "with_column",
    "where": "filter",
    "flatMap": "flat_map",
    "flatmap": "flat_map",
    "apply": "map",
    "map_batches": "map(whale.columns(function))",
    "mapInPandas": "map(whale.columns(function))",
    "mapInArrow": "map(whale.columns(function))",
    "flat_map_batch": "flat_map(whale.columns(function))",
    "groupBy": "group_by",
    "groupby": "group_by",
    "keyBy": "key_by",
    "keyby": "key_by",
    "key_on": "key_by",
    "rebalance": "shuffle",
    "redistribute": "shuffle",
    "repartition": "shuffle",
    "all": "broadcast",
    "coGroup": "connect",
    "unionAll": "union",
    "unionByName": "union",
    "distinct": "drop_duplicates",
    "dropDuplicates": "drop_duplicates",
    "dropDuplicatesWithinWatermark": "drop_duplicates",
    "unique": "drop_duplicates",
    "concat": "union",
    "merge": "union",
    "stateful_map": "key_by('column').process(…)",
    "getSideOutput": "side_output",
    "get_side_output": "side_output",
    "foreach": "sink",
    "for_each": "sink",
    "add_sink": "sink",
    "addSink": "sink",
    "output": "sink",
    "write": "sink",
    "writeStream": "sink",
    "write_parquet": "sink(whale.sinks.parquet('folder'))",
}
"""Names of methods in Spark, pandas, Flink, Bytewax, Ray and others → the name in whale-ray."""

_AGGREGATES = (
    "group the rows first: stream.group_by('column').agg(whale.functions.count()), with a window"
    " among the columns if there is to be one"
)
_WINDOWS = (
    "a window is one of the columns: stream.group_by(whale.window('time', '10 seconds'), 'column')"
    ".agg(whale.functions.count())"
)
_JOINS = (
    "join rows that are near in event time, left.join(right, on='id',"
    " within=whale.window('12 hours')), or write left.key_by('id').connect(right.key_by('id'))"
    ".process(Match), where Match derives from whale.CoProcess and keeps the rows that wait"
)
_AS_OF = "write trades.join_asof(quotes, by='symbol', strategy='backward', tolerance='1 second')"
_ROWS = (
    "a stream has no rows before its topology runs: end it with .sink(whale.sinks.collect(),"
    " id='out'), then whale.run(topology).results('out').to_pandas()"
)
_DROP = "write select('a', 'b') with the columns to keep"
_NULLS = "write filter(whale.col('a').is_not_null())"
_TIMES = "write topology.source(…, event_time='column', max_out_of_order_ms=…)"
_ORDER = (
    "a stream has no end to wait for: rows reach a process in the order of their event times; sort"
    " results, whale.run(topology).results('out').to_pandas().sort_values('column')"
)
_TWICE = "there is nothing to do: any number of operators may read a stream"

_UNGROUPED = {
    "union": "group what union returns, a.union(b).key_by('column')",
    "join": "leave out that grouping, a.join(b, on='column', within=…)",
    "join_asof": "leave out that grouping, a.join_asof(b, by='column')",
    "join_table": "leave out that grouping, stream.join_table(table, on='column')",
    "drop_duplicates": "leave out that grouping, it groups by its columns",
}
"""What to do about a grouped stream, by the method that takes none."""

INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(
        ("agg", "aggregate", "reduce", "reduceByKey", "reduce_by_key", "fold", "sum", "count"),
        _AGGREGATES,
    ),
    **dict.fromkeys(
        ("min", "max", "mean", "avg", "top_n", "reduce_final", "count_final"), _AGGREGATES
    ),
    **dict.fromkeys(
        ("window", "session_window", "windowAll", "collect_window", "fold_window", "time_window"),
        _WINDOWS,
    ),
    **dict.fromkeys(("join_window", "crossJoin", "interval_join"), _JOINS),
    **dict.fromkeys(
        (
            *("show", "head", "take", "take_all", "first", "limit", "collect", "toPandas"),
            *("to_pandas", "to_arrow", "display", "iter_rows", "toLocalIterator"),
        ),
        _ROWS,
    ),
    **dict.fromkeys(("merge_asof", "asof_join", "asofJoin"), _AS_OF),
    "drop": _DROP,
    "dropna": _NULLS,
    "dropNa": _NULLS,
    "fillna": "write with_column('a', whale.functions.coalesce(whale.col('a'), whale.lit(0)))",
    "withColumnRenamed": "write select(whale.col('a').alias('b'), …)",
    "rename": "write select(whale.col('a').alias('b'), …)",
    "withWatermark": _TIMES,
    "assign_timestamps_and_watermarks": _TIMES,
    **dict.fromkeys(("sort", "orderBy", "order_by", "sort_values"), _ORDER),
    **dict.fromkeys(("cache", "persist"), _TWICE),
    "print": "write sink(whale.sinks.collect(), id='out'), or print in a function that map calls",
    "printSchema": "write print(topology.explain())",
    "explain": "write print(topology.explain())",
}
"""What to write instead of a method that does not exist, by its name."""


def other_name(kind: str, name: str, columns: Collection[str] = ()) -> str:
    """Return the message of an `AttributeError` for a method that no stream has.

    Args:
        kind: the class of the object.
        name: the method's name.
        columns: the columns of the stream, as far as they are known.
    """
    if name in INSTEAD:
        hint = f": {INSTEAD[name]}"
    elif name in OTHER_NAMES:
        hint = f": whale-ray calls it {OTHER_NAMES[name]}"
    elif name in columns:
        hint = f": write whale.col({name!r}) for the column"
    else:
        near = get_close_matches(name, STREAM_METHODS, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
    return f"{kind!r} object has no attribute {name!r}{hint}"


def no_side_output(name: object, is_main: bool, names: Collection[str]) -> str:
    """Return the message for a side output that a stream's operator does not have."""
    if not is_main:
        return f"side_output({name!r}) of a side output: call it on the stream of process(…)"
    has = f"it has {', '.join(map(repr, names))}" if names else "it has none"
    return (
        f"there is no side output {name!r}, {has}: a process names its outputs in its class,"
        " outputs = ('main', 'late')"
    )


_RUN = "write whale.run(topology), or whale.submit(topology, on='processes') to go on meanwhile"
_READ = "write topology.source(whale.sources.parquet('folder')), or another of whale.sources"

ON_TOPOLOGY: Mapping[str, str] = {
    **dict.fromkeys(("run", "execute", "start", "submit", "awaitTermination"), _RUN),
    **dict.fromkeys(
        ("read", "readStream", "input", "add_source", "addSource", "from_collection"), _READ
    ),
    "sink": "call .sink(…) on a stream, such as what topology.source(…) returns",
}
"""What to write instead of an attribute that a topology does not have, by its name."""


def on_topology(name: str) -> str:
    """Return the message of an `AttributeError` for a method that a topology does not have."""
    hint = ""
    if name in ON_TOPOLOGY:
        hint = f": {ON_TOPOLOGY[name]}"
    elif name in STREAM_METHODS or name in OTHER_NAMES or name in INSTEAD:
        hint = ": streams have such methods; topology.source(…) returns one"
    return f"'Topology' object has no attribute {name!r}{hint}"


def subscript(key: object) -> str:
    """Return the message for `stream[key]`, and for a loop over a stream."""
    if isinstance(key, str):
        return f"a stream has no columns to take: write whale.col({key!r}) in an expression"
    return _ROWS


def on_grouped_rows(name: str) -> str:
    """Return the message of an `AttributeError` for a method that `group_by` does not offer."""
    if name in INSTEAD or name in STREAM_METHODS:
        return f"rows in groups have no {name!r}: aggregate them, .agg(whale.functions.count())"
    return f"'GroupedRows' object has no attribute {name!r}: use agg"


def on_ungrouped(name: str) -> str | None:
    """Return the message for a grouped stream's method on a stream without grouping, or None."""
    if name == "process":
        return (
            "process needs to know which instance gets which row: group the stream right before it,"
            " with key_by('column'), shuffle(), broadcast() or global_()"
        )
    if name == "connect":
        return (
            "connect needs both streams grouped: call key_by('column') or broadcast() on this one"
            " first"
        )
    return None


def on_grouped(name: str, grouping: str) -> str | None:
    """Return the message for a second grouping or a union of a grouped stream, or None."""
    if name in _UNGROUPED:
        return grouped_before(name, "this one", grouping)
    if name not in GROUPINGS:
        return None
    return f"the stream is grouped already ({grouping}): drop .{name}(…) or the grouping before it"


def grouped_before(verb: str, which: str, grouping: str) -> str:
    """Return the message for a grouped stream in a union or a join."""
    return (
        f"{verb} takes streams that are not grouped, and {which} is ({grouping}): "
        + (_UNGROUPED[verb])
    )


def on_connected(name: str) -> str | None:
    """Return the message for a method other than `process` on connected streams, or None."""
    if name not in STREAM_METHODS:
        return None
    return (
        f"{name} does not take two streams: call .process(…) on the connected streams first,"
        f" or .{name}(…) on each of them before connect"
    )


def on_sink(name: str) -> str | None:
    """Return the message for a stream's method on a sink, or None."""
    if name not in STREAM_METHODS:
        return None
    return (
        f"nothing follows a sink: call .{name}(…) on the stream that .sink(…) was called on"
        " (a stream may be used any number of times)"
    )
