"""JSON that every parser reads, also of numbers that JSON does not have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["json_text"]


def json_text(value: object, *, default: Callable[[Any], object] | None = None) -> str:
    """Return a value as one line of JSON.

    Python's own writer gives not a number and the infinities names that other parsers refuse; here
    they are the texts "NaN", "Infinity" and "-Infinity", as in JSON that Spark writes.

    Args:
        value: of dicts, sequences and what they hold.
        default: makes something of a value that JSON does not have; without it, that is an error.

    Raises:
        TypeError: a value that JSON does not have.
    """

    def plain(part: Any) -> Any:
        if isinstance(part, float) and not math.isfinite(part):
            return "NaN" if math.isnan(part) else "Infinity" if part > 0 else "-Infinity"
        if isinstance(part, Mapping):
            return {key: plain(inner) for key, inner in part.items()}
        if isinstance(part, list | tuple):
            return [plain(inner) for inner in part]
        if default is not None and not isinstance(part, str | int | float | None):
            return plain(default(part))
        return part

    return json.dumps(plain(value), allow_nan=False)
