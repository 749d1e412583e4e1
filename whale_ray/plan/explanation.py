"""An explanation: a diagram and some tables, shown as text or as HTML.

This module is independent of plans: `explain` fills in the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

_CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top;white-space:nowrap"
_RULE = "border-bottom:1px solid rgba(128,128,128,.35)"
_FONT = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px"


def number_ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as ranges: "0–3, 7"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}–{high}" for low, high in spans)


@dataclass(frozen=True)
class Table:
    """One part of an explanation."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each row has as many cells as there are headers."""
    note: str = ""
    """A line under the table."""

    def to_text(self) -> str:
        """Return the table as text, columns aligned by spaces; empty columns are left out."""
        used = self._used_columns()
        lines = [[row[column] for column in used] for row in (self.headers, *self.rows)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(used))]
        aligned = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        )
        body = [f"  {line}".rstrip() for line in aligned] if self.rows else []
        note = [f"  {self.note}"] if self.note else []
        return "\n".join([self.title, *body, *note])

    def as_dict(self) -> dict[str, Any]:
        """Return the table as plain values, a mapping from header to cell for each row."""
        rows = [dict(zip(self.headers, row, strict=True)) for row in self.rows]
        return {"title": self.title, "rows": rows, "note": self.note}

    def to_html(self) -> str:
        """Return the table as HTML whose colours follow the notebook's theme."""
        used = self._used_columns()
        head = "".join(
            f'<th style="{_CELL};{_RULE};font-weight:600;opacity:.7">{escape(self.headers[c])}</th>'
            for c in used
        )
        body = "".join(
            "<tr>" + "".join(f'<td style="{_CELL}">{escape(row[c])}</td>' for c in used) + "</tr>"
            for row in self.rows
        )
        grid = (
            f'<table style="border-collapse:collapse;{_FONT};color:inherit;'
            f'margin:0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
            if self.rows
            else ""
        )
        note = f'<div style="{_FONT};margin-top:4px">{escape(self.note)}</div>' if self.note else ""
        title = f'<div style="font-weight:600;margin:12px 0 4px">{escape(self.title)}</div>'
        return f"{title}{grid}{note}"

    def _used_columns(self) -> list[int]:
        return [c for c in range(len(self.headers)) if any(row[c] for row in self.rows)]


@dataclass(frozen=True, repr=False)
class Explanation:
    """The plans of a topology as tables and a diagram.

    `print` it, or make it the last expression of a notebook cell.
    """

    title: str
    tables: tuple[Table, ...]
    diagram_svg: str = ""
    """Shown only in notebooks."""

    def __str__(self) -> str:
        return "\n\n".join([self.title, *(table.to_text() for table in self.tables)])

    def __repr__(self) -> str:
        return str(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values, without the diagram."""
        return {"title": self.title, "tables": [table.as_dict() for table in self.tables]}

    def _repr_html_(self) -> str:
        """Render in a notebook, light or dark."""
        tables = "".join(table.to_html() for table in self.tables)
        title = f'<div style="font-weight:700;font-size:15px">{escape(self.title)}</div>'
        return f'<div style="overflow-x:auto;color:inherit">{title}{self.diagram_svg}{tables}</div>'
