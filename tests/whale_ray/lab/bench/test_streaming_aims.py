"""Every figure of the plan is the aim of a row, and every aim is of a row that there is."""

from __future__ import annotations

import re

import pytest

from whale_ray.lab.bench.report import Aim
from whale_ray.lab.bench.streaming import first_result, loops, many_keys
from whale_ray.lab.bench.streaming.aims import TARGETS
from whale_ray.lab.bench.streaming.kept_cells import Cell
from whale_ray.lab.bench.streaming.suite import SKEWS
from whale_ray.lab.bench.streaming.systems import SYSTEMS

FIGURES = """
Yahoo, views per campaign: 20 x Flink DataStream, 2 workers, mapped columns
Yahoo, views per campaign: 20 x Flink DataStream, 2 workers, mapped columns, texts as codes
Yahoo, views per campaign: 3 x Spark batch, all cores
Yahoo, views per campaign: 10 x Structured Streaming, all cores
NEXMark 5, hot items: 10 x Flink DataStream, 2 workers, mapped columns
NEXMark 7, highest bid: 20 x Flink DataStream, 2 workers, mapped columns
NEXMark 8, new users: 10 x Flink DataStream, 2 workers, mapped columns
NEXMark 11, sessions per bidder: 10 x Flink DataStream, 2 workers, mapped columns
NEXMark 0, all bids: 1 x Spark batch, all cores
NEXMark 1, prices in euros: 1 x Spark batch, all cores
NEXMark 2, bids on some auctions: 1 x Spark batch, all cores
NEXMark 4, average of the highest bids: 1 x Spark batch, all cores
NEXMark 5, hot items: 1 x Spark batch, all cores
NEXMark 7, highest bid: 1 x Spark batch, all cores
NEXMark 8, new users: 1 x Spark batch, all cores
NEXMark 11, sessions per bidder: 1 x Spark batch, all cores
NEXMark 0, all bids: 4000 k rows/s
NEXMark 1, prices in euros: 4000 k rows/s
NEXMark 2, bids on some auctions: 4000 k rows/s
NEXMark 4, average of the highest bids: 1600 k rows/s
"""
MERGED = "whale-ray, 2 workers, mapped Arrow"


@pytest.mark.parametrize("figure", FIGURES.strip().splitlines())
def test_a_figure_is_an_aim(figure: str) -> None:
    found = re.fullmatch(r"(.+): (\d+) (.+)", figure)
    assert found is not None
    workload, limit, of = found.groups()
    if of == "k rows/s":
        aim = TARGETS[Cell("whale-ray, 1 worker", workload, 0)].aim
        assert aim == Aim("value", "at least", float(limit))
    else:
        target = TARGETS[Cell(of.removeprefix("x "), workload, 0)]
        assert target.aim == Aim("ratio", "at least", float(limit)) and target.beside is None


@pytest.mark.parametrize(
    ("skew", "least", "way", "of_skew"), [(0, 1.2, f"{MERGED}, partitioned", 0), (2, 1, MERGED, 0)]
)
def test_late_merge_is_beside_what_it_should_be_better_than(
    skew: float, least: float, way: str, of_skew: float
) -> None:
    target = TARGETS[Cell(MERGED, "Yahoo, views per campaign", skew)]
    assert target.aim == Aim("ratio", "at least", least)
    assert target.beside == Cell(way, "Yahoo, views per campaign", of_skew)


def test_figures_of_parts_on_whale_ray_alone() -> None:
    assert first_result.MOST_S == {
        first_result.NOTHING: 3,
        first_result.WHEEL: 3,
        first_result.INSTALLED: 3,
        first_result.FILLED: 1,
    }
    assert first_result._row(first_result.NOTHING, [(2.5, 1.0)]).aim == Aim("value", "at most", 3)
    assert loops.BY_HAND_LEAST == 0.85
    assert many_keys._AIM_M_ROWS_PER_S == 50


def test_each_target_is_of_a_cell_that_is_measured() -> None:
    workloads = {system.name: system.workloads for system in SYSTEMS}
    for cell, target in TARGETS.items():
        for one in filter(None, (cell, target.beside)):
            assert one.workload in workloads[one.system] and one.skew in (0, *SKEWS)
