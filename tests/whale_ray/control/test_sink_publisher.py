"""Sinks of a job that resumes: it tells if the output to which it would add is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

import whale_ray as whale
from whale_ray.configs.errors import OutputError
from whale_ray.configs.settings import Settings
from whale_ray.control.sink_publisher import SinkPublisher
from whale_ray.operators.sinks.base import CommitId, Staged
from whale_ray.plan.assignment import Assignment
from whale_ray.plan.planner import plan
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

ENDLESS = whale.sources.poisson(1.0, lambda numbers, _: {"n": numbers})
MESSAGE = (
    "sink 'out' (csv {out}) has no output yet, and the job goes on from checkpoint 7 of job"
    " 'before': it begins with the rows after that. If rows were committed before, the output was"
    " moved, or its disk is not mounted: stop the job, put it back, and resume"
)


def publisher_of(sink: whale.sinks.Sink, restored: tuple[tuple[str, int], ...]) -> SinkPublisher:
    """Return that of an unbounded job with this sink."""
    topology = whale.Topology("endless")
    topology.source(ENDLESS, id="in").sink(sink, id="out")
    planned = plan(topology.logical_plan(), Settings(), 1)
    return SinkPublisher(Assignment("job", planned, Settings(), restored=restored), int)


def staged_by(sink: whale.sinks.Sink, job: str) -> Staged:
    writer = sink.open(instance_context(0, 1), job)
    writer.write(Batch.from_pydict({"n": [1]}))
    staged = writer.stage_epoch(7)
    assert staged is not None
    return staged


@pytest.mark.parametrize("place", ["gone", "empty", "there"])
@pytest.mark.parametrize("restored", [(), (("before", 6),)])
def test_a_resumed_job_warns_if_its_output_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str, restored: tuple[tuple[str, int]]
) -> None:
    out = tmp_path / "out"
    sink = whale.sinks.csv(out)
    if place == "empty":
        out.mkdir()
    if place == "there":
        sink.commit(CommitId("before", 7), [staged_by(sink, "before")])
    publisher = publisher_of(sink, restored)
    goes_on_from = CommitId("before", 7)  # which may be a later one than it was submitted with
    publisher.recover({}, goes_on_from, {"out"})
    publisher.recover({}, goes_on_from, {"out"})  # another attempt, and the end
    publisher.keep_only({})
    expected = [MESSAGE.format(out=out)] if restored and place != "there" else []
    assert [record.message for record in caplog.records] == expected


def test_a_sink_that_is_new_has_no_output_to_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = publisher_of(whale.sinks.csv(tmp_path / "out"), (("before", 6),))
    publisher.recover({}, CommitId("before", 7), {"in", "another"})
    assert caplog.records == []


def test_a_table_that_is_gone_while_the_job_runs_is_not_begun_anew(tmp_path: Path) -> None:
    """Else it had the rows of later epochs alone, and nobody was told."""
    table = tmp_path / "table"
    sink = whale.sinks.delta(table).for_operator("out")
    publisher = publisher_of(sink, ())
    publisher.recover({})
    publisher.commit(CommitId("job", 7), {"out": [staged_by(sink, "job")]})
    table.rename(tmp_path / "elsewhere")
    later = staged_by(sink, "job")
    with pytest.raises(
        OutputError, match=r"the output of sink 'out' \(delta .*table\) is gone whi"
    ):
        publisher.commit(CommitId("job", 8), {"out": [later]})
    assert not (table / "_delta_log").exists()
    for path in table.iterdir():
        path.rename(tmp_path / "elsewhere" / path.name)
    table.rmdir()
    (tmp_path / "elsewhere").rename(table)
    publisher.commit(CommitId("job", 8), {"out": [later]})
    assert DeltaTable(str(table)).to_pyarrow_table().to_pydict() == {"n": [1, 1]}


@pytest.mark.parametrize("seen", ["at its begin", "at a commit"])
def test_an_output_that_is_gone_when_workers_are_replaced_is_not_begun_anew(
    tmp_path: Path, seen: str
) -> None:
    out = tmp_path / "out"
    sink = whale.sinks.csv(out)
    publisher = publisher_of(sink, ())
    publisher.recover({})  # there is none yet
    if seen == "at a commit":
        publisher.commit(CommitId("job", 7), {"out": [staged_by(sink, "job")]})
    else:
        sink.commit(CommitId("before", 7), [staged_by(sink, "before")])
        publisher.recover({})
    out.rename(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=r"the output of sink 'out' \(csv .*out\) is gone while"):
        publisher.recover({})
    (tmp_path / "elsewhere").rename(out)
    publisher.recover({})
