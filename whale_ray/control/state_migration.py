"""Which declared state another version of a keyed process may take over. Pure.

A value that was added begins with its initial value. Numbers may become wider, as long as each has
the same value in the new type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..operators.keyed.dumped_state import DeclaredValue, declared_values
from ..state.node_transfer import holds_all

__all__ = ["is_migratable"]

_WIDENED = ("sum", "min", "max", "value")


def is_migratable(before: Sequence[str], now: Sequence[str]) -> bool:
    """Return whether state that was described so can be taken over by what is declared now.

    Args:
        before: what `StateDeclaration.describe` said of each value when it was kept.
        now: what it says of the values that are declared now.
    """
    if set(before) <= set(now):
        return declared_values(before) is not None or list(before) == list(now)
    kept, declared = declared_values(before), declared_values(now)
    if kept is None or declared is None:
        return False
    described = {one.name: text for one, text in zip(declared, now, strict=True)}
    values = {one.name: one for one in declared}
    return all(
        described.get(one.name) == text
        or (one.name in values and _is_wider(one, text, values[one.name], described[one.name]))
        for one, text in zip(kept, before, strict=True)
    )


def _is_wider(before: DeclaredValue, text: str, now: DeclaredValue, new_text: str) -> bool:
    """Return whether a value is the same but for a type that holds all numbers of the old one."""
    if before.kind != now.kind or before.kind not in _WIDENED:
        return False
    old, new = before.type, now.type
    if old is None or new is None or _rest(text) != _rest(new_text):
        return False
    if not (_is_number(old) and _is_number(new)):
        return False
    return holds_all(np.dtype(new.to_pandas_dtype()), np.dtype(old.to_pandas_dtype()))


def _rest(text: str) -> str:
    """Return what a description says after the type."""
    return text.partition(", ")[2]


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
