"""Rows of an endless job do not wait for ever for the type of a column of nulls; none is lost.

The jobs run in this thread on a virtual clock.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.api.job import Job
from whale_ray.api.submission import run
from whale_ray.transport.clock import VirtualClock

SECOND_NS = 1_000_000_000
STEP_NS = SECOND_NS * 2 // 5
ROWS = 8


class RowByRow(whale.Process):
    """Emits what `with_x` returns for a row."""

    def on_row(self, row: Any, out: Any) -> None:
        out.emit_row(**with_x(row))


def with_x(row: Any) -> dict[str, Any]:
    return {"n": row.n, "x": X[row.n]}


X: list[Any] = []


def mapped(rows: Any) -> Any:
    return rows.map(with_x, id="same")


def mapped_twice(rows: Any) -> Any:
    return rows.map(with_x, id="first").map(with_x, id="same")


def behind_an_edge(rows: Any) -> Any:
    return rows.shuffle().map(with_x, id="same", parallelism=2)


def flat_mapped(rows: Any) -> Any:
    return rows.flat_map(lambda row: [with_x(row)], id="same")


def processed(rows: Any) -> Any:
    return rows.global_().process(RowByRow, id="same")


WAYS = (mapped, mapped_twice, behind_an_edge, flat_mapped, processed)


class Endless:
    """A job that reads a row every 0.4 s; `seen` are the rows that come out, and when."""

    def __init__(self, way: Callable[[Any], Any]) -> None:
        self.clock = VirtualClock()
        self.seen: list[tuple[int, dict[str, Any]]] = []
        self.topology = whale.Topology("endless")
        rows = whale.sources.iterable(self.rows, bounded=False)
        way(self.topology.source(rows, id="rows")).sink(whale.sinks.each(self.see), id="out")

    def rows(self) -> Iterator[dict[str, int] | None]:
        for n in range(len(X)):
            yield {"n": n}
            until_ns = self.clock.monotonic_ns() + STEP_NS
            while self.clock.monotonic_ns() < until_ns:
                yield None

    def see(self, row: Any) -> None:
        self.seen.append((self.clock.monotonic_ns(), dict(row)))

    def run(self) -> Job:
        return run(self.topology, clock=self.clock)


@pytest.fixture(autouse=True)
def values() -> Iterator[None]:
    """Let `with_x` give only nulls, but for the last row, unless a test says otherwise."""
    X[:] = [None] * (ROWS - 1) + ["late"]
    yield
    X.clear()


@pytest.mark.parametrize("way", WAYS)
def test_rows_with_a_column_of_nulls_flow_on_after_a_second(way: Callable[[Any], Any]) -> None:
    job = Endless(way)
    job.run()
    assert sorted(row["n"] for _, row in job.seen) == list(range(ROWS))
    waits_max_ns = (2 if way is mapped_twice else 1) * SECOND_NS + STEP_NS // 2
    for at_ns, row in job.seen:
        assert row["x"] == X[row["n"]]
        assert at_ns - row["n"] * STEP_NS <= waits_max_ns


@pytest.mark.parametrize("way", [mapped, processed])
def test_a_wrong_presumption_of_text_fails_the_job(way: Callable[[Any], Any]) -> None:
    X[-1] = 7
    job = Endless(way)
    with pytest.raises(whale.errors.WhaleError) as error:
        job.run()
    assert (
        "column 'x' held nothing but nulls in the first 3 rows, so it was presumed to be text, but "
        "a later value has the type int64" in str(error.value)
    )
    assert "schema=whale.Schema.of(…)" in str(error.value).replace("schema = ", "schema=")
    assert len(job.seen) == ROWS - 1


@pytest.mark.parametrize("way", [mapped, processed])
def test_a_value_in_time_gives_its_type(way: Callable[[Any], Any]) -> None:
    X[:] = [None, 7, None]
    job = Endless(way)
    job.run()
    assert [row for _, row in job.seen] == [{"n": n, "x": X[n]} for n in range(3)]


def test_the_watermark_that_waited_follows_the_rows() -> None:
    """Rows of another source wait for it, since they are taken in event-time order."""
    released: list[tuple[int, int]] = []
    clock = VirtualClock()

    class InOrder(whale.Process):
        def on_row(self, row: Any, out: Any) -> None:
            released.append((row.n, clock.monotonic_ns()))

    def silent_after_three() -> Iterator[dict[str, int] | None]:
        for n in range(3):
            yield {"n": n}
        while clock.monotonic_ns() < 5 * SECOND_NS:
            yield None

    topology = whale.Topology("in-order")
    rows = whale.sources.iterable(silent_after_three, bounded=False)
    source = topology.source(rows, id="rows", event_time="n", event_time_unit="s")
    ordered = mapped(source).global_().process(InOrder, id="ordered", event_time_order=True)
    ordered.sink(whale.sinks.each(print), id="out")
    run(topology, clock=clock)
    assert [n for n, _ in released] == [0, 1, 2]
    for _, at_ns in released[:-1]:
        assert at_ns <= SECOND_NS + STEP_NS


def stopping_after(count: int, way: Callable[[Any], Any], x: object) -> tuple[Job, list[Any]]:
    """Stop an endless job in the moment in which it reads so many rows, all at once."""
    seen: list[Any] = []

    def rows() -> Iterator[dict[str, Any] | None]:
        for n in range(count):
            yield {"n": n, "x": x}
        signal.raise_signal(signal.SIGTERM)
        while True:
            yield None

    topology = whale.Topology("stopped")
    source = topology.source(whale.sources.iterable(rows, bounded=False), id="rows")
    way(source).sink(whale.sinks.each(lambda row: seen.append(dict(row))), id="out")
    settings = {"runtime.source_batch_rows": 10}
    return run(topology, clock=VirtualClock(), settings=settings), seen


@pytest.mark.parametrize("way", [lambda rows: rows, *WAYS])
@pytest.mark.parametrize("x", [None, 1])
def test_rows_that_wait_when_the_job_is_stopped_are_not_lost(
    way: Callable[[Any], Any], x: object
) -> None:
    X[:] = [None] * 35
    job, seen = stopping_after(35, way, x)
    assert job.state == "drained"
    assert sorted(row["n"] for row in seen) == list(range(35))
    counted = {one.operator_id: (one.rows_in, one.rows_out) for one in job.metrics().operators}
    assert counted["rows"] == (35, 35)
    assert counted["out"][0] == 35
