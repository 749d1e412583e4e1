"""Arguments of a wrong type are refused where they are passed, in one line that names them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from whale_ray import sinks, sources
from whale_ray.configs.errors import UsageError
from whale_ray.testing.hosts import RayNodes

NO: Any = "no"
ONE: Any = 1


class Pass(whale.Process):
    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


def numbers() -> whale.Stream:
    return whale.Topology("t").source(sources.iterable([{"a": 1, "b": 2}]), id="numbers")


def collected() -> whale.Topology:
    topology = whale.Topology("t")
    topology.source(sources.iterable([{"a": 1, "b": 2}])).sink(sinks.collect(), id="out")
    return topology


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("given", ["no", 0, None])
@pytest.mark.parametrize("sink", [sinks.csv, sinks.json_lines, sinks.parquet])
def test_a_sink_takes_only_true_or_false_for_overwrite(
    sink: Any, given: object, tmp_path: Path
) -> None:
    said = refusal(lambda: sink(tmp_path / "out", overwrite=given))
    assert said == f"sinks.{sink.__name__}(overwrite=…) got {given!r}: pass True or False"


@pytest.mark.parametrize("given", ["zip", 5, None, "lzo"])
def test_a_parquet_sink_takes_the_compressions_that_pyarrow_has(given: Any) -> None:
    wanted = "'zstd', 'snappy', 'gzip', 'lz4', 'brotli' or 'none'"
    said = refusal(lambda: sinks.parquet("out", compression=given))
    assert said == f"sinks.parquet(compression=…) got {given!r}: pass {wanted}"


@pytest.mark.parametrize("given", ["zstd", "snappy", "gzip", "lz4", "brotli", "none", "ZSTD"])
def test_each_compression_is_one_of_pyarrows(given: str, tmp_path: Path) -> None:
    topology = whale.Topology("t")
    rows = topology.source(sources.iterable([{"a": 1}]))
    rows.sink(sinks.parquet(tmp_path / "out", compression=given))
    assert whale.run(topology).results().rows == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: whale.run(collected(), optimize=NO),
            "run(optimize=…) got 'no': pass True or False",
        ),
        (
            lambda: whale.submit(collected(), on="processes", optimize=ONE),
            "submit(optimize=…) got 1: pass True or False",
        ),
        (
            lambda: sources.iterable([{"a": 1}], bounded=NO),
            "iterable(bounded=…) got 'no': pass True or False",
        ),
        (
            lambda: numbers().group_by("a").top_n(1, "b", with_ties=NO, id="most"),
            "operator 'most': with_ties is 'no': pass True or False",
        ),
        (
            lambda: numbers().key_by("a").process(Pass, event_time_order=NO, id="pass"),
            "operator 'pass': event_time_order is 'no': pass True or False",
        ),
        (lambda: sinks.collect(True), "collect(max_bytes=…) got True: pass a number of bytes"),
        (
            lambda: sources.growing_folder("in", "csv", poll_ms=True),
            "growing_folder(poll_ms=…) got True: pass milliseconds",
        ),
    ],
)
def test_what_is_true_or_false_is_told_from_what_is_not(call: Callable[[], Any], said: str) -> None:
    assert refusal(call) == said


A_STREAM = "pass a stream such as sys.stderr"
A_FUNCTION = "pass a function (metrics) → str"
PLACES = "pass a list of HostPlace objects, one for each host"
ROWS = "pass a whole number of rows, from 0 on"
FOLDER = "pass a folder, or a URL such as 's3://bucket/trips'"
IDS = "pass the ids of the operators whose state is to be discarded"


def run(**given: Any) -> Callable[[], Any]:
    return lambda: whale.run(collected(), **given)


def submit(**given: Any) -> Callable[[], Any]:
    return lambda: whale.submit(collected(), on="processes", **given)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (run(clock=5), "run(clock=…) got 5: pass a clock, such as whale.testing.VirtualClock()"),
        (run(watch=True), f"run(watch=…) got True: {A_STREAM}"),
        (run(line=5), f"run(line=…) got 5: {A_FUNCTION}"),
        (submit(places=["a"]), f"submit(places=…) got a list: {PLACES}"),
        (submit(places="a"), f"submit(places=…) got 'a': {PLACES}"),
        (submit(places=None), f"submit(places=…) got None: {PLACES}"),
        (submit(places=5), f"submit(places=…) got 5: {PLACES}"),
        (submit(queue="no"), "submit(queue=…) got 'no': pass True or False"),
        (run(restore=5), f"run(restore=…) got 5: {FOLDER}"),
        (run(checkpoints=5), f"run(checkpoints=…) got 5: {FOLDER}"),
        (submit(restore=5), f"submit(restore=…) got 5: {FOLDER}"),
    ],
)
def test_wrong_arguments_of_run_and_submit(call: Callable[[], Any], said: str) -> None:
    assert refusal(call) == said


@pytest.mark.parametrize("name", ["run", "submit"])
def test_restore_without_names_its_function(name: str, tmp_path: Path) -> None:
    on: Any = {} if name == "run" else {"on": "processes"}
    given: Any = {"checkpoints": tmp_path, "restore_without": 5, **on}
    said = refusal(lambda: getattr(whale, name)(collected(), **given))
    assert said == f"{name}(restore_without=…) got 5: {IDS}"


def test_wrong_arguments_of_a_job_and_its_results() -> None:
    job: Any = whale.run(collected())
    for call, said in (
        (lambda: job.wait(watch=True), f"Job.wait(watch=…) got True: {A_STREAM}"),
        (lambda: job.wait(line=5), f"Job.wait(line=…) got 5: {A_FUNCTION}"),
        (
            lambda: job.wait(interval_s="1"),
            "Job.wait(interval_s=…) got '1': pass seconds, from 0 on",
        ),
        (
            lambda: job.results(["a"]),
            "Job.results(sink_id=…) got a list: pass the id of a sink",
        ),
    ):
        assert refusal(call) == said
    for wrong in ("x", None, 1.5, -1, True):
        said = refusal(functools.partial(job.results().preview, wrong))
        assert said == f"preview(rows=…) got {wrong!r}: {ROWS}"
    assert job.results().preview(0) == []


@pytest.mark.parametrize("given", [math.nan, math.inf, -1, -0.5, True, "1"])
@pytest.mark.parametrize("method", ["wait", "stop", "savepoint"])
def test_a_job_waits_for_a_time_or_without_limit(method: str, given: Any) -> None:
    job: Any = whale.run(collected())
    said = refusal(lambda: getattr(job, method)(timeout_s=given))
    wanted = "seconds, from 0 on, or None for no limit"
    assert said == f"Job.{method}(timeout_s=…) got {given!r}: pass {wanted}"


def test_nodes_of_ray_take_a_time_to_start() -> None:
    said = refusal(lambda: RayNodes(ONE, start_timeout_s=math.nan))
    assert said == "RayNodes(start_timeout_s=…) got nan: pass seconds, from 0 on"


@pytest.mark.parametrize("given", [math.nan, math.inf, -1, None])
def test_progress_lines_are_some_time_apart(given: Any) -> None:
    job = whale.run(collected())
    said = refusal(lambda: job.wait(interval_s=given))
    assert said == f"Job.wait(interval_s=…) got {given!r}: pass seconds, from 0 on"


@pytest.mark.parametrize("given", [5, None, 1.5, {"a": 1}, "ab", iter([{"a": 1}])])
def test_rows_of_a_batch_are_a_list(given: Any) -> None:
    said = refusal(lambda: whale.Batch.from_rows(given))
    kind = type(given).__name__
    assert said == f"Batch.from_rows(rows=…) got a {kind}: pass a list of rows"
