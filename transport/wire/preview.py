"""One row as a short line for messages."""

from __future__ import annotations

from collections.abc import Iterable

from ...configs.errors import InputError
from .column import Column

__all__ = ["preview_of"]

_PREVIEW_VALUE_CHARS = 40
_PREVIEW_CHARS = 240


def preview_of(columns: Iterable[tuple[str, Column]]) -> str:
    """Return the first row of columns, by their names; long values are cut."""
    parts = [f"{name}={_shown(column)}" for name, column in columns if len(column)]
    return _cut(f"{{{', '.join(parts)}}}", _PREVIEW_CHARS)


def _shown(column: Column) -> str:
    try:
        return _short(column.to_pylist()[0])
    except (InputError, ValueError, OverflowError):  # no value of Python's, or not UTF-8
        return _short(column.data.tobytes() if column.type.kind == "bytes" else _as_text(column))


def _as_text(column: Column) -> str:
    from .arrow import column_to_arrow

    return str(column_to_arrow(column)[0].cast("string"))


def _short(value: object) -> str:
    if isinstance(value, str | bytes) and len(value) > _PREVIEW_VALUE_CHARS:
        return f"{value[:_PREVIEW_VALUE_CHARS]!r}…"
    return _cut(repr(value), 2 * _PREVIEW_VALUE_CHARS)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"
