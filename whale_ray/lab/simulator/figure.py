"""A figure before it is drawn: panels of lines and marks as plain values, and their origin."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Values = Sequence[float]


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    label: str
    x: Values
    y: Values
    style: str = "points"
    """"points" joins marked points, "line" has no marks, "steps" changes at each point, "dashed" is
    a reference.
    """


@dataclass(frozen=True)
class Mark:
    """A moment that is marked on the x axis."""

    x: float
    text: str


@dataclass(frozen=True)
class Panel:
    """One diagram."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_log: bool = False
    y_log: bool = False
    marks: tuple[Mark, ...] = ()
    x_ticks: tuple[float, ...] = ()
    """Positions of the labels of the x axis; empty: automatic."""


@dataclass(frozen=True)
class Figure:
    """Several diagrams with a common title."""

    name: str
    title: str
    paper: str
    """Which figures of the paper have this shape."""
    panels: tuple[Panel, ...]
    conditions: str
    """The assumptions, in a line or two."""
    seed: int
    calibration: str
    """Where the costs come from."""
    findings: tuple[str, ...] = ()
    """The findings, in sentences."""

    @property
    def origin(self) -> str:
        """Return the line that stands on the figure: that it is simulated, and from what."""
        return f"SIMULATED · seed {self.seed} · costs of: {self.calibration}"

    def as_json(self) -> str:
        """Return all numbers; what is not a number is null."""
        content = {"simulated": True, **dataclasses.asdict(self)}
        return json.dumps(_finite(content), ensure_ascii=False, indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
