"""Trials and calibration on real processes, against what the topology is made of."""

from __future__ import annotations

import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.configs.errors import UsageError, UserFunctionError
from whale_ray.configs.settings import Settings
from whale_ray.metrics.counters import MemberCounters
from whale_ray.metrics.job_metrics import JobMetrics, summarize
from whale_ray.metrics.loads import EdgeLoad, WorkerLoad
from whale_ray.operators.sources.base import SourceReader
from whale_ray.optimizer.algorithm import optimize
from whale_ray.optimizer.dataflow import OptimizerLimits
from whale_ray.optimizer.decisions import Choice
from whale_ray.plan.planner import plan
from whale_ray.transport.clock import VirtualClock
from whale_ray.tspec.building import build_topology
from whale_ray.tspec.reading import parse_tspec
from whale_ray.tuning.applying import in_batches_of, in_full_slices, with_choices
from whale_ray.tuning.calibration import measured_in
from whale_ray.tuning.optimizing import OPTIMIZED, compare, tune
from whale_ray.tuning.trial_sources import is_measured, trial_sink, trial_source
from whale_ray.tuning.trials import (
    Trial,
    TrialLength,
    _watch,
    for_trial,
    reads_for_trial,
    run_trial,
)

SHORT = TrialLength(warm_up_s=0.05, measured_s=0.2, wall_s=20)
SPEC = """
tspec: 1
topology: three
operators:
  a: {source: simulated, rate_per_s: 1000, rows: 10, dop: 1, ppt_us: 1, row_bytes: 64}
  b:
    process: simulated
    inputs: [{from: a, grouping: key, by: key}]
    ppt_us: 20
    fan_out: 0.5
    row_bytes: 32
  c: {sink: simulated, inputs: [{from: b, grouping: shuffle}], ppt_us: 5}
"""


def three():
    """Return a topology of known costs and selectivities."""
    return build_topology(parse_tspec(SPEC, "three.yaml")).logical_plan()


@pytest.mark.long
def test_a_calibration_finds_the_costs_and_selectivities_of_simulated_operators():
    """A simulated operator is busy for at least the time that it is to be."""
    tuned = tune(three(), Settings(), 2, length=SHORT, batches=(None, 8), rounds=2)
    found = tuned.calibration
    assert found.stage_flow["b"] == pytest.approx(1, rel=0.2)
    assert found.stage_flow["c"] == pytest.approx(0.5 * found.stage_flow["b"], rel=0.2)
    assert found.costs["b"].row_ns + found.costs["b"].each_ns > 0.9 * 20_000
    assert found.row_bytes["a", 0, "b", 0] == pytest.approx(64, rel=0.2)
    assert tuned.optimization.choices["a"].dop == 1  # of a source the user's
    changed = {node.id: node for node in tuned.logical.nodes}
    assert changed["b"].inputs[0].batch_rows == tuned.optimization.choices["a"].batch_rows
    (compared,) = compare(tuned, (OPTIMIZED,), latency=False, length=SHORT, rounds=2)
    assert compared.predicted_per_s > 0
    assert len(compared.predicted_each) == len(compared.measured_each) == 2
    assert compared.measured_per_s == min(compared.measured_each)  # of two, the lower is the middle
    assert 0 < compared.measured_per_s <= 2 / (1 + 20 + 0.5 * 5) * 1e6 * 1.1


def test_cores_that_do_not_suffice_for_the_hosts_are_refused_before_anything_is_measured():
    told = []
    with pytest.raises(UsageError, match="2 cores cannot be divided among 3 hosts"):
        tune(three(), Settings(), 2, hosts=3, report=told.append)
    assert not told


@pytest.mark.parametrize(
    ("slices", "held"), [(20, {}), (17, {}), (4, {("b", 0, "c", 0): 2 * 500 / 4})]
)
def test_rows_are_held_back_if_slices_are_larger_than_what_follows_from_those_before(slices, held):
    """Of the 100 rows of a slice, each of two instances gets 50, of which 25 follow."""
    logical = with_choices(three(), plan(three(), Settings(), 2), {"b": Choice(2)})
    planned = plan(logical, Settings(), 2)
    first, second = (edge.id for edge in planned.edges)
    sent = {
        first: EdgeLoad(1_000, 20, 64_000, 10),
        second: EdgeLoad(500, slices, 16_000, slices),
    }
    loads = (WorkerLoad(0, {stage.id: 1_000 for stage in planned.stages}, sent),)
    trial = Trial(planned, {"a": 1_000, "b": 1_000, "c": 500}, loads, 1.0, None)
    found = measured_in({None: [trial]})
    assert found.held_rows == held
    assert found.stage_flow == {"a": 1.0, "b": 1.0, "c": 0.5}


