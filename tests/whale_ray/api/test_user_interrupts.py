"""What user code raises that is no `Exception`: its own error, at once, wherever it is raised."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.api.submission import run, submit
from whale_ray.operators.sinks.base import SinkResult, SinkWriter, Staged
from whale_ray.operators.sinks.collect import CollectSink


class Leave(BaseException):
    """As some libraries have them: trio.Cancelled, pytest's Exit."""


def leave(how: str) -> Any:
    if how == "exit":
        sys.exit(3)
    raise {
        "interrupt": KeyboardInterrupt,
        "generator": GeneratorExit,
        "memory": MemoryError,
        "own": Leave,
    }[how]("no more")


class Leaves(whale.Process):
    def __init__(self, how: str, where: str) -> None:
        self._how, self._where = how, where

    def _at(self, where: str) -> None:
        if self._where == where:
            leave(self._how)

    def open(self, context: Any) -> None:
        self._at("open")

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        self._at("batch")
        out.emit(batch)

    def on_watermark(self, watermark_ns: int, out: Any) -> None:
        self._at("watermark")

    def close(self, out: Any) -> None:
        self._at("close")


class LeavesRows(whale.Process):
    def __init__(self, how: str) -> None:
        self._how = how

    def on_row(self, row: Any, out: Any) -> None:
        leave(self._how)


class LeavingWriter(SinkWriter):
    def __init__(self, writer: SinkWriter, sink: LeavingSink) -> None:
        self._writer, self._sink = writer, sink

    def write(self, batch: whale.Batch) -> None:
        self._sink.at("write")
        self._writer.write(batch)

    def stage(self) -> Staged:
        self._sink.at("stage")
        return self._writer.stage()

    def abort(self) -> None:
        self._writer.abort()


class LeavingSink(CollectSink):
    how = where = ""

    def at(self, where: str) -> None:
        if self.where == where:
            leave(self.how)

    def open(self, context: Any, token: str) -> SinkWriter:
        self.at("open")
        return LeavingWriter(super().open(context, token), self)

    def prepare(self, token: str, *, bounded: bool) -> None:
        self.at("prepare")

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        self.at("publish")
        return super().publish(token, staged)

    def configured(self, settings: Any) -> Any:
        return self


def leaving_sink(how: str, where: str) -> LeavingSink:
    made = type("Made", (LeavingSink,), {"how": how, "where": where})
    return made()


def rows(how: str = "") -> Callable[[], Iterator[dict[str, int]]]:
    def read() -> Iterator[dict[str, int]]:
        yield from ({"k": i % 3, "v": i} for i in range(100))
        if how:
            leave(how)

    return read


def topology_of(place: str, how: str) -> whale.Topology:
    topology = whale.Topology("leaving")
    kind, _, where = place.partition(" ")
    source = whale.sources.iterable(rows(how if kind == "source" else ""), bounded=True)
    stream: Any = topology.source(source, id="rows", event_time="v", event_time_unit="ms")
    match kind:
        case "map":
            stream = stream.map(lambda row: leave(how), id="leaves")
        case "filter":
            stream = stream.filter(lambda row: leave(how), id="leaves")
        case "flat_map":
            stream = stream.flat_map(lambda row: leave(how), id="leaves")
        case "map_batches":
            stream = stream.map(whale.columns(lambda batch: leave(how)), id="leaves")
        case "process":
            stream = stream.shuffle().process(lambda: Leaves(how, where), id="leaves")
        case "on_row":
            stream = stream.shuffle().process(lambda: LeavesRows(how), id="leaves")
        case "partition_by":
            stream = stream.partition_by(lambda batch, n: leave(how))
            stream = stream.process(lambda: Leaves("", ""), id="next", parallelism=2)
    sink = leaving_sink(how, where) if kind == "sink" else whale.sinks.collect()
    stream.sink(sink, id="out")
    return topology


PLACES = {
    "source": "rows",
    "map": "leaves",
    "filter": "leaves",
    "flat_map": "leaves",
    "map_batches": "leaves",
    "on_row": "leaves",
    "process open": "leaves",
    "process batch": "leaves",
    "process watermark": "leaves",
    "process close": "leaves",
    "partition_by": "rows",
    "sink prepare": "out",
    "sink open": "out",
    "sink write": "out",
    "sink stage": "out",
    "sink publish": "out",
}
RAISED = {
    "interrupt": "KeyboardInterrupt: no more",
    "exit": "SystemExit: 3",
    "generator": "GeneratorExit: no more",
    "memory": "MemoryError: no more",
    "own": "Leave: no more",
}


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_in_user_code_is_reported_as_its_error(place: str) -> None:
    with pytest.raises(whale.errors.UserFunctionError) as caught:
        run(topology_of(place, "interrupt"))
    assert "KeyboardInterrupt: no more" in str(caught.value)
    assert f"in operator {PLACES[place]!r}, instance 0" in str(caught.value)


@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize("place", ["map", "process batch"])
def test_any_exception_of_user_code_is_reported_as_its_error(place: str, how: str) -> None:
    with pytest.raises(whale.errors.UserFunctionError) as caught:
        run(topology_of(place, how))
    assert RAISED[how] in str(caught.value)


@pytest.mark.parametrize("place", ["source", "map", "sink publish"])
def test_in_a_worker_it_ends_the_job_without_a_restart(place: str, no_leaks: None) -> None:
    job = submit(topology_of(place, "interrupt"), on="processes", workers=1)
    with pytest.raises(whale.errors.UserFunctionError, match="KeyboardInterrupt: no more"):
        job.wait(60)
    assert job.metrics().attempt == 0
