"""Retention that removes messages of a topic while its partitions are about to be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from tests.operators.kafka.kafka_cluster import mock_cluster
from tests.operators.kafka.reading import numbers, rows_of
from whale_ray import sources
from whale_ray.errors import InputError
from whale_ray.operators.kafka.partitions import Partition
from whale_ray.testing.driving import instance_context
from whale_ray.transport.clock import SystemClock


@pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
def test_a_beginning_that_moves_before_anything_was_read_is_the_beginning(policy: Any) -> None:
    with mock_cluster() as cluster:
        topic = cluster.topic()
        cluster.write(topic, numbers(0, 20))
        source = sources.kafka(
            topic, cluster.servers, schema={"n": "int64"}, end="latest", on_expired=policy
        ).materialize(cluster=False)
        reader: Any = source.open(instance_context(clock=SystemClock()))
        cluster.expire(topic, 1, 3)
        # What the client says where it had asked for the beginning before that.
        error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._AUTO_OFFSET_RESET)
        reader._handle(
            SimpleNamespace(topic=lambda: topic, partition=lambda: 1, error=lambda: error), {}
        )
        found = sorted(row["n"] for row in rows_of(reader))
        assert found == [n for n in range(20) if n not in (1, 5, 9)]
        assert reader.rejected == {}
        reader.close()


def test_an_expired_message_is_told_though_no_broker_says_what_is_left() -> None:
    with mock_cluster() as cluster:
        topic = cluster.topic()
        cluster.write(topic, numbers(0, 20))
        source = sources.kafka(topic, cluster.servers, schema={"n": "int64"})
        reader: Any = source.materialize(cluster=False).open(instance_context(clock=SystemClock()))
        rows_of(reader, rows=20)

        def no_answer(*_: object, **__: object) -> None:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(-195))

        reader._consumer, consumer = (
            SimpleNamespace(get_watermark_offsets=no_answer),
            reader._consumer,
        )
        with pytest.raises(InputError, match="offset 5, is not there; the topic's retention"):
            reader._expire(Partition(topic, 1), reader._reading[Partition(topic, 1)])
        reader._consumer = consumer
        reader.close()
