"""A city in 1,000 regions: the thesis divides the area of New York so, and does not tell how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import functions
from ...configs.errors import InputError
from ...operators.expressions.expression import col, lit

if TYPE_CHECKING:
    from ...operators.expressions.expression import Expression

__all__ = ["COLUMNS", "NEW_YORK", "ROWS", "CityBox"]

COLUMNS, ROWS = 40, 25


@dataclass(frozen=True)
class CityBox:
    """A rectangle of degrees, divided into 40 × 25 equal regions, from the south-west.

    Raises:
        InputError: it is empty, or leaves the globe.
    """

    west: float
    south: float
    east: float
    north: float

    def __post_init__(self) -> None:
        bounds = (self.west, self.south, self.east, self.north)
        on_globe = -180 <= self.west < self.east <= 180 and -90 <= self.south < self.north <= 90
        if not on_globe or not all(map(math.isfinite, bounds)):
            msg = f"box {bounds}: give west, south, east, north in degrees, west and south less"
            raise InputError(msg)

    def holds(self, longitude: str, latitude: str) -> Expression:
        """Return whether the place in these columns is inside; west and south edges are."""
        return (
            (col(longitude) >= self.west)
            & (col(longitude) < self.east)
            & (col(latitude) >= self.south)
            & (col(latitude) < self.north)
        )

    def region(self, longitude: str, latitude: str) -> Expression:
        """Return the region of the place in these columns, int64 from 0 to 999."""
        across = (col(longitude) - self.west) / ((self.east - self.west) / COLUMNS)
        up = (col(latitude) - self.south) / ((self.north - self.south) / ROWS)
        column = functions.least(functions.floor(across).cast("int64"), lit(COLUMNS - 1))
        row = functions.least(functions.floor(up).cast("int64"), lit(ROWS - 1))
        return row * COLUMNS + column


NEW_YORK = CityBox(-74.30, 40.48, -73.66, 40.93)
"""The five boroughs."""
