"""What a worker tells of itself while its loop runs in another thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.configs.errors import TransportError
from whale_ray.configs.settings import Settings
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.plan.assignment import Assignment
from whale_ray.plan.planner import plan
from whale_ray.transport.clock import SystemClock, VirtualClock
from whale_ray.transport.wire.batch import Batch
from whale_ray.worker.stage_meter import NoMeter
from whale_ray.worker.worker import Worker
from whale_ray.worker.worker_counters import WorkerCounters

ROWS = 500


class Rejecting(Source):
    """Reads one row at a time, and rejects one before each; it ends once it was asked often."""

    def __init__(self, asked_max: int) -> None:
        self.asked_max = asked_max

    def open(self, context: whale.InstanceContext) -> SourceReader:
        return RejectingReader(self.asked_max)

    def describe(self) -> str:
        return "rejecting"


class RejectingReader(SourceReader):
    askers: set[int] = set()  # noqa: RUF012  # of the last reader, for the test

    def __init__(self, asked_max: int) -> None:
        self.rows, self.asked, self.asked_max = 0, 0, asked_max
        type(self).askers = set()

    def read(self, max_rows: int) -> Batch | None:
        self.rows += 1
        return Batch.from_pydict({"n": [self.rows]})

    @property
    def finished(self) -> bool:
        return self.rows >= ROWS and self.asked >= self.asked_max

    @property
    def rejected(self) -> dict[str, int]:
        self.askers.add(threading.get_ident())
        self.asked += 1
        return {"bad": self.rows}


def test_readers_are_asked_by_the_loop_alone_and_rows_counted_once() -> None:
    topology = whale.Topology("counted")
    rows = topology.source(Rejecting(asked_max=20), id="rows")
    rows.sink(whale.sinks.each(lambda _row: None), id="out")
    planned = plan(topology.logical_plan(), Settings(), 1)
    worker = Worker(0, Assignment("job", planned, Settings()), SystemClock())
    worker.connect(0, (worker.link(0, (worker.open(0),)),))
    ended = []
    loop = threading.Thread(target=lambda: ended.append(worker.run(0)))
    loop.start()
    while loop.is_alive():
        seen = worker.counters()
        loop.join(0.001)
    worker.close()
    assert RejectingReader.askers == {loop.ident}
    (last,) = ended
    counted = {one.operator_id: (one.rows_in, one.rows_dropped) for one in last.instances}
    assert counted["rows"][1] == {"bad": counted["rows"][0]}
    assert seen.instances


def test_a_transport_that_cannot_tell_its_counters_fails_the_loop_and_not_who_asks() -> None:
    broken = TransportError("statistics() raised")

    def metrics() -> None:
        raise broken

    rings: Any = SimpleNamespace(loads=lambda: (), transports=SimpleNamespace(metrics=metrics))
    counters = WorkerCounters(3, VirtualClock(), NoMeter(), lambda: None)
    counters.follow((), rings)
    counters.begin_turn(0)
    assert counters.read(0).transports == ()
    with pytest.raises(TransportError, match="statistics"):
        counters.begin_turn(1)
    counters.follow((), None)  # of the next attempt
    counters.begin_turn(2)
    counters.follow((), rings)
    with pytest.raises(TransportError, match="statistics"):
        counters.last(0)
