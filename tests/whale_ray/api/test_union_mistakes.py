"""Mistakes with unions are reported while building, with the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale

COLUMNS = pa.schema(
    {"vehicle_id": pa.string(), "lat_e5": pa.int32(), "at": pa.timestamp("ms", tz="UTC")}
)


class Count(whale.Process):
    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


class Rig:
    """What every mistake starts from. Untyped on purpose: a type checker finds most of these."""

    def __init__(self) -> None:
        fixes = whale.sources.arrow(COLUMNS.empty_table())
        topology: Any = whale.Topology("t")
        self.topology = topology
        self.fixes: Any = topology.source(fixes, id="fixes")
        self.timed: Any = topology.source(fixes, id="timed", event_time="at")
        self.foreign: Any = whale.Topology("u").source(fixes, id="fixes")
        self.places: Any = self.fixes.select("at", "lat_e5", id="places")
        self.turned: Any = self.fixes.select("lat_e5", "at", id="turned")
        self.more: Any = self.fixes.with_column("x", whale.lit(1), id="more")
        self.late: Any = self.fixes.select("at", whale.col("at").alias("lat_e5"), id="late")
        self.mixed: Any = self.fixes.union(self.timed, id="mixed")


MISTAKES: dict[str, tuple[Callable[[Rig], object], str]] = {
    "a union of one": (
        lambda rig: rig.fixes.union(id="all"),
        "operator 'all': union needs another stream: pass one or more, a.union(b, c)",
    ),
    "a union with a list": (
        lambda rig: rig.fixes.union([rig.timed], id="all"),
        "operator 'all': union takes streams, not a list: pass them one by one, a.union(*streams)",
    ),
    "a union with a grouped stream": (
        lambda rig: rig.fixes.union(rig.timed.key_by("at"), id="all"),
        "operator 'all': union takes streams that are not grouped, and 'timed' is (key by at):"
        " group what union returns, a.union(b).key_by('column')",
    ),
    "a union across topologies": (
        lambda rig: rig.fixes.union(rig.foreign),
        "operator 'union-2': union takes streams of one topology, but 'fixes' belongs to another"
        " one named 'u': make all with the same Topology",
    ),
    "a union of other columns": (
        lambda rig: rig.fixes.union(rig.places, id="all"),
        "operator 'all': union takes streams of equal columns, but 'fixes' has column"
        " 'vehicle_id' and 'places' has not (columns: at, lat_e5): select the same columns of both"
        " before union",
    ),
    "a union of more columns": (
        lambda rig: rig.fixes.union(rig.more, id="all"),
        "operator 'all': union takes streams of equal columns, but 'more' has column 'x' and"
        " 'fixes' has not (columns: vehicle_id, lat_e5, at): select the same columns of both before"
        " union",
    ),
    "a union of other types": (
        lambda rig: rig.places.union(rig.late, id="all"),
        "operator 'all': union takes streams of equal columns, but 'lat_e5' is int32 in 'places'"
        " and timestamp[ms, tz=UTC] in 'late': cast one of them with with_column before union",
    ),
    "a union of another order": (
        lambda rig: rig.places.union(rig.turned, id="all"),
        "operator 'all': union takes streams of equal columns, but 'places' has them in the order"
        " at, lat_e5 and 'turned' in lat_e5, at: put them into one order with select before union",
    ),
    "a union of a grouped stream": (
        lambda rig: rig.fixes.shuffle().union(rig.timed),
        "operator 'fixes': union takes streams that are not grouped, and this one is (shuffle):"
        " group what union returns, a.union(b).key_by('column')",
    ),
    "event-time order over a union with a stream without event times": (
        lambda rig: rig.mixed.global_().process(Count, id="m"),
        "operator 'm': rows cannot be put in event-time order, since source 'fixes' has no event"
        " times: give it event_time='column', or pass event_time_order=False here",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_names_the_thing_and_the_fix(mistake: str) -> None:
    make, expected = MISTAKES[mistake]
    rig = Rig()
    before = rig.topology._registry.nodes
    with pytest.raises(whale.errors.TopologyError) as caught:
        make(rig)
    assert str(caught.value) == expected
    assert rig.topology._registry.nodes == before, "an operator is added whole or not at all"
