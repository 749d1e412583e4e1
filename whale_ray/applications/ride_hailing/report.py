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
    described = report.described(APPLICATION, run, rows_out=rows_out, output=output)
    return described | {"settings": {**asdict(settings), **run.more_settings}}


def render_result(
    result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], load_line: str
) -> str:
    """Return the table that is printed at the end of a run.

    Args:
        result: from `describe_result`.
        rows: the output's first rows; five are shown.
        load_line: Python that loads the output; "" if there is nothing to load.
    """
    return report.rendered(result, rows[:_PREVIEW_ROWS], load_line)