def test_a_trial_with_single_instances_tells_what_each_instance_spends():
    """With two, 1,000 rows took 1 ms, with one 0.6 ms: so 0.2 ms for the rows, 0.4 for each."""

    def trial(dop: int, cpu_ns: int) -> Trial:
        planned = plan(
            with_choices(three(), plan(three(), Settings(), 2), {"b": Choice(dop)}), Settings(), 2
        )
        rows = {"a": 1_000, "b": 1_000, "c": 500}
        spent = {s.id: cpu_ns if s.head == "b" else 1_000 for s in planned.stages}
        sent = {edge.id: EdgeLoad(1_000, 1, 64_000, 1) for edge in planned.edges}
        return Trial(planned, rows, (WorkerLoad(0, spent, sent),), 1.0, None)

    both, one = trial(2, 1_000_000), trial(1, 600_000)
    costs = measured_in({None: [both]}, [one]).costs["b"]
    assert costs.row_ns + 2 * costs.each_ns == pytest.approx(1_000)
    assert costs.row_ns + costs.each_ns == pytest.approx(600)
    without = measured_in({None: [both]}).costs["b"]
    assert (without.row_ns, without.each_ns) == (1_000, 0)


def test_of_three_rounds_a_disturbed_one_changes_the_range_but_not_the_prediction():
    """A row of "b" takes 1 µs, in one round 5 µs: the middle is kept for each stage."""

    def trial(b_ns: int, c_ns: int) -> Trial:
        spent = dict(zip((s.id for s in planned.stages), (100_000, b_ns, c_ns), strict=True))
        sent = {edge.id: EdgeLoad(1_000, 1, 64_000, 1) for edge in planned.edges}
        rows = {"a": 1_000, "b": 1_000, "c": 1_000}
        return Trial(planned, rows, (WorkerLoad(0, spent, sent),), 1.0, None)

    planned = plan(three(), Settings(), 1)
    rounds = [trial(1_000_000, 400_000), trial(5_000_000, 500_000), trial(900_000, 2_500_000)]
    found = measured_in({None: rounds})
    assert [found.costs[one].row_ns for one in "abc"] == pytest.approx([100, 1_000, 500])
    assert found.stage_flow == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert found.predict(planned, Settings(), 1).rows_per_s == pytest.approx(1e9 / 1_600)
    each = found.predicted_by_rounds(planned, Settings(), 1)
    assert each == pytest.approx([1e9 / 1_500, 1e9 / 5_600, 1e9 / 3_500])
    assert found.trials[None].rows_read == 3_000
    assert found.trials[None].loads[0].cpu_ns == 10_600_000


@pytest.mark.parametrize(("messages", "spread"), [(20, 1.0), (10, 0.0), (15, 0.5), (40, 1.0)])
def test_to_how_many_workers_a_slice_goes_is_measured(messages, spread):
    """A slice with enough rows for both workers may be for one: the keys of both ends agree."""
    planned = plan(three(), Settings(), 2)
    first, second = (edge.id for edge in planned.edges)
    sent = {first: EdgeLoad(1_000, messages, 64_000, 10), second: EdgeLoad(9, 9, 900, 9)}
    loads = (WorkerLoad(0, {stage.id: 1_000 for stage in planned.stages}, sent),)
    found = measured_in({None: [Trial(planned, {"a": 1_000, "b": 1_000}, loads, 1.0, None)]})
    assert found.spread == {("a", 0, "b", 0): spread}, "of slices of one row nothing is known"


