"""Operators with several outputs, and what reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.api.submission import run, submit
from whale_ray.transport.wire.types import Schema


class ByRest(whale.Process):
    """Rows by their rest modulo 3: 0 on the main output, 1 and 2 on outputs of their own."""

    outputs = ("main", "one", "two")
    schema = Schema.of(n="int64")
    schemas: ClassVar = {"one": Schema.of(n="int64"), "two": Schema.of(n="int64", twice="int64")}

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        rest = batch["n"] % 3
        out.emit(batch.filter(rest == 0))
        out.emit_to("one", batch.filter(rest == 1))
        two = batch["n"][rest == 2]
        assert batch.times is not None
        out.emit_to("two", {"n": two, "twice": 2 * two}, batch.times[rest == 2])


class PerWorkerByRest(ByRest):
    per_worker = True


class ByRestOfTwo(whale.CoProcess):
    """The same of two inputs; the right one's rows are negated."""

    outputs = ByRest.outputs
    schemas = ByRest.schemas

    def on_left_row(self, row: Any, out: whale.Output) -> None:
        self._emit(row.n, out)

    def on_right_row(self, row: Any, out: whale.Output) -> None:
        self._emit(-row.n, out)

    def _emit(self, n: int, out: whale.Output) -> None:
        match abs(n) % 3:
            case 0:
                out.emit_row(n=n)
            case 1:
                out.emit_to("one", {"n": np.array([n])})
            case _:
                out.emit_to("two", [{"n": n, "twice": 2 * n}])


class InOrder(whale.Process):
    """Passes rows on, and fails if one comes that the watermark has passed."""

    def open(self, context: Any) -> None:
        self.watermark_ns = -(2**63)

    def on_row(self, row: Any, out: whale.Output) -> None:
        assert out.time_ns is not None and out.time_ns > self.watermark_ns
        out.emit_row(n=row.n)

    def on_watermark(self, watermark_ns: int, out: whale.Output) -> None:
        self.watermark_ns = watermark_ns


def source(topology: whale.Topology, values: list[int], name: str = "rows") -> whale.Stream:
    rows = [{"n": n, "t": place} for place, n in enumerate(values)]
    read = whale.sources.iterable(rows, schema={"n": "int64", "t": "int64"})
    timed = topology.source(read, id=name, event_time="t", event_time_unit="s")
    return timed.select("n")


def column(job: Any, sink: str, name: str = "n") -> list[int]:
    return sorted(job.results(sink).to_pandas()[name].tolist())


RUNNERS: dict[str, Callable[[whale.Topology], Any]] = {
    "inline": run,
    "processes": lambda topology: submit(topology, workers=2, on="processes").wait(),
    "hosts": lambda topology: submit(
        topology, workers=2, on="processes", settings={"runtime.hosts": 2}
    ).wait(),
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("kind", [ByRest, PerWorkerByRest])
def test_every_output_reaches_its_readers(runner: str, kind: type[whale.Process]) -> None:
    values = list(range(200))
    topology = whale.Topology("outputs")
    main = source(topology, values).shuffle().process(kind, id="by-rest", parallelism=3)
    one, two = main.side_output("one"), main.side_output("two")
    main.sink(whale.sinks.collect(), id="main")
    one.filter(whale.col("n") > 50).sink(whale.sinks.collect(), id="fused")
    one.key_by("n").process(InOrder, id="keyed", parallelism=2).sink(
        whale.sinks.collect(), id="processed"
    )
    main.union(one).select("n", id="all").sink(whale.sinks.collect(), id="united")
    two.broadcast().map(lambda row: {"twice": row.twice}, parallelism=2).sink(
        whale.sinks.collect(), id="two"
    )
    job = RUNNERS[runner](topology)
    assert column(job, "main") == values[::3]
    assert column(job, "fused") == [n for n in values if n % 3 == 1 and n > 50]
    assert column(job, "processed") == [n for n in values if n % 3 == 1]
    assert column(job, "united") == [n for n in values if n % 3 != 2]
    assert column(job, "two", "twice") == sorted([2 * n for n in values if n % 3 == 2] * 2)
    metrics = job.metrics().operator("by-rest")
    assert metrics.rows_out == len(values[::3])
    assert metrics.side_rows_out == {"one": len(values[1::3]), "two": len(values[2::3])}


@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.integers(-50, 50), max_size=30))
def test_co_processes_have_several_outputs_too(values: list[int]) -> None:
    topology = whale.Topology("outputs")
    left, right = source(topology, values, "left"), source(topology, values, "right")
    main = left.key_by("n").connect(right.key_by("n")).process(ByRestOfTwo, id="by-rest")
    main.side_output("two").sink(whale.sinks.collect(), id="two")
    main.sink(whale.sinks.collect(), id="main")
    job = run(topology)
    both = [n for value in values for n in (value, -value)]
    assert sorted(row["n"] for row in job.results("main").preview(100)) == sorted(
        n for n in both if n % 3 == 0
    )
    assert job.results("two").to_pandas().columns.tolist() == ["n", "twice"]
    assert column(job, "two") == sorted(n for n in both if abs(n) % 3 == 2)
    # The output "one" has no reader; its rows are counted all the same.
    ones = sum(abs(n) % 3 == 1 for n in both)
    assert job.metrics().operator("by-rest").side_rows_out.get("one", 0) == ones


