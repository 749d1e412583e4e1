"""Plots of the measurements like the paper's (Figs 13-14, 17-18, 21, 25-27)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..plots import PlotLine, draw_lines
from .measuring import ModeResult
from .modes import COMPARED

__all__ = ["draw"]


def draw(found: Sequence[ModeResult], folder: Path) -> None:
    """Draw throughput, source CPU, latencies and traffic over the number of instances."""
    plots: tuple[tuple[str, str, Callable[[ModeResult], float | None]], ...] = (
        ("throughput", "source tuples/s", lambda one: one.unpaced.rows_per_s),
        (
            "source_cpu",
            "CPU of the source's host, µs per tuple",
            lambda one: one.unpaced.per_row_ns(one.unpaced.spent.source_ns) / 1e3,
        ),
        (
            "processing_latency",
            "mean processing latency, ms",
            lambda one: None if one.latencies is None else one.latencies.processing.mean_ms,
        ),
        (
            "multicast_latency",
            "mean multicast latency, ms",
            lambda one: None if one.latencies is None else one.latencies.multicast.mean_ms,
        ),
        (
            "traffic",
            "MB from the source's host per 10,000 tuples",
            lambda one: one.unpaced.sent_bytes / max(one.unpaced.rows, 1) * 1e-2 or None,
        ),
    )
    for name, label, value in plots:
        lines = _lines(found, value)
        if lines:
            sizes = sorted({one.shape.instances for one in found})
            draw_lines(
                folder,
                f"one_to_many_{name}",
                lines,
                ("instances", label),
                ticks={float(size): str(size) for size in sizes},
            )


def _lines(
    found: Sequence[ModeResult], value: Callable[[ModeResult], float | None]
) -> list[PlotLine]:
    lines = []
    for name in COMPARED:
        points = [
            (float(one.shape.instances), y)
            for one in found
            if one.mode.name == name and (y := value(one)) is not None
        ]
        if points:
            lines.append(PlotLine(name, [x for x, _ in points], [y for _, y in points]))
    return lines
