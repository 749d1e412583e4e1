"""Stops of a whole job, as service managers and batch systems do it: signals to all its processes.

What a stopped job has read goes beside its output; an earlier output stays as it was.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.api.drivers import endless_driver
from whale_ray.api.submission import run, submit
from whale_ray.operators.sinks.base import Sink
from whale_ray.operators.sinks.collect import CollectSink
from whale_ray.transport.wire import codec

EARLIER = list(range(60_000))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an earlier, complete output."""
    topology = whale.Topology("earlier")
    rows = whale.sources.iterable([{"v": v} for v in EARLIER])
    topology.source(rows, id="rows").sink(whale.sinks.parquet(tmp_path / "out"), id="out")
    run(topology)
    return tmp_path


def values_in(path: Path) -> list[int]:
    return sorted(pq.read_table(path)["v"].to_pylist())


def stopping(
    folder: Path, stop: Callable[[], None], of: int = sys.maxsize, *, overwrite: bool = True
) -> whale.Topology:
    """Return a job over `of` rows that has itself stopped when it reads the sixth of them."""

    def numbers() -> Iterator[dict[str, int]]:
        for number in range(of):
            if number == 5:
                stop()
            yield {"v": number}

    topology = whale.Topology("stopping")
    rows = whale.sources.iterable(numbers, bounded=True)
    sink = whale.sinks.parquet(folder / "out", overwrite=overwrite)
    topology.source(rows, id="rows").sink(sink, id="out")
    return topology


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


SHORT = {"runtime.poll_interval_ms": 1, "runtime.source_batch_rows": 10}


def test_what_a_stopped_job_has_read_goes_beside_the_earlier_output(
    folder: Path, no_leaks: None
) -> None:
    job = run(stopping(folder, terminate), settings=SHORT)
    result = job.results("out")
    assert (job.state, result.partial) == ("drained", True)
    assert result.path == str(folder / "out.partial")
    assert values_in(folder / "out.partial") == list(range(result.rows))
    assert result.to_arrow()["v"].to_pylist() == list(range(result.rows))
    assert values_in(folder / "out") == EARLIER
    assert sorted(path.name for path in folder.iterdir()) == ["out", "out.partial"]


def test_a_job_that_is_stopped_while_it_starts_drains_what_it_has_read_by_then(
    folder: Path, no_leaks: None
) -> None:
    job = submit(stopping(folder, lambda: None), on="processes", workers=2, settings=SHORT)
    assert job.stop(timeout_s=150).state == "drained"
    result = job.results("out")
    assert result.path == str(folder / "out.partial")
    rows = result.to_arrow().to_pylist()  # maybe none: then no column is known
    assert [row["v"] for row in rows] == list(range(result.rows))
    assert values_in(folder / "out") == EARLIER


def test_a_submission_that_is_interrupted_leaves_no_job_that_nobody_could_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "job stopping":
            begun.append(thread)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        submit(stopping(folder, lambda: None), on="processes", workers=1, settings=SHORT)
    (thread,) = begun
    thread.join(60)
    assert not thread.is_alive()  # else it reads on, without end
    assert [path.name for path in folder.iterdir()] == ["out"]
    assert values_in(folder / "out") == EARLIER


