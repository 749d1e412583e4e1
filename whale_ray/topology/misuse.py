"""What to say when a method is called where it does not exist.

A type checker finds these mistakes from the classes alone. For everybody else, a stream that lacks
a method looks it up here and answers with the fix, instead of a bare `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Mapping

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

STREAM_METHODS = frozenset({*GROUPINGS, *TRANSFORMS, "connect", "process", "sink", "union", "via"})
"""All that can be called on some stream."""

OTHER_NAMES: Mapping[str, str] = {
    "withColumn": "with_column",
    "assign": "with_column",
    "where": "filter",
    "flatMap": "flat_map",
    "flatmap": "flat_map",
    "apply": "map",
    "map_batches": "map(whale.columns(function))",
    "mapInPandas": "map(whale.columns(function))",
    "groupBy": "key_by",
    "groupby": "key_by",
    "group_by": "key_by",
    "keyBy": "key_by",
    "rebalance": "shuffle",
    "repartition": "shuffle",
    "all": "broadcast",
    "join": "connect",
    "coGroup": "connect",
    "unionAll": "union",
    "unionByName": "union",
    "concat": "union",
    "merge": "union",
    "add_sink": "sink",
    "write": "sink",
}
"""What the same thing is called in Spark, pandas, Flink and elsewhere."""


def other_name(kind: str, name: str) -> str:
    """Return the text of an `AttributeError` for a method that no stream has."""
    ours = OTHER_NAMES.get(name)
    hint = f": whale-ray calls it {ours}" if ours else ""
    return f"{kind!r} object has no attribute {name!r}{hint}"


def on_ungrouped(name: str) -> str | None:
    """Return what is wrong with a method of a grouped stream on one that is not grouped."""
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
    """Return what is wrong with a second grouping."""
    if name == "union":
        return grouped_before_union("this one", grouping)
    if name not in GROUPINGS:
        return None
    return f"the stream is grouped already ({grouping}): drop .{name}(…) or the grouping before it"


def grouped_before_union(which: str, grouping: str) -> str:
    """Return what is wrong with a grouped stream in a union."""
    return (
        f"union takes streams that are not grouped, and {which} is ({grouping}): group what union"
        " returns, a.union(b).key_by('column')"
    )


def on_connected(name: str) -> str | None:
    """Return what is wrong with anything but process after connect."""
    if name not in STREAM_METHODS:
        return None
    return (
        f"{name} does not take two streams: call .process(…) on the connected streams first,"
        f" or .{name}(…) on each of them before connect"
    )


def on_sink(name: str) -> str | None:
    """Return what is wrong with anything after a sink."""
    if name not in STREAM_METHODS:
        return None
    return (
        f"nothing follows a sink: call .{name}(…) on the stream that .sink(…) was called on"
        " (a stream may be used any number of times)"
    )
