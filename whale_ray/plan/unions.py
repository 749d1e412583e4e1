"""Unions: streams of equal columns that are read as one.

A union is not executed. Its consumer reads each of its streams over an edge of its own, on the same
port. So a union adds no step for any row, and the consumer's watermark is the minimum of the
streams' watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from .logical import Input, LogicalPlan, OperatorKind

if TYPE_CHECKING:
    from ..transport.wire.types import DataType, Schema

Columns: TypeAlias = "Mapping[str, DataType | None]"


def united_streams(logical: LogicalPlan) -> Mapping[str, tuple[Input, ...]]:
    """Return the streams of every union, by its id, in order; nested unions are flattened."""
    united: dict[str, tuple[Input, ...]] = {}
    for node in logical.nodes:
        if node.kind is OperatorKind.UNION:
            united[node.id] = tuple(
                stream for feed in node.inputs for stream in streams_of(feed, united)
            )
    return united


def streams_of(feed: Input, united: Mapping[str, tuple[Input, ...]]) -> tuple[Input, ...]:
    """Return the streams that an input reads: one, or those of a union with the input's grouping.

    A transport that the user set on a stream before the union is kept, and so are its batches.
    """
    if feed.upstream not in united:
        return (feed,)
    return tuple(
        replace(
            feed,
            upstream=stream.upstream,
            output=stream.output,
            transport=stream.transport or feed.transport,
            batch_rows=stream.batch_rows or feed.batch_rows,
        )
        for stream in united[feed.upstream]
    )


def columns_of_schema(schema: Schema) -> Columns:
    """Return a schema's columns and their types."""
    return {field.name: field.type for field in schema.fields}


def difference(one: str, columns: Columns, other: str, others: Columns) -> str:
    """Return a message that says how the columns of two streams differ; "" if they are equal.

    The streams are named by their operators. A type of None is not known and equals any.
    """
    needs = "union takes streams of equal columns, but"
    for (name, own), (lacking, theirs) in (
        ((one, columns), (other, others)),
        ((other, others), (one, columns)),
    ):
        missing = next((column for column in own if column not in theirs), None)
        if missing is not None:
            return (
                f"{needs} {name!r} has column {missing!r} and {lacking!r} has not (columns:"
                f" {', '.join(theirs)}): select the same columns of both before union"
            )
    for column, kind in columns.items():
        wanted = others[column]
        if kind is not None and wanted is not None and kind != wanted:
            return (
                f"{needs} {column!r} is {kind.name} in {one!r} and {wanted.name} in {other!r}:"
                f" cast one of them with with_column before union"
            )
    if list(columns) != list(others):
        return (
            f"{needs} {one!r} has them in the order {', '.join(columns)} and {other!r} in"
            f" {', '.join(others)}: put them into one order with select before union"
        )
    return ""
