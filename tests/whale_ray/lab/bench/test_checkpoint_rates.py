"""Rates with checkpoints: what is run, in which order, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from whale_ray.configs.errors import JobError
from whale_ray.lab.bench.checkpoints import rates
from whale_ray.lab.bench.checkpoints.rates import rate_rows
from whale_ray.lab.bench.streaming.answers import Answer
from whale_ray.lab.bench.streaming.inputs import InputFiles
from whale_ray.metrics.checkpoint_metrics import CheckpointMetrics

NAME = next(iter(rates.WORKLOADS))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "WORKLOADS", {NAME: 20_000})
    monkeypatch.setattr(rates, "QUICK_EVENTS", 20_000)


def runs_of(monkeypatch: pytest.MonkeyPatch, found: dict[int | None, list[float]]) -> list[object]:
    """Let runs take given seconds, by the interval of their checkpoints; return how they came."""
    order: list[object] = []

    def run(_workload: object, _inputs: object, interval_ms: int | None) -> rates._Measured:
        order.append(interval_ms)
        seconds = found[interval_ms].pop(0)
        made = CheckpointMetrics(count=int(seconds), aligned_p99_ms=seconds * 10)
        return rates._Measured(
            seconds, seconds * 2, Answer(1, 2), None if interval_ms is None else made
        )

    monkeypatch.setattr(rates, "_run", run)
    return order


def test_pairs_come_in_turns_behind_a_run_that_does_not_count(monkeypatch, small, tmp_path: Path):
    times = {
        None: [5.0, 6.0, 30.0, 9.0, 12.0],
        1_000: [999.0, 10.0, 8.0, 40.0, 10.0, 20.0],
    }
    order = runs_of(monkeypatch, times)
    rate, aligned = rate_rows(tmp_path, quick=False)
    assert order[0] == 1_000
    pairs = list(zip(order[1::2], order[2::2], strict=True))
    assert all({*pair} == {None, 1_000} for pair in pairs) and len(pairs) == rates.PAIRS
    assert all(first != second for first, second in pairwise(pairs))
    assert rate.ratio == 0.75  # of 0.5, 0.75, 0.75, 0.9, 0.6
    assert (rate.also["ratio, least"], rate.also["greatest"]) == (0.5, 0.9)
    assert rate.value == pytest.approx(20.0 / 10.0)
    assert rate.also["checkpoints, at least"] == 8 and rate.cores == 2.0
    of_pairs = [10 / 10, 4 / 8, 20 / 40, 2 / 10, 16 / 20]  # CPU seconds over checkpoints
    assert rate.also["CPU ms a checkpoint"] == pytest.approx(sorted(of_pairs)[2] * 1e3)
    assert rate.also["CPU s a million rows"] == pytest.approx(20.0 * 1e6 / 20_000)
    assert rate.also["without"] == pytest.approx(18.0 * 1e6 / 20_000)
    assert aligned.value == 400.0 and aligned.also == {"ms in the median run": 100.0}
    assert aligned.aim is not None and not aligned.aim.met(aligned)


def test_another_answer_is_an_error(monkeypatch, small, tmp_path: Path):
    runs_of(monkeypatch, {None: [1.0], 250: [1.0, 1.0]})
    answers = iter((Answer(1, 2), Answer(1, 2), Answer(1, 3)))
    run = rates._run

    def other(*arguments: Any) -> rates._Measured:
        return replace(run(*arguments), answer=next(answers))

    monkeypatch.setattr(rates, "_run", other)
    with pytest.raises(JobError, match="another answer with checkpoints"):
        rate_rows(tmp_path, quick=True)


def test_each_workload_reads_files_of_its_own(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(rates, "WORKLOADS", dict.fromkeys(rates.WORKLOADS, 2_000))
    read = []

    def run(_workload: object, inputs: InputFiles, interval_ms: int | None) -> rates._Measured:
        read.append(inputs.folder)
        assert any(inputs.folder.glob("*.parquet"))
        return rates._Measured(
            1.0, 1.0, Answer(1, 2), None if interval_ms is None else CheckpointMetrics(count=1)
        )

    monkeypatch.setattr(rates, "_run", run)
    assert len(rate_rows(tmp_path, quick=False)) == 2 * len(rates.WORKLOADS)
    assert len(set(read)) == len(rates.WORKLOADS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_pair_is_measured(small, tmp_path: Path):
    rate, aligned = rate_rows(tmp_path, quick=True)
    assert rate.parameters == {"rows": 20_000, "workers": 2}
    assert rate.value > 0 and rate.ratio is not None and rate.also["checkpoints, at least"] >= 1
    assert aligned.unit == "ms"
    assert not (tmp_path / "checkpoints").exists()
