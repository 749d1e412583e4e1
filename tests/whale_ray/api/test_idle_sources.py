"""Idle sources: they hold nobody back, and come back with late rows; on every way rows travel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.transport.unix_transport import unix_transport
from whale_ray.api.submission import run, submit
from whale_ray.operators.sources.base import SourceReader
from whale_ray.testing import ListSource, Pause
from whale_ray.transport.clock import VirtualClock

SCHEMA = {"n": "int64", "t": "int64"}
S = 1_000_000_000
AT_ONCE = {"transport.wtl_ms": 0, "runtime.max_drift_ms": 86_400_000}


class Marks(whale.Process):
    """Its rows, each with the watermark before it, and its watermarks as rows with n = −1."""

    takes_late_rows = True
    late_outputs = ("main",)
    input_order = "arrival"
    schema = whale.Schema.of(n="int64", watermark_s="int64", at_ms="int64")

    def open(self, context: Any) -> None:
        self.clock, self.watermark_s = context.clock, -1

    def on_row(self, row: Any, out: whale.Output) -> None:
        self._emit(row.n, out)

    def on_watermark(self, watermark_ns: int, out: whale.Output) -> None:
        assert watermark_ns // S >= self.watermark_s
        self.watermark_s = watermark_ns // S
        self._emit(-1, out)

    def _emit(self, n: int, out: whale.Output) -> None:
        out.emit_row(
            n=n, watermark_s=self.watermark_s, at_ms=self.clock.monotonic_ns() // 1_000_000
        )


class CoMarks(whale.CoProcess):
    """The same of two inputs."""

    takes_late_rows = True
    input_order = "arrival"
    schema = Marks.schema
    open, on_watermark, _emit = Marks.open, Marks.on_watermark, Marks._emit
    on_left_row = on_right_row = Marks.on_row


class InOrder(whale.Process):
    """Its rows; fails if one comes that the watermark has passed."""

    def open(self, context: Any) -> None:
        self.watermark_ns = -(2**63)

    def on_row(self, row: Any, out: whale.Output) -> None:
        assert out.time_ns is not None and out.time_ns > self.watermark_ns
        out.emit_row(n=row.n)

    def on_watermark(self, watermark_ns: int, out: whale.Output) -> None:
        self.watermark_ns = watermark_ns


def timed(
    topology: whale.Topology,
    name: str,
    items: list[Any],
    *,
    on_late: Any = "drop",
    idle_after_ms: float | None = None,
    parallelism: int = 1,
) -> whale.Stream:
    return topology.source(
        ListSource(items, schema=SCHEMA, batch_rows=1),
        id=name,
        event_time="t",
        event_time_unit="s",
        on_late=on_late,
        idle_after_ms=idle_after_ms,
        parallelism=parallelism,
    )


def row(n: int, t: int) -> dict[str, int]:
    return {"n": n, "t": t}


def steady(first: int, count: int, pause_ms: float = 20) -> list[Any]:
    """Return rows n = first …, one for each second of event time, with pauses between them."""
    items: list[Any] = []
    for place in range(count):
        items += [row(first + place, place), Pause(pause_ms)]
    return items


def results(job: Any, sink: str = "out") -> list[dict[str, Any]]:
    return job.results(sink).preview(10_000)


QUIET = [row(0, 0), Pause(700), row(1, 3), row(2, 60), Pause(20)]
"""Silent while 35 s of event time pass elsewhere; then behind, then ahead."""


def two_sources(join: str, on_late: Any = "pass", *, idle_after_ms: float | None = 100) -> Any:
    topology = whale.Topology("idle")
    quiet = timed(topology, "quiet", QUIET, on_late=on_late, idle_after_ms=idle_after_ms)
    busy = timed(topology, "busy", steady(100, 60))
    if join == "union":
        marks = busy.union(quiet).global_().process(Marks, id="marks")
    elif join == "co-process":
        both = busy.global_().connect(quiet.global_())
        marks = both.process(CoMarks, id="marks", parallelism=1)
    else:
        through = quiet.key_by("n").process(Marks, id="through", parallelism=2)
        marks = busy.union(through.select("n", whale.lit(0).cast("int64").alias("t")))
        marks = marks.filter(whale.col("n") >= 0, id="kept").global_().process(Marks, id="marks")
    marks.sink(whale.sinks.collect(), id="out")
    return topology


@pytest.mark.parametrize("join", ["union", "co-process", "behind a process"])
def test_an_idle_source_holds_no_watermark_back_and_comes_back(join: str) -> None:
    job = run(two_sources(join), clock=VirtualClock(), settings=AT_ONCE)
    seen = results(job)
    # Idle after 100 ms: the watermark follows the other source, which is at 5 s then.
    assert all(one["watermark_s"] < 0 for one in seen if one["at_ms"] < 100)
    at_600 = max(one["watermark_s"] for one in seen if one["at_ms"] <= 600)
    assert 27 <= at_600 <= 30
    # Back at 700 ms with a row of 3 s, which is late; then at 60 s it holds nobody back.
    late = next(one for one in seen if one["n"] == 1)
    assert late["watermark_s"] >= 30
    assert next(one for one in seen if one["n"] == 2)["watermark_s"] < 60
    # Once both have ended, event time has come as far as on the one that was ahead.
    assert max(one["watermark_s"] for one in seen) == 59
    metrics = job.metrics()
    assert metrics.operator("quiet").rows_late == 0
    # Where the two streams meet; "through" also tells its watermarks in rows, which are late, too.
    met, rows = ("kept", 3) if join == "behind a process" else ("marks", 1)
    assert metrics.operator(met).rows_late == rows


def test_without_idleness_the_silent_source_holds_it_back() -> None:
    job = run(two_sources("union", idle_after_ms=None), clock=VirtualClock(), settings=AT_ONCE)
    assert max(one["watermark_s"] for one in results(job) if one["at_ms"] < 690) < 0


@pytest.mark.parametrize("on_late", ["fail", "drop"])
def test_rows_of_a_source_that_comes_back_late(on_late: Any) -> None:
    def build() -> whale.Topology:
        topology = whale.Topology("idle")
        quiet = timed(topology, "quiet", QUIET, on_late=on_late, idle_after_ms=100)
        busy = timed(topology, "busy", steady(100, 60))
        ordered = busy.union(quiet).key_by("n").process(InOrder, id="ordered", parallelism=2)
        ordered.sink(whale.sinks.collect(), id="out")
        return topology

    if on_late == "fail":
        told = (
            r"operator 'ordered' got a row of 1970-01-01T00:00:03Z from 'quiet', which had been"
            r" idle, after its watermark had come to 1970-01-01T00:00:3.*Z: .*n=1.*; raise"
            r" idle_after_ms of the source, or pass on_late='drop'"
        )
        with pytest.raises(whale.errors.BadRowError, match=told):
            run(build(), clock=VirtualClock(), settings=AT_ONCE)
        return
    job = run(build(), clock=VirtualClock(), settings=AT_ONCE)
    assert sorted(one["n"] for one in results(job)) == [0, 2, *range(100, 160)]
    ordered = job.metrics().operator("ordered")
    assert (ordered.rows_late, ordered.rows_dropped) == (1, {"late": 1})


def test_when_all_are_idle_the_watermark_stays() -> None:
    topology = whale.Topology("idle")
    items = [row(0, 5), Pause(500), row(1, 9), Pause(500)]
    one = timed(topology, "one", items, idle_after_ms=100)
    other = timed(topology, "other", [row(2, 3), Pause(2000)], idle_after_ms=100)
    one.union(other).global_().process(Marks, id="marks").sink(whale.sinks.collect(), id="out")
    seen = results(run(topology, clock=VirtualClock(), settings=AT_ONCE))
    assert [one["watermark_s"] for one in seen if 150 < one["at_ms"] < 490] == []
    assert max(one["watermark_s"] for one in seen if one["at_ms"] < 490) in (2, 4)
    assert max(one["watermark_s"] for one in seen) == 8  # "other" is idle still


def test_an_idle_source_does_not_stop_others_that_are_aligned() -> None:
    topology = whale.Topology("idle")
    quiet = timed(topology, "quiet", [row(0, 0), Pause(3000)], idle_after_ms=100)
    busy = timed(topology, "busy", steady(100, 50))
    for stream in (quiet, busy):
        stream.global_().process(Marks, id=f"marks-{stream.id}").sink(
            whale.sinks.collect(), id=f"out-{stream.id}"
        )
    aligned = {**AT_ONCE, "runtime.max_drift_ms": 5000}
    seen = results(run(topology, clock=VirtualClock(), settings=aligned), "out-busy")
    last = next(one for one in seen if one["n"] == 149)
    assert 49 * 20 <= last["at_ms"] < 1500


def test_a_source_that_waits_for_others_does_not_become_idle() -> None:
    topology = whale.Topology("idle")
    slow = timed(topology, "slow", steady(0, 20, pause_ms=200))
    fast = timed(topology, "fast", [row(100 + n, n) for n in range(20)], idle_after_ms=100)
    slow.union(fast).global_().process(InOrder, id="ordered").sink(whale.sinks.collect(), id="out")
    aligned = {**AT_ONCE, "runtime.max_drift_ms": 1000}
    job = run(topology, clock=VirtualClock(), settings=aligned)
    assert len(results(job)) == 40
    assert job.metrics().operator("ordered").rows_late == 0


def test_one_idle_instance_of_a_source() -> None:
    # Instance 1 of 2 reads the odd rows, of which there is one only.
    items: list[Any] = [row(0, 0), row(1, 0), Pause(300)]
    for place in range(2, 12, 2):
        items += [row(place, place), Pause(300), row(place + 1, 3)][:2]
    topology = whale.Topology("idle")
    rows = timed(topology, "rows", items, on_late="pass", idle_after_ms=100, parallelism=2)
    rows.global_().process(Marks, id="marks").sink(whale.sinks.collect(), id="out")
    seen = results(run(topology, clock=VirtualClock(), settings=AT_ONCE))
    assert max(one["watermark_s"] for one in seen) >= 2


IDLE_AFTER_MS = (101, 118)
OFFSET_MS = (0, 5)
"""Of the two sources below. Pauses are multiples of 10 ms, so that of two things that happen at one
moment both are rows of one source."""


@dataclass
class Step:
    """A pause, and a row so much later in event time than the one before."""

    quiet_ms: int
    ahead_s: int


steps = st.lists(st.builds(Step, st.sampled_from([0, 30, 150, 400]), st.integers(0, 9)), max_size=5)


@dataclass
class SourceModel:
    """A source's rows: (when it is read, number, time in s)."""

    rows: list[tuple[int, int, int]]
    idle_after_ms: int

    def changes_ms(self) -> list[int]:
        """Return when it reads, and when it may become idle."""
        read = [at for at, _, _ in self.rows]
        return [*read, *(at + self.idle_after_ms for at in [0, *read])]

    def at(self, moment_ms: int) -> tuple[int, bool]:
        """Return its watermark in s, −1 before its first row, and whether it is idle."""
        before = [(at, time_s) for at, _, time_s in self.rows if at <= moment_ms]
        quiet_since_ms, time_s = before[-1] if before else (0, 0)
        return time_s - 1 if before else -1, moment_ms - quiet_since_ms >= self.idle_after_ms


