"""Asks a cluster which partitions there are, and at which offsets a place lies in each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from .client import ANSWER_S, ClientErrors, KafkaCluster
from .partitions import BEGINNING, Partition, Place, Places

if TYPE_CHECKING:
    import confluent_kafka

__all__ = ["Questions", "partitions_of"]


def partitions_of(
    consumer: confluent_kafka.Consumer, topic: str, answer_s: float = ANSWER_S
) -> list[Partition]:
    """Return the partitions of a topic; blocks, for at most `answer_s`.

    Raises:
        confluent_kafka.KafkaException: no broker answers, or the topic is not there.
    """
    import confluent_kafka

    found = consumer.list_topics(topic, timeout=answer_s).topics[topic]
    if found.error is not None:
        raise confluent_kafka.KafkaException(found.error)
    return [Partition(topic, number) for number in sorted(found.partitions)]


class Questions:
    """What is asked once, by the driver, before a job starts."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._errors = ClientErrors()
        self._consumer = cluster.consumer(
            {"group.id": "whale-ray", "enable.auto.commit": False}, self._errors
        )

    def __enter__(self) -> Questions:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def partitions(self, topics: Sequence[str], to: str = "read") -> list[Partition]:
        """Return the partitions of all topics.

        Args:
            topics: their names.
            to: what the topics are asked for, for messages: to read, or to write into.

        Raises:
            InputError: no broker answers, or a topic is not there, or may not be seen.
        """
        import confluent_kafka

        found: list[Partition] = []
        for topic in topics:
            try:
                found += partitions_of(self._consumer, topic)
            except confluent_kafka.KafkaException as error:
                what = f"cannot {to} the topic {topic!r}"
                msg = self._cluster.explain(error.args[0], what, self._errors)
                raise InputError(msg) from None
        return found

    def offsets(
        self, partitions: Collection[Partition], place: Place, name: str
    ) -> dict[Partition, int]:
        """Return the offset of a place in each partition.

        That of a time is of the first message at or after it, else the partition's end.

        Raises:
            InputError: no broker answers, or a list of offsets is not of these partitions.
        """
        import confluent_kafka

        if isinstance(place, Places):
            return place.of(partitions, name)
        if place == "earliest":
            return dict.fromkeys(partitions, BEGINNING)
        try:
            ends = {one: self._end(one) for one in partitions}
            return self._at(place, ends) if isinstance(place, dt.datetime) else ends
        except confluent_kafka.KafkaException as error:
            what = f"cannot find {name}={place!r}"
            msg = self._cluster.explain(error.args[0], what, self._errors)
            raise InputError(msg) from None

    def _end(self, partition: Partition) -> int:
        import confluent_kafka

        asked = confluent_kafka.TopicPartition(*partition)
        _, end = self._consumer.get_watermark_offsets(asked, timeout=ANSWER_S)
        return int(end)

    def _at(self, time: dt.datetime, ends: Mapping[Partition, int]) -> dict[Partition, int]:
        import confluent_kafka

        time_ms = int(time.timestamp() * 1000)
        asked = [confluent_kafka.TopicPartition(*one, time_ms) for one in ends]
        offsets: dict[Partition, int] = {}
        for found in self._consumer.offsets_for_times(asked, timeout=ANSWER_S):
            if found.error is not None:
                raise confluent_kafka.KafkaException(found.error)
            partition = Partition(found.topic, found.partition)
            offsets[partition] = found.offset if found.offset >= 0 else ends[partition]
        return offsets
