"""Operators that act by the clock: a virtual one in this process, the machine's in others."""

from __future__ import annotations

from typing import Any

import pytest

import whale_ray as whale
from whale_ray.api.submission import run, submit
from whale_ray.testing import ListSource, Pause
from whale_ray.transport.clock import VirtualClock

MS = 1_000_000


class Ticks(whale.Process):
    """Emits a row every 100 ms by the clock, from its first row on, and every row it gets."""

    every_ns = 100 * MS

    def open(self, context: Any) -> None:
        self.clock, self.due_ns = context.clock, None

    def on_row(self, row: Any, out: whale.Output) -> None:
        if self.due_ns is None:
            self.due_ns = self.clock.wall_ns() + self.every_ns
        out.emit_row(n=row.n, at_ms=self.clock.wall_ns() // MS)

    def deadline_ns(self) -> int | None:
        return self.due_ns

    def on_deadline(self, now_ns: int, out: whale.Output) -> None:
        assert self.due_ns is not None and now_ns >= self.due_ns
        assert now_ns == self.clock.wall_ns() or not isinstance(self.clock, VirtualClock)
        out.emit_row(n=-1, at_ms=now_ns // MS)
        self.due_ns += self.every_ns


class CoTicks(whale.CoProcess):
    """The same, of two inputs."""

    per_worker = True
    open, deadline_ns, on_deadline = Ticks.open, Ticks.deadline_ns, Ticks.on_deadline
    every_ns = Ticks.every_ns
    on_left_row = on_right_row = Ticks.on_row


class PerWorkerTicks(Ticks):
    per_worker = True


def ticking(kind: type, source: Any, *, timed: bool = True) -> whale.Topology:
    topology = whale.Topology("ticks")
    times = {"event_time": "t", "event_time_unit": "s"} if timed else {}
    rows = topology.source(source, id="rows", **times)
    grouped = rows.key_by("n")
    if issubclass(kind, whale.CoProcess):
        none = topology.source(
            whale.sources.iterable([], schema={"n": "int64", "t": "int64"}), id="none", **times
        )
        stream = grouped.connect(none.key_by("n")).process(kind, id="ticks", parallelism=2)
    else:
        stream = grouped.process(kind, id="ticks", parallelism=2)
    stream.sink(whale.sinks.collect(), id="out")
    return topology


def rows_of(job: Any) -> list[dict[str, Any]]:
    return job.results("out").to_pandas().to_dict("records")


@pytest.mark.parametrize("kind", [Ticks, PerWorkerTicks, CoTicks])
def test_deadlines_come_when_they_are_due(kind: type) -> None:
    items = [{"n": 7, "t": 1}, Pause(350), {"n": 7, "t": 2}, Pause(120)]
    source = ListSource(items, schema={"n": "int64", "t": "int64"})
    # A row may wait for others of its slice: up to WTL.
    at_once = {"transport.wtl_ms": 0}
    rows = rows_of(run(ticking(kind, source, timed=False), clock=VirtualClock(), settings=at_once))
    ticks = [row["at_ms"] for row in rows if row["n"] == -1]
    first, second = (row["at_ms"] for row in rows if row["n"] == 7)
    assert second - first == 350
    assert ticks == [first + 100 * n for n in range(1, 5)]


def test_what_is_emitted_at_a_deadline_lies_after_the_watermark() -> None:
    class AfterWatermark(whale.Process):
        def open(self, context: Any) -> None:
            self.watermark_ns = -(2**63)

        def on_row(self, row: Any, out: whale.Output) -> None:
            assert out.time_ns is not None and out.time_ns > self.watermark_ns
            out.emit_row(n=row.n, time_ns=out.time_ns)

        def on_watermark(self, watermark_ns: int, out: whale.Output) -> None:
            self.watermark_ns = watermark_ns

    topology = whale.Topology("ticks")
    items = [{"n": 7, "t": 1}, {"n": 7, "t": 5}, Pause(350), {"n": 7, "t": 9}, Pause(120)]
    source = ListSource(items, schema={"n": "int64", "t": "int64"})
    rows = topology.source(source, id="rows", event_time="t", event_time_unit="s")
    ticks = rows.key_by("n").process(Ticks, id="ticks", parallelism=1)
    ticks.key_by("n").process(AfterWatermark, id="after", parallelism=1).sink(
        whale.sinks.collect(), id="out"
    )
    got = rows_of(run(topology, clock=VirtualClock()))
    assert [row["n"] for row in got].count(7) == 3
    assert [row["n"] for row in got].count(-1) >= 3


def test_deadlines_of_workers_that_sleep() -> None:
    items = [{"n": n, "t": n} for n in range(8)] + [Pause(500)]
    source = ListSource(items, schema={"n": "int64", "t": "int64"})
    job = submit(ticking(Ticks, source, timed=False), workers=2, on="processes").wait()
    rows = rows_of(job)
    assert sorted(row["n"] for row in rows if row["n"] >= 0) == list(range(8))
    assert len(rows) > 8  # eight rows, and the rows of at least one deadline


def test_a_deadline_of_another_type_is_told() -> None:
    class Soon(Ticks):
        def deadline_ns(self) -> Any:
            return "soon"

    source = ListSource([{"n": 1, "t": 1}])
    with pytest.raises(
        whale.errors.UsageError,
        match=r"'ticks': Soon.deadline_ns returned a str: return an integer, ns since 1970",
    ):
        run(ticking(Soon, source, timed=False))