def watermark_at(sources: list[SourceModel], moment_ms: int) -> int:
    """Return the least watermark of the sources that are awake, which never goes back."""
    current = -1
    for now_ms in sorted({at for source in sources for at in source.changes_ms()}):
        awake = [mark for mark, idle in (one.at(now_ms) for one in sources) if not idle]
        if now_ms <= moment_ms and awake:
            current = max(current, min(awake))
    return current


@settings(max_examples=20, deadline=None)
@given(steps, steps)
def test_watermarks_equal_a_plain_model(left: list[Step], right: list[Step]) -> None:
    topology = whale.Topology("idle")
    models: list[SourceModel] = []
    streams: list[whale.Stream] = []
    for side, made in enumerate((left, right)):
        items: list[Any] = []
        model = SourceModel([], IDLE_AFTER_MS[side])
        now_ms = time_s = 0
        # Both begin with a row at once: nobody reads on before all have a watermark, or are idle.
        for place, step in enumerate([Step(0, 0), *made]):
            quiet_ms = step.quiet_ms + (OFFSET_MS[side] if place == 1 else 0)
            now_ms, time_s = now_ms + quiet_ms, time_s + step.ahead_s
            items += [Pause(quiet_ms)] * bool(quiet_ms)
            items.append(row(100 * side + place, time_s))
            model.rows.append((now_ms, 100 * side + place, time_s))
        models.append(model)
        items.append(Pause(4000 - now_ms))
        streams.append(
            timed(topology, f"s{side}", items, on_late="pass", idle_after_ms=model.idle_after_ms)
        )
    streams[0].union(streams[1]).global_().process(Marks, id="marks").sink(
        whale.sinks.collect(), id="out"
    )
    seen = results(run(topology, clock=VirtualClock(), settings=AT_ONCE))
    numbers = [n for model in models for _, n, _ in model.rows]
    assert sorted(one["n"] for one in seen if one["n"] >= 0) == sorted(numbers)
    moments = {at + late for model in models for at in model.changes_ms() for late in (-3, 3)}
    for moment_ms in moments:
        until = [one["watermark_s"] for one in seen if one["at_ms"] <= moment_ms]
        assert max(until, default=-1) == watermark_at(models, moment_ms)


