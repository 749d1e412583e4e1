"""Plots of suites' results by matplotlib, which the extra `plots` installs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...configs.errors import ResourceError
from ...configs.extras import require_extra

__all__ = ["PlotLine", "canvas", "check_plots", "draw_lines"]

FORMATS = ("png", "svg")
_SIZE_INCHES = (6.4, 4.0)
_DOTS_PER_INCH = 150
_MARKERS = "osD^vPX*<>"


@dataclass(frozen=True)
class PlotLine:
    """A line of a plot.

    Attributes:
        label: its name in the legend.
        x, y: equally many values.
        style: solid for what was measured, dashed for what was simulated or computed.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Literal["solid", "dashed"] = "solid"


def check_plots(folder: Path | None) -> None:
    """Create the folder for plots. Raises ResourceError if plots cannot be drawn or written."""
    if folder is None:
        return
    require_extra("plots", "--plots", "leave it out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"no plots can be written to {str(folder)!r}: {error.strerror}"
        raise ResourceError(msg) from error


@contextmanager
def canvas(folder: Path, name: str, panels: int = 1) -> Iterator[Any]:
    """Yield the axes of a plot (a list if it has several panels), then write `name`.png and .svg.

    The caller sets labels; panels are stacked and share their x axis.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    width, height = _SIZE_INCHES
    figure, axes = pyplot.subplots(
        panels, 1, figsize=(width, height * (1 + 0.55 * (panels - 1))), sharex=True, squeeze=False
    )
    try:
        yield axes[0, 0] if panels == 1 else list(axes[:, 0])
        figure.tight_layout()
        for kind in FORMATS:
            figure.savefig(folder / f"{name}.{kind}", dpi=_DOTS_PER_INCH)
    finally:
        pyplot.close(figure)


def draw_lines(
    folder: Path,
    name: str,
    lines: Sequence[PlotLine],
    labels: tuple[str, str],
    *,
    title: str = "",
    ticks: Mapping[float, str] | None = None,
) -> None:
    """Draw lines with markers; y is logarithmic.

    Args:
        folder: the folder of the plot.
        name: name of its files, without suffix.
        lines: what to draw.
        labels: of the axes, x and y, with units.
        title: above it.
        ticks: ticks of the x axis and their labels.
    """
    with canvas(folder, name) as axes:
        for marker, line in zip(_MARKERS * len(lines), lines, strict=False):
            axes.plot(
                line.x, line.y, label=line.label, linestyle=line.style, marker=marker, markersize=5
            )
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.set_title(title, fontsize=10)
        axes.set_yscale("log")
        if ticks is not None:
            axes.set_xticks(list(ticks), list(ticks.values()))
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
