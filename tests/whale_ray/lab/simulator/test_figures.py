"""Figures: their shape is the theory's, their numbers are written down, and they can be drawn."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from whale_ray.configs.errors import InputError, ResourceError
from whale_ray.lab.simulator import plots
from whale_ray.lab.simulator.default_costs import MEASURED, PUBLISHED
from whale_ray.lab.simulator.figure import Curve, Figure, Mark, Panel
from whale_ray.lab.simulator.figures import NON_BLOCKING, Setup, dynamic, parallelism
from whale_ray.lab.simulator.figures_at_scale import FIGURES, load

QUICK = Setup(MEASURED, seed=1, quick=True)
SMALL = Figure(
    "small",
    "Small",
    "Fig. 0",
    (
        Panel(
            "first",
            "x",
            "y (ms)",
            (Curve("one", [1, 2], [1.0, math.nan]), Curve("all", [1, 2], [3.0, 4.0], "dashed")),
            y_log=True,
            marks=(Mark(1.5, "d 2→1"), Mark(1.51, "d 1→2")),
        ),
        Panel("second", "x", "y", (Curve("one", [1, 10], [1.0, 2.0], "line"),), x_log=True),
    ),
    "nothing else",
    7,
    "a machine",
)


def curves(figure: Figure, panel: int) -> dict[str, Curve]:
    return {curve.label: curve for curve in figure.panels[panel].curves}


def test_all_figures_are_there() -> None:
    assert list(FIGURES) == [
        "parallelism",
        "trees",
        "multicast-latency",
        "dynamic",
        "load",
        "scale",
    ]


def test_worker_oriented_trees_are_in_the_papers_order() -> None:
    figure = parallelism(QUICK)
    rates, latencies = curves(figure, 0), curves(figure, 1)
    last = [curve.y[-1] for curve in rates.values()]
    assert last == sorted(last)
    instances = rates["instance-oriented (as Storm)"]
    assert instances.y[-1] < instances.y[0] / 3
    non_blocking = "worker-oriented, non-blocking"
    assert rates[non_blocking].y[-1] > rates[non_blocking].y[0]
    assert latencies[non_blocking].y[-1] < latencies["instance-oriented (as Storm)"].y[-1] / 5
    assert figure.seed == 1 and figure.calibration == MEASURED.machine


def test_the_tree_follows_the_rate() -> None:
    figure = dynamic(QUICK)
    delivered = curves(figure, 0)[NON_BLOCKING].y
    assert max(delivered) > 90
    assert max(curves(figure, 0)["binomial"].y) < 50
    assert figure.panels[0].marks
    assert figure.panels[0].marks[0].text.startswith("d 5→")


def test_binomial_wins_at_low_rates_only() -> None:
    figure = load(QUICK)
    latencies, rates = curves(figure, 0), curves(figure, 1)
    low = {name: curve.y[0] for name, curve in latencies.items()}
    assert low["binomial"] == min(low.values())
    assert low["binomial"] < low["chain"]
    assert math.isnan(latencies["binomial"].y[-1])
    assert rates[NON_BLOCKING].y[-1] > 3 * rates["binomial"].y[-1]
    assert any("binomial" in finding for finding in figure.findings)


def test_published_costs_are_of_tuples() -> None:
    setup = Setup(PUBLISHED, seed=1, quick=True)
    assert setup.tuples_max == 1
    scenario = setup.scenario("star", tuples=1)
    assert scenario.queue_slices == 1024
    assert scenario.costs.per_child_s == 5.2e-6


def test_numbers_are_written_without_drawing(tmp_path: Path) -> None:
    (path,) = plots.write(SMALL, tmp_path / "new", plots=False)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["simulated"] is True
    assert (content["seed"], content["calibration"]) == (7, "a machine")
    assert content["panels"][0]["curves"][0]["y"] == [1.0, None]


def test_drawings_are_written_and_marked(tmp_path: Path) -> None:
    files = plots.write(SMALL, tmp_path)
    assert [path.name for path in files] == ["small.json", "small.png", "small.svg"]
    assert all(path.stat().st_size > 1000 for path in files[1:])
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_every_figure_says_that_it_is_simulated() -> None:
    assert SMALL.origin == "SIMULATED · seed 7 · costs of: a machine"


def test_without_matplotlib_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(ResourceError) as refused:
        plots.check_matplotlib()
    assert str(refused.value) == (
        "drawing figures needs matplotlib, not installed here: "
        'pip install "whale-ray[plots]", or take their numbers alone with --no-plots'
    )


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write to .*file: File exists"):
        plots.write(SMALL, taken, plots=False)
