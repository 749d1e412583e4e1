"""Settings of the section `checkpoints`: where a job keeps its state, how often, and how many."""

from __future__ import annotations

import dataclasses

from ..declaring import check_section, setting
from ..units import HOUR_MS


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Checkpoints, from which a job continues after a failure."""

    url: str = setting(
        "",
        why="folder or URL of an object store in which checkpoints are kept; empty: none",
    )
    interval_ms: int = setting(
        10_000,
        low=10,
        high=24 * HOUR_MS,
        why="from the beginning of one checkpoint to that of the next; unbounded jobs publish as "
        "often",
    )
    min_pause_ms: int = setting(
        0,
        low=0,
        high=24 * HOUR_MS,
        why="between two checkpoints none is under way for at least so long",
    )
    timeout_ms: int = setting(
        600_000,
        low=1,
        high=24 * HOUR_MS,
        why="time for all snapshots of a checkpoint to be written, and for each step after it",
    )
    in_flight_ms: int = setting(
        30,
        low=0,
        high=HOUR_MS,
        why="bytes wait for their reader on the same host about so long, so that a checkpoint's "
        "markers are not behind whole rings; 0: until the ring is full",
    )
    keep: int = setting(
        3,
        low=1,
        high=10_000,
        why="checkpoints that are kept beside savepoints, which stay until you remove them",
    )
    take_over: bool = setting(
        False,
        why="take the folder also from a job that seems to be alive; that job can commit nothing "
        "any more",
    )
    retry_ms: int = setting(
        100,
        low=1,
        high=HOUR_MS,
        why="until a commit that failed is tried again; doubles with each failure, up to a "
        "hundredfold, or the interval if that is more",
    )
    tries_max: int = setting(
        10,
        low=1,
        high=10_000,
        why="tries of a commit before the job fails: about half a minute if each fails at once; "
        "one that hangs is waited for timeout_ms",
    )

    def __post_init__(self) -> None:
        check_section("checkpoints", self)
