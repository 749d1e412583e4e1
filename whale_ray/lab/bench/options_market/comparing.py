"""All placements side by side, stage by stage: Vega's Figures 6 and 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....applications.options_market.topology import APPLICATION
from ....applications.shared import report
from ..plots import canvas
from .measuring import STAGES

__all__ = ["describe_comparison", "draw_comparison", "render_comparison"]

_NAME_WIDTH, _WIDTH = 22, 16


def describe_comparison(
    command: str, runs: Sequence[Mapping[str, Any]], without: Mapping[str, str]
) -> dict[str, Any]:
    """Return what `--json` prints.

    Args:
        command: the command line.
        runs: of one placement each, from `describe_result`.
        without: placement left out → why.
    """
    return {
        "application": APPLICATION,
        "command": command,
        "runs": list(runs),
        "left_out": dict(without),
    }


def render_comparison(result: Mapping[str, Any]) -> str:
    """Return a table with a column per placement; `result` is from `describe_comparison`."""
    runs = result["runs"]
    rows = [
        ("mean latency, µs", [run["placement"] for run in runs]),
        *((name.replace("_", " "), [_mean(run, name) for run in runs]) for name in STAGES),
        ("end to end", [_mean(run, "end_to_end") for run in runs]),
        ("wait on line before", [_mean(run, "wait_on_line") for run in runs]),
        ("transport", [_share(run["transport_share"], ".0%") for run in runs]),
        ("messages/s", [f"{run['settings']['rate']:,.0f}" for run in runs]),
        ("missed", [_share(run["messages"]["missed_share"], ".4%") for run in runs]),
        ("processor s", [f"{run['cpu_s']:,.1f}" for run in runs]),
    ]
    lines = [f"{result['application']}: {len(runs)} placements"]
    lines += [
        f"  {name:<{_NAME_WIDTH}}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
        for name, cells in rows
    ]
    for name, why in result["left_out"].items():
        lines.append(report.line("left out", f"{name}: {why}"))
    return "\n".join(lines)


def draw_comparison(folder: Path, result: Mapping[str, Any]) -> None:
    """Draw a bar per placement, made of its stages, as options-market.png and .svg."""
    runs = [run for run in result["runs"] if run["transport_share"] is not None]
    with canvas(folder, APPLICATION) as axes:
        bottoms = [0.0] * len(runs)
        for name in STAGES:
            heights = [run["latency_us"][name]["mean"] for run in runs]
            label = name.replace("_", " ")
            axes.bar([run["placement"] for run in runs], heights, 0.5, bottoms, label=label)
            bottoms = [below + high for below, high in zip(bottoms, heights, strict=True)]
        for place, run in enumerate(runs):
            told = f"{bottoms[place]:,.0f} µs\n{run['settings']['rate']:,.0f} messages/s"
            axes.annotate(told, (place, bottoms[place]), ha="center", va="bottom", fontsize=8)
        axes.set_ylabel("mean latency, µs")
        axes.margins(y=0.2)
        axes.legend(fontsize=8)


def _mean(run: Mapping[str, Any], name: str) -> str:
    found = run["latency_us"].get(name)
    return "-" if found is None else f"{found['mean']:,.1f}"


def _share(share: float | None, form: str) -> str:
    return "-" if share is None else f"{share:{form}}"
