"""Physical plans of hand-written logical plans, and of random ones against their definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_ray.configs.errors import ResourceError, SettingsError, TopologyError
from whale_ray.configs.settings import Settings
from whale_ray.operators.groupings import (
    All,
    Forward,
    Global,
    Grouping,
    Key,
    LocalOrShuffle,
    Shuffle,
)
from whale_ray.plan import memory
from whale_ray.plan.explain import explain
from whale_ray.plan.logical import Input, LogicalPlan, OperatorKind, OperatorNode
from whale_ray.plan.memory import FreeMemory
from whale_ray.plan.physical import Edge, PhysicalPlan
from whale_ray.plan.planner import plan, plan_unsized, worker_count
from whale_ray.plan.side_inputs import waiting_for_itself

GIB = 1024**3


@dataclass(frozen=True)
class Stub:
    """A payload that is never run."""

    name: str = "stub"

    def describe(self) -> str:
        return self.name


def roomy(_settings: Settings) -> FreeMemory:
    return FreeMemory(None, 64 * GIB)


def node(
    name: str,
    kind: OperatorKind,
    *feeds: tuple[str, Grouping],
    parallelism: int | None = None,
    timed: bool = True,
    per_worker: bool = False,
) -> OperatorNode:
    return OperatorNode(
        id=name,
        kind=kind,
        payload=Stub(name),  # type: ignore[arg-type] # the planner never looks into a payload
        inputs=tuple(
            Input(up, 0 if kind is UNION else port, grouping)
            for port, (up, grouping) in enumerate(feeds)
        ),
        parallelism=parallelism,
        has_event_time=timed,
        event_time_order=timed and kind.is_stateful,
        per_worker=per_worker,
    )


SOURCE, TRANSFORM, PROCESS, CO_PROCESS, TABLE_JOIN, UNION, SINK, _ = OperatorKind


def ride_hailing(match_parallelism: int = 16, *, per_worker: bool = False) -> LogicalPlan:
    return LogicalPlan(
        "ride-hailing",
        (
            node("positions", SOURCE),
            node("requests", SOURCE),
            node("valid", TRANSFORM, ("positions", Forward())),
            node(
                "match",
                CO_PROCESS,
                ("valid", Key(("vehicle_id",))),
                ("requests", All()),
                parallelism=match_parallelism,
                per_worker=per_worker,
            ),
            node("best", PROCESS, ("match", Key(("request_id",))), parallelism=4),
            node("out", SINK, ("best", Forward())),
        ),
    )


def test_the_ride_hailing_plan_in_full() -> None:
    laid = plan(ride_hailing(), Settings(), 2, memory=roomy)
    assert [(s.operators, s.parallelism, s.instance_worker) for s in laid.stages] == [
        (("positions", "valid"), 1, (0,)),
        (("requests",), 1, (1,)),
        (("match",), 16, (0,) * 8 + (1,) * 8),
        (("best", "out"), 4, (0, 0, 1, 1)),
    ]
    assert [dict(s.links) for s in laid.stages] == [
        {"positions": ("valid",), "valid": (0,)},
        {"requests": (1,)},
        {"match": (2,)},
        {"best": ("out",), "out": ()},
    ]
    assert [(r.edge, r.producer_worker, r.consumer_workers) for r in laid.rings] == [
        (0, 0, (0,)),
        (0, 0, (1,)),
        (1, 1, (0, 1)),
        (2, 0, (0,)),
        (2, 0, (1,)),
        (2, 1, (0,)),
        (2, 1, (1,)),
    ]
    assert {r.capacity_bytes for r in laid.rings} == {Settings().transport.ring_bytes}
    assert laid.ring_bytes_total == 7 * Settings().transport.ring_bytes


def test_the_queries_of_a_worker_to_its_plan() -> None:
    laid = plan_unsized(ride_hailing(), Settings(), 2)
    assert [stage.id for stage in laid.local_stages(1)] == [1, 2, 3]
    assert laid.instances_on(2, 1) == tuple(range(8, 16))
    assert laid.instances_on(0, 1) == ()
    assert [edge.source_operator for edge in laid.in_edges(2)] == ["valid", "requests"]
    assert [edge.id for edge in laid.out_edges(2)] == [2]
    assert [ring.id for ring in laid.rings_of_producer(1)] == [2, 5, 6]
    assert [ring.id for ring in laid.rings_of_consumer(0)] == [0, 2, 3, 5]
    assert laid.producers_of(1, 0) == (0,)
    assert laid.producers_of(2, 0) == tuple(range(16))
    assert laid.stage_of("out").head == "best"
    assert laid.operator("out").kind is SINK


def test_a_per_worker_stage_sends_as_its_first_local_instance() -> None:
    laid = plan_unsized(ride_hailing(per_worker=True), Settings(), 2)
    assert laid.stages[2].per_worker
    assert laid.source_ids(2, 1) == (8,)
    assert laid.producers_of(2, 0) == (0, 8)


def test_event_times_travel_only_where_a_process_can_see_them() -> None:
    shuffled = LogicalPlan(
        "times",
        (
            node("source", SOURCE),
            node("spread", TRANSFORM, ("source", Shuffle()), parallelism=3),
            node("count", PROCESS, ("spread", Global())),
            node("plain", TRANSFORM, ("source", Shuffle()), parallelism=3),
            node("counts", SINK, ("count", Forward())),
            node("rows", SINK, ("plain", Forward())),
        ),
    )
    laid = plan_unsized(shuffled, Settings(), 2)
    assert {(e.target_operator, e.carries_time, e.ordered) for e in laid.edges} == {
        ("spread", True, False),
        ("count", True, True),
        ("plain", False, False),
    }


def test_without_event_times_none_travel() -> None:
    untimed = LogicalPlan(
        "untimed",
        (
            node("source", SOURCE, timed=False),
            node("count", PROCESS, ("source", Global()), timed=False),
            node("out", SINK, ("count", Forward()), timed=False),
        ),
    )
    assert not plan_unsized(untimed, Settings(), 2).edges[0].carries_time


def test_default_parallelism() -> None:
    laid = plan_unsized(
        LogicalPlan(
            "defaults",
            (
                node("source", SOURCE),
                node("spread", TRANSFORM, ("source", Shuffle())),
                node("single", PROCESS, ("spread", Global())),
                node("keyed", PROCESS, ("single", Key(("k",)))),
                node("wide", TRANSFORM, ("keyed", Forward()), parallelism=7),
                node("shuffled", SINK, ("wide", Shuffle())),
                node("out", SINK, ("keyed", Forward())),
            ),
        ),
        Settings(),
        3,
    )
    found = {name: laid.stage_of(name).parallelism for name in laid.logical._by_id}
    assert found == {
        "source": 1,
        "spread": 3,
        "single": 1,
        "keyed": 3,
        "wide": 7,
        "shuffled": 7,
        "out": 3,
    }


def test_a_change_of_parallelism_becomes_an_edge_that_says_so() -> None:
    laid = plan_unsized(
        LogicalPlan(
            "wider",
            (
                node("source", SOURCE),
                node("wide", TRANSFORM, ("source", Forward()), parallelism=2),
                node("out", SINK, ("wide", Forward())),
            ),
        ),
        Settings(),
        2,
    )
    (edge,) = laid.edges
    assert edge.grouping == LocalOrShuffle()
    assert edge.reason == "parallelism changes from 1 to 2"
    assert [ring.consumer_workers for ring in laid.rings] == [(0,)]  # worker 0 hosts a consumer


def test_local_or_shuffle_reaches_everybody_where_nobody_is_local() -> None:
    laid = plan_unsized(
        LogicalPlan(
            "remote",
            (
                node("one", SOURCE),
                node("two", SOURCE),
                node("three", SOURCE),
                node("pair", PROCESS, ("three", LocalOrShuffle()), parallelism=2),
                node("out", SINK, ("pair", Forward())),
            ),
        ),
        Settings(),
        4,
    )
    assert laid.stages[3].instance_worker == (0, 2)
    assert [r.consumer_workers for r in laid.rings if r.producer_worker == 2] == [(2,)]
    moved = plan_unsized(laid.logical, Settings(), 3)
    assert moved.stages[3].instance_worker == (0, 1)
    assert [r.consumer_workers for r in moved.rings if r.producer_worker == 2] == [(0,), (1,)]


def test_more_instances_than_virtual_nodes_are_refused() -> None:
    few = Settings().with_overrides({"runtime.virtual_nodes": 8})
    with pytest.raises(TopologyError) as caught:
        plan(ride_hailing(), few, 2, memory=roomy)
    assert str(caught.value) == (
        "operator 'match' has parallelism 16, but keys are spread over 8 virtual nodes: lower its"
        " parallelism or raise the setting runtime.virtual_nodes"
    )


def test_rings_that_do_not_fit_are_refused_before_the_start() -> None:
    with pytest.raises(ResourceError, match=r"budget|memory"):
        plan(ride_hailing(), Settings(), 2, memory=lambda _settings: FreeMemory(1024**2, 64 * GIB))


def test_named_rings_must_fit_into_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_shm_free_bytes", lambda _folder: 1024**2)
    plan(ride_hailing(), Settings(), 2)
    named = Settings().with_overrides({"transport.segment_kind": "named"})
    with pytest.raises(ResourceError, match="25% of 1.0 MiB free in /dev/shm"):
        plan(ride_hailing(), named, 2)
    refusal = "only 0.2 MiB, 25% of 1.0 MiB free in /dev/shm"
    assert refusal in str(explain(ride_hailing(), named, 2)).replace("\n", " ")


def test_rings_shrink_until_they_fit() -> None:
    laid = plan(
        ride_hailing(), Settings(), 2, memory=lambda _settings: FreeMemory(32 * 1024**2, 64 * GIB)
    )
    capacity = laid.rings[0].capacity_bytes
    assert capacity < Settings().transport.ring_bytes
    assert capacity & (capacity - 1) == 0
    assert laid.ring_bytes_total <= 32 * 1024**2 * Settings().transport.memory_budget_fraction


def test_the_sources_of_all_operators_are_found_in_one_pass_and_shared_by_a_chain() -> None:
    chain = [node("a", OperatorKind.SOURCE), node("b", OperatorKind.SOURCE)]
    chain += [node("first", OperatorKind.PROCESS, ("a", Key(("k",))))]
    chain += [node("both", OperatorKind.PROCESS, ("first", Global()), ("b", Global()))]
    names = ["both", *(f"p{number}" for number in range(2_000))]
    chain += [
        node(name, OperatorKind.PROCESS, (before, Global())) for before, name in pairwise(names)
    ]
    logical = LogicalPlan("chain", tuple(chain))
    assert logical.sources_of("a") == logical.sources_of("first") == {"a"}
    assert logical.sources_of("both") == {"a", "b"}
    assert all(logical.sources_of(name) is logical.sources_of("both") for name in names)


def test_worker_count() -> None:
    assert worker_count(Settings(), 3) == 3
    assert worker_count(Settings().with_overrides({"runtime.workers": 5})) == 5
    assert worker_count(Settings()) >= 1
    for wrong in (-1, 10_000_000, "many"):
        with pytest.raises(SettingsError, match="workers"):
            worker_count(Settings(), wrong)  # type: ignore[arg-type] # a user may pass anything


def test_plans_survive_pickling() -> None:
    laid = plan_unsized(ride_hailing(), Settings(), 2)
    laid.stage_of("match")  # fills a cache, which must not travel
    again = cloudpickle.loads(cloudpickle.dumps(laid))
    assert again == laid
    assert "_stage_of_operator" not in vars(again)


GROUPINGS: list[Grouping] = [Key(("k",)), Shuffle(), All(), LocalOrShuffle(), Global()]


@st.composite
def logical_plans(draw: st.DrawFn) -> LogicalPlan:
    """Any graph that the builder could make: chains, branches, diamonds, joins, unions, tables."""
    parallelism = st.none() | st.integers(1, 5)
    nodes = [node("n0", SOURCE, parallelism=draw(parallelism))]
    for number in range(1, draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(tuple(OperatorKind)))
        if kind is SOURCE:
            feeds: list[tuple[str, Grouping]] = []
        else:
            open_ids = [earlier.id for earlier in nodes if earlier.kind is not SINK]
            allowed = GROUPINGS if kind.is_stateful else [Forward(), *GROUPINGS]
            count = 2 if kind is CO_PROCESS else 1
            if kind is UNION:
                allowed, count = [Forward()], draw(st.integers(2, 4))
            feeds = [
                (draw(st.sampled_from(open_ids)), draw(st.sampled_from(allowed)))
                for _ in range(count)
            ]
        if kind is TABLE_JOIN:
            beside = draw(st.lists(st.sampled_from(open_ids), min_size=1, max_size=2))
            feeds += [(feed, All()) for feed in beside]
        single = any(isinstance(grouping, Global) for _, grouping in feeds)
        added = node(
            f"n{number}",
            kind,
            *feeds,
            parallelism=None if single or kind is UNION else draw(parallelism),
            per_worker=kind.is_stateful and draw(st.booleans()),
        )
        if waiting_for_itself(LogicalPlan("random", (*nodes, added))) is None:
            nodes.append(added)
        else:
            assert kind is TABLE_JOIN
            if len(feeds) == 2:  # without changes, only what would really stop is refused
                assert not can_end(LogicalPlan("random", (*nodes, added)))
    return LogicalPlan("random", tuple(nodes))


def can_end(logical: LogicalPlan) -> bool:
    """Play whether all sources can be read to their ends, if nothing fits into rings."""
    ended: set[str] = set()

    def complete(operator: str) -> bool:
        inputs = logical.node(operator).inputs
        return all(complete(feed.upstream) for feed in inputs) if inputs else operator in ended

    def flows(operator: str) -> bool:
        """Return whether no reader of an operator is held, or of what it feeds."""
        return all(takes(reader, feed.port) for reader, feed in logical.consumers(operator))

    def takes(reader: OperatorNode, port: int) -> bool:
        if reader.kind is not TABLE_JOIN:
            return flows(reader.id)
        is_table, loaded = port == 1, complete(reader.inputs[1].upstream)
        return is_table or (loaded and (port != 0 or flows(reader.id)))

    sources = {one.id for one in logical.of_kind(SOURCE)}
    while ready := {one for one in sources - ended if flows(one)}:
        ended |= ready
    return ended == sources


@settings(max_examples=150, deadline=None)
@given(logical_plans(), st.integers(1, 6))
def test_random_plans_hold_what_was_written(logical: LogicalPlan, workers: int) -> None:
    laid = plan_unsized(logical, Settings(), workers)
    check_operators_run_once(laid)
    check_links_equal_inputs(laid)
    check_placement(laid)
    check_rings(laid)
    assert can_end(logical)


def check_operators_run_once(laid: PhysicalPlan) -> None:
    run = Counter(operator for stage in laid.stages for operator in stage.operators)
    assert run == Counter(node.id for node in laid.logical.nodes if node.kind is not UNION)


def check_links_equal_inputs(laid: PhysicalPlan) -> None:
    written = Counter(
        (stream, n.id)
        for n in laid.logical.nodes
        if n.kind is not UNION
        for f in n.inputs
        for stream in streams_behind(laid.logical, f.upstream)
    )
    planned: Counter[tuple[str, str]] = Counter()
    for stage in laid.stages:
        for operator, followers in stage.links.items():
            for after in followers:
                target = after if isinstance(after, str) else laid.edges[after].target_operator
                planned[operator, target] += 1
                if isinstance(after, str):
                    (feed,) = laid.operator(after).stream_inputs
                    assert feed.grouping == Forward()
                    assert after in stage.operators
                else:
                    assert laid.edges[after].source_stage == stage.id
                    assert laid.edges[after].target_stage > stage.id
                    check_edge(laid, laid.edges[after])
    assert planned == written


def streams_behind(logical: LogicalPlan, operator: str) -> list[str]:
    """Return an operator, or those that a union reads, directly or through other unions."""
    if logical.node(operator).kind is not UNION:
        return [operator]
    feeds = logical.node(operator).inputs
    return [stream for feed in feeds for stream in streams_behind(logical, feed.upstream)]


def check_edge(laid: PhysicalPlan, edge: Edge) -> None:
    """Only a union's rows are forwarded over an edge; the streams of a port are told apart."""
    target = laid.operator(edge.target_operator)
    (feed,) = (feed for feed in target.inputs if feed.port == edge.port)
    streams = streams_behind(laid.logical, feed.upstream)
    if edge.grouping == Forward():
        assert len(streams) > 1
        assert (
            laid.stages[edge.source_stage].parallelism == laid.stages[edge.target_stage].parallelism
        )
    beside = [other for other in laid.in_edges(edge.target_stage) if other.target == edge.target]
    assert [other.source_operator for other in beside] == streams
    taken = [
        other.first_source + instance
        for other in beside
        for instance in range(laid.stages[other.source_stage].parallelism)
    ]
    assert taken == list(range(len(taken)))


