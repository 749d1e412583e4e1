"""Checks of the arguments of `run`, `submit` and `resume`, before anything is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..configs.errors import UsageError
from .cluster_options import RayOptions

if TYPE_CHECKING:
    from ..deployment.processes.process_fleet import HostPlace

__all__ = ["check_where"]


def check_where(on: str, places: Sequence[HostPlace], options: RayOptions) -> None:
    """Raise UsageError for options that have no effect where the job is to run."""
    if on not in ("ray", "processes"):
        msg = f"on={on!r} is not known; use on='ray' or on='processes'"
        raise UsageError(msg)
    if on == "ray":
        if places:
            msg = "places are for on='processes'; under Ray the hosts are its nodes"
            raise UsageError(msg)
        return
    given = [name for name, value in vars(options).items() if value not in (None, False)]
    if given:
        msg = f"{given[0]}= has an effect only on Ray; leave it out, or run on='ray'"
        raise UsageError(msg)
