"""Which topologies may go on from a checkpoint that another version of them has taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray import functions, state
from whale_ray.configs.errors import InputError
from whale_ray.control.operator_records import check_restorable, operator_records
from whale_ray.state.epochs.manifest import ChunkFile, Lineage, Manifest, OperatorPart


class Spent(whale.KeyedProcess):
    spent = state.sum("int64")

    def on_row(self, row: Any, out: Any) -> None:
        self.spent.add(row.price)


class SpentRenamed(Spent):
    """The same state in a class of another name."""


class SpentInDoubles(whale.KeyedProcess):
    spent = state.sum("double")

    def on_row(self, row: Any, out: Any) -> None:
        self.spent.add(row.price)


class SpentAndSeen(Spent):
    seen = state.count()


def keyed(process: type, key: str = "bidder") -> whale.Topology:
    topology = whale.Topology("auction")
    rows = [{"bidder": 1, "auction": 2, "price": 3}]
    bids = topology.source(whale.sources.iterable(rows), id="bids")
    bids.key_by(key).process(process, id="state").sink(whale.sinks.collect(), id="out")
    return topology


def windowed(rows: int, column: str = "price", keys: Sequence[str] = ("bidder",)) -> whale.Topology:
    topology = whale.Topology("auction")
    bids = topology.source(
        whale.sources.iterable([{"bidder": 1, "auction": 2, "price": 3}]), id="bids"
    )
    counted = bids.group_by(whale.count_window(rows), *keys).agg(
        functions.sum(column).alias("all"), id="state"
    )
    counted.sink(whale.sinks.collect(), id="out")
    return topology


def written(sink: whale.sinks.Sink) -> whale.Topology:
    topology = whale.Topology("auction")
    bids = topology.source(whale.sources.iterable([{"price": 3}]), id="bids")
    bids.sink(sink, id="state")
    return topology


def read(source: whale.sources.Source) -> whale.Topology:
    topology = whale.Topology("auction")
    topology.source(source, id="state").sink(whale.sinks.collect(), id="out")
    return topology


def shifted(start: str) -> whale.Topology:
    topology = whale.Topology("auction")
    rows = whale.sources.iterable([{"at": 1, "price": 3}])
    bids = topology.source(rows, id="bids", event_time="at", event_time_unit="s")
    hours = whale.window("at", "1 hour", start_time=start)
    hourly = bids.group_by(hours).agg(functions.sum("price").alias("all"), id="state")
    hourly.sink(whale.sinks.collect(), id="out")
    return topology


def without_state() -> whale.Topology:
    topology = whale.Topology("auction")
    bids = topology.source(whale.sources.iterable([{"bidder": 1, "price": 3}]), id="bids")
    bids.filter(whale.col("price") > 1, id="dear").sink(whale.sinks.collect(), id="out")
    return topology


class Ordered(whale.Process):
    """Its rows wait for event time."""

    input_order = "event time"

    def on_row(self, row: Any, out: Any) -> None:
        """Nothing."""


def sent(to: str) -> whale.Topology:
    topology = whale.Topology("auction")
    bids = topology.source(whale.sources.iterable([{"at": 1}]), id="bids", event_time="at")
    there = getattr(bids, to)().process(Ordered, id="state", parallelism=2)
    there.sink(whale.sinks.collect(), id="out")
    return topology


def taken_of(topology: whale.Topology) -> Manifest:
    """Return the manifest of a job of it whose operator `state` kept something."""
    logical = topology.logical_plan()
    part = OperatorPart("state", (0,), 1, 0, chunks=(ChunkFile("chunks/1", 1, 1),))
    records = operator_records(logical)
    return Manifest(3, 2, Lineage("auction-1"), "auction", 0, 1024, (part,), records)


REMEDY = ": give the new operator another id, and name the old one in restore_without=['state']"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            lambda: keyed(Spent),
            lambda: keyed(Spent, "auction"),
            "operator 'state' had key bidder when the checkpoint was taken, and now auction",
        ),
        (
            lambda: windowed(10),
            lambda: windowed(10, keys=()),
            "operator 'state' had key bidder when the checkpoint was taken, and now none",
        ),
        (
            lambda: keyed(Spent),
            lambda: keyed(SpentInDoubles),
            "operator 'state' kept spent: sum of int64 when the checkpoint was taken, and now"
            " spent: sum of float64",
        ),
        (
            lambda: keyed(SpentAndSeen),
            lambda: keyed(Spent),
            "operator 'state' kept spent: sum of int64; seen: count when the checkpoint was taken,"
            " and now spent: sum of int64",
        ),
        (
            lambda: sent("shuffle"),
            lambda: sent("broadcast"),  # rows that wait would be in one instance alone
            "operator 'state' took rows in one instance when the checkpoint was taken, and now"
            " every instance",
        ),
        (
            lambda: sent("broadcast"),
            lambda: sent("shuffle"),  # rows that wait would be taken several times
            "operator 'state' took rows in every instance when the checkpoint was taken, and now"
            " one instance",
        ),
        (
            lambda: windowed(10),
            lambda: windowed(20),
            "operator 'state' was count window of 10 rows; sum(price) AS all when the checkpoint"
            " was taken, and now count window of 20 rows; sum(price) AS all",
        ),
        (
            lambda: shifted("0 s"),
            lambda: shifted("15 min"),
            "operator 'state' was tumbling window of 1 hour; sum(price) AS all when the checkpoint"
            " was taken, and now tumbling window of 1 hour, shifted by 15 minutes; sum(price) AS"
            " all",
        ),
        (
            lambda: written(whale.sinks.parquet("bids")),
            lambda: written(whale.sinks.delta("bids")),
            "operator 'state' staged rows for parquet when the checkpoint was taken, and now delta",
        ),
        (
            lambda: written(whale.sinks.collect()),
            lambda: written(whale.sinks.csv("bids")),
            "operator 'state' staged rows for collect when the checkpoint was taken, and now csv",
        ),
        (
            lambda: read(whale.sources.arrow(pa.table({"price": [3]}))),
            lambda: read(whale.sources.iterable([{"price": 3}])),
            "operator 'state' read a table when the checkpoint was taken, and now an iterable",
        ),
        (
            lambda: read(whale.sources.growing_folder(".", "csv", {"price": "int64"})),
            lambda: read(whale.sources.growing_folder(".")),
            "operator 'state' read a growing folder of CSV when the checkpoint was taken, and now"
            " a growing folder of Parquet",
        ),
    ],
    ids=[
        *("key", "no key", "type", "handle", "all", "once", "window", "shift", "delta", "csv"),
        *("source", "folder"),
    ],
)
def test_an_operator_that_keeps_something_else_is_refused_by_name(
    before: Callable[[], whale.Topology], after: Callable[[], whale.Topology], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_restorable(after().logical_plan(), taken_of(before()), ())
    assert str(caught.value) == message + REMEDY


class Widened(whale.KeyedProcess):
    """All that may follow upon `Narrow`."""

    small = state.value("int64")
    wide = state.sum("float64")
    counted = state.min("float64")
    seen = state.map("int64", "double")
    quiet = state.timer()

    def on_row(self, row: Any, out: Any) -> None:
        self.small.set(row.price)

    def on_timer(self, timer: Any, out: Any) -> None:
        self.clear()


class Narrow(whale.KeyedProcess):
    wide = state.sum("float32")
    small = state.value("uint32")
    counted = state.min("int32")

    def on_row(self, row: Any, out: Any) -> None:
        self.small.set(row.price)


@pytest.mark.parametrize(
    ("before", "after"), [(Spent, SpentAndSeen), (Narrow, Widened)], ids=["handle", "types"]
)
def test_a_value_may_be_added_and_numbers_may_become_wider(before: type, after: type) -> None:
    check_restorable(keyed(after).logical_plan(), taken_of(keyed(before)), ())
    with pytest.raises(InputError, match="operator 'state' kept"):
        check_restorable(keyed(before).logical_plan(), taken_of(keyed(after)), ())


def test_an_operator_that_is_gone_may_be_given_up() -> None:
    taken, logical = taken_of(keyed(Spent)), without_state().logical_plan()
    with pytest.raises(InputError) as caught:
        check_restorable(logical, taken, ())
    assert str(caught.value) == (
        "the checkpoint has process 'state', which the topology lacks: give the operator that id"
        " again, or give up what it kept with restore_without=['state']; new in the topology:"
        " 'dear'"
    )
    check_restorable(logical, taken, ["state"])


def test_all_operators_that_are_gone_are_named_at_once() -> None:
    taken = taken_of(keyed(Spent))
    taken = replace(taken, parts=(*taken.parts, replace(taken.parts[0], operator_id="bids")))
    topology = whale.Topology("auction")
    rows = topology.source(whale.sources.iterable([{"price": 3}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    with pytest.raises(InputError) as caught:
        check_restorable(topology.logical_plan(), taken, ())
    assert str(caught.value) == (
        "the checkpoint has source 'bids', process 'state', which the topology lacks: give"
        " operators those ids again, or give up what they kept with"
        " restore_without=['bids', 'state']; new in the topology: 'rows'"
    )


def test_a_word_too_many_is_refused() -> None:
    taken, logical = taken_of(keyed(Spent)), keyed(Spent).logical_plan()
    with pytest.raises(InputError, match="'sate', which the checkpoint does not have"):
        check_restorable(logical, taken, ["sate"])
    with pytest.raises(InputError, match="'state', which the topology has; rename one of them"):
        check_restorable(logical, taken, ["state"])


def test_the_same_state_in_another_class_is_taken_over() -> None:
    check_restorable(keyed(SpentRenamed).logical_plan(), taken_of(keyed(Spent)), ())


@pytest.mark.parametrize("added", ["a new source", "no end"])
def test_a_job_that_died_as_it_published_goes_on_with_nothing_more(added: str) -> None:
    rows = whale.sources.poisson(1.0, lambda numbers, _: {"n": numbers}, limit=5)
    endless = whale.sources.poisson(1.0, lambda numbers, _: {"n": numbers})

    def topology_of(*sources: whale.sources.Source) -> whale.Topology:
        topology = whale.Topology("published")
        streams = [topology.source(one, id=f"in-{at}") for at, one in enumerate(sources)]
        first, *others = streams
        for other in others:
            first = first.union(other)
        first.sink(whale.sinks.collect(), id="out")
        return topology

    taken = replace(taken_of(topology_of(rows)), publisher="published-1")
    check_restorable(topology_of(rows).logical_plan(), taken, ())
    changed = topology_of(rows, rows) if added == "a new source" else topology_of(endless)
    name = "in-1" if added == "a new source" else "in-0"
    told = f"job 'published-1' has read all its input.* source '{name}' would add rows to that"
    with pytest.raises(InputError, match=told):
        check_restorable(changed.logical_plan(), taken, ())
    check_restorable(changed.logical_plan(), replace(taken, publisher=""), ())
