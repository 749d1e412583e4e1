"""Every workload has DuckDB's rows on whale-ray; the figures are not tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.lab.bench.streaming_rows import assert_same, expected
from whale_ray.configs.errors import JobError, ResourceError
from whale_ray.lab.bench.streaming import handles, many_keys
from whale_ray.lab.bench.streaming.answers import Answer, answer_of
from whale_ray.lab.bench.streaming.application_workloads import APPLICATIONS, LINEAR_ROAD
from whale_ray.lab.bench.streaming.comparison import SystemComparison
from whale_ray.lab.bench.streaming.inputs import InputFiles, most_keys, stream_path
from whale_ray.lab.bench.streaming.jobs import answer_of_job, build, run_in, state_peak_bytes
from whale_ray.lab.bench.streaming.kept_cells import Cell, KeptCells
from whale_ray.lab.bench.streaming.systems import SYSTEMS
from whale_ray.lab.bench.streaming.timing import Measured, Ran, measure
from whale_ray.lab.bench.streaming.ways import WAYS
from whale_ray.lab.bench.streaming.workload import Workload
from whale_ray.lab.bench.streaming.workloads import WORKLOADS, workload_named

ON_COLUMNS = "keyed column process, two handles"
ON_ROWS = "keyed row process, two handles"
MERGED = "whale-ray, 2 workers, mapped Arrow"
PEER = "DuckDB batch, 1 thread"
TUMBLING = "tumbling window, count per auction"


def run_job(workload: Workload, folder: Path) -> list[dict[str, Any]]:
    job = whale.run(build(workload, folder, keep=True))
    rows: list[dict[str, Any]] = job.results("out").to_arrow().to_pylist()
    return rows


@pytest.mark.long
@pytest.mark.smoke
@pytest.mark.parametrize(
    "workload",
    [one for one in WORKLOADS if one.name != ON_COLUMNS and one not in APPLICATIONS],
    ids=lambda one: one.name,
)
def test_a_job_makes_the_rows_of_its_query(workload: Workload, inputs: InputFiles) -> None:
    wanted = expected(workload.name, inputs.folder)
    names = set(wanted[0])
    assert_same(run_job(workload, inputs.folder), wanted, names)


@pytest.mark.parametrize("workload", APPLICATIONS, ids=lambda one: one.name)
def test_an_application_makes_the_rows_of_its_query(workload: Workload, few: InputFiles) -> None:
    wanted = expected(workload.name, few.folder)
    assert_same(run_job(workload, few.folder), wanted, set(wanted[0]))


def test_linear_road_has_tolls_and_accidents(few: InputFiles) -> None:
    told = expected(LINEAR_ROAD, few.folder)
    assert sum(row["toll"] > 0 for row in told) > 100
    assert sum(row["accident_seg"] is not None for row in told) > 100


def test_the_column_form_ends_with_the_totals_of_the_query(inputs: InputFiles) -> None:
    found = run_job(workload_named(ON_COLUMNS), inputs.in_order)
    wanted = expected(ON_COLUMNS, inputs.in_order)

    def totals(rows: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
        last: dict[int, tuple[int, int]] = {}
        for row in rows:
            so_far = last.get(row["bidder"], (0, 0))
            last[row["bidder"]] = max(so_far, (row["bids"], row["spent"]))
        return last

    assert len(found) == len(wanted) == inputs.rows["bids"]
    assert totals(found) == totals(wanted)


def test_state_takes_at_least_its_fields(inputs: InputFiles) -> None:
    keys = most_keys(inputs.folder, "bids", "bidder", None)
    peak_bytes = state_peak_bytes(build(workload_named(ON_COLUMNS), inputs.in_order))
    assert peak_bytes >= keys * 3 * 8  # the key, a count and a sum


@pytest.mark.parametrize("call", handles.CALLS)
def test_calls_of_handles_run(call: str, inputs: InputFiles) -> None:
    bids = pq.read_table(stream_path(inputs.in_order, "bids")).slice(0, 10)
    process = handles._calling(handles.CALLS[call])
    names = {"count", "spent", "last", "greatest"}
    assert set(process.declared) == names
    assert handles._cpu_ns(process, bids) > 0


def test_the_loop_over_many_keys_counts_and_adds() -> None:
    keys = np.random.default_rng(3).integers(0, 700, 5_000)
    groups = np.zeros(1 << 10, many_keys._GROUP)
    many_keys._add(groups, keys, 2 * keys)
    found = groups[groups["key"] > 0]
    counts = np.bincount(keys, minlength=700)
    assert dict(zip(found["key"] - 1, found["count"], strict=True)) == {
        key: count for key, count in enumerate(counts) if count
    }
    assert (found["total"] == 2 * (found["key"] - 1) * found["count"]).all()


def test_an_answer_is_that_of_all_rows_though_they_are_dropped(few: InputFiles) -> None:
    workload = workload_named(ON_ROWS)
    rows = pa.Table.from_pylist(run_job(workload, few.folder))
    assert run_in(WAYS[0], workload, few.folder).answer == answer_of(rows, workload.total)


def test_a_job_that_was_stopped_has_no_answer() -> None:
    """A signal drains it, and it publishes what comes of the rows that it has read."""
    topology = whale.Topology("stopped")
    bids = topology.source(whale.testing.ListSource([{"bids": 1}, whale.testing.Pause(600_000)]))
    bids.sink(whale.sinks.collect(), id="out")
    job = whale.submit(topology, on="processes").stop()
    with pytest.raises(JobError, match="stopped before its input had ended"):
        answer_of_job(workload_named(TUMBLING), job)


def test_runs_with_two_answers_are_an_error() -> None:
    answers = iter([Answer(1, 2), Answer(1, 3)])
    with pytest.raises(ResourceError, match=r"1 results, sum 2 and 1 results, sum 3"):
        measure(lambda: Ran(1.0, 1.0, next(answers)), 1)


def test_another_answer_is_named(few: InputFiles) -> None:
    workload = workload_named(ON_COLUMNS)
    found = {
        "whale-ray, 1 worker": {ON_COLUMNS: Measured(1.0, 1.0, 1.0, Answer(3, 4))},
        PEER: {ON_COLUMNS: Measured(2.0, 2.0, None, Answer(3, 5))},
    }
    notes: list[str] = []
    both = SystemComparison([workload], lambda: few, SYSTEMS)
    ours, peer = both.compared(found, KeptCells(None, {}), notes)
    assert ours.parameters["answer"] == "the same"
    assert peer.parameters["answer"] == "ANOTHER"
    assert (peer.ratio, peer.value) == (2.0, few.rows["bids"] / 2.0 / 1e3)
    assert notes == [
        f"{PEER}, {ON_COLUMNS}, skew 0: ANOTHER ANSWER: 3 results, sum 5;"
        " whale-ray 3 results, sum 4"
    ]


def test_a_cell_is_compared_with_the_one_that_its_target_names(few: InputFiles) -> None:
    """By late merge, skewed keys are no slower than uniform ones."""
    workload = workload_named("Yahoo, views per campaign")
    found = {
        name: {workload.name: Measured(1.0, seconds, 1.0, Answer(3, 4))}
        for name, seconds in ((WAYS[0].name, 4.0), (MERGED, 2.0))
    }
    kept = KeptCells(None, {})
    both = SystemComparison([workload], lambda: few, SYSTEMS, skew=2.0)
    alone = both.compared(found, kept, [])[1]
    assert (alone.ratio, alone.against, alone.aim) == (2.0, WAYS[0].name, None)
    kept.add(Cell(MERGED, workload.name, 0.0), Measured(1.0, 1.0, 1.0, Answer(3, 4)))
    beside = both.compared(found, kept, [])[1]
    assert (beside.ratio, beside.against) == (0.5, f"{MERGED}, skew 0")
    assert beside.aim is not None and not beside.aim.met(beside)
