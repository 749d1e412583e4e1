"""Draw the stages of a physical plan as boxes, left to right, joined by arrows: one small SVG.

A stage is drawn one column to the right of the last stage that feeds it. All parts have the colour
of the surrounding text (`currentColor`), so that the diagram suits light and dark notebooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from .logical import describe_output
from .physical import Edge, PhysicalPlan, Stage

_GLYPH = 7.3
"""Mean advance of a monospaced 12 px glyph, in px."""
_LINE = 17
_MARGIN = 10
_GAP_X_MIN = 70
_GAP_Y = 26
_FONT = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


@dataclass(frozen=True)
class _Box:
    """Where a stage is drawn, in px."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]


def draw(plan: PhysicalPlan) -> str:
    """Return the plan's stages and edges as an SVG element."""
    boxes = _arrange(plan)
    width = max(box.x + box.width for box in boxes) + _MARGIN
    height = max(box.y + box.height for box in boxes) + _MARGIN
    marker = f"arrow-{plan.name}"
    parts = [_box(box) for box in boxes] + [_arrows(plan, boxes, marker)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" style="{_FONT};font-size:12px;color:inherit">'
        f'<defs><marker id="{escape(marker)}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        ' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker>'
        f"</defs>{''.join(parts)}</svg>"
    )


def _columns(plan: PhysicalPlan) -> list[list[Stage]]:
    depth: dict[int, int] = {}
    columns: list[list[Stage]] = []
    for stage in plan.stages:
        feeding = [depth[edge.source_stage] for edge in plan.in_edges(stage.id)]
        depth[stage.id] = max(feeding, default=-1) + 1
        if depth[stage.id] == len(columns):
            columns.append([])
        columns[depth[stage.id]].append(stage)
    return columns


def _arrange(plan: PhysicalPlan) -> list[_Box]:
    boxes: dict[int, _Box] = {}
    x = float(_MARGIN)
    columns = _columns(plan)
    tallest = max(sum(_height(stage) + _GAP_Y for stage in column) for column in columns)
    for column in columns:
        width = max(_GLYPH * max(len(line) for line in _lines(stage)) for stage in column) + 20
        y = _MARGIN + (tallest - sum(_height(stage) + _GAP_Y for stage in column)) / 2
        for stage in column:
            boxes[stage.id] = _Box(x, y, width, _height(stage), _lines(stage))
            y += _height(stage) + _GAP_Y
        captions = [
            len(_caption(plan, edge)) for stage in column for edge in plan.out_edges(stage.id)
        ]
        x += width + max(_GAP_X_MIN, 6.2 * max(captions, default=0) + 24)
    return [boxes[stage.id] for stage in plan.stages]


def _lines(stage: Stage) -> tuple[str, ...]:
    return (f"stage {stage.id}  ×{stage.parallelism}", *stage.operators)


def _height(stage: Stage) -> float:
    return _LINE * len(_lines(stage)) + 12


def _box(box: _Box) -> str:
    texts = "".join(
        f'<text x="{box.x + 10:.1f}" y="{box.y + 18 + _LINE * place:.1f}" fill="currentColor"'
        f' opacity="{0.6 if place == 0 else 1}">{escape(line)}</text>'
        for place, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
        f' rx="5" fill="currentColor" fill-opacity=".06" stroke="currentColor"'
        f' stroke-opacity=".5"/>{texts}'
    )


def _arrows(plan: PhysicalPlan, boxes: list[_Box], marker: str) -> str:
    drawn: list[str] = []
    for edge in plan.edges:
        source, target = boxes[edge.source_stage], boxes[edge.target_stage]
        x1, y1 = source.x + source.width, _port(plan, boxes, edge.source_stage, edge.id, out=True)
        x2, y2 = target.x, _port(plan, boxes, edge.target_stage, edge.id, out=False)
        bend = (x2 - x1) / 2
        drawn.append(
            f'<path d="M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f}'
            f' {x2:.1f} {y2:.1f}" fill="none" stroke="currentColor" stroke-opacity=".7"'
            f' marker-end="url(#{escape(marker)})"/>'
            f'<text x="{x1 + 6:.1f}" y="{y1 - 5:.1f}" font-size="10" fill="currentColor"'
            f' opacity=".8">{escape(_caption(plan, edge))}</text>'
        )
    return "".join(drawn)


def _caption(plan: PhysicalPlan, edge: Edge) -> str:
    """Return the text at an arrow: the grouping, and which output it begins at."""
    output = describe_output(plan.operator(edge.source_operator), edge.source_output)
    return output + edge.grouping.describe()


def _port(plan: PhysicalPlan, boxes: list[_Box], stage: int, edge: int, *, out: bool) -> float:
    """Return the height at which an edge leaves or enters a stage: spread evenly over its side."""
    beside = plan.out_edges(stage) if out else plan.in_edges(stage)
    place = [other.id for other in beside].index(edge)
    return boxes[stage].y + boxes[stage].height * (place + 1) / (len(beside) + 1)
