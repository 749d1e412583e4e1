"""Metrics as tables for notebooks: the operators, what joins them, links between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .edge_metrics import EdgeMetrics
    from .operator_metrics import OperatorMetrics
    from .relay_metrics import RelayMetrics

_OPERATOR_HEAD = (
    "operator",
    "instances",
    "rows in",
    "rows out",
    "rows/s",
    "lag ms",
    "busy",
    "blocked",
)
_EDGE_HEAD = ("from", "to", "carried by")
_LINK_HEAD = (
    "host",
    "peer",
    "link",
    "MB sent",
    "MB received",
    "broken",
    "waited",
    "not by verbs because",
)


def metrics_html(
    operators: Sequence[OperatorMetrics],
    edges: Sequence[EdgeMetrics],
    relays: Sequence[RelayMetrics],
) -> str:
    """Return the tables of a job, as HTML; those of edges and links if there are any."""
    tables = [_table(_OPERATOR_HEAD, _operator_rows(operators))]
    if edges:
        tables.append(_table(_EDGE_HEAD, _edge_rows(edges)))
    if relays:
        tables.append(_table(_LINK_HEAD, _link_rows(relays)))
    return "".join(tables)


def _operator_rows(operators: Sequence[OperatorMetrics]) -> list[tuple[str, ...]]:
    return [
        (
            m.operator_id,
            str(m.instances),
            f"{m.rows_in:,}",
            ", ".join(
                [f"{m.rows_out:,}", *(f"{n} {rows:,}" for n, rows in m.side_rows_out.items())]
            ),
            f"{m.rate_per_s:,.0f}",
            "" if m.lag_ms is None else f"{m.lag_ms:,.0f}",
            f"{m.busy:.0%}",
            f"{m.back_pressured:.0%}",
        )
        for m in operators
    ]


def _edge_rows(edges: Sequence[EdgeMetrics]) -> list[tuple[str, ...]]:
    return [(edge.source, edge.target, edge.carried_by) for edge in edges]


def _link_rows(relays: Sequence[RelayMetrics]) -> list[tuple[str, ...]]:
    return [
        (
            relay.host,
            link.host,
            link.way if link.up else "down",
            f"{link.bytes_sent / 1e6:,.1f}",
            f"{link.bytes_received / 1e6:,.1f}",
            f"{sum(link.failures.values()):,}",
            f"{link.back_pressured:,}",
            link.without_verbs,
        )
        for relay in relays
        for link in relay.links
    ]


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    header = "".join(f"<th>{name}</th>" for name in head)
    return f"<table><tr>{header}</tr>{cells}</table>"
