"""A bounded job whose last checkpoint cannot be written publishes all its rows all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import whale_ray as whale
from whale_ray.configs.errors import OutputError
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.manifest import Manifest


def test_no_row_of_the_output_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def write(store: CheckpointStore, manifest: Manifest) -> str:
        msg = "no space left"
        raise OutputError(msg)

    monkeypatch.setattr(CheckpointStore, "write_manifest", write)
    topology = whale.Topology("rows")
    rows = whale.sources.iterable([{"x": i} for i in range(5_000)])
    source = topology.source(rows, id="rows")
    source.sink(whale.sinks.collect(), id="memory")
    source.sink(whale.sinks.parquet(tmp_path / "out"), id="files")
    settings = {
        "checkpoints.interval_ms": 10,
        "checkpoints.min_pause_ms": 0,
        "checkpoints.retry_ms": 1,
        "checkpoints.tries_max": 2,
    }
    done = whale.run(topology, checkpoints=str(tmp_path / "state"), settings=settings)
    for sink in ("memory", "files"):
        found = sorted(done.results(sink).to_arrow()["x"].to_pylist())
        assert found == list(range(5_000)), sink
    assert "publishes its output without it" in caplog.text
