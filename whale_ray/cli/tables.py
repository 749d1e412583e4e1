"""Tables of rows for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..operators.sinks.base import SinkResult

PREVIEW_ROWS = 5
_CELL_WIDTH_MAX = 40


def preview(result: SinkResult) -> str:
    """Return the first rows of a result as text, and how many more there are; "" without rows."""
    rows = result.preview(PREVIEW_ROWS) if result.rows else []
    if not rows:
        return ""
    lines = table(rows, ".6g")
    if result.rows > PREVIEW_ROWS:
        lines.append(f"  … and {result.rows - PREVIEW_ROWS:,} more")
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Mapping[str, Any]], floats: str = ".1f") -> list[str]:
    """Return the lines of a table: the names of the columns, then the rows.

    Args:
        rows: the rows, all with the same columns.
        floats: the format specification of floats.
    """
    if not rows:
        return ["  (no row)"]
    names = list(rows[0])
    cells = [[_clipped(name) for name in names]]
    cells += [[_cell(row[name], floats) for name in names] for row in rows]
    widths = [max(len(of[column]) for of in cells) for column in range(len(names))]
    return [
        "  "
        + "  ".join(f"{cell:<{width}}" for cell, width in zip(of, widths, strict=True)).rstrip()
        for of in cells
    ]


def _cell(value: Any, floats: str) -> str:
    if value is None:
        return "-"
    return format(value, floats) if isinstance(value, float) else _clipped(str(value))


def _clipped(text: str) -> str:
    """Return a text as one line of at most `_CELL_WIDTH_MAX` characters."""
    text = " ".join(text.split())
    return text if len(text) <= _CELL_WIDTH_MAX else f"{text[: _CELL_WIDTH_MAX - 1]}…"
