"""Settings of the section `records`: what is kept of runs for `whale-ray ui`."""

from __future__ import annotations

import dataclasses

from ..declaring import check_section, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSettings:
    """What is kept of each run, in a folder of its own, for `whale-ray ui`."""

    interval_ms: int = setting(
        1_000,
        low=0,
        high=3_600_000,
        why="time between two samples of a job's metrics; 0: nothing is kept of it",
    )
    folder: str = setting(
        "",
        why="folder of all runs; empty: whale-ray/runs in XDG_STATE_HOME, or in ~/.local/state",
    )
    keep: int = setting(
        20,
        low=0,
        high=10_000,
        why="runs that are kept after their end; the oldest are removed first",
    )
    samples_max: int = setting(
        2_000,
        low=10,
        high=1_000_000,
        why="samples kept of a run; beyond that every second one is left out",
    )

    def __post_init__(self) -> None:
        check_section("records", self)