def test_a_table_is_no_input_of_what_is_optimized():
    """The join is fused with its source, and has a table that was read before."""
    topology = whale.Topology("table")
    rows = topology.source(whale.sources.arrow(pa.table({"k": [1]})), id="rows")
    named = rows.join_table(pa.table({"k": [1], "name": ["a"]}), on="k", id="named")
    counts = named.group_by("k").agg(whale.functions.count().alias("rows"), id="counts")
    counts.sink(whale.sinks.collect(), id="out")
    planned = plan(topology.logical_plan(), Settings(), 2)
    sent = {
        edge.id: EdgeLoad() if edge.is_side_input else EdgeLoad(1_000, 20, 64_000, 10)
        for edge in planned.edges
    }
    loads = (WorkerLoad(0, {stage.id: 1_000_000 for stage in planned.stages}, sent),)
    read = {"named-table": 0, "rows": 1_000, "named": 1_000, "counts": 1_000, "out": 1_000}
    found = measured_in({None: [Trial(planned, read, loads, 1.0, None)]})
    dataflow, sending = found.dataflow(2, {})
    assert [node.id for node in dataflow.nodes] == ["rows", "counts"]
    assert found.steps_aside == ()
    assert [(edge.source, edge.target) for edge in dataflow.edges] == [("rows", "counts")]
    choices = optimize(dataflow, sending, OptimizerLimits(2)).choices
    changed = with_choices(topology.logical_plan(), planned, choices)
    assert plan(changed, Settings(), 2).stages[0].head == "named-table"
    # A row takes 1 µs of one worker, and half of 1 µs of each of both.
    assert found.predict(planned, Settings(), 2).rows_per_s == pytest.approx(1e9 / 1_500)


def test_an_aggregate_that_may_step_aside_is_named_since_that_is_not_predicted():
    topology = whale.Topology("early")
    rows = topology.source(whale.sources.arrow(pa.table({"k": [1], "at": [2]})), id="rows")
    counts = rows.group_by("k").agg(whale.functions.count().alias("n"), id="counts", trigger="1 s")
    counts.sink(whale.sinks.collect(), id="out")
    planned = plan(topology.logical_plan(), Settings(), 2)
    assert measured_in({None: [Trial(planned, {}, (), 1.0, None)]}).steps_aside == (
        "counts.partial",
    )


def test_a_trial_of_a_source_that_has_no_row_in_time_says_so():
    topology = whale.Topology("silent")
    silent = whale.testing.ListSource([], whale.Schema.of(a="int64"), bounded=False)
    topology.source(silent, id="no").sink(whale.sinks.collect(), id="out")
    short = TrialLength(0.1, 0.1, 1.0, start_s=0.5)
    with pytest.raises(UsageError, match="its sources had no row within 0.5 s"):
        run_trial(topology.logical_plan(), Settings(), 1, length=short)


def test_a_trial_of_an_input_without_rows_says_so_at_once():
    topology = whale.Topology("empty")
    rows = topology.source(whale.sources.arrow(pa.table({"a": pa.array([], pa.int64())})), id="no")
    rows.sink(whale.sinks.collect(), id="out")
    long = TrialLength(0.1, 0.1, 1.0, start_s=30)
    with pytest.raises(UsageError, match="'empty': its sources have no rows, so that nothing"):
        run_trial(topology.logical_plan(), Settings(), 2, length=long)


