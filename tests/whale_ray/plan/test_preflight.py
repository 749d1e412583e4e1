"""The last look before a start: expressions against types, outputs against the disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import whale_ray as whale
from tests.operators.kafka.kafka_cluster import mock_cluster
from whale_ray.api import ray_submission
from whale_ray.plan.preflight import preflight

ROWS = pa.table({"name": ["a"], "speed": [3]})


def topology() -> tuple[whale.Topology, whale.Stream]:
    made = whale.Topology("t")
    return made, made.source(whale.sources.arrow(ROWS), id="rows")


def test_a_sound_topology_passes(tmp_path: Path) -> None:
    made, rows = topology()
    fast = rows.with_column("fast", whale.col("speed") > 2).filter(whale.col("fast"))
    fast.select("name").sink(whale.sinks.parquet(tmp_path / "out"))
    rows.map(dict).filter(whale.col("unknown") > 0).sink(whale.sinks.collect())
    preflight(made.logical_plan())
    assert not (tmp_path / "out").exists()


def test_an_expression_that_does_not_fit_is_named_by_its_operator() -> None:
    made, rows = topology()
    words = rows.with_column("word", whale.col("name"))
    words.filter(whale.col("word"), id="odd").sink(whale.sinks.collect())
    with pytest.raises(whale.errors.TopologyError, match=r"^operator 'odd': .*word is string"):
        preflight(made.logical_plan())


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_does_not_answer_is_told_before_ray_is_started(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    def started(*arguments: object, **options: object) -> None:
        pytest.fail("Ray is started")

    monkeypatch.setattr(ray_submission, "connect_ray", started)
    made, rows = topology()
    written = rows if known else rows.map(dict)
    written.sink(whale.sinks.postgres("postgresql://127.0.0.1:1/db?connect_timeout=2", "t"))
    with pytest.raises(whale.errors.OutputError, match=r"no connection: .*; start the server, or"):
        whale.submit(made, on="ray")


@pytest.mark.parametrize("known", [True, False])
def test_a_topic_that_is_not_there_is_told_before_the_run(known: bool) -> None:
    made, rows = topology()
    with mock_cluster() as cluster:
        written = rows if known else rows.map(dict)
        written.sink(whale.sinks.kafka("nowhere", cluster.servers), id="out")
        with pytest.raises(whale.errors.OutputError, match="'nowhere' .*; it is not there; create"):
            preflight(made.logical_plan())


def test_an_output_that_exists_is_found_before_the_run(tmp_path: Path) -> None:
    made, rows = topology()
    (tmp_path / "old.csv").touch()
    rows.sink(whale.sinks.csv(tmp_path))
    made.explain()  # explaining does not check outputs
    with pytest.raises(whale.errors.OutputError, match="overwrite"):
        preflight(made.logical_plan())
