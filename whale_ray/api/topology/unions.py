"""Checks of the arguments of `union`, and the operator that it adds."""

from __future__ import annotations

from ...configs.errors import TopologyError
from ...plan.logical import Input, OperatorKind, OperatorNode, OutputKey, Union
from ...plan.unions import difference
from .checks import describe_value, mistake
from .known import KnownColumns
from .locations import caller_location
from .registry import Registry


def add_union(registry: Registry, union_id: str, inputs: tuple[Input, ...]) -> None:
    """Add the union of streams.

    Raises:
        TopologyError: there is only one stream, or their columns differ, as far as is known.
    """
    if len(inputs) < 2:
        raise mistake(union_id, "union needs another stream: pass one or more, a.union(b, c)")
    node = OperatorNode(
        id=union_id,
        kind=OperatorKind.UNION,
        payload=Union(),
        inputs=inputs,
        verb="union",
        has_event_time=all(registry.node(feed.upstream).has_event_time for feed in inputs),
        location=caller_location(),
    )
    known = _equal_columns(registry, union_id, [feed.source for feed in inputs])
    registry.add(node, known)


def no_stream(operator_id: str, verb: str, passed: object) -> TopologyError:
    """Return the error for an argument of `union` or `join` that is not a stream."""
    several = verb == "union" and isinstance(passed, (list, tuple))
    hint = ": pass them one by one, a.union(*streams)" if several else ""
    return mistake(operator_id, f"{verb} takes streams, not {describe_value(passed)}{hint}")


def _equal_columns(
    registry: Registry, union_id: str, streams: list[OutputKey]
) -> KnownColumns | None:
    """Return the columns that all streams have, as far as they are known."""
    united: tuple[str, KnownColumns] | None = None
    for stream in streams:
        columns = registry.columns(stream)
        name = registry.output_name(stream)
        if columns is None:
            continue
        if united is None:
            united = name, columns
            continue
        first, known = united
        differs = difference(first, known, name, columns)
        if differs:
            raise mistake(union_id, differs)
        united = first, {name: kind or columns[name] for name, kind in known.items()}
    return None if united is None else united[1]
