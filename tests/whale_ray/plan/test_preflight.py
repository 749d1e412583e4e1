"""The last look before a start: expressions against types, outputs against the disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import whale_ray as whale
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


def test_an_output_that_exists_is_found_before_the_run(tmp_path: Path) -> None:
    made, rows = topology()
    (tmp_path / "old.csv").touch()
    rows.sink(whale.sinks.csv(tmp_path))
    made.explain()  # explaining does not check outputs
    with pytest.raises(whale.errors.OutputError, match="overwrite"):
        preflight(made.logical_plan())