class RowsThenWait(whale.sources.Source):
    """Rows of n = first … at t = 0 …; then it waits for a file, for half a minute at most."""

    def __init__(self, first: int, count: int, file: Path) -> None:
        self.first, self.count, self.file = first, count, file

    def schema(self) -> whale.Schema:
        return whale.Schema.of(n="int64", t="int64")

    def describe(self) -> str:
        return f"{self.count} rows"

    def open(self, context: Any) -> Any:
        return WaitingReader(self, context.clock)


class WaitingReader(SourceReader):
    finished = False

    def __init__(self, source: RowsThenWait, clock: Any) -> None:
        self.source, self.clock, self.read_all = source, clock, False
        self.until_ns = clock.monotonic_ns() + 30 * S

    def read(self, max_rows: int) -> whale.Batch | None:
        if not self.read_all:
            self.read_all = True
            times = np.arange(self.source.count)
            return whale.Batch.from_pydict({"n": self.source.first + times, "t": times})
        self.finished = self.source.file.exists() or self.clock.monotonic_ns() > self.until_ns
        return None

    def next_ready_ns(self) -> int:
        return self.clock.monotonic_ns() + 5_000_000


class MarksInFile(whale.Process):
    """Makes a file when its watermark comes to 20 s; tells whether rows of both sources came."""

    per_worker = True
    takes_late_rows = True
    input_order = "arrival"

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        out.emit({"n": batch["n"].copy()}, batch.times)

    def on_watermark(self, watermark_ns: int, out: whale.Output) -> None:
        if watermark_ns // S in range(20, 100):
            self.file.with_name(f"seen-{os.getpid()}").touch()
            if len(list(self.file.parent.glob("seen-*"))) == 2:
                self.file.touch()


