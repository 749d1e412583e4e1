"""What the controller tells workers of the slices that they send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..transport.slice_limits import SliceLimits

__all__ = ["LimitSlices"]


@dataclass(frozen=True)
class LimitSlices:
    """To the workers: when slices of these edges are due from now on, in this attempt."""

    by_edge: Mapping[int, SliceLimits]
