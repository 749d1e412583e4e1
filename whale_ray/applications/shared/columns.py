"""Checks of the batches that operators receive, and their columns for compiled loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError
from ...transport.wire.batch import Batch
from ...transport.wire.types import Schema

__all__ = ["check_columns", "event_times", "frozen", "types_of"]

_Any = TypeVar("_Any", bound=np.generic)


def frozen(array: npt.NDArray[_Any]) -> npt.NDArray[_Any]:
    """Return a read-only, contiguous view: numba compiles anew for arrays that can be written."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def types_of(schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return column → allowed types, the form that `check_columns` takes."""
    return {field.name: (field.type.name,) for field in schema}


def check_columns(side: str, batch: Batch, expected: Mapping[str, tuple[str, ...]]) -> None:
    """Check that a batch has the expected columns and types.

    Args:
        side: name of the input, for the message.
        batch: the rows.
        expected: column → allowed types, the message recommends the first; () allows any type.

    Raises:
        InputError: a column is missing or has another type; the message says how to convert it.
    """
    for name, types in expected.items():
        if name not in batch.schema:
            msg = (
                f"{side} have no column {name!r}: they have {', '.join(batch.schema.names)};"
                " rename one with select(col('…').alias(…))"
            )
            raise InputError(msg)
        found = batch.schema.field(name).type.name
        if types and found not in types:
            msg = (
                f"{side}: column {name!r} is {found} where {types[0]} is needed:"
                f" cast it with with_column({name!r}, col({name!r}).cast({types[0]!r}))"
            )
            raise InputError(msg)


def event_times(side: str, batch: Batch) -> npt.NDArray[np.int64]:
    """Return the rows' event times, int64 ns since 1970, shape (num_rows,).

    Raises:
        InputError: the rows have none.
    """
    times = batch.times
    if times is None:
        msg = f"{side} have no event times: give their source event_time='column'"
        raise InputError(msg)
    return times
