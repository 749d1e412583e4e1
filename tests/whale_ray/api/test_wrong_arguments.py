"""Arguments of a wrong type are refused where they are passed, in one line that names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from whale_ray import sinks, sources
from whale_ray.configs.errors import UsageError


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
            lambda: whale.run(collected(), optimize="no"),  # type: ignore[arg-type]
            "run(optimize=…) got 'no': pass True or False",
        ),
        (
            lambda: whale.submit(collected(), on="processes", optimize=1),  # type: ignore[arg-type]
            "submit(optimize=…) got 1: pass True or False",
        ),
        (
            lambda: sources.iterable([{"a": 1}], bounded="no"),  # type: ignore[arg-type]
            "iterable(bounded=…) got 'no': pass True or False",
        ),
        (
            lambda: numbers().group_by("a").top_n(1, "b", with_ties="no", id="most"),  # type: ignore[arg-type]
            "operator 'most': with_ties is 'no': pass True or False",
        ),
        (
            lambda: numbers().key_by("a").process(Pass, event_time_order="no", id="pass"),  # type: ignore[arg-type]
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
