"""Checks of the arguments of `run`, `submit` and `resume`, before anything is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..configs.errors import UsageError
from ..operators.arguments import check_bool, refuse
from .cluster_options import RayOptions
from .watch import check_watch

if TYPE_CHECKING:
    from ..deployment.processes.process_fleet import HostPlace

__all__ = ["check_run", "check_where"]

_A_CLOCK = ("monotonic_ns", "wall_ns", "sleep_ns")


def check_where(on: str, places: Sequence[HostPlace], options: RayOptions) -> None:
    """Raise UsageError for options that have no effect where the job is to run."""
    if on not in ("ray", "processes"):
        msg = f"on={on!r} is not known; use on='ray' or on='processes'"
        raise UsageError(msg)
    _check_places(places)
    check_bool("submit", "detach", options.detach)
    check_bool("submit", "queue", options.queue)
    if on == "ray":
        if places:
            msg = "places are for on='processes'; under Ray the hosts are its nodes"
            raise UsageError(msg)
        return
    given = [name for name, value in vars(options).items() if value not in (None, False)]
    if given:
        msg = f"{given[0]}= has an effect only on Ray; leave it out, or run on='ray'"
        raise UsageError(msg)


def check_run(clock: object, watch: object, line: object, optimize: object) -> None:
    """Raise UsageError for arguments of `run` that have another type."""
    check_bool("run", "optimize", optimize)
    check_watch("run", watch, line)
    if clock is not None and not all(callable(getattr(clock, name, None)) for name in _A_CLOCK):
        refuse("run", "clock", clock, "a clock, such as whale.testing.VirtualClock()")


def _check_places(places: object) -> None:
    if isinstance(places, Sequence) and not places:
        return
    from ..deployment.processes.process_fleet import HostPlace

    given = places if isinstance(places, Sequence) else (places,)
    if given is not places or not all(isinstance(place, HostPlace) for place in given):
        refuse("submit", "places", places, "a list of HostPlace objects, one for each host")
