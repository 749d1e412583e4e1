"""librdkafka's own stand-in of a cluster, which the client runs in this process.

It serves topics (four partitions each), offsets, headers, timestamps, retention, brokers that
fail. It proves NOTHING about transactions: it shows rows of aborted ones, fences nobody, and keeps
no offsets that a transaction commits. What the sink does with those is proved against a model of
the broker's rules (`broker_model`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka

PARTITIONS = 4
_numbers = itertools.count()


class MockCluster:
    """A cluster; `servers` is its address. Its topics come into being when they are asked for."""

    def __init__(self, brokers: int = 1) -> None:
        # The cluster lives as long as this client.
        self._client = confluent_kafka.Producer(
            {"bootstrap.servers": "none", "test.mock.num.brokers": brokers, "log_level": 2}
        )
        found = self._client.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{one.host}:{one.port}" for one in found)

    def topic(self) -> str:
        """Return the name of a new topic without messages."""
        name = f"topic-{next(_numbers)}"
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers})
        producer.list_topics(name, timeout=10)
        return name

    def write(self, topic: str, messages: Sequence[dict[str, Any]]) -> None:
        """Write messages, given as `Producer.produce` takes them."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 1})
        for message in messages:
            producer.produce(topic, **message)
        assert producer.flush(10) == 0


@contextmanager
def mock_cluster(brokers: int = 1) -> Iterator[MockCluster]:
    """Run a cluster while the block runs."""
    cluster = MockCluster(brokers)
    yield cluster
    cluster._client = None
