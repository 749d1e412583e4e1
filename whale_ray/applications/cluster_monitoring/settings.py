"""Settings of the generator."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_whole

__all__ = ["ClusterSettings"]


@dataclass(frozen=True)
class ClusterSettings:
    """How many jobs to generate.

    Raises:
        SettingsError: a value lies outside its range.
    """

    jobs: int = 20_000
    """A job has 125 samples in the mean."""
    seed: int = 1
    """The same settings give the same rows."""

    def __post_init__(self) -> None:
        check_whole("jobs", self.jobs, 1, 10**8)
        check_whole("seed", self.seed, 0, 2**63 - 1)