def check_placement(laid: PhysicalPlan) -> None:
    for stage in laid.stages:
        assert len(stage.instance_worker) == stage.parallelism
        assert set(stage.instance_worker) <= set(range(laid.workers))
        assert list(stage.instance_worker) == sorted(stage.instance_worker)
        load = Counter(stage.instance_worker)
        loads = [load[worker] for worker in range(laid.workers)]
        assert max(loads) - min(loads) <= 1


def check_rings(laid: PhysicalPlan) -> None:
    for edge in laid.edges:
        source, target = laid.stages[edge.source_stage], laid.stages[edge.target_stage]
        paths = Counter(
            (ring.producer_worker, reader)
            for ring in laid.rings_of_edge(edge.id)
            for reader in ring.consumer_workers
        )
        assert set(paths.values()) == {1}
        every = {(p, c) for p in source.workers for c in target.workers}
        if isinstance(edge.grouping, Forward):
            alike = zip(source.instance_worker, target.instance_worker, strict=True)
            assert set(paths) == set(alike)
        elif isinstance(edge.grouping, LocalOrShuffle):
            assert set(paths) <= every
            assert {p for p, _ in paths} == set(source.workers)
        else:
            assert set(paths) == every
        for worker in target.workers:
            feeding = [p for p in source.workers if (p, worker) in paths]
            expected = [i for p in feeding for i in laid.source_ids(source.id, p)]
            assert list(laid.producers_of(edge.id, worker)) == expected
