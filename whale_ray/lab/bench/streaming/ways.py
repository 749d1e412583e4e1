"""The ways in which whale-ray runs a workload: one for each choice of a value in every dimension.

`DIMENSIONS` is the whole matrix. A dimension is one line: its first value is the default, and
workloads outside of `MATRIX` run with the defaults of all dimensions but the number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

__all__ = ["DIMENSIONS", "WAYS", "Dimension", "Way"]


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
        name: as the report has it.
        is_default: whether every workload is run so.
        workers: 1 runs in the calling process, more on processes that are started for the job.
        mapped: whether the streams are read from mapped Arrow files, not from Parquet.
        needs_aggregates: whether it is another way for workloads with aggregates alone; these are
            merged late where that pays, unless it says otherwise.
        settings: of the job.
    """

    name: str
    is_default: bool
    workers: int = 1
    mapped: bool = False
    needs_aggregates: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Dimension:
    """What is varied: a word for the report → fields of `Way`; the first value is the default."""

    values: Mapping[str, Mapping[str, Any]]
    is_full: bool = False
    """Whether all workloads are run with all of its values."""


_PARTITIONED = {"runtime.aggregation": "partitioned"}
_COMPILED = {"runtime.pipelines": "compiled"}
_INTERPRETED = {"runtime.pipelines": "interpreted"}

DIMENSIONS = (
    Dimension({"1 worker": {"workers": 1}, "2 workers": {"workers": 2}}, is_full=True),
    Dimension({"": {}, "mapped Arrow": {"mapped": True}}),
    Dimension({"": {}, "partitioned": {"needs_aggregates": True, "settings": _PARTITIONED}}),
    Dimension({"": {"settings": _COMPILED}, "interpreted": {"settings": _INTERPRETED}}),
)


def _way(words: tuple[str, ...]) -> Way:
    fields: dict[str, Any] = {}
    settings: dict[str, object] = {}
    for dimension, word in zip(DIMENSIONS, words, strict=True):
        fields |= dimension.values[word]
        settings |= fields.pop("settings", {})
    is_default = all(
        dimension.is_full or word == next(iter(dimension.values))
        for dimension, word in zip(DIMENSIONS, words, strict=True)
    )
    return Way(
        ", ".join(["whale-ray", *filter(None, words)]), is_default, settings=settings, **fields
    )


WAYS = tuple(map(_way, product(*(dimension.values for dimension in DIMENSIONS))))
