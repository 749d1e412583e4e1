"""Carries out the steps of a commit with librdkafka's transactional producer."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...configs.errors import OutputError
from .client import ClientErrors, KafkaCluster
from .commit_protocol import (
    CommitTransaction,
    IfUnknown,
    Initialise,
    ReadRecord,
    Record,
    RecordGoneError,
    Step,
    Write,
    commit_steps,
)
from .producing import MessageWriter

if TYPE_CHECKING:
    from .messages import MessageTable

__all__ = ["TransactionLog"]

_STEP_S = 60.0
_ABORT_S = 5.0
_DEFAULTS = {"transaction.timeout.ms": 300_000}


class TransactionLog:
    """The commits of one sink of one job, or of one writer of it.

    Args:
        cluster: where it is.
        topic: into which rows are written.
        name: the transactional id, and the consumer group that holds the record of commits.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, name: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._name = name

    def commit(self, epoch: int, tables: Iterable[MessageTable], *, if_unknown: IfUnknown) -> bool:
        """Write rows, unless the record says that it was done; return whether they were written.

        Args:
            epoch: the number of the commit.
            tables: the rows.
            if_unknown: what to do if there is no record of an earlier commit.

        Raises:
            OutputError: it cannot be done at present, or it is unknown whether it was, or the
                record is gone.
        """
        with _Transactions(self._cluster, self._topic, self._name) as port:
            steps = commit_steps(epoch, tables, if_unknown=if_unknown)
            answer: int | None = None
            try:
                while True:
                    answer = port.carry_out(steps.send(answer))
            except StopIteration as end:
                return bool(end.value)
            except RecordGoneError:
                raise OutputError(self._gone(epoch)) from None

    def begin(self) -> None:
        """Leave a record before the first commit, unless there is one.

        Raises:
            OutputError: as `commit`.
        """
        self.commit(0, (), if_unknown="write")

    def _gone(self, epoch: int) -> str:
        return (
            f"Kafka at {self._cluster.bootstrap_servers} has no record of what was committed to the"
            f" topic {self._topic!r} (group {self._name!r}; brokers keep it for "
            f"offsets.retention.minutes), so nobody knows whether epoch {epoch} was: look whether "
            "its rows are in the topic, then pass if_unknown='write' or 'skip' to sinks.kafka"
        )


class _Transactions:
    """A producer, and a consumer that reads the record; both are for one commit."""

    def __init__(self, cluster: KafkaCluster, topic: str, name: str) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._cluster, self._topic = cluster, topic
        self._errors = ClientErrors()
        self._record = confluent_kafka.TopicPartition(topic, 0)
        self._consumer = cluster.consumer(
            {
                "group.id": name,
                "enable.auto.commit": False,
                # Makes the client wait for offsets whose transaction is not decided yet (KIP-447).
                "isolation.level": "read_committed",
            },
            self._errors,
        )
        self._producer = cluster.producer(
            {"transactional.id": name, "enable.idempotence": True}, self._errors, _DEFAULTS
        )
        self._open = False

    def __enter__(self) -> _Transactions:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            # So that readers need not wait for its end; the next producer of the id ends it, too.
            with suppress(self._kafka.KafkaException):
                self._producer.purge()
                self._producer.abort_transaction(_ABORT_S)
        self._consumer.close()

    def carry_out(self, step: Step) -> int | None:
        """Carry out one step and return the answer.

        Raises:
            OutputError: it failed, or it is unknown whether it did.
        """
        try:
            match step:
                case Initialise():
                    self._producer.init_transactions(_STEP_S)
                case ReadRecord():
                    return self._recorded()
                case Write(tables):
                    self._write(tables)
                case Record(epoch):
                    self._note(epoch)
                case CommitTransaction():
                    self._producer.commit_transaction(_STEP_S)
                    self._open = False
        except self._kafka.KafkaException as error:
            what = f"cannot commit to the topic {self._topic!r}"
            msg = self._cluster.explain(error.args[0], what, self._errors)
            raise OutputError(msg) from None
        return None

    def _recorded(self) -> int | None:
        (found,) = self._consumer.committed([self._record], timeout=_STEP_S)
        if found.error is not None:
            raise self._kafka.KafkaException(found.error)
        return found.offset if found.offset >= 0 else None

    def _write(self, tables: Any) -> None:
        self._producer.begin_transaction()
        self._open = True
        writer = MessageWriter(self._producer, self._topic)
        for table in tables:
            writer.write(table)
        writer.flush()

    def _note(self, epoch: int) -> None:
        place = self._kafka.TopicPartition(self._topic, 0, epoch)
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([place], group, _STEP_S)
