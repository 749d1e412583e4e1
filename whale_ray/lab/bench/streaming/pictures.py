"""Plots: all systems over a workload as bars, and what skewed keys make of the rates as lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..plots import PlotLine, canvas, draw_lines
from ..report import BenchRow

__all__ = ["draw"]

_OURS, _PEERS = "#1b6ca8", "#b0b0b0"


def draw(folder: Path, rows: Sequence[BenchRow]) -> None:
    """Draw a plot for each workload whose rates are in the report, and one more if it has skews."""
    rates = [row for row in rows if row.unit == "k rows/s"]
    for workload in dict.fromkeys(row.name for row in rates):
        of_workload = [row for row in rates if row.name == workload]
        name = "streaming-" + re.sub(r"[^a-z0-9]+", "-", workload.lower()).strip("-")
        uniform = {
            str(row.parameters["system"]): row.value * 1e3
            for row in of_workload
            if row.parameters["skew"] == 0
        }
        if uniform:
            _bars(folder, name, workload, uniform)
        if any(row.parameters["skew"] for row in of_workload):
            _lines(folder, f"{name}-skew", workload, of_workload)


def _bars(folder: Path, name: str, workload: str, rates: Mapping[str, float]) -> None:
    names = sorted(rates, key=lambda system: rates[system])
    with canvas(folder, name) as axes:
        colours = [_OURS if system.startswith("whale-ray") else _PEERS for system in names]
        bars = axes.barh(names, [rates[system] for system in names], color=colours)
        axes.bar_label(bars, [_short(rates[system]) for system in names], padding=3, fontsize=7)
        axes.set_xscale("log")
        axes.set_xlim(right=max(rates.values()) * 4)  # room for the labels
        axes.set_xlabel("source rows per second, warm")
        axes.set_title(workload, fontsize=10)
        axes.tick_params(axis="y", labelsize=7)
        axes.grid(visible=True, axis="x", alpha=0.3)


def _lines(folder: Path, name: str, workload: str, rows: Sequence[BenchRow]) -> None:
    lines = []
    for system in dict.fromkeys(str(row.parameters["system"]) for row in rows):
        of_system = [row for row in rows if row.parameters["system"] == system]
        of_system.sort(key=_skew)
        lines.append(
            PlotLine(
                system,
                [_skew(row) for row in of_system],
                [row.value * 1e3 for row in of_system],
                "solid" if system.startswith("whale-ray") else "dashed",
            )
        )
    draw_lines(
        folder,
        name,
        lines,
        ("exponent of Zipf's distribution of keys", "source rows per second, warm"),
        title=workload,
    )


def _skew(row: BenchRow) -> float:
    return float(str(row.parameters["skew"]))


def _short(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}"
    return f"{rate:.3g}"
