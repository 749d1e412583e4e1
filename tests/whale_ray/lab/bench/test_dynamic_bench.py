"""Bands, recoveries and series of the suite dynamic, on series that are made up."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from whale_ray.configs.errors import ResourceError
from whale_ray.lab.bench.bands import Band, band_of, recovery_bins
from whale_ray.lab.bench.dynamic import Course, _draw, _step_rows, _switch_rows, run
from whale_ray.lab.bench.one_to_many.control_block import ControlBlock, ControlBlockShape
from whale_ray.lab.bench.plots import check_plots
from whale_ray.lab.bench.series import Series, mean_in_bins, recovery, series_of
from whale_ray.multicast.tree_state import (
    SwitchReport,
)
from whale_ray.multicast.trees import Tree, star

BIN_NS = 10_000_000


def test_the_band_is_of_the_percentiles() -> None:
    band = band_of(np.arange(101, dtype=np.float64))
    assert (band.low, band.high) == (5.0, 95.0)
    assert band_of(np.array([np.nan, 3.0])) == Band(3.0, 3.0)
    with pytest.raises(ValueError, match="no value before"):
        band_of(np.array([np.nan]))


@pytest.mark.parametrize(
    ("after", "bins"),
    [
        ([], 0),
        ([1, 1, 1], 0),
        ([9, 9, 1, 1], 0),  # by chance
        ([9, 9, 9, 1], 3),
        ([1, 9, 9, 9, 9, 1], 5),
        ([9, 9, 9, 1, 0, 0, 0, 1], 7),  # below counts as above
        ([9, 9, np.nan, 9, 9, 1], 0),  # nothing is known of the third
    ],
)
def test_recovery_ends_with_the_last_run_outside(after: list[float], bins: int) -> None:
    assert recovery_bins(np.array(after, np.float64), Band(0.5, 2.0)) == bins


def even(bins: int, seed: int = 0) -> Series:
    random = np.random.default_rng(seed)
    rates = 1000 + random.normal(0, 20, bins)
    return Series(0, BIN_NS, rates, rates.copy(), 5 + random.normal(0, 0.2, bins))


def test_a_dip_is_found_and_an_even_series_has_none() -> None:
    series = even(500)
    quiet = recovery(series, 300 * BIN_NS, 400 * BIN_NS)
    assert (quiet.throughput_ms, quiet.latency_ms) == (0.0, 0.0)
    series.delivered[303:309] = 0.0
    series.latency_ms[303:305] = 100.0
    series.latency_ms[305:313] = 50.0
    felt = recovery(series, 300 * BIN_NS, 400 * BIN_NS)
    assert 90 <= felt.throughput_ms <= 100
    assert 130 <= felt.latency_ms <= 140


def test_a_tree_that_takes_longer_for_good_has_settled() -> None:
    series = even(500)
    series.latency_ms[303:] += 3
    series.latency_ms[303:307] += 50
    slower = recovery(series, 300 * BIN_NS, 350 * BIN_NS, 10**9)
    assert slower.latency_ms == 510.0
    assert slower.settled_ms == 70.0
    series.latency_ms[303:] = 1.0
    better = recovery(series, 300 * BIN_NS, 350 * BIN_NS)
    assert (better.latency_ms, better.settled_ms) == (0.0, 0.0)


def test_means_in_bins() -> None:
    means = mean_in_bins(np.array([0, 0, 2, 9, -1]), np.array([1.0, 3.0, 5.0, 7.0, 7.0]), 3)
    assert means[[0, 2]].tolist() == [2.0, 5.0]
    assert np.isnan(means[1])


def test_a_series_is_read_from_the_control_block() -> None:
    control_block = ControlBlock.create(
        ControlBlockShape(workers=2, instances=4, samples=8, bins=16)
    )
    control_block.bins[0, :3] = 10, 20, 30
    control_block.bins[1:, :3] = [[20, 40, 0], [20, 40, 120]]  # two instances each
    control_block.scheduled[0] = 5_000_000
    control_block.done[:, 0] = 7_000_000, 25_000_000
    series = series_of(control_block, 0, BIN_NS, 4)
    assert series.offered.tolist() == [1000, 2000, 3000, 0]
    assert series.delivered.tolist() == [1000, 2000, 3000, 0]
    assert series.latency_ms[[0, 2]].tolist() == [2.0, 20.0]
    assert np.isnan(series.latency_ms[[1, 3]]).all()
    assert series.place(29_999_999) == 2
    control_block.close()


def course() -> Course:
    before, after = star(0, [1, 2, 3]), Tree(0, ((0, 1), (1, 3), (0, 2)), (1, 2, 3))
    switch = SwitchReport(
        0, "scale-down", before, after, 5, 0, 250 * BIN_NS, 251 * BIN_NS, 252 * BIN_NS
    )
    return Course("steps, made up", even(500), (switch,))


def test_steps_and_switches_are_reported() -> None:
    steps = list(_step_rows(course(), 1000.0, 1.0))
    assert [row.parameters["of the star's"] for row in steps] == [0.3, 0.6, 0.8, 1.0, 0.8]
    assert steps[3].ratio == pytest.approx(1.0, abs=0.02)
    (row,) = _switch_rows(course(), 8)
    assert row.value == pytest.approx(20.0)
    assert row.parameters["degree"] == "3 → 2"
    assert row.also["edges moved"] == 5
    assert row.also["throughput back after ms"] == 0.0


def test_plots_are_drawn_where_they_can_be(tmp_path: Path) -> None:
    _draw(course(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dynamic_steps_made_up.png",
        "dynamic_steps_made_up.svg",
    ]


def test_plots_without_matplotlib_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_plots(None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(ResourceError, match=r'--plots needs matplotlib.*"whale-ray\[plots\]", or '):
        check_plots(tmp_path)


def test_without_namespaces_the_suite_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whale_ray.lab.bench.dynamic.lack", lambda: "network namespaces need root")
    with pytest.raises(ResourceError, match="needs hosts whose links have a rate: network name"):
        run(quick=True)
