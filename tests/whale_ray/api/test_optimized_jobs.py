"""Jobs that are optimized before they start: what they run with, and what they return."""

from __future__ import annotations

import pyarrow as pa

import whale_ray as whale
from whale_ray.optimizer.decisions import log_from_yaml
from whale_ray.tuning import optimizing
from whale_ray.tuning.trials import TrialLength

ROWS = 20_000
SHORT = TrialLength(warm_up_s=0.02, measured_s=0.1, wall_s=0.4)
"""So few rows take less processor time than that; the wall's clock ends such a trial."""


def test_an_optimized_job_has_the_same_result_and_its_decisions(monkeypatch, tmp_path):
    """The trials read the same input before, and leave nothing where the result comes."""
    tune = optimizing.tune

    def shorter(*given, report, **named):
        return tune(*given, **named, length=SHORT, batches=(None, 16), report=report)

    monkeypatch.setattr(optimizing, "tune", shorter)
    topology = whale.Topology("sums")
    numbers = topology.source(whale.sources.arrow(pa.table({"n": range(ROWS)})), id="numbers")
    even = numbers.shuffle().filter(whale.col("n") % 2 == 0, id="even")
    even.sink(whale.sinks.parquet(str(tmp_path / "out")), id="out")
    job = whale.submit(topology, on="processes", workers=2, optimize=True).wait(60)
    assert sorted(job.results().to_arrow()["n"].to_pylist()) == list(range(0, ROWS, 2))
    assert job.decisions.topology == "sums"
    assert set(job.decisions.choices) == {"numbers", "even"}
    assert log_from_yaml(job.decisions.to_yaml(), "log")[1] == job.decisions.steps
    plain = whale.run(_one_row(), settings={})
    assert plain.decisions.steps == ()


def _one_row() -> whale.Topology:
    topology = whale.Topology("one")
    rows = topology.source(whale.sources.arrow(pa.table({"n": [1]})), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    return topology