def test_outputs_without_rows_have_the_columns_that_are_declared() -> None:
    topology = whale.Topology("outputs")
    main = source(topology, [3]).shuffle().process(ByRest, id="by-rest")
    main.sink(whale.sinks.collect(), id="main")
    main.side_output("two").sink(whale.sinks.collect(), id="two")
    assert run(topology).results("two").to_pandas().columns.tolist() == ["n", "twice"]


def test_explain_names_outputs() -> None:
    topology = whale.Topology("outputs")
    main = source(topology, [3]).shuffle().process(ByRest, id="by-rest")
    main.sink(whale.sinks.collect(), id="main")
    main.side_output("one").sink(whale.sinks.collect(), id="fused")
    main.side_output("two").key_by("n").process(InOrder, id="keyed").sink(
        whale.sinks.collect(), id="out"
    )
    plan = topology.explain(workers=2)
    text = str(plan)
    assert "by-rest → (main | one: fused)" in text
    assert "by-rest.one" in text
    assert "by-rest.two → keyed" in text
    assert "by-rest.two (key by n)" in text
    assert "two: key by n" in plan.diagram_svg
    assert repr(main.side_output("two")) == "Stream('by-rest.two' of topology 'outputs')"


class SendsElsewhere(whale.Process):
    outputs = ("main", "one")

    def on_row(self, row: Any, out: whale.Output) -> None:
        out.emit_to("other", [{"n": 1}])


class SendsAside(whale.Process):
    def on_row(self, row: Any, out: whale.Output) -> None:
        out.emit_to("late", [{"n": 1}])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (SendsElsewhere, r"operator 'sends': emit_to\('other', …\).*it has 'one'"),
        (SendsAside, r"emit_to\('late', …\).*outputs = \('main', …\)"),
    ],
)
def test_an_unknown_output_is_told(kind: type[whale.Process], told: str) -> None:
    topology = whale.Topology("outputs")
    source(topology, [1]).shuffle().process(kind, id="sends").sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.UsageError, match=told):
        run(topology)


def test_mistakes_while_building() -> None:
    topology = whale.Topology("outputs")
    stream = source(topology, [1])
    main = stream.shuffle().process(ByRest, id="by-rest")
    with pytest.raises(whale.errors.TopologyError, match="no side output 'three', it has 'one', "):
        main.side_output("three")
    with pytest.raises(whale.errors.TopologyError, match="no side output 'main'"):
        main.side_output("main")
    with pytest.raises(whale.errors.TopologyError, match="of a side output"):
        main.side_output("one").side_output("two")
    with pytest.raises(whale.errors.TopologyError, match="no side output 'one', it has none"):
        stream.side_output("one")

    class Twice(ByRest):
        outputs = ("main", "main")

    with pytest.raises(whale.errors.TopologyError, match="name each output once"):
        stream.shuffle().process(Twice, id="twice")
    main.side_output("one").sink(whale.sinks.collect(), id="one")
    with pytest.raises(whale.errors.TopologyError, match="'by-rest': nothing reads its output"):
        topology.logical_plan()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"schema": {"v": "int64"}}, r"schema is a dict: write whale\.Schema\.of\("),
        ({"schemas": {"one": {"v": "int64"}}}, r"schemas\['one'\] is a dict: write whale\.Schema"),
        ({"schemas": [None]}, r"schemas is a list: .* as in schemas = \{'two': whale\.Schema\.of"),
        ({"schemas": {"on": None}}, r"schemas names 'on', which is none .* \('one', 'two'\)"),
        ({"input_order": "arival"}, "input_order is 'arival': pass input_order='event time' or "),
    ],
)
def test_what_a_class_declares_wrongly_is_refused_before_the_start(
    declared: dict[str, Any], message: str
) -> None:
    made_class = type("Declaring", (ByRest,), declared)
    stream = whale.Topology("declared").source(whale.sources.iterable([{"v": 1}]), id="numbers")
    with pytest.raises(whale.errors.TopologyError, match=f"^operator 'p': {message}"):
        stream.global_().process(made_class, id="p")
