"""Edges with a user's transport: senders, receivers and fan-in, as planned and explained."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import whale_ray as whale
from tests.transport.unix_transport import unix_transport
from whale_ray.configs.settings import Settings
from whale_ray.operators.process import Process
from whale_ray.plan.explain import explain
from whale_ray.plan.physical import PhysicalPlan
from whale_ray.plan.planner import plan_unsized

SETTINGS = Settings()


class Keep(Process):
    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        out.emit(batch)


def topology(
    group: Callable[[whale.Stream], Any], parallelism: int = 3, **options: Any
) -> whale.Topology:
    """Rows from three instances, grouped, to `parallelism` others."""
    made = whale.Topology("pairs", **options)
    source = made.source(whale.sources.iterable([{"v": 1}]), id="rows", parallelism=3)
    group(source).process(Keep, id="keep", parallelism=parallelism).sink(
        whale.sinks.collect(), id="out"
    )
    return made


def planned(made: whale.Topology, workers: int = 4, **overrides: object) -> PhysicalPlan:
    settings = SETTINGS.with_overrides({k.replace("__", "."): v for k, v in overrides.items()})
    return plan_unsized(made.logical_plan(), settings, workers)


def ends(plan: PhysicalPlan) -> list[tuple[int, int]]:
    return [(pair.producer_worker, pair.consumer_worker) for pair in plan.custom_streams]


@pytest.mark.parametrize(
    ("group", "parallelism", "to_others", "to_itself"),
    [
        (lambda s: s.key_by("v"), 4, 9, 3),
        (lambda s: s.broadcast(), 4, 9, 3),
        (lambda s: s.shuffle(), 4, 9, 3),
        (lambda s: s.global_(), 1, 2, 1),
        (lambda s: s.local_or_shuffle(), 4, 0, 3),
        (lambda s: s.local_or_shuffle(), 1, 2, 1),
    ],
    ids=["key", "all", "shuffle", "global", "local", "local-or-shuffle"],
)
def test_a_pair_for_every_two_workers_and_a_ring_for_what_stays(
    group: Any, parallelism: int, to_others: int, to_itself: int
) -> None:
    plan = planned(topology(group, parallelism, transport=unix_transport()))
    assert len(plan.custom_streams) == to_others
    assert len(set(ends(plan))) == to_others
    assert not [pair for pair in ends(plan) if pair[0] == pair[1]]
    assert [ring.consumer_workers for ring in plan.rings] == [
        (ring.producer_worker,) for ring in plan.rings
    ]
    assert len(plan.rings) == to_itself
    numbers = [ring.id for ring in plan.rings] + [pair.id for pair in plan.custom_streams]
    assert numbers == list(range(len(numbers))), "every stream has its own"
    for worker in plan.stages[1].workers:
        producers = plan.producers_of(0, worker)
        assert sorted(producers) == ([0, 1, 2] if to_others else [worker][: worker < 3])


def test_streams_between_hosts_do_not_pass_their_relays() -> None:
    made = topology(lambda s: s.broadcast(), 4, transport=unix_transport())
    plan = planned(made, runtime__hosts=2)
    assert len(plan.custom_streams) == 9
    assert not any(plan.mirrors_on(host) for host in range(2))
    assert not hasattr(plan.streams, "pairs"), "relays are told nothing of the user's"


def test_via_is_for_what_reads_that_stream_and_goes_before_the_topologys() -> None:
    made = whale.Topology("via", transport=unix_transport(message_bytes=64))
    source = made.source(whale.sources.iterable([{"v": 1}]), id="rows")
    special = unix_transport(message_bytes=128)
    for number, stream in enumerate(
        [source.via(special).key_by("v"), source.key_by("v").via(special), source.key_by("v")]
    ):
        kept = stream.process(Keep, id=f"keep-{number}", parallelism=2)
        kept.sink(whale.sinks.collect(), id=f"out-{number}")
    plan = planned(made)
    assert [edge.transport and edge.transport.message_bytes for edge in plan.edges] == [
        128,
        128,
        64,
    ]


def test_a_transport_that_nothing_reads_is_a_mistake() -> None:
    made = topology(lambda s: s.key_by("v"), transport=unix_transport())
    made.logical_plan()
    source = made.source(whale.sources.iterable([{"v": 1}]), id="more")
    source.via(unix_transport())
    source.sink(whale.sinks.collect(), id="all")
    with pytest.raises(whale.errors.TopologyError) as caught:
        made.logical_plan()
    assert re.fullmatch(
        r"operator .more.: via at test_plan_custom_transports\.py:\d+ has no effect: "
        r"it changes no stream but returns a new one, which no operator reads; use that one, or "
        r"remove the call",
        str(caught.value),
    )


def test_a_single_process_uses_no_transport() -> None:
    made = topology(lambda s: s.key_by("v"), transport=unix_transport())
    assert planned(made, 1).custom_streams == ()
    assert "Transport operators" not in str(explain(made.logical_plan(), SETTINGS, 1))


def test_explain_shows_pairs_fusion_and_fan_in() -> None:
    made = topology(lambda s: s.key_by("v"), transport=unix_transport())
    text = str(explain(made.logical_plan(), SETTINGS, 4))
    assert "key by v  memory of each worker and unix-sockets" in text
    begin = text.index("Transport operators")
    lines = text[begin : text.index("\n\n", begin)].splitlines()
    assert [re.split("  +", line.strip()) for line in lines[1:3]] == [
        ["edge", "transport", "fused", "fused", "worker ← workers", "configuration"],
        [
            "0",
            "unix-sockets",
            "rows → send",
            "receive → keep",
            "0 ← 1–2; 1 ← 0, 2; 2 ← 0–1",
            "messages of 4,096 B, queues of 16, mutex",
        ],
    ]
    assert [lines[0], lines[-1].strip()] == [
        "Transport operators: 6 send, 3 receive",
        "one sender per pair of workers; one receiver per edge and consuming worker",
    ]


def test_explain_stops_after_some_groups() -> None:
    made = whale.Topology("wide", transport=unix_transport())
    source = made.source(whale.sources.iterable([{"v": 1}]), id="rows", parallelism=12)
    source.key_by("v").process(Keep, id="keep", parallelism=12).sink(
        whale.sinks.collect(), id="out"
    )
    assert "7 ← 0–6, 8–11; and 4 more" in str(explain(made.logical_plan(), SETTINGS, 12))


def test_what_is_no_transport_is_refused_where_it_is_passed() -> None:
    with pytest.raises(whale.errors.TopologyError) as caught:
        whale.Topology("x", transport="tcp")  # type: ignore[arg-type]  # the mistake under test
    assert str(caught.value) == (
        "topology 'x': transport= takes a whale.transports.Transport, not 'tcp'"
    )
    source = whale.Topology("x").source(whale.sources.iterable([{"v": 1}]), id="rows")
    with pytest.raises(whale.errors.TopologyError) as caught:
        source.via(unix_transport)  # type: ignore[arg-type]  # the mistake under test
    assert str(caught.value) == (
        "operator 'rows': via takes a whale.transports.Transport, not the function unix_transport"
    )
    two = source.key_by("v").connect(source.broadcast())
    with pytest.raises(whale.errors.TopologyError, match="via does not take two streams"):
        two.via(unix_transport())
