"""What a run of the application reports: one JSON object, or a short table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .settings import RideHailingSettings
from .topology import APPLICATION

__all__ = ["describe_result", "render_result"]

_PREVIEW_ROWS = 5
_LABEL_WIDTH = 14


def describe_result(
    *,
    command: str,
    settings: RideHailingSettings,
    more_settings: Mapping[str, object] | None = None,
    rows_in: Mapping[str, int],
    rows_rejected: Mapping[str, int],
    rows_out: int,
    seconds: float,
    restarts: int,
    latency_ms: tuple[float | None, float | None],
    output: str | None,
) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        command: the command line.
        settings: of the application.
        more_settings: of the run, such as workers; shown beside the application's.
        rows_in: input → rows read.
        rows_rejected: "input: reason" → rows left out before streaming.
        rows_out: rows in the output.
        seconds: of streaming, from start to published output.
        restarts: how often the job began anew.
        latency_ms: p50 and p99 from a source's read to the sink; None where unknown.
        output: where the result lies; None if it was not kept.

    Returns:
        application, command, settings, rows_in, rows_out, rows_rejected, seconds, tuples_per_s
        (rows that were streamed, by seconds), restarts, latency_ms and output.
    """
    streamed = sum(rows_in.values()) - sum(rows_rejected.values())
    p50_ms, p99_ms = (None if value is None else round(value, 3) for value in latency_ms)
    return {
        "application": APPLICATION,
        "command": command,
        "settings": {**asdict(settings), **(more_settings or {})},
        "rows_in": dict(rows_in),
        "rows_out": rows_out,
        "rows_rejected": dict(rows_rejected),
        "seconds": round(seconds, 3),
        "tuples_per_s": round(streamed / seconds) if seconds > 0 else 0,
        "restarts": restarts,
        "latency_ms": {"p50": p50_ms, "p99": p99_ms},
        "output": output,
    }


def render_result(
    result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], load_line: str
) -> str:
    """Return the table that ends a run.

    Args:
        result: from `describe_result`.
        rows: the output's first rows; five are shown.
        load_line: Python that loads the output; "" if there is nothing to load.
    """
    read = ", ".join(f"{count:,} {side}" for side, count in result["rows_in"].items())
    lines = [f"{result['application']}: done in {result['seconds']:,.1f} s", _line("read", read)]
    for reason, count in result["rows_rejected"].items():
        lines.append(_line("left out", f"{count:,} {reason}"))
    lines.append(_line("tuples out", f"{result['rows_out']:,}"))
    lines.append(_line("throughput", f"{result['tuples_per_s']:,} tuples/s"))
    lines.append(_line("restarts", f"{result['restarts']:,}"))
    latency = result["latency_ms"]
    if latency["p50"] is not None and latency["p99"] is not None:
        shown = f"p50 {latency['p50']:,.1f} ms, p99 {latency['p99']:,.1f} ms, source to sink"
        lines.append(_line("latency", shown))
    if result["output"] is not None:
        lines.append(_line("output", result["output"]))
    lines += ["", *_table(rows[:_PREVIEW_ROWS])]
    if load_line:
        lines += ["", f"load it with: {load_line}"]
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}"


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["  (no row)"]
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return [
        "  "
        + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
