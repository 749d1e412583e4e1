"""librdkafka's own stand-in for a cluster, which runs in threads of this process.

It serves topics, offsets, headers and timestamps, answers with errors, and lets brokers fail and
records expire. It proves NOTHING about transactions: it shows rows of aborted ones, fences nobody,
and keeps no offsets that a transaction commits. What the sink does with those is proved against a
model of the brokers' rules (`broker_model`).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import confluent_kafka

from whale_ray.operators.kafka import topic_ids

PARTITIONS = 4
_PRODUCER = 0
_numbers = itertools.count()


@cache
def _library() -> ctypes.CDLL:
    """Return the librdkafka of the package, which has loaded it already."""
    folder = Path(confluent_kafka.__file__).parent.with_suffix(".libs")
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    pointers = {
        "rd_kafka_new": ctypes.c_void_p,
        "rd_kafka_mock_cluster_new": ctypes.c_void_p,
        "rd_kafka_mock_cluster_bootstraps": ctypes.c_char_p,
    }
    for name, kind in pointers.items():
        getattr(library, name).restype = kind
    return library


class MockCluster:
    """A cluster of brokers 1, 2, …; `servers` is its address."""

    def __init__(self, brokers: int = 1) -> None:
        library = _library()
        self._client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, None, None, 0))
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._client, brokers))
        self.servers = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def topic(self, brokers: int = 1) -> str:
        """Create a topic and return its name; partitions are led by the brokers in turn."""
        name = f"topic-{next(_numbers)}"
        self._call("topic_create", name.encode(), PARTITIONS, 1)
        for partition in range(PARTITIONS):
            self._call("partition_set_leader", name.encode(), partition, 1 + partition % brokers)
        return name

    def create_anew(self, topic: str, partitions: int) -> None:
        """Delete a topic and create it again, with another number of partitions."""
        self.delete(topic)
        self._call("topic_create", topic.encode(), partitions, 1)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._call("topic_delete", topic.encode())

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Remove the messages of a partition before an offset."""
        self._call("partition_delete_records", topic.encode(), partition, ctypes.c_int64(before))

    def stop_broker(self, broker: int) -> None:
        """Disconnect everybody from a broker, and let nobody connect."""
        self._call("broker_set_down", broker)

    def start_broker(self, broker: int) -> None:
        """Let clients connect again."""
        self._call("broker_set_up", broker)

    def fail_topic(self, topic: str, error: int) -> None:
        """Answer questions about a topic with an error."""
        self._call("topic_set_error", topic.encode(), error, answers=False)

    def fail_requests(self, kind: int, *errors: int) -> None:
        """Answer the next requests of a kind with errors."""
        codes = (ctypes.c_int * len(errors))(*errors)
        count = ctypes.c_size_t(len(errors))
        self._call("push_request_errors_array", kind, count, codes, answers=False)

    def write(self, topic: str, messages: Sequence[dict[str, Any]]) -> None:
        """Write messages, given as `Producer.produce` takes them."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 1})
        for message in messages:
            producer.produce(topic, **message)
        assert producer.flush(10) == 0

    def close(self) -> None:
        """Stop all brokers."""
        _library().rd_kafka_mock_cluster_destroy(self._cluster)
        _library().rd_kafka_destroy(self._client)

    def _call(self, name: str, *arguments: Any, answers: bool = True) -> None:
        found = getattr(_library(), f"rd_kafka_mock_{name}")(self._cluster, *arguments)
        assert not (answers and found), f"{name}: error {found}"


@contextmanager
def mock_cluster(brokers: int = 1) -> Iterator[MockCluster]:
    """Run a cluster while the block runs."""
    cluster = MockCluster(brokers)
    try:
        # Its brokers name no controller, for which the question for a topic's id would wait.
        with patch.object(topic_ids, "_ANSWER_S", 0.01):
            yield cluster
    finally:
        cluster.close()
