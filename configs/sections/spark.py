"""Settings of the section `spark`: the session that whale-ray starts."""

from __future__ import annotations

import dataclasses

from ..declaring import check_section, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """The Spark session that whale-ray starts on Ray when there is none."""

    executors: int = setting(
        1,
        low=1,
        high=10_000,
        why="Spark executors; each is a Ray actor that keeps its cores until Spark stops",
    )
    executor_cores: int = setting(
        1,
        low=1,
        high=1024,
        why="cores of one executor",
    )
    executor_memory_mb: int = setting(
        1024,
        low=512,
        high=1_048_576,
        why="heap of one executor (Spark needs at least about 470)",
    )
    driver_memory_mb: int = setting(
        1024,
        low=512,
        high=1_048_576,
        why="heap of the Spark driver",
    )
    shuffle_partitions: int = setting(
        4,
        low=1,
        high=100_000,
        why="partitions of a Spark shuffle; its own default of 200 is for large clusters",
    )

    quick_start: bool = setting(
        True,
        why="use only Java's fast compiler, which halves the time of a start; off for long queries",
    )

    keep_classes: bool = setting(
        False,
        why="on Ray, load Spark's classes from an archive of 160 MB in the user's cache folder; "
        "the first application writes it, for half a minute; later starts are 5 s shorter",
    )

    def __post_init__(self) -> None:
        check_section("spark", self)
