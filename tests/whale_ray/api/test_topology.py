"""Building topologies: the resulting plans."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.nowhere import Nowhere
from whale_ray.api.topology import misuse
from whale_ray.operators.groupings import (
    All,
    Custom,
    Direct,
    Forward,
    Global,
    Key,
    LocalOrShuffle,
    Shuffle,
)
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.plan.logical import LogicalPlan, OperatorKind
from whale_ray.transport.wire.types import Schema


@dataclass(frozen=True)
class Rows(Source):
    """A source that knows its columns and is never opened."""

    known: Schema | None = None
    policy: str = "fail"

    def schema(self) -> Schema | None:
        return self.known

    def with_bad_rows(self, policy: str) -> Rows:
        return replace(self, policy=policy)

    def open(self, context: whale.InstanceContext) -> SourceReader:
        raise NotImplementedError

    def describe(self) -> str:
        return "rows"


class Count(whale.Process):
    def __init__(self, step: int = 1) -> None:
        self.step = step

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


class Match(whale.CoProcess):
    per_worker = True

    def on_left(self, batch: whale.Batch, out: whale.Output) -> None:
        pass

    def on_right(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


POSITIONS = Schema.of(vehicle_id="string", lat_e5="int32", event_time="timestamp[ms, tz=UTC]")
REQUESTS = Schema.of(request_id="int64", request_time="timestamp[ms, tz=UTC]")


def ride_hailing() -> whale.Topology:
    topology = whale.Topology("ride-hailing")
    positions = topology.source(
        Rows(POSITIONS), id="positions", event_time="event_time", max_out_of_order_ms=0
    )
    requests = topology.source(Rows(REQUESTS), id="requests", event_time="request_time")
    matches = (
        positions.filter(whale.col("lat_e5") > 0, id="valid")
        .key_by("vehicle_id")
        .connect(requests.broadcast())
        .process(Match, id="match", parallelism=16)
    )
    best = matches.key_by("request_id").process(Count, id="best", parallelism=4)
    best.sink(Nowhere(), id="out")
    return topology


def groupings(plan: LogicalPlan) -> dict[str, tuple[object, ...]]:
    return {node.id: tuple(feed.grouping for feed in node.inputs) for node in plan.nodes}


def test_the_example_of_the_design() -> None:
    plan = ride_hailing().logical_plan()
    assert [(node.id, node.kind.value, node.parallelism) for node in plan.nodes] == [
        ("positions", "source", None),
        ("requests", "source", None),
        ("valid", "transform", None),
        ("match", "co-process", 16),
        ("best", "process", 4),
        ("out", "sink", None),
    ]
    assert groupings(plan) == {
        "positions": (),
        "requests": (),
        "valid": (Forward(),),
        "match": (Key(("vehicle_id",)), All()),
        "best": (Key(("request_id",)),),
        "out": (Forward(),),
    }
    match = plan.node("match")
    assert [(feed.upstream, feed.port) for feed in match.inputs] == [("valid", 0), ("requests", 1)]
    assert match.per_worker
    assert match.event_time_order
    assert match.has_event_time
    assert plan.node("best").event_time_order
    assert not plan.node("best").per_worker


def test_event_time_reaches_the_source() -> None:
    topology = whale.Topology("times")
    topology.source(
        Rows(Schema.of(at="int64")),
        id="late",
        event_time="at",
        event_time_unit="s",
        max_out_of_order_ms=250,
        on_late="drop",
        on_bad_rows="drop",
    ).sink(Nowhere())
    node = topology.logical_plan().node("late")
    assert node.event_time is not None
    assert node.event_time.column == "at"
    assert node.event_time.unit == "s"
    assert node.event_time.max_out_of_order_ms == 250
    assert node.event_time.on_late == "drop"
    assert node.event_time.on_null == "drop"
    assert isinstance(node.payload, Rows)
    assert node.payload.policy == "drop"


def test_ids_are_chosen_by_verb_and_number() -> None:
    def build() -> list[str]:
        topology = whale.Topology("ids")
        source = topology.source(Rows())
        source.map(dict).map(dict, id="map-2").map(dict).flat_map(lambda row: [row]).sink(Nowhere())
        source.key_by("k").process(Count).sink(Nowhere())
        return [node.id for node in topology.logical_plan().nodes]

    assert build() == build() == [
        "source-1", "map-1", "map-2", "map-3", "flat-map-1", "sink-1", "process-1", "sink-2",
    ]  # fmt: skip


def test_every_grouping() -> None:
    def third(batch: whale.Batch, parallelism: int) -> list[int]:
        return [0] * batch.num_rows

    topology = whale.Topology("groupings")
    stream = topology.source(Rows(Schema.of(k="string", n="uint16")), id="rows")
    for name, grouped in {
        "key": stream.key_by("k", "n", on_null="drop"),
        "shuffle": stream.shuffle(),
        "all": stream.broadcast(),
        "global": stream.global_(),
        "local": stream.local_or_shuffle(),
        "direct": stream.direct("n"),
        "custom": stream.partition_by(third),
    }.items():
        grouped.process(Count, id=name).sink(Nowhere())
    plan = topology.logical_plan()
    found = groupings(plan)
    assert found["key"] == (Key(("k", "n")),)
    assert found["shuffle"] == (Shuffle(),)
    assert found["all"] == (All(),)
    assert found["global"] == (Global(),)
    assert found["local"] == (LocalOrShuffle(),)
    assert found["direct"] == (Direct("n"),)
    assert found["custom"] == (Custom(third),)
    assert plan.node("key").inputs[0].on_null_key == "drop"
    assert plan.node("shuffle").inputs[0].on_null_key == "fail"


def test_grouped_streams_feed_stateless_operators_and_sinks_too() -> None:
    topology = whale.Topology("grouped")
    rows = topology.source(Rows(), id="rows")
    rows.shuffle().map(dict, id="spread", parallelism=3).global_().sink(Nowhere(), id="out")
    assert groupings(topology.logical_plan()) == {
        "rows": (),
        "spread": (Shuffle(),),
        "out": (Global(),),
    }


def test_branches_and_diamonds() -> None:
    topology = whale.Topology("diamond")
    rows = topology.source(Rows(), id="rows")
    left = rows.filter(lambda row: True, id="left")
    right = rows.filter(lambda row: False, id="right")
    joined = left.key_by("k").connect(right.key_by("j")).process(Match, id="joined")
    joined.sink(Nowhere(), id="first")
    joined.sink(Nowhere(), id="second")
    rows.key_by("k").connect(rows.broadcast()).process(Match, id="with-itself").sink(Nowhere())
    plan = topology.logical_plan()
    assert [node.id for node, _ in plan.consumers("rows")] == [
        "left", "right", "with-itself", "with-itself",
    ]  # fmt: skip
    assert {node.id for node, _ in plan.consumers("joined")} == {"first", "second"}


def test_columns_are_followed_as_far_as_they_are_known() -> None:
    topology = whale.Topology("columns")
    rows = topology.source(Rows(Schema.of(a="int32", b="string")), id="rows")
    chosen = rows.select("b", (whale.col("a") + 1).alias("c")).with_column("d", whale.col("c"))
    chosen.filter(whale.col("d") > 0).key_by("b", "c", "d")
    with pytest.raises(whale.errors.TopologyError, match="'a'"):
        chosen.key_by("a")
    rows.map(dict).key_by("anything")  # a function may make any columns
    for schema in ({"x": "int64"}, Schema.of(x="int64"), pa.schema({"x": pa.int64()})):
        declared = rows.map(dict, schema=schema)
        declared.key_by("x")
        with pytest.raises(whale.errors.TopologyError, match="'a'"):
            declared.key_by("a")


def test_event_time_order_can_be_left_out_or_refused() -> None:
    topology = whale.Topology("order")
    timed = topology.source(Rows(POSITIONS), id="timed", event_time="event_time")
    plain = topology.source(Rows(REQUESTS), id="plain")
    timed.global_().process(Count, id="ordered").sink(Nowhere())
    timed.global_().process(Count, id="arrival", event_time_order=False).sink(Nowhere())
    plain.global_().process(Count, id="untimed").sink(Nowhere())
    timed.global_().connect(plain.global_()).process(
        Match, id="mixed", event_time_order=False
    ).sink(Nowhere())
    plan = topology.logical_plan()
    found = {node.id: (node.event_time_order, node.has_event_time) for node in plan.nodes}
    assert found["ordered"] == (True, True)
    assert found["arrival"] == (False, True)
    assert found["untimed"] == (False, False)
    assert found["mixed"] == (False, False)


def test_factories() -> None:
    topology = whale.Topology("factories")
    rows = topology.source(Rows(), id="rows").key_by("k")
    factories: list[Callable[[], whale.Process]] = [
        Count,
        functools.partial(Count, 2),
        lambda: Count(3),
    ]
    for number, factory in enumerate(factories):
        rows.process(factory, id=f"n{number}").sink(Nowhere())
    payloads: list[Any] = [
        node.payload for node in topology.logical_plan().of_kind(OperatorKind.PROCESS)
    ]
    assert [make().step for make in payloads] == [1, 2, 3]


def test_a_function_marked_as_one_on_columns_stays_a_function() -> None:
    @whale.columns
    def doubled(batch: whale.Batch) -> Mapping[str, Any]:
        return {"n": np.asarray(batch["n"]) * 2}

    batch = whale.Batch.from_pydict({"n": [1, 2]})
    assert list(doubled(batch)["n"]) == [2, 4]
    assert doubled.__name__ == "doubled"


def test_generators_make_rows() -> None:
    def twice(row: whale.Row) -> Iterator[Mapping[str, Any]]:
        yield dict(row)
        yield dict(row)

    topology = whale.Topology("twice")
    topology.source(Rows()).flat_map(twice).sink(Nowhere())
    assert len(topology.logical_plan().nodes) == 3


def test_locations_name_the_line_that_wrote_it() -> None:
    topology = whale.Topology("lines")
    topology.source(Rows(), id="rows").sink(Nowhere())
    location = topology.logical_plan().node("rows").location
    assert location.startswith("test_topology.py:")
    assert int(location.partition(":")[2]) > 100


def test_a_plan_is_a_snapshot() -> None:
    topology = ride_hailing()
    before = topology.logical_plan()
    topology.source(Rows(), id="more").sink(Nowhere(), id="more-out")
    assert len(topology.logical_plan().nodes) == len(before.nodes) + 2


def test_what_things_look_like() -> None:
    topology = whale.Topology("looks")
    stream = topology.source(Rows(), id="rows")
    assert repr(topology) == "Topology('looks')"
    assert repr(stream) == "Stream('rows' of topology 'looks')"
    assert repr(stream.shuffle()) == "GroupedStream('rows' of topology 'looks', shuffle)"
    assert repr(stream.sink(Nowhere())) == "SinkHandle('sink-1' of topology 'looks')"


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("withColumn", "with_column"),
        ("where", "filter"),
        ("groupBy", "group_by"),
        ("keyby", "key_by"),
        ("unionAll", "union"),
    ],
)
def test_names_from_elsewhere_are_translated(name: str, ours: str) -> None:
    stream: Any = whale.Topology("t").source(Rows())
    for kind in (stream, stream.shuffle(), stream.sink(Nowhere())):
        with pytest.raises(AttributeError) as caught:
            getattr(kind, name)
        assert str(caught.value).endswith(f"no attribute {name!r}: whale-ray calls it {ours}")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'$"):
        stream.nonsense  # noqa: B018 - the attribute access is the test


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("window", r"stream.group_by\(whale.window\('time', '10 seconds'\), 'column'\).agg"),
        ("reduce", r"group the rows first: stream.group_by\('column'\).agg"),
        ("agg", "group the rows first"),
        ("interval_join", r"join rows that are near in event time, left.join\(right, on='id'"),
        ("drop", r"write select\('a', 'b'\) with the columns to keep"),
        ("show", r"end it with .sink\(whale.sinks.collect\(\), id='out'\)"),
        ("toPandas", r"whale.run\(topology\).results\('out'\).to_pandas\(\)"),
        ("withWatermark", "max_out_of_order_ms"),
        ("selct", "did you mean select"),
    ],
)
def test_a_missing_name_is_answered_with_its_replacement(name: str, instead: str) -> None:
    stream: Any = whale.Topology("t").source(Rows())
    for kind in (stream, stream.shuffle(), stream.shuffle().connect(stream.broadcast())):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{instead}"):
            getattr(kind, name)


def test_hints_name_existing_methods_only() -> None:
    """Every `stream.verb(` and `.verb(` of the hints is one that streams, sinks or results have."""
    from whale_ray.operators.expressions.expression import Expression
    from whale_ray.operators.sinks.base import SinkResult

    known = {*misuse.STREAM_METHODS, "source", "explain", "run", "submit", "results", "col"}
    known |= {
        "agg",
        "window",
        "lit",
        "parquet",
        "collect",
        "sort_values",
        *vars(SinkResult),
        *vars(Expression),
    }
    known |= set(whale.functions.__all__)
    texts = [*misuse.INSTEAD.values(), *misuse.OTHER_NAMES.values(), *misuse.ON_TOPOLOGY.values()]
    named = {verb for text in texts for verb in re.findall(r"\.(\w+)\(", text)}
    assert named <= known
    assert not set(misuse.STREAM_METHODS) & (set(misuse.INSTEAD) | set(misuse.OTHER_NAMES))


def test_a_stream_is_no_table() -> None:
    topology: Any = whale.Topology("t")
    stream = topology.source(whale.sources.pandas(pandas.DataFrame({"km": [1.0]})), id="rows")
    with pytest.raises(whale.errors.TopologyError, match=r"write whale.col\('km'\)"):
        stream["km"]
    with pytest.raises(whale.errors.TopologyError, match="no rows before its topology runs"):
        list(stream.shuffle())
    with pytest.raises(AttributeError, match=r"write whale.col\('km'\) for the column"):
        stream.km  # noqa: B018 - the attribute access is the test
    with pytest.raises(AttributeError, match=r"write whale.run\(topology\)"):
        topology.run()
    with pytest.raises(AttributeError, match="streams have such methods"):
        topology.map(dict)
    assert copy.copy(stream.shuffle()).id == "rows"


def test_streams_can_be_inspected_without_mistakes() -> None:
    stream: Any = whale.Topology("t").source(Rows())
    assert not hasattr(stream, "_repr_html_")
    assert not hasattr(stream.shuffle(), "__wrapped__")
