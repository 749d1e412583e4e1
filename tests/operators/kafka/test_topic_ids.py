"""Topics that were deleted and created anew between two runs, told by their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

import whale_ray as whale
from tests.operators.kafka.kafka_cluster import PARTITIONS, MockCluster, mock_cluster
from whale_ray import sources
from whale_ray.configs.errors import InputError
from whale_ray.operators.kafka.client import KafkaCluster
from whale_ray.operators.snapshots import Position
from whale_ray.testing.driving import instance_context


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as one:
        yield one


class NamingAdmin:
    """Answers as brokers do that have ids of topics; `librdkafka`'s stand-in does not."""

    def __init__(self, ids: Mapping[str, confluent_kafka.Uuid | None]) -> None:
        self._ids = ids

    def __enter__(self) -> NamingAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        answers = {name: Future[Any]() for name in topics.topic_names}
        for name, answer in answers.items():
            topic_id = self._ids[name]
            if topic_id is None:
                error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT)
                answer.set_exception(confluent_kafka.KafkaException(error))
            else:
                answer.set_result(SimpleNamespace(topic_id=topic_id))
        return answers


def test_a_topic_that_was_created_anew_with_as_many_partitions_and_rows(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.topic()
    one, other, unknown = confluent_kafka.Uuid(1, 2), confluent_kafka.Uuid(1, 3), None
    none = confluent_kafka.Uuid(0, 0)  # of brokers that have no ids
    offsets = {str(number): 2 for number in range(PARTITIONS)}

    def resumed(topic_id: confluent_kafka.Uuid | None, at: Position) -> Position:
        """Return the position of a reader that goes on from another one."""
        admin = NamingAdmin({topic: topic_id})
        monkeypatch.setattr(KafkaCluster, "admin", lambda self, errors: admin)
        source = sources.kafka(topic, cluster.servers, value="bytes").materialize(cluster=False)
        reader = source.open_at(instance_context(), [at])
        position = reader.position()
        reader.close()
        assert position is not None
        return position

    without = {topic: offsets}
    at = resumed(one, without)
    assert at == {topic: {**offsets, "id": str(one)}}
    for known in (one, unknown, none):  # an id that is not told now is kept for the next time
        assert resumed(known, at) == at
    told = rf"^the topic '{topic}' was deleted and created anew since .* another folder of checkp"
    with pytest.raises(InputError, match=told):
        resumed(other, at)
    assert resumed(none, without) == without


@pytest.mark.long
def test_a_job_that_is_resumed_without_its_topology_compares_the_ids_of_now(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = cluster.topic()

    def name(number: int) -> None:
        admin = NamingAdmin({topic: confluent_kafka.Uuid(1, number)})
        monkeypatch.setattr(KafkaCluster, "admin", lambda self, errors: admin)

    name(2)
    topology = whale.Topology("resumed")
    rows = topology.source(sources.kafka(topic, cluster.servers, value="bytes"), id="messages")
    rows.sink(whale.sinks.parquet(tmp_path / "out"), id="out")
    folder = tmp_path / "checkpoints"
    whale.submit(topology, on="processes", workers=1, checkpoints=folder).stop(savepoint=True)
    name(3)
    with pytest.raises(InputError, match=rf"the topic '{topic}' was deleted and created anew"):
        whale.resume(folder).wait(timeout_s=60)
