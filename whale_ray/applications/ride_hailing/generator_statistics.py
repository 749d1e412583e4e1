"""What the generator is calibrated on: statistics of one week of San Francisco's Yellow Cabs.

520 cabs, 2008-05-31 to 2008-06-06 (CRAWDAD epfl/mobility): 3,375,452 position fixes and the 138,685
pick-ups among them. Only counts and quantiles are kept here, no row of the data.

A distribution is given by its quantile function: a probability and the value in seconds that it
belongs to, linear in between.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "AWAY_SHARE",
    "BUSY_GAP_S",
    "DROPOFF_GAP_S",
    "FREE_GAP_S",
    "IDLE_IN_MEANS",
    "IDLE_MEAN_S",
    "ON_DUTY_SHARE",
    "TRIP_DISTANCE_M",
    "TRIP_IN_MEANS",
    "TRIP_MEAN_S",
    "cells_of_a_city",
]

Floats = npt.NDArray[np.float64]

_PROBABILITIES = (
    0, .01, .02, .05, .1, .15, .2, .25, .3, .4, .5, .6, .7, .8, .85, .9, .95, .97, .98, .99,
    .995, .998, .999, 1,
)  # fmt: skip


def _quantiles(*values: float) -> Floats:
    """Return a quantile function, shape (2, points): probabilities and values."""
    return np.array([_PROBABILITIES, values], np.float64)


#: Between two fixes of a cab that stays free. (Longer gaps are cabs off duty: see ON_DUTY_SHARE.)
FREE_GAP_S = _quantiles(
    1, 13, 19, 30, 44, 50, 54, 55, 58, 60, 60, 60, 61, 65, 67, 73, 115, 128, 175, 315,
    1300, 3000, 5000, 7200,
)  # fmt: skip
#: Between two fixes of a cab that stays occupied.
BUSY_GAP_S = _quantiles(
    1, 14, 19, 30, 43, 48, 51, 54, 56, 59, 60, 60, 61, 65, 66, 71, 113, 124, 141, 194,
    274, 445, 685, 1200,
)  # fmt: skip
#: Between a cab's last occupied fix and the free one after it.
DROPOFF_GAP_S = _quantiles(
    1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 7, 10, 14, 21, 26, 39, 80, 123, 169, 294,
    544, 1270, 2157, 3600,
)  # fmt: skip
#: Length of a trip as a multiple of the mean trip of its hour.
TRIP_IN_MEANS = _quantiles(
    1, 8, 30, 126, 206, 255, 298, 336, 372, 445, 522, 611, 724, 890, 1020, 1179, 1452, 1650,
    1899, 2453, 3200, 5000, 7437, 9000,
)  # fmt: skip
TRIP_IN_MEANS[1] /= 649.0
#: Time from a drop-off to the next pick-up as a multiple of the mean of its hour.
IDLE_IN_MEANS = _quantiles(
    1, 1, 2, 9, 33, 65, 99, 137, 176, 265, 374, 522, 742, 1106, 1399, 1896, 3040, 4004, 4742,
    5744, 6417, 6847, 7018, 7199,
)  # fmt: skip
IDLE_IN_MEANS[1] /= 764.0

#: Mean length of a trip by local hour of the day, 0 … 23.
TRIP_MEAN_S = np.array(
    [556, 547, 557, 577, 662, 649, 690, 681, 702, 747, 711, 744,
     738, 721, 701, 698, 696, 719, 662, 599, 583, 593, 598, 552], np.float64,
)  # fmt: skip
# The next two are set so that the simulation, not each cab, shows the data's fixes, occupied fixes
# and pick-ups per hour: an hour inherits much from the one before.
#: Mean time from a drop-off to the next pick-up, by hour.
IDLE_MEAN_S = np.array(
    [760, 738, 1328, 3348, 2089, 2649, 2342, 1188, 721, 948, 917, 930,
     884, 846, 1086, 964, 928, 604, 551, 576, 643, 491, 491, 700], np.float64,
)  # fmt: skip
#: Share of the cabs that are on duty, by hour.
ON_DUTY_SHARE = np.array(
    [0.746, 0.601, 0.463, 0.249, 0.485, 0.486, 0.776, 0.747, 0.834, 0.791, 0.776, 0.867,
     0.757, 0.876, 0.816, 0.831, 0.745, 0.828, 0.893, 0.835, 0.908, 0.752, 0.845, 0.744],
    np.float64,
)  # fmt: skip

#: Beeline of a trip by its length: seconds, metres.
TRIP_DISTANCE_M = np.array(
    [[0, 150, 450, 750, 1050, 1350, 1650, 2000], [200, 860, 2050, 3830, 8300, 12650, 13950, 14400]],
    np.float64,
)

# Pick-ups by cell of 0.01 degrees, most frequent first: 0.12 in the first cell, 0.53 in the first
# ten, then each cell a little less than the one before, and few in very many cells.
_PICKUP_CELLS = 540
_HEAD_CELLS = 10
_FIRST_SHARE, _HEAD_POWER = 0.115, -0.62
_TAIL_RATIO = 0.95
_FAR_SHARE = 0.002
#: Share of trips to anywhere in a wide box around the city instead of to a cell.
AWAY_SHARE = 0.004
#: Drop-offs are spread wider: a cell's share is that of pick-ups to this power.
_DROPOFF_POWER = 0.7

_CENTRE_E5 = (3_778_500, -12_241_000)
_CELL_E5 = 1_000
_AIRPORT_CELLS = {14: (3_761_000, -12_239_000), 20: (3_761_000, -12_240_000)}
_LONGITUDE_SCALE = 0.79


def cells_of_a_city() -> Floats:
    """Return the calibrated city's cells of 0.01 degrees: the busier, the closer to its centre.

    Returns:
        shape (4, cells), most pick-ups first: southern edge and western edge in degrees × 10⁵;
        share of pick-ups in this cell and all before it; likewise of drop-offs.
    """
    ranks = np.arange(1, _PICKUP_CELLS + 1, dtype=np.float64)
    shares = _FIRST_SHARE * ranks**_HEAD_POWER
    tail = _TAIL_RATIO ** ranks[_HEAD_CELLS:]
    tail_share = 1.0 - shares[:_HEAD_CELLS].sum() - _FAR_SHARE
    shares[_HEAD_CELLS:] = tail * (tail_share / tail.sum()) + _FAR_SHARE / len(tail)
    spread = shares**_DROPOFF_POWER
    return np.stack([*_places_by_rank(), _cumulated(shares), _cumulated(spread)])


def _cumulated(shares: Floats) -> Floats:
    total = np.cumsum(shares / shares.sum())
    total[-1] = 1.0
    return total


def _places_by_rank() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the south-western corners of the cells around the centre, nearest first."""
    reach = 15
    steps = np.arange(-reach, reach + 1) * _CELL_E5
    origin = [value // _CELL_E5 * _CELL_E5 for value in _CENTRE_E5]
    latitudes = (origin[0] + steps)[:, None] + 0 * steps[None, :]
    longitudes = (origin[1] + steps)[None, :] + 0 * steps[:, None]
    half = _CELL_E5 // 2
    north = latitudes + half - _CENTRE_E5[0]
    east = (longitudes + half - _CENTRE_E5[1]) * _LONGITUDE_SCALE
    nearest = np.argsort((north**2 + east**2).ravel(), kind="stable")[:_PICKUP_CELLS]
    latitudes, longitudes = latitudes.ravel()[nearest], longitudes.ravel()[nearest]
    for rank, (latitude, longitude) in _AIRPORT_CELLS.items():
        latitudes[rank], longitudes[rank] = latitude, longitude
    return latitudes, longitudes
