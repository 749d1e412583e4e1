"""Draws figures with matplotlib, as PNG and SVG, with their numbers as JSON beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...configs.errors import InputError
from ...configs.extras import require_extra
from .figure import Curve, Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours that colour-blind readers can distinguish."""
_MARKERS = ("o", "s", "^", "D", "v", "P")
_LOG_SPREAD_MIN = 5.0
"""A smaller ratio of values gets no logarithmic axis, which would have no labels."""
_GREY = "#666666"
_MARK_DISTANCE = 0.04
"""Marks closer than this share of the axis have their texts one below the other."""


def check_matplotlib() -> None:
    """Raise ResourceError if figures cannot be drawn here."""
    require_extra("plots", "drawing figures", "take their numbers alone with --no-plots")


def write(figure: Figure, folder: Path, *, plots: bool = True) -> list[Path]:
    """Write a figure's numbers, and its drawing; return the files. InputError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = folder / f"{figure.name}.json"
        numbers.write_text(figure.as_json() + "\n", encoding="utf-8")
        return [numbers, *(_draw(figure, folder) if plots else ())]
    except OSError as error:
        msg = f"cannot write to {folder}: {error.strerror}"
        raise InputError(msg) from error


def _draw(figure: Figure, folder: Path) -> list[Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    rows = len(figure.panels) if any(panel.marks for panel in figure.panels) else 1
    columns = len(figure.panels) if rows == 1 else 1
    drawing = Drawing(figsize=(7.0 * columns if columns > 1 else 11.0, 4.4 * rows + 1.2))
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(rows, columns, squeeze=False).ravel()
    for panel, ax in zip(figure.panels, axes, strict=True):
        _panel(ax, panel, is_first=panel is figure.panels[0])
    drawing.suptitle(f"{figure.title}   [{figure.paper}]", fontsize=14, fontweight="bold")
    handles = {
        label: handle
        for ax in axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    drawing.legend(
        handles.values(),
        handles.keys(),
        loc="lower center",
        ncols=len(handles),
        fontsize=10,
        frameon=False,
        bbox_to_anchor=(0.5, 0.42 / drawing.get_size_inches()[1]),
    )
    note = f"{figure.origin}\n{figure.conditions}"
    drawing.text(0.01, 0.008, note, fontsize=8, color=_GREY, va="bottom")
    height = drawing.get_size_inches()[1]
    drawing.tight_layout(rect=(0.0, 0.75 / height, 1.0, 1.0 - 0.15 / height))
    files = [folder / f"{figure.name}.{kind}" for kind in ("png", "svg")]
    # Without a date, the same run gives the same file.
    drawing.savefig(files[0], dpi=130)
    drawing.savefig(files[1], metadata={"Date": None})
    return files


def _panel(ax: Axes, panel: Panel, *, is_first: bool) -> None:
    colour = 0
    for curve in panel.curves:
        if curve.style == "dashed":
            ax.plot(curve.x, curve.y, "--", color=_GREY, linewidth=1.2, label=curve.label)
            continue
        _curve(ax, curve, colour)
        colour += 1
    ax.set_title(panel.title, fontsize=11)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    if panel.x_log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(_plain)
        ax.xaxis.set_minor_formatter(_some)
    is_log = panel.y_log and _spread(panel) >= _LOG_SPREAD_MIN
    if is_log:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(_plain)
        ax.yaxis.set_minor_formatter(_some)
    if panel.x_ticks:
        ax.set_xticks(list(panel.x_ticks))
    if not is_log:
        ax.set_ylim(bottom=0)
    ax.tick_params(which="minor", labelsize=8)
    ax.grid(visible=True, which="major", alpha=0.35)
    ax.grid(visible=True, which="minor", alpha=0.12)
    _marks(ax, panel, with_text=is_first)


def _spread(panel: Panel) -> float:
    """Return how many times the least value the largest one is."""
    values = [y for curve in panel.curves for y in curve.y if math.isfinite(y) and y > 0]
    return max(values) / min(values) if values else 1.0


def _curve(ax: Axes, curve: Curve, colour: int) -> None:
    style: dict[str, Any] = {"color": _COLOURS[colour % len(_COLOURS)], "label": curve.label}
    if curve.style == "points":
        style |= {"marker": _MARKERS[colour % len(_MARKERS)], "markersize": 5}
    ax.plot(curve.x, curve.y, linewidth=1.6, **style)


def _marks(ax: Axes, panel: Panel, *, with_text: bool) -> None:
    low, high = ax.get_xlim()
    before, level = -math.inf, 0
    for mark in panel.marks:
        ax.axvline(mark.x, color="black", linewidth=0.8, linestyle=":")
        if with_text:
            level = level + 1 if mark.x - before < _MARK_DISTANCE * (high - low) else 0
            before = mark.x
            place = (mark.x, 0.98 - 0.06 * level)
            ax.annotate(
                f" {mark.text}", place, xycoords=("data", "axes fraction"), fontsize=8, va="top"
            )


def _plain(value: float, _place: object = None) -> str:
    """Return a tick's label without an exponent."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _some(value: float, _place: object = None) -> str:
    """Return the label of a minor tick: of 2 and 5 times a power of ten, and no other."""
    leading = value / 10.0 ** math.floor(math.log10(value)) if value > 0 else 0.0
    return _plain(value) if round(leading, 6) in {2.0, 5.0} else ""