def test_output_without_the_rows_that_a_signal_left_unread_is_not_taken_for_complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The signal comes while functions are compiled, which takes long: nothing was read by then."""
    topology = whale.Topology("starting")
    rows = topology.source(whale.sources.iterable([{"v": 1}, {"v": 2}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    with monkeypatch.context() as patched:
        patched.setattr(codec, "warm_up", terminate)
        job = run(topology)
    assert (job.state, job.results("out").rows) == ("drained", 0)
    said = [one.getMessage() for one in caplog.records]
    assert [("'starting'" in text, "'out': 0 rows" in text) for text in said] == [(True, True)]
    caplog.clear()
    assert run(topology).results("out").rows == 2
    stopped = submit(stopping(folder, lambda: None), on="processes", workers=1, settings=SHORT)
    assert stopped.stop(timeout_s=150).state == "drained"
    assert not [one for one in caplog.records if "end of its input" in one.getMessage()]  # asked


def test_a_drained_job_is_not_said_to_have_a_complete_output(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"checkpoints": tmp_path / "kept", "settings": SHORT}
    assert run(stopping(tmp_path, terminate), **kept).state == "drained"
    told = r"has ended behind its checkpoint \d+, and it was drained: .*job.stop\(savepoint=True\)"
    with pytest.raises(whale.errors.UsageError, match=told):
        run(stopping(tmp_path, terminate), restore="latest", **kept)


def test_a_stop_after_everything_was_read_leaves_a_complete_output(folder: Path) -> None:
    job = run(stopping(folder, terminate, of=100))
    result = job.results("out")
    assert (job.state, result.partial, result.path) == ("finished", False, str(folder / "out"))
    assert values_in(folder / "out") == list(range(100))


def test_a_partial_output_takes_the_place_of_the_earlier_one_if_that_is_asked_for(
    folder: Path,
) -> None:
    job = run(stopping(folder, terminate), settings={**SHORT, "runtime.partial_output": "replace"})
    result = job.results("out")
    assert (result.partial, result.path) == (True, str(folder / "out"))
    assert values_in(folder / "out") == list(range(result.rows))
    assert [path.name for path in folder.iterdir()] == ["out"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_partial_outputs_replace_each_other_only_where_overwriting_was_asked_for(
    tmp_path: Path, overwrite: bool
) -> None:
    topology = stopping(tmp_path, terminate, overwrite=overwrite)
    first, second = (run(topology, settings=SHORT).results("out") for _ in range(2))
    names = ["out.partial"] if overwrite else ["out.partial", "out.partial-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert first.path == str(tmp_path / names[0])
    assert second.path == str(tmp_path / names[-1])
    assert values_in(tmp_path / names[-1]) == list(range(second.rows))


def test_what_no_sink_wrote_is_left_alone_beside_the_output_too(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "notes.txt").write_text("mine")
    result = run(stopping(tmp_path, terminate), settings=SHORT).results("out")
    assert result.path == str(tmp_path / "out.partial-2")
    assert (tmp_path / "out.partial" / "notes.txt").read_text() == "mine"


def test_a_second_signal_ends_a_function_of_the_user_and_is_not_its_error(
    folder: Path, no_leaks: None
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(stopping(folder, twice))
    assert values_in(folder / "out") == EARLIER
    assert [path.name for path in folder.iterdir()] == ["out"]


class AppendsOnly(CollectSink):
    """A sink that does not say what becomes of a part of its rows."""

    publish_partial = Sink.publish_partial


def test_a_sink_that_cannot_tell_parts_of_its_input_from_all_of_it_publishes_neither() -> None:
    topology = whale.Topology("stopping")

    def numbers() -> Iterator[dict[str, int]]:
        terminate()
        yield from ({"v": number} for number in range(sys.maxsize))

    rows = whale.sources.iterable(numbers, bounded=True)
    topology.source(rows, id="rows").sink(AppendsOnly(), id="out")
    with pytest.raises(whale.errors.OutputError, match="give it publish_partial"):
        run(topology, settings=SHORT)
    replaced = run(topology, settings={**SHORT, "runtime.partial_output": "replace"})
    assert replaced.results("out").partial


def endless(sink: Sink) -> whale.Topology:
    """Return an unbounded job that has itself stopped when it reads its sixth row."""

    def numbers() -> Iterator[dict[str, int]]:
        for number in range(sys.maxsize):
            if number == 5:
                terminate()
            yield {"v": number}

    topology = whale.Topology("endless")
    rows = whale.sources.iterable(numbers, bounded=False)
    topology.source(rows, id="rows").sink(sink, id="out")
    return topology


def test_an_unbounded_job_that_was_stopped_has_published_parts_and_says_so(tmp_path: Path) -> None:
    job = run(endless(whale.sinks.parquet(tmp_path / "out")), settings=SHORT)
    assert job.state == "drained"
    read = values_in(tmp_path / "out")
    assert read and read == list(range(len(read)))
    with pytest.raises(whale.errors.UsageError) as caught:
        job.results("out")
    assert str(caught.value) == (
        "job 'endless' keeps no result: it is unbounded, and published parts while it ran; read "
        "them where its sinks wrote them"
    )


@pytest.mark.parametrize("sink", [whale.sinks.collect(), AppendsOnly()])
def test_a_sink_that_publishes_at_the_end_is_refused_for_a_source_without_one(sink: Sink) -> None:
    for start in (run, partial(submit, on="processes")):
        with pytest.raises(whale.errors.OutputError) as caught:
            start(endless(sink))
        assert str(caught.value) == (
            "sink 'out' (collect) publishes once, at the end, but source 'rows' is unbounded: "
            "write to files (parquet, csv, json_lines), or set publishes_parts = True on a sink of "
            "your own that publishes in parts"
        )


@pytest.fixture
def start(folder: Path, no_leaks: None) -> Iterator[Any]:
    """Return a function that starts a driver on so many hosts and waits until rows flow."""
    with ExitStack() as drivers:
        yield lambda hosts: drivers.enter_context(endless_driver(folder / "out", hosts))


@pytest.mark.parametrize("hosts", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_to_all_processes_drains_the_job_once(
    start: Any, folder: Path, number: int, hosts: int
) -> None:
    process = start(hosts)
    members = psutil.Process(process.pid).children(recursive=True)
    for member in (*members, psutil.Process(process.pid)):
        member.send_signal(number)
    told, _ = process.communicate(timeout=150)
    assert process.returncode == 0
    read = values_in(folder / "out.partial")
    path = folder / "out.partial"
    assert told.removeprefix("draining\n") == f"drained 0 {len(read)} {path}\n"
    assert read and read == list(range(len(read)))
    assert values_in(folder / "out") == EARLIER
    _, alive = psutil.wait_procs(members, timeout=60)
    assert alive == []


@pytest.mark.long
def test_a_worker_that_dies_during_a_drain_fails_the_job_and_leaves_the_output(
    start: Any, folder: Path
) -> None:
    process = start(1)
    below = psutil.Process(process.pid).children(recursive=True)
    workers = [one for one in below if one.name().startswith("whale worker")]
    assert len(workers) == 2
    workers[1].suspend()  # so that the drain cannot end before the worker is killed
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "draining\n"
    workers[1].kill()
    told, _ = process.communicate(timeout=150)
    assert "died" in told and "signal 9); the job is not restarted: it was to drain" in told
    assert values_in(folder / "out") == EARLIER
    assert sorted(path.name for path in folder.iterdir()) == ["out"]
