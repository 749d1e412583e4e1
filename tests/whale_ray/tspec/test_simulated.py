"""Simulated operators: as many rows, of the size and with the batches that a file says."""

from __future__ import annotations

import time

import pytest

import whale_ray as whale
from whale_ray.cli.main import main
from whale_ray.configs.errors import TopologyError
from whale_ray.transport.slicing import StreamSlicer
from whale_ray.transport.wire.batch import Batch
from whale_ray.tspec.building import build_topology
from whale_ray.tspec.reading import parse_tspec
from whale_ray.tspec.simulated import be_busy

SPEC = """
tspec: 1
topology: t
operators:
  s: {source: simulated, rate_per_s: 1e9, rows: 3000, row_bytes: 40, dop: 1, batch_rows: 7}
  p:
    process: simulated
    inputs: [{from: s, GROUPING}]
    ppt_us: 0
    fan_out: 0.25
    row_bytes: 32
    dop: 3
  o: {sink: "whale_ray.sinks:collect", inputs: [{from: p}], ppt_us: 0}
"""


@pytest.mark.parametrize(
    "grouping", ["grouping: all", "grouping: shuffle", "grouping: key, by: key"]
)
def test_a_simulated_process_emits_its_part_of_the_rows_whatever_their_grouping(grouping):
    job = whale.run(build_topology(parse_tspec(SPEC.replace("GROUPING", grouping), "x")))
    rows = job.results("o").to_arrow()
    # Each of three instances may still owe a part of a row.
    assert 3000 / 4 - 3 < rows.num_rows <= 3000 / 4
    assert {len(text) for text in rows["payload"].to_pylist()} == {32 - 16}
    taken = sum(one.rows_in for one in job.metrics().operators if one.operator_id == "p")
    assert taken == 3000 * (3 if grouping == "grouping: all" else 1)


def test_being_busy_takes_processor_time():
    before_ns = time.thread_time_ns()
    be_busy(2e6)
    assert time.thread_time_ns() - before_ns >= 2e6


class Sizes(whale.Process):
    """Emits how many rows come together."""

    def on_batch(self, batch, out):
        out.emit_row(rows=batch.num_rows)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_stream_is_sent_in_batches_of_so_many_rows(rows):
    topology = whale.Topology("t")
    stream = topology.source(whale.sources.iterable([{"x": x} for x in range(100)]), id="s")
    sizes = stream.in_batches_of(rows).broadcast().process(Sizes, parallelism=1)
    sizes.sink(whale.sinks.collect(), id="o")
    assert f", {rows:,} row{'s' * (rows > 1)} at a time" in str(topology.explain(2))
    found = whale.run(topology).results("o").to_arrow()["rows"].to_pylist()
    assert sum(found) == 100
    assert max(found) <= rows
    if rows < 100:
        assert found.count(rows) >= 100 // rows - 1


@pytest.mark.parametrize("rows", [0, -1, 1.5, True])
def test_a_batch_has_a_whole_number_of_rows(rows):
    stream = whale.Topology("t").source(whale.sources.iterable([{"x": 1}]), id="s")
    with pytest.raises(TopologyError, match="a batch has a whole number of rows"):
        stream.in_batches_of(rows)


def test_a_slice_is_due_at_so_many_rows_and_comes_in_pieces():
    slicer = StreamSlicer(1 << 20, 10**9, 3)
    slicer.add(Batch.from_pydict({"x": [1, 2]}), 0)
    assert not slicer.ready(0)
    slicer.add(Batch.from_pydict({"x": [3, 4, 5, 6, 7]}), 0)
    assert slicer.ready(0)
    batch = slicer.take()
    assert batch is not None
    assert [piece["x"].tolist() for piece in slicer.pieces(batch)] == [[1, 2, 3], [4, 5, 6], [7]]
    assert not slicer.ready(0)


def test_optimize_prints_writes_and_says_what_limits(tmp_path, capsys):
    path, log, better = tmp_path / "t.yaml", tmp_path / "log.yaml", tmp_path / "better.yaml"
    path.write_text(SPEC.replace("GROUPING", "grouping: all").replace("1e9", "1e5"))
    written = ["--log", str(log), "--write", str(better)]
    # A batch of 10 rows of 40 bytes costs its sender 47 us, so a source 4.7 of the 10 us of a row.
    arguments = ["optimize", str(path), "--cores", "64", "--batch-bytes-max", "400", *written]
    assert main(arguments) == 0
    assert "busy cores: " in capsys.readouterr().out
    assert "tspec-opt: 1" in log.read_text()
    assert "topology: t" in better.read_text()
    path.write_text(path.read_text().replace("1e5", "1e6"))
    assert main(arguments) == 1
    assert "an instance of 's' would have to be busy" in capsys.readouterr().out
    assert main(["explain", str(better), "--on", "inline"]) == 0
    assert main(["run", str(better), "--on", "inline"]) == 0
    assert "o: 750 rows" in capsys.readouterr().out


def test_optimize_without_a_file_is_one_line(capsys):
    assert main(["optimize", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err.startswith("whale-ray: nowhere.yaml: cannot be read")
