"""Arguments of another type are refused where they are passed, by their name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import whale_ray as whale
from whale_ray.configs.errors import UsageError

sources: Any = whale.sources  # as to somebody without a type checker
sinks: Any = whale.sinks
ROWS = {"n": "int64"}


def no_rows() -> list[dict[str, Any]]:
    return []


def run(source: Any, **options: Any) -> None:
    topology = whale.Topology("types")
    topology.source(source, id="in").sink(sinks.collect(), id="out")
    whale.run(topology, **options)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: sources.parquet(5), "Parquet source(path=…) got 5: pass a file"),
        (lambda: sources.csv("a", ROWS, "n"), "csv(columns=…) got 'n': pass a list of names"),
        (lambda: sources.csv("a", "n int"), "schema='n int': pass a mapping"),
        (lambda: sources.growing_folder("a", poll_ms="1 s"), "got '1 s': pass milliseconds"),
        (lambda: sources.iterable(lambda first: []), "calls rows() without arguments"),
        (lambda: sources.iterable(no_rows, resume=no_rows), "takes resume=, a function of a row"),
        (lambda: sources.poisson("5", dict), "rate_per_s=…) got '5': pass a number"),
        (lambda: sources.poisson(5, dict, limit=1.5), "limit=…) got 1.5: pass a whole number"),
        (lambda: sources.poisson(5, lambda rows: {}), "needs a function columns(rows, random)"),
        (lambda: sources.kafka(5, "b"), "kafka(topics=…) got 5: pass a name, or a list of names"),
        (lambda: sources.kafka("t", None), "bootstrap_servers=…) got None: pass 'host:port'"),
        (lambda: sources.kafka("t", "b", config=["a"]), "config=…) got a list: pass a mapping"),
        (lambda: sources.micro_batches(5), "micro_batches(folder=…) got 5: pass the path"),
        (lambda: sources.spark([]), "sources.spark() got a list: pass a DataFrame of Spark"),
        (lambda: sources.ray_dataset([]), "got a list: pass a ray.data.Dataset"),
        (lambda: sinks.csv(5), "sinks.csv(path=…) got 5: pass the path of a folder"),
        (lambda: sinks.collect("1 GB"), "collect(max_bytes=…) got '1 GB': pass a number"),
        (lambda: sinks.kafka("t", "b", key=5), "sinks.kafka(key=…) got 5: pass the name of a"),
        (lambda: sinks.kafka("t", "b", headers=["h"]), "got a list: pass a mapping from names"),
        (lambda: sinks.delta("t", partition_by=5), "partition_by=…) got 5: pass a column, or a"),
        (lambda: sinks.delta("t", compression="lz"), "'lz'): it is one of 'zstd', 'snappy'"),
        (lambda: sinks.postgres("", 5), "postgres(table=…) got 5: pass the name of a table"),
        (lambda: run(sources.iterable(lambda: 5)), "rows() of iterable() returned 5: return a"),
        (lambda: run(sources.iterable([]), checkpoints=5), "checkpoints=…) got 5: pass a folder"),
    ],
)
def test_arguments_of_another_type(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(UsageError) as raised:
        call()
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_numbers_of_numpy_are_numbers() -> None:
    sources.poisson(np.float32(5), lambda rows, random: {}, limit=np.int64(3))
    sinks.collect(np.int64(3))
