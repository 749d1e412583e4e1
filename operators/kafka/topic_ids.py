"""The ids that brokers give topics: one that is deleted and created anew has another id.

Offsets of a topic say nothing about another one of its name. So positions hold its id, and a job
that goes on compares it. Brokers before Kafka 2.8 tell none, nor does a cluster that has no
controller at present: then nothing is compared, and the id that positions have is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from .client import ClientErrors, KafkaCluster

if TYPE_CHECKING:
    from ..snapshots import Position

__all__ = ["ID", "ids_in", "refuse_other_topics", "topic_ids"]

ID = "id"
"""Beside the partitions of a topic in a position: the topic's id."""

_ANSWER_S = 5.0


def topic_ids(cluster: KafkaCluster, topics: Sequence[str]) -> dict[str, str]:
    """Return the ids of topics, as Kafka's tools show them; those that brokers do not tell lack.

    Blocks, for at most `_ANSWER_S`.
    """
    import confluent_kafka

    names = confluent_kafka.TopicCollection(list(topics))
    found: dict[str, str] = {}
    # An answer that raised refers to itself by its traceback: it would keep the client open.
    with cluster.admin(ClientErrors()) as admin:
        answers = admin.describe_topics(names, request_timeout=_ANSWER_S)
        for topic, answer in answers.items():
            with suppress(confluent_kafka.KafkaException):
                known = answer.result().topic_id
                bits = known.get_most_significant_bits(), known.get_least_significant_bits()
                if any(bits):
                    found[topic] = str(known)
    return found


def ids_in(positions: Iterable[Position]) -> dict[str, str]:
    """Return the ids of topics that positions have."""
    return {
        topic: partitions[ID]
        for position in positions
        for topic, partitions in position.items()
        if ID in partitions
    }


def refuse_other_topics(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise InputError if a topic has another id than it had."""
    for topic in sorted(before.keys() & now.keys()):
        if before[topic] != now[topic]:
            msg = (
                f"the topic {topic!r} was deleted and created anew since the checkpoint (its id was"
                f" {before[topic]}, and is {now[topic]}), so the job's offsets are not those of its"
                " messages. Submit the job with another folder of checkpoints, to read it from its"
                " start"
            )
            raise InputError(msg)
