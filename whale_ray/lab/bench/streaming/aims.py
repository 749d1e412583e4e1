"""What cells of the suite should reach: the figures of the issues, as a table.

A ratio is how much the faster of one and two workers of whale-ray is ahead of a peer: from mapped
Arrow beside a peer that reads mapped records, else from Parquet. A cell of whale-ray's own is
compared with the one that its target names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..report import Aim
from .kept_cells import Cell
from .workloads import WORKLOADS

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True)
class Target:
    """What one cell should reach.

    Attributes:
        aim: for its rate in thousand rows a second, or for its ratio.
        beside: the cell that it is compared with, instead of what is usual.
    """

    aim: Aim
    beside: Cell | None = None


YAHOO = "Yahoo, views per campaign"
_QUERIES = {
    one.name.partition(",")[0].removeprefix("NEXMark "): one.name
    for one in WORKLOADS
    if one.part == "nexmark"
}
"""NEXMark's number of a query → workload."""

_OURS = "whale-ray, 1 worker"
_MERGED, _PARTITIONED = (
    "whale-ray, 2 workers, mapped Arrow",
    "whale-ray, 2 workers, mapped Arrow, partitioned",
)
_FLINK, _FLINK_SQL = "Flink DataStream, 2 workers", "Flink SQL, 2 workers"
_FLINK_MAPPED = "Flink DataStream, 2 workers, mapped columns"
_FLINK_CODED = f"{_FLINK_MAPPED}, texts as codes"
_SPARK, _SPARK_STREAM = "Spark batch, all cores", "Structured Streaming, all cores"


def _ahead(ratio: float) -> Target:
    return Target(Aim("ratio", "at least", ratio))


def _k_rows_per_s(rate: float) -> Target:
    return Target(Aim("value", "at least", rate))


TARGETS: Mapping[Cell, Target] = {
    Cell("Bytewax, 1 worker", "keyed row process, two handles", 0): _ahead(4),
    Cell(_FLINK_MAPPED, YAHOO, 0): _ahead(20),
    Cell(_FLINK_CODED, YAHOO, 0): _ahead(20),
    Cell(_SPARK, YAHOO, 0): _ahead(3),
    Cell(_SPARK_STREAM, YAHOO, 0): _ahead(10),
    **{
        Cell(peer, query, 0): _ahead(1)
        for query in _QUERIES.values()
        for peer in (_FLINK, _FLINK_SQL, _SPARK)
    },
    Cell(_FLINK_MAPPED, _QUERIES["5"], 0): _ahead(10),
    Cell(_FLINK_MAPPED, _QUERIES["7"], 0): _ahead(20),
    Cell(_FLINK_MAPPED, _QUERIES["8"], 0): _ahead(10),
    Cell(_FLINK_MAPPED, _QUERIES["11"], 0): _ahead(10),
    Cell(_OURS, _QUERIES["0"], 0): _k_rows_per_s(4_000),
    Cell(_OURS, _QUERIES["1"], 0): _k_rows_per_s(4_000),
    Cell(_OURS, _QUERIES["2"], 0): _k_rows_per_s(4_000),
    Cell(_OURS, _QUERIES["4"], 0): _k_rows_per_s(1_600),
    Cell(_MERGED, YAHOO, 0): Target(
        Aim("ratio", "at least", 1.2), beside=Cell(_PARTITIONED, YAHOO, 0)
    ),
    Cell(_MERGED, YAHOO, 2): Target(Aim("ratio", "at least", 1), beside=Cell(_MERGED, YAHOO, 0)),
}
