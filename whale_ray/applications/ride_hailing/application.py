"""The report of a run of the application: one JSON object, and a short table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..shared import report
from ..shared.report import Run
from .settings import RideHailingSettings
from .topology import APPLICATION

__all__ = ["describe_result", "render_result"]

_PREVIEW_ROWS = 5


def describe_result(
    run: Run, settings: RideHailingSettings, *, rows_out: int, output: str | None
) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        run: the report that applications share.
        settings: settings of the application.
        rows_out: rows in the output.
        output: folder of the result; None if it was not written.

    Returns:
        application, command, settings, rows_in, rows_out, rows_rejected, seconds, tuples_per_s
        (rows that were streamed, by seconds), restarts, latency_ms and output.
    """
    return {
        "application": APPLICATION,
        "command": run.command,
        "settings": {**asdict(settings), **run.more_settings},
        "rows_in": dict(run.rows_in),
        "rows_out": rows_out,
        "rows_rejected": dict(run.rows_rejected),
        **run.speed(),
        "output": output,
    }


def render_result(
    result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], load_line: str
) -> str:
    """Return the table that is printed at the end of a run.

    Args:
        result: from `describe_result`.
        rows: the output's first rows; five are shown.
        load_line: Python that loads the output; "" if there is nothing to load.
    """
    lines = report.head(result)
    lines.append(report.line("tuples out", f"{result['rows_out']:,}"))
    lines += report.speed(result)
    if result["output"] is not None:
        lines.append(report.line("output", result["output"]))
    lines += ["", *report.table(rows[:_PREVIEW_ROWS])]
    if load_line:
        lines += ["", f"load it with: {load_line}"]
    return "\n".join(lines)
