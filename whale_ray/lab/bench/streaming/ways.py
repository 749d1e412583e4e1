"""The ways in which whale-ray runs a workload: one for each choice of a value in every dimension.

`DIMENSIONS` is the whole matrix. A dimension is one line: its first value is the default, with
which all workloads run, and it names the workloads that also run with its other values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from .mapped_files import Files
from .workloads import CODED, MAPPED, MATRIX, WORKLOADS

__all__ = ["DIMENSIONS", "WAYS", "Dimension", "Way"]


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
        name: as the report has it.
        workloads: the names of those that are run so.
        workers: 1 runs in the calling process, more on processes that are started for the job.
        files: those of the streams that are read; mapped ones are Arrow.
        needs_aggregates: whether it is another way for workloads with aggregates alone; these are
            merged late where that pays, unless it says otherwise.
        settings: of the job.
    """

    name: str
    workloads: tuple[str, ...]
    workers: int = 1
    files: Files = "parquet"
    needs_aggregates: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Dimension:
    """What is varied: a word for the report → fields of `Way`; the first value is the default."""

    values: Mapping[str, Mapping[str, Any]]
    workloads: tuple[str, ...] = MATRIX
    """Those that are run with all of its values, the others with the default."""


_ALL = tuple(one.name for one in WORKLOADS)
_PARTITIONED = {"runtime.aggregation": "partitioned"}
_COMPILED = {"runtime.pipelines": "compiled"}
_INTERPRETED = {"runtime.pipelines": "interpreted"}

DIMENSIONS = (
    Dimension({"1 worker": {"workers": 1}, "2 workers": {"workers": 2}}, _ALL),
    Dimension(
        {
            "": {},
            "mapped Arrow": {"files": "mapped"},
            "mapped Arrow, texts as codes": {"files": "coded"},
        },
        MAPPED,
    ),
    Dimension({"": {}, "partitioned": {"needs_aggregates": True, "settings": _PARTITIONED}}),
    Dimension({"": {"settings": _COMPILED}, "interpreted": {"settings": _INTERPRETED}}),
)


def _way(words: tuple[str, ...]) -> Way:
    fields: dict[str, Any] = {}
    settings: dict[str, object] = {}
    workloads = set(_ALL)
    for dimension, word in zip(DIMENSIONS, words, strict=True):
        fields |= dimension.values[word]
        settings |= fields.pop("settings", {})
        if word != next(iter(dimension.values)):
            workloads &= set(dimension.workloads)
    if fields.get("files") == "coded":
        workloads &= set(CODED)
    if fields.get("needs_aggregates"):
        workloads -= {one.name for one in WORKLOADS if one.joins}
    return Way(
        ", ".join(["whale-ray", *filter(None, words)]),
        tuple(name for name in _ALL if name in workloads),
        settings=settings,
        **fields,
    )


WAYS = tuple(map(_way, product(*(dimension.values for dimension in DIMENSIONS))))
