"""The consumer group that is told what was read, for monitoring."""

from __future__ import annotations

import threading
from typing import Any

import confluent_kafka
import pytest

from tests.operators.kafka.kafka_cluster import PARTITIONS, mock_cluster
from tests.operators.kafka.reading import numbers, rows_of
from whale_ray import sources
from whale_ray.operators.kafka import reader as readers
from whale_ray.testing.driving import instance_context
from whale_ray.transport.clock import SystemClock

PATIENCE_S = 20  # the client itself waits for 45 s, or longer


def read_in_a_group(cluster: Any) -> tuple[str, Any]:
    """Return a topic of 20 rows, and a reader that has read them in the group `shown`."""
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 20))
    source = sources.kafka(topic, cluster.servers, schema={"n": "int64"}, group="shown")
    reader = source.materialize(cluster=False).open(instance_context(clock=SystemClock()))
    rows_of(reader, rows=20)
    return topic, reader


def test_the_group_is_told_as_a_reader_is_closed() -> None:
    with mock_cluster() as cluster:
        topic, reader = read_in_a_group(cluster)
        reader.close()
        asked = confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.servers, "group.id": "shown"}
        )
        places = [confluent_kafka.TopicPartition(topic, one) for one in range(PARTITIONS)]
        assert [one.offset for one in asked.committed(places, timeout=10)] == [5] * PARTITIONS
        asked.close()


def test_brokers_that_are_down_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LEAVING_S", 0.1)
    with mock_cluster() as cluster:
        _, reader = read_in_a_group(cluster)
        cluster.stop_broker(1)
        closing = threading.Thread(target=reader.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive(), "it waits for brokers that are down"
        cluster.start_broker(1)
