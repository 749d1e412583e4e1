"""Topologies as tspec files and back: the same topology, or a line that says what is in the way."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.configs.errors import UsageError
from whale_ray.tspec.building import build_topology
from whale_ray.tspec.conditions import parse_condition
from whale_ray.tspec.exporting import spec_of
from whale_ray.tspec.expression_texts import condition_text
from whale_ray.tspec.reading import parse_tspec, read_tspec
from whale_ray.tspec.specification import TopologySpec

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "tspec").glob("*.yaml"))
MODULE = """
import whale_ray as whale

class Scaled(whale.Process):
    def __init__(self, factor=1):
        self.factor = factor

    def on_batch(self, batch, out):
        out.emit({"n": batch["n"] * self.factor})
"""


def without_lines(spec: TopologySpec) -> TopologySpec:
    """Return a specification without what only its file knows: lines, and shares of keys."""
    operators = tuple(
        replace(one, line=0, inputs=tuple(replace(feed, largest_share=0.0) for feed in one.inputs))
        for one in spec.operators
    )
    return replace(spec, operators=operators, where="")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_comes_back_as_it_was(path):
    spec = read_tspec(path)
    again = parse_tspec(build_topology(spec).to_tspec(), "again")
    assert without_lines(again) == without_lines(spec)


@pytest.fixture
def scaled(tmp_path, monkeypatch):
    """Return a process of a module of the user's."""
    (tmp_path / "scaling.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import scaling

    yield scaling.Scaled
    del sys.modules["scaling"]


def test_files_filters_and_processes_of_a_module_come_back_and_run_the_same(scaled, tmp_path):
    pq.write_table(pa.table({"n": list(range(10))}), tmp_path / "n.parquet")
    topology = whale.Topology("both")
    rows = topology.source(whale.sources.parquet(str(tmp_path / "n.parquet")), id="rows")
    kept = rows.filter((whale.col("n") > 2) & ~(whale.col("n") == 5), id="kept")
    by_key = kept.in_batches_of(3).key_by("n")
    by_key.process(scaled, id="scaled", parallelism=2).sink(whale.sinks.collect(), id="out")
    again = build_topology(parse_tspec(topology.to_tspec(), "again"))
    results = [
        sorted(whale.run(one).results().to_arrow()["n"].to_pylist()) for one in (topology, again)
    ]
    assert results == [[3, 4, 6, 7, 8, 9]] * 2
    node = {one.id: one for one in again.logical_plan().nodes}
    assert node["scaled"].parallelism == 2
    assert node["scaled"].inputs[0].batch_rows == 3


NAMES = st.sampled_from(["a", "b", "c"]).map(whale.col)
NUMBERS = st.recursive(
    NAMES | st.integers(-5, 5).map(whale.lit),
    lambda inner: st.builds(lambda one, other: one + other * 2 - one % 7, inner, inner),
    max_leaves=5,
)
CONDITIONS = st.recursive(
    st.builds(lambda one, other: one < other, NUMBERS, NUMBERS),
    lambda inner: st.builds(lambda one, other: (one & other) | ~one, inner, inner),
    max_leaves=5,
)


@pytest.mark.long
@given(CONDITIONS)
def test_a_condition_comes_back_with_the_same_values(condition):
    batch = whale.Batch.from_pydict({"a": [1, 2, 3], "b": [3, 2, 1], "c": [0, 5, -5]})
    again = parse_condition(condition_text(condition))
    assert again.evaluate(batch).to_pylist() == condition.evaluate(batch).to_pylist()


def refused(build) -> str:
    """Return why a topology cannot be written."""
    topology = whale.Topology("t")
    rows = topology.source(
        whale.sources.poisson(10, lambda numbers, _: {"n": numbers}, limit=1), id="rows"
    )
    build(topology, rows)
    with pytest.raises(UsageError) as raised:
        spec_of(topology.logical_plan())
    return str(raised.value)


def test_what_such_files_lack_is_refused_in_a_line(scaled):
    told = refused(lambda _, rows: rows.sink(whale.sinks.collect(), id="out"))
    assert told.startswith("operator 'rows' (test_exporting.py:")
    assert "cannot be imported; put it into a module of your own" in told
    topology = whale.Topology("t")
    noise = np.random.default_rng(1).bytes(2 << 20)  # which cannot be compressed
    table = whale.sources.arrow(pa.table({"n": [noise]}))
    topology.source(table, id="memory").sink(whale.sinks.collect(), id="out")
    with pytest.raises(UsageError, match="'memory' .* has 2,.* bytes; such files have 1,048,576"):
        topology.to_tspec()


def test_a_class_that_stands_nowhere_is_refused(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "n.parquet")

    class Local(whale.Process):
        def on_batch(self, batch, out):
            out.emit(batch)

    topology = whale.Topology("t")
    rows = topology.source(whale.sources.parquet(str(tmp_path / "n.parquet")), id="rows")
    rows.shuffle().process(Local, id="local").sink(whale.sinks.collect(), id="out")
    with pytest.raises(UsageError, match="Local cannot be imported; put it into a module"):
        topology.to_tspec()
    other = whale.Topology("t")
    rows = other.source(whale.sources.parquet(str(tmp_path / "n.parquet")), id="rows")
    rows.map(lambda row: {"n": row.n}, id="mapped").sink(whale.sinks.collect(), id="out")
    with pytest.raises(UsageError, match="'mapped' .*lambda> cannot be imported; put it into a m"):
        other.to_tspec()