class _JobWithoutRows:
    """A running job that reads nothing any more, on two workers, of which one takes some time."""

    state = "running"

    def __init__(self, clock: VirtualClock, busy: float) -> None:
        self._clock, self._busy = clock, busy

    def metrics(self) -> JobMetrics:
        now_ns = self._clock.monotonic_ns()
        spent = (round(self._busy * now_ns), now_ns // 200)
        members = [MemberCounters(one, now_ns, cpu_ns) for one, cpu_ns in enumerate(spent)]
        return summarize((), members)


@pytest.mark.parametrize(
    ("busy", "ended_s", "is_over"),
    [
        pytest.param(0.02, 2, True, id="is idle: asked for counters alone"),
        pytest.param(0.2, 15, False, id="computes, beside others"),
    ],
)
def test_a_trial_ends_once_nothing_is_left_to_do(busy, ended_s, is_over):
    clock, logical = VirtualClock(), three()
    read_s, found = _watch(_JobWithoutRows(clock, busy), logical, clock, cpu_s=1.0, wall_s=15.0)
    assert (read_s, found) == (0, is_over)
    assert clock.monotonic_ns() / 1e9 == pytest.approx(ended_s, abs=0.2)


def test_a_function_that_raises_fails_the_trial_which_leaves_no_record(tmp_path):
    records = {"records.folder": str(tmp_path / "runs")}
    topology = whale.Topology("raises")
    rows = topology.source(whale.sources.arrow(pa.table({"a": [1]})), id="rows")
    rows.map(lambda row: {"b": row.nothing}).sink(whale.sinks.collect(), id="out")
    with pytest.raises(UserFunctionError, match="nothing"):
        run_trial(topology.logical_plan(), Settings().with_overrides(records), 1, length=SHORT)
    assert not (tmp_path / "runs").exists()


def test_what_takes_effect_is_not_called_in_trials():
    called = whale.sinks.each(print)
    assert not is_measured(called)
    assert trial_sink(called) is not called
    files = whale.sinks.parquet("somewhere")
    assert trial_sink(files) is files
    assert is_measured(whale.sinks.collect())


class _Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


class _Context:
    instance, parallelism = 0, 1

    def __init__(self) -> None:
        self.clock = _Clock()


def paced(rate_per_s: float | None) -> tuple[SourceReader, _Clock]:
    """Return the reader of ten rows in a trial."""
    context = _Context()
    rows = whale.sources.arrow(pa.table({"a": list(range(10))}))
    return trial_source(rows, rate_per_s).open(context), context.clock


def test_a_trial_s_source_keeps_its_rate_and_tells_when_rows_were_due():
    reader, clock = paced(1_000)
    assert reader.read(8) is None
    assert reader.next_ready_ns() == 1_000_001
    clock.now_ns = 3_000_000
    batch = reader.read(8)
    assert batch.num_rows == 3
    assert batch.origin_ns == 1_000_000
    clock.now_ns = 3_500_000
    assert reader.read(8) is None
    assert reader.next_ready_ns() == 4_000_001


def test_a_trial_s_source_does_not_end():
    reader, clock = paced(None)
    assert reader.read(100).num_rows == 10
    clock.now_ns = 5
    assert reader.read(100) is None
    assert not reader.finished
    assert reader.next_ready_ns() > 5


def test_one_batch_for_all_streams_or_the_user_s():
    logical = three()
    assert in_batches_of(logical, None) is logical
    assert {
        feed.batch_rows for node in in_batches_of(logical, 7).nodes for feed in node.inputs
    } == {7}
    full = in_full_slices(in_batches_of(logical, 7))
    assert {feed.batch_rows for node in full.nodes for feed in node.inputs} == {None}
    assert for_trial(logical, 10).node("a").payload.rate_per_s == 10


def test_sources_read_little_at_once_only_where_all_batches_are_small():
    logical = three()
    assert reads_for_trial(in_batches_of(logical, 1)) == {"runtime.source_batch_rows": 256}
    assert reads_for_trial(in_batches_of(logical, 257)) == {}
    assert reads_for_trial(logical) == {}


def test_choices_become_parallelism_and_batches_of_whole_stages():
    """What is fused with an operator gets as many instances, so that it stays fused."""
    topology = whale.Topology("fused")
    rows = topology.source(whale.sources.arrow(pa.table({"a": [1]})), id="rows")
    kept = rows.key_by("a").process(_Same, id="same").filter(whale.col("a") > 0, id="kept")
    kept.shuffle().map(lambda row: {"a": row.a}, id="last").sink(whale.sinks.collect(), id="out")
    logical = topology.logical_plan()
    planned = plan(logical, Settings(), 2)
    choices = {"rows": Choice(1, 10), "same": Choice(3, 20), "last": Choice(1, None)}
    changed = {node.id: node for node in with_choices(logical, planned, choices).nodes}
    assert [changed[one].parallelism for one in ("rows", "same", "kept", "last", "out")] == [
        1, 3, 3, 1, 1,
    ]  # fmt: skip
    assert [changed[one].inputs[0].batch_rows for one in ("same", "kept", "last", "out")] == [
        10, None, 20, None,
    ]  # fmt: skip


class _Same(whale.Process):
    def on_batch(self, batch, out):
        out.emit(batch)
