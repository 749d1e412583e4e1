"""Late rows: what becomes of them at their source and behind it, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.api.submission import run, submit
from whale_ray.testing import ListSource
from whale_ray.transport.clock import VirtualClock

SCHEMA = {"n": "int64", "t": "int64"}


class SplitsLate(whale.Process):
    """Every row, and on another output those that its watermark had passed."""

    outputs = ("main", "late")
    late_outputs = ("late",)
    takes_late_rows = True
    input_order = "arrival"

    def open(self, context: Any) -> None:
        self.watermark_ns = -(2**63)

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        assert batch.times is not None
        late = batch.times <= self.watermark_ns
        out.emit(batch.filter(~late))
        out.emit_to("late", batch.filter(late))

    def on_watermark(self, watermark_ns: int, out: whale.Output) -> None:
        assert watermark_ns > self.watermark_ns
        self.watermark_ns = watermark_ns


class PassesOn(whale.Process):
    """Takes late rows, and its rows in the order of their times."""

    takes_late_rows = True
    late_outputs = ("main",)

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        assert batch.times is not None
        assert (batch.times[1:] >= batch.times[:-1]).all()
        out.emit(batch)


def topology_of(
    times: list[int], on_late: Any, *, batch_rows: int = 3
) -> tuple[whale.Topology, whale.Stream]:
    topology = whale.Topology("late")
    items = [{"n": n, "t": t} for n, t in enumerate(times)]
    rows = topology.source(
        ListSource(items, schema=SCHEMA, batch_rows=batch_rows),
        id="rows",
        event_time="t",
        event_time_unit="s",
        max_out_of_order_ms=2000,
        on_late=on_late,
    )
    return topology, rows


def numbers(job: Any, sink: str) -> list[int]:
    return sorted(row["n"] for row in job.results(sink).preview(10_000))


def late_of(times: list[int]) -> list[int]:
    """Return the places of rows that lie more than 2 s behind the latest before them."""
    latest, late = None, []
    for place, time in enumerate(times):
        if latest is not None and time < latest - 2:
            late.append(place)
        latest = time if latest is None else max(latest, time)
    return late


@settings(max_examples=30, deadline=None)
@given(times=st.lists(st.integers(0, 12), max_size=25), batch_rows=st.integers(1, 8))
def test_late_rows_flow_on_and_are_counted(times: list[int], batch_rows: int) -> None:
    topology, rows = topology_of(times, "pass", batch_rows=batch_rows)
    split = (
        rows.filter(whale.col("n") >= 0)
        .key_by("n")
        .process(PassesOn, id="ordered", parallelism=2)
        .key_by("n")
        .process(SplitsLate, id="split", parallelism=2)
    )
    split.sink(whale.sinks.collect(), id="main")
    split.side_output("late").sink(whale.sinks.collect(), id="late")
    rows.sink(whale.sinks.collect(), id="all")
    job = run(topology, clock=VirtualClock())
    everything = list(range(len(times)))
    assert numbers(job, "all") == everything
    assert sorted(numbers(job, "main") + numbers(job, "late")) == everything
    # Whether the watermark overtakes a late row on its way depends on how slices are cut.
    assert set(numbers(job, "late")) <= set(late_of(times))
    metrics = job.metrics().operator("rows")
    assert metrics.rows_late == len(late_of(times))
    assert metrics.rows_dropped == {}


@settings(max_examples=20, deadline=None)
@given(times=st.lists(st.integers(0, 12), max_size=25))
def test_dropped_late_rows_are_counted(times: list[int]) -> None:
    topology, rows = topology_of(times, "drop")
    rows.sink(whale.sinks.collect(), id="all")
    job = run(topology, clock=VirtualClock())
    late = late_of(times)
    assert numbers(job, "all") == [n for n in range(len(times)) if n not in late]
    metrics = job.metrics().operator("rows")
    assert metrics.rows_late == len(late)
    assert metrics.rows_dropped == ({"late": len(late)} if late else {})


def test_a_late_row_that_fails_the_job_is_counted() -> None:
    topology, rows = topology_of([5, 1], "fail")
    rows.sink(whale.sinks.collect(), id="all")
    job = submit(topology, workers=1, on="processes")
    with pytest.raises(whale.errors.BadRowError, match="pass on_late='drop'"):
        job.wait()


def test_late_rows_reach_other_processes() -> None:
    times = list(range(0, 400, 4)) + [3] * 50
    topology, rows = topology_of(times, "pass", batch_rows=10)
    split = rows.shuffle().process(SplitsLate, id="split", parallelism=3)
    late = split.side_output("late")
    split.union(late).shuffle().process(PassesOn, id="ordered", parallelism=2).sink(
        whale.sinks.collect(), id="both"
    )
    late.sink(whale.sinks.collect(), id="late")
    job = submit(topology, workers=2, on="processes", settings={"transport.wtl_ms": 0}).wait()
    assert numbers(job, "both") == list(range(len(times)))
    assert set(numbers(job, "late")) <= set(range(100, 150))
    assert job.metrics().operator("rows").rows_late == 50


class TakesNone(whale.Process):
    def on_row(self, row: Any, out: whale.Output) -> None:
        raise NotImplementedError


class TakesNoneEither(whale.CoProcess):
    takes_late_rows = False

    def on_left_row(self, row: Any, out: whale.Output) -> None:
        raise NotImplementedError

    on_right_row = on_left_row


def test_an_operator_that_takes_no_late_rows_is_refused_while_building() -> None:
    topology, rows = topology_of([1], "pass")
    clean = topology.source(
        ListSource([], schema=SCHEMA), id="clean", event_time="t", event_time_unit="s"
    )
    told = (
        r"operator 'counts': source 'rows' passes late rows on \(on_late='pass'\), and TakesNone"
        r" does not take them: let it, with takes_late_rows = True in the class, or pass"
        r" on_late='drop' to the source"
    )
    with pytest.raises(whale.errors.TopologyError, match=told):
        rows.filter(whale.col("n") > 0).key_by("n").process(TakesNone, id="counts")
    with pytest.raises(whale.errors.TopologyError, match=told):
        clean.union(rows, id="both").key_by("n").process(
            TakesNone, id="counts", event_time_order=False
        )
    with pytest.raises(whale.errors.TopologyError, match="'counts': source 'rows' passes"):
        clean.key_by("n").connect(rows.broadcast()).process(TakesNoneEither, id="counts")
    split = rows.key_by("n").process(SplitsLate, id="split")
    split.key_by("n").process(TakesNone, id="fine")
    with pytest.raises(
        whale.errors.TopologyError,
        match=r"'not-fine': operator 'split' sends late rows on \(late\), and .* read another of",
    ):
        split.side_output("late").key_by("n").process(TakesNone, id="not-fine")


def test_explain_tells_the_order_and_why() -> None:
    topology, rows = topology_of([1], "pass")
    split = rows.key_by("n").process(SplitsLate, id="split")
    split.sink(whale.sinks.collect(), id="out")
    split.key_by("n").process(TakesNone, id="ordered").sink(whale.sinks.collect(), id="o")
    split.key_by("n").process(TakesNone, id="asked", event_time_order=False).sink(
        whale.sinks.collect(), id="a"
    )
    plain = topology.source(ListSource([], schema=SCHEMA), id="plain")
    plain.key_by("n").process(TakesNone, id="untimed").sink(whale.sinks.collect(), id="u")
    text = str(topology.explain(workers=1))
    assert "t, ≤ 2000 ms out of order, later ones passed on" in text
    assert "arrival: it takes rows in any order; late rows, too" in text
    assert "event time, buffered: the default for rows with event times" in text
    assert "arrival: event_time_order=False" in text
    assert "arrival: the rows have no event times" in text


class LateNowhere(SplitsLate):
    late_outputs = ("later",)


def test_a_late_output_that_is_none_is_refused() -> None:
    _, rows = topology_of([1], "pass")
    with pytest.raises(whale.errors.TopologyError, match="late_outputs names 'later', which is"):
        rows.key_by("n").process(LateNowhere, id="split")


def test_rows_far_ahead_of_the_clock() -> None:
    def build(**options: Any) -> whale.Topology:
        topology = whale.Topology("ahead")
        items = [{"n": 0, "t": 5}, {"n": 1, "t": 32_472_144_000 // 4}, {"n": 2, "t": 6}]
        rows = topology.source(
            ListSource(items, schema=SCHEMA),
            id="rows",
            event_time="t",
            event_time_unit="s",
            **options,
        )
        rows.sink(whale.sinks.collect(), id="all")
        return topology

    with pytest.raises(whale.errors.BadRowError, match="row 1: .* further ahead of the clock than"):
        run(build())
    job = run(build(on_bad_rows="drop"))
    assert numbers(job, "all") == [0, 2]
    assert job.metrics().operator("rows").rows_dropped == {"event time too far ahead": 1}
    job = run(build(max_ahead_ms=None, on_late="drop"))
    assert numbers(job, "all") == [0, 1]
    with pytest.raises(whale.errors.TopologyError, match="max_ahead_ms is 'far': pass millisec"):
        build(max_ahead_ms="far")
    topology = whale.Topology("untimed")
    for name, value in {"max_ahead_ms": 5, "idle_after_ms": 5, "on_late": "pass"}.items():
        with pytest.raises(whale.errors.TopologyError, match=f"{name} has no effect without event"):
            topology.source(ListSource([]), id="rows", **{name: value})