@pytest.mark.parametrize("way", ["rings", "hosts", "transport", "instance-oriented"])
def test_idleness_travels(way: str, tmp_path: Path) -> None:
    """Both sources end only once the watermark of both workers has gone on without one of them."""
    file = tmp_path / "passed"
    topology = whale.Topology("idle")
    quiet, busy = (
        topology.source(
            RowsThenWait(first, count, file),
            id=name,
            event_time="t",
            event_time_unit="s",
            idle_after_ms=50 if name == "quiet" else None,
        )
        for name, first, count in (("quiet", 0, 1), ("busy", 100, 30))
    )
    both = busy.union(quiet)
    if way == "transport":
        both = both.via(unix_transport())
    marks = both.broadcast().process(lambda: MarksInFile(file), id="marks", parallelism=2)
    marks.sink(whale.sinks.collect(), id="out")
    options: dict[str, Any] = {"runtime.max_drift_ms": 86_400_000, "runtime.source_workers": 1}
    if way == "hosts":
        options["runtime.hosts"] = 2
    if way == "instance-oriented":
        options["runtime.addressing"] = "instance-oriented"
    job = submit(topology, workers=3, on="processes", settings=options).wait()
    assert file.exists(), "the watermark never went on"
    assert {one["n"] for one in results(job)} == {0, *range(100, 130)}
