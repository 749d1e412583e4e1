"""`whale-ray bench one-to-many`: measures sending every tuple to hundreds of instances.

30 logical hosts with 4, 8, 12, 16 instances each, and one more for the source alone; all on this
machine, with a worker and a relay per host as plain processes. Each instance reads every byte of
every tuple of 100 bytes (`reading`). A job is started once per size, then switched from mode to
mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....configs.errors import UsageError

if TYPE_CHECKING:
    from ..report import BenchReport

PARTS = ("modes", "steps", "peers", "applications", "links")
SIZES = (120, 240, 360, 480)
HOSTS = 30
INSTANCES_MAX = 960

__all__ = ["HOSTS", "PARTS", "SIZES", "check_sizes", "run"]


def check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes; UsageError for one that 30 hosts cannot share equally."""
    for size in sizes:
        if size % HOSTS or not 0 < size <= INSTANCES_MAX:
            msg = (
                f"{size} instances do not fit: {HOSTS} hosts have as many each; use multiples of "
                f"{HOSTS} up to {INSTANCES_MAX}"
            )
            raise UsageError(msg)
    return tuple(sorted(set(sizes)))


def run(
    quick: bool = False,
    only: str | None = None,
    sizes: Sequence[int] = (),
    plots: Path | None = None,
) -> BenchReport:
    """Measure.

    Args:
        quick: the largest size alone, and shorter.
        only: one of `PARTS`; None: all that this machine can measure.
        sizes: numbers of instances; none: 120, 240, 360 and 480.
        plots: the folder for plots; None: none are drawn.

    Raises:
        UsageError: a size that does not fit.
        ResourceError: plots were asked for, and matplotlib is not installed.
    """
    from .suite import run_suite

    chosen = check_sizes(sizes or (SIZES[-1:] if quick else SIZES))
    return run_suite(quick, only, chosen, plots)
