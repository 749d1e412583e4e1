"""Whole jobs that read and write Kafka's topics, on librdkafka's stand-in for a cluster.

It says nothing about transactions (see `tests/operators/kafka`): what is shown here is that source
and sink fit into jobs, with checkpoints and event time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.operators.kafka.kafka_cluster import PARTITIONS, MockCluster, mock_cluster
from whale_ray import functions
from whale_ray.transport.clock import SystemClock

QUICK = {"fetch.wait.max.ms": 10, "linger.ms": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as one:
        yield one


def numbers(first: int, stop: int) -> list[dict[str, Any]]:
    return [
        {"value": b'{"n": %d}' % n, "partition": n % PARTITIONS, "timestamp": 1_000_000 + n}
        for n in range(first, stop)
    ]


def copies(cluster: MockCluster, read: str, written: str, folder: Path, parallelism: int) -> Any:
    """Return the topology that copies a topic into another one, and into files."""
    topology = whale.Topology("copies")
    rows = topology.source(
        whale.sources.kafka(
            read, cluster.servers, schema={"n": "int64"}, columns=["partition"], config=QUICK
        ),
        id="read",
        parallelism=parallelism,
    )
    rows.sink(whale.sinks.parquet(str(folder / "out")), id="files")
    # The stand-in keeps no record of commits, so one that a restored job repeats is written again.
    sink = whale.sinks.kafka(written, cluster.servers, if_unknown="write", config={"linger.ms": 1})
    rows.select("n").sink(sink, id="written")
    return topology


def in_files(folder: Path) -> list[int]:
    tables = [pq.read_table(part) for part in (folder / "out").glob("*.parquet")]
    return sorted(n for table in tables for n in table["n"].to_pylist())


def in_topic(cluster: MockCluster, topic: str) -> set[int]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": "test", "fetch.wait.max.ms": 10}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, one, 0) for one in range(PARTITIONS)])
    found = []
    while messages := consumer.consume(1000, 0.5):
        found += messages
    consumer.close()
    return {json.loads(one.value())["n"] for one in found}


def until(true: Callable[[], bool], what: str) -> None:
    clock = SystemClock()
    end_ns = clock.monotonic_ns() + 60_000_000_000
    while not true():
        assert clock.monotonic_ns() < end_ns, what
        clock.sleep_ns(5_000_000)


def test_a_job_goes_on_from_its_offsets_with_another_parallelism(
    cluster: MockCluster, tmp_path: Path
) -> None:
    read, written = cluster.topic(), cluster.topic()
    options: dict[str, Any] = {
        "on": "processes",
        "checkpoints": tmp_path / "state",
        "checkpoint_interval": "50 milliseconds",
    }
    cluster.write(read, numbers(0, 100))
    first = whale.submit(copies(cluster, read, written, tmp_path, 2), workers=2, **options)
    until(lambda: len(in_files(tmp_path)) == 100, "the first rows are not visible")
    cluster.write(read, numbers(100, 150))
    until(lambda: first.metrics().operator("read").rows_in == 150, "the next rows do not come")
    behind = first.metrics().operator("read").gauges["rows behind"]
    assert behind.keys() == {f"{read}/{number}" for number in range(PARTITIONS)}
    first.stop(savepoint=True, timeout_s=60)
    cluster.write(read, numbers(150, 200))
    second = whale.submit(
        copies(cluster, read, written, tmp_path, 3), workers=3, restore="latest", **options
    )
    until(lambda: len(in_files(tmp_path)) >= 200, "the last rows are not visible")
    second.stop(savepoint=True, timeout_s=60)
    assert in_files(tmp_path) == list(range(200))
    assert in_topic(cluster, written) == set(range(200))


def test_partitions_that_are_far_apart_in_event_time(cluster: MockCluster) -> None:
    """One after another, the rows of all partitions but the first would be late."""
    topic = cluster.topic()
    hour_ms = 3_600_000
    messages = [
        {"value": b"{}", "partition": partition, "timestamp": start_ms + 1000 * number}
        for partition, start_ms in enumerate((4 * hour_ms, hour_ms, 2 * hour_ms, 3 * hour_ms))
        for number in range(600)
    ]
    cluster.write(topic, messages)
    topology = whale.Topology("windows")
    source = whale.sources.kafka(
        topic,
        cluster.servers,
        schema={"n": "int64"},
        columns=["timestamp"],
        end="latest",
        config=QUICK,
    )
    rows = topology.source(source, id="read", event_time="timestamp", on_late="fail")
    counts = rows.group_by(whale.window("timestamp", "5 minutes")).agg(
        functions.count().alias("rows")
    )
    counts.sink(whale.sinks.collect(), id="counts")
    found = whale.run(topology).results("counts").to_arrow().to_pydict()
    starts = [one.timestamp() * 1000 for one in found["window_start"]]
    expected = [hour * hour_ms + half * 300_000 for hour in range(1, 5) for half in range(2)]
    assert sorted(starts) == expected
    assert found["rows"] == [300] * 8
