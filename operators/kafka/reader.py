"""Reads the partitions of one instance, with a consumer that is told what to read.

The consumer joins no group: which instance reads which partition, and from where, is the job's to
decide. It fetches ahead in threads of its own; `read` takes what has come, and never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from ...configs.errors import InputError
from ...configs.units import NS_PER_S
from ..sources.base import SourceReader
from .client import ClientErrors, KafkaCluster
from .new_partitions import PartitionWatch
from .offsets import partitions_of
from .partitions import BEGINNING, Partition, owned, position_of, refuse_lost

if TYPE_CHECKING:
    import confluent_kafka

    from ...transport.wire.batch import Batch
    from ..process import InstanceContext
    from ..snapshots import Position
    from .values import RowFormat

__all__ = ["Expired", "KafkaReader", "ReadingRules"]

Expired = Literal["fail", "earliest", "latest"]

_EXPIRED_ROWS = "removed from the topic before they were read"
_PAUSE_NS = 1_000_000
_PAUSE_NS_MAX = 10_000_000
_GROUP_COMMIT_NS = 5 * NS_PER_S
_BEHIND = "rows behind"
_MEETING_S = 5.0
_LEAVING_S = 5.0


@dataclass(frozen=True)
class ReadingRules:
    """What does not depend on the instance.

    Attributes:
        on_expired: what to do where the next message is not there any more.
        group: the consumer group that is told what was read, for monitoring; None: none is.
        find_partitions_s: how often new partitions are looked for.
        unreachable_s: for how long no broker may answer.
    """

    on_expired: Expired
    group: str | None
    find_partitions_s: float
    unreachable_s: float


@dataclass
class _Reading:
    """A partition that is read: the next offset, and whether the consumer has come to its end."""

    next: int
    end: int | None
    at_end: bool = False
    lost_from: int | None = None  # where the next message was expected, and has expired

    @property
    def done(self) -> bool:
        return self.end is not None and self.next >= self.end


class KafkaReader(SourceReader):
    """Reads partitions from given offsets, to given ends if the source is bounded.

    Args:
        cluster: where it is.
        topics: those of the source, in its order.
        rules: see `ReadingRules`.
        rows: makes rows of messages.
        begins: the first offset of each partition of the instance.
        ends: likewise, where to stop; None: never, and new partitions are looked for.
        context: of the instance.
        ids: of topics; those that the brokers tell.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: Sequence[str],
        rules: ReadingRules,
        rows: RowFormat,
        begins: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None,
        context: InstanceContext,
        ids: Mapping[str, str],
    ) -> None:
        import confluent_kafka

        self._kafka = confluent_kafka
        self._cluster, self._topics, self._rules, self._rows = cluster, topics, rules, rows
        self._context, self._clock = context, context.clock
        self._ids = ids
        self._bounded = ends is not None
        self._reading = {
            partition: _Reading(offset, None if ends is None else ends[partition])
            for partition, offset in begins.items()
        }
        self._rejected: dict[str, int] = {}
        # Messages of a partition, or the offset of its present end; the next ones last.
        self._taken: list[tuple[Partition, Sequence[Any] | int]] = []
        self._split = ""
        self._pause_ns = _PAUSE_NS
        self._told_ns = self._clock.monotonic_ns()
        self._errors = ClientErrors()
        self._consumer: confluent_kafka.Consumer | None = cluster.consumer(
            {
                "group.id": rules.group or f"whale-ray-{context.operator_id}",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            },
            self._errors,
        )
        consumer = self._consumer
        self._watch = PartitionWatch(
            lambda: self._all_partitions(consumer),
            confluent_kafka.KafkaException,
            self._clock,
            int(rules.find_partitions_s * NS_PER_S),
        )
        self._meet_brokers(consumer)
        consumer.assign(self._assignment(p for p, one in self._reading.items() if not one.done))

    def read(self, max_rows: int) -> Batch | None:
        """Return the next rows of one partition; see `SourceReader.read`.

        Raises:
            BadRowError: a message cannot be read and the policy is `fail`.
            InputError: the topic is gone, the next message has expired, the cluster refuses.
        """
        if self._consumer is None:
            return None
        if not self._taken:
            self._look_for_changes()
            self._take(self._consumer.consume(max_rows, 0))
        while self._taken:
            partition, messages = self._taken.pop()
            if isinstance(messages, int):
                self._reach_end(partition, messages)
                continue
            if len(messages) > max_rows:
                self._taken.append((partition, messages[max_rows:]))
                messages = messages[:max_rows]
            batch = self._pass_on(partition, messages)
            if batch is not None:
                self._split = str(partition)
                self._pause_ns = _PAUSE_NS
                return batch
        return None

    @property
    def finished(self) -> bool:
        """Whether all partitions were read to their ends; never if the source is unbounded."""
        return self._bounded and all(one.done for one in self._reading.values())

    def next_ready_ns(self) -> int:
        """Return a time shortly from now, later the longer nothing has come."""
        pause_ns, self._pause_ns = self._pause_ns, min(2 * self._pause_ns, _PAUSE_NS_MAX)
        return self._clock.monotonic_ns() + pause_ns

    def position(self) -> Position:
        """Return the next offset of each partition, and the ids of their topics."""
        offsets = {partition: one.next for partition, one in self._reading.items()}
        return position_of(offsets, self._ids)

    def splits(self) -> Mapping[str, bool]:
        """Return the partitions, and whether each may have rows: not read to its present end."""
        waiting = {partition for partition, _ in self._taken}
        return {
            str(partition): not one.at_end or partition in waiting
            for partition, one in self._reading.items()
            if not one.done
        }

    @property
    def split(self) -> str:
        """The partition of the rows that were returned last."""
        return self._split

    @property
    def rejected(self) -> Mapping[str, int]:
        """The number of rows left out so far, by reason."""
        return self._rejected

    def gauges(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many offsets each partition's end is ahead, as the last answer told it."""
        if self._consumer is None:
            return {}
        behind: dict[str, int] = {}
        for partition, one in self._reading.items():
            try:
                _, end = self._consumer.get_watermark_offsets(
                    self._kafka.TopicPartition(*partition), cached=True
                )
            except self._kafka.KafkaException:
                continue  # nothing was fetched of it yet
            if end >= 0 and one.next >= 0:
                behind[str(partition)] = max(0, end - one.next)
        return {_BEHIND: behind} if behind else {}

    def close(self) -> None:
        """Disconnect; without brokers, commits to the group are waited for only so long."""
        if self._consumer is not None:
            self._watch.close()
            leaving = threading.Thread(
                target=self._leave, args=[self._consumer], name="kafka-leaving", daemon=True
            )
            leaving.start()
            leaving.join(_LEAVING_S)
            self._consumer = None

    def _leave(self, consumer: confluent_kafka.Consumer) -> None:
        """Disconnect; the client first waits for its commits, for minutes, and takes no timeout."""
        if self._rules.group is not None:
            self._commit_to_group(consumer, wait=True)
        consumer.close()

    # --- what the consumer hands over -------------------------------------------------------------

    def _take(self, messages: list[Any]) -> None:
        """Queue messages by partition, in the order of each; handle what is none."""
        of_kind: Any = self._kafka.Message
        places = zip(map(of_kind.topic, messages), map(of_kind.partition, messages), strict=True)
        failed = [one is not None for one in map(of_kind.error, messages)]
        start = 0
        queued: dict[Partition, list[Any]] = {}
        ends: dict[Partition, int] = {}
        for (place, error), run in groupby(zip(places, failed, strict=True)):
            stop = start + sum(1 for _ in run)
            if error:
                for message in messages[start:stop]:
                    self._handle(message, ends)
            else:
                partition = Partition(*place)
                queued.setdefault(partition, []).extend(messages[start:stop])
                ends.pop(partition, None)
                self._reading[partition].at_end = False
            start = stop
        self._taken = [*reversed(ends.items()), *reversed(queued.items())]

    def _handle(self, message: Any, ends: dict[Partition, int]) -> None:
        """Take an error, which may be news of a partition."""
        error = message.error()
        partition = Partition(message.topic(), message.partition())
        reading = self._reading.get(partition)
        if error.code() == self._kafka.KafkaError._PARTITION_EOF:
            ends[partition] = message.offset()
        elif error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET and reading is not None:
            self._expire(partition, reading)
        else:
            self._fail_unless_passing(error)

    def _pass_on(self, partition: Partition, messages: Sequence[Any]) -> Batch | None:
        reading = self._reading[partition]
        first, last = messages[0].offset(), messages[-1].offset()
        self._count_lost(reading, first)
        if reading.end is not None and last >= reading.end:
            messages = [one for one in messages if one.offset() < reading.end]
        reading.next = last + 1
        self._stop_at_end(partition, reading)
        return self._rows.rows(partition, messages, self._rejected) if messages else None

    def _reach_end(self, partition: Partition, offset: int) -> None:
        """Note that there is nothing more at present; what a log holds beside rows is behind."""
        reading = self._reading[partition]
        self._count_lost(reading, offset)
        reading.at_end = True
        reading.next = max(reading.next, offset)
        self._stop_at_end(partition, reading)

    def _count_lost(self, reading: _Reading, found: int) -> None:
        """Count the rows that had expired, once it is known where the topic continues."""
        if reading.lost_from is not None:
            lost = max(0, found - reading.lost_from)
            self._rejected[_EXPIRED_ROWS] = self._rejected.get(_EXPIRED_ROWS, 0) + lost
            reading.next, reading.lost_from = found, None

    def _stop_at_end(self, partition: Partition, reading: _Reading) -> None:
        """Fetch nothing more of a partition that was read to the end of a bounded source."""
        if reading.done and self._consumer is not None:
            reading.next = reading.end or 0
            self._consumer.pause([self._kafka.TopicPartition(*partition)])

    def _expire(self, partition: Partition, reading: _Reading) -> None:
        """Handle that the next message is not there: it was removed, or the topic is another."""
        assert self._consumer is not None
        place = self._kafka.TopicPartition(*partition)
        nothing_read = reading.next == BEGINNING  # retention has moved the beginning meanwhile
        if self._rules.on_expired == "fail" and not nothing_read:
            msg = (
                f"topic {partition.topic!r}, partition {partition.number}: the next message, "
                f"offset {reading.next}, is not there{self._held(place)}; the "
                "topic's retention has removed it, or the topic was created anew. Keep messages "
                "longer, or pass on_expired='earliest' (or 'latest') to go on without them"
            )
            raise InputError(msg)
        reading.lost_from = None if nothing_read else reading.next
        earliest = nothing_read or self._rules.on_expired == "earliest"
        place.offset = self._kafka.OFFSET_BEGINNING if earliest else self._kafka.OFFSET_END
        self._consumer.incremental_unassign([self._kafka.TopicPartition(*partition)])
        self._consumer.incremental_assign([place])

    def _held(self, place: Any) -> str:
        """Return which offsets a partition has, for a message; empty if no broker answers."""
        assert self._consumer is not None
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=5)
        except self._kafka.KafkaException:
            return ""
        return f": the partition holds {low} to {high}"

    # --- the cluster ------------------------------------------------------------------------------

    def _look_for_changes(self) -> None:
        """Take new partitions, tell the group, and find out whether the cluster is there."""
        assert self._consumer is not None
        if self._errors.refused is not None:
            raise InputError(self._explain(self._errors.refused))
        if self._rules.group is not None:
            now_ns = self._clock.monotonic_ns()
            if now_ns - self._told_ns >= _GROUP_COMMIT_NS:
                self._told_ns = now_ns
                self._commit_to_group(self._consumer, wait=False)
        if self._bounded:
            return
        found = self._watch.look()
        if found is not None:
            self._add_new(self._consumer, found)
        error = self._watch.error
        if error is not None:
            self._fail_unless_passing(error)
            if self._watch.failing_ns >= self._rules.unreachable_s * NS_PER_S:
                raise InputError(self._explain(error))

    def _meet_brokers(self, consumer: confluent_kafka.Consumer) -> None:
        """Learn who leads the partitions, which saves half a second of asking where they begin.

        A source without an end also takes the partitions that are there since the job was submitted
        or made its checkpoint: found later, their rows would be behind those of the others.

        Raises:
            InputError: a topic is gone, was created anew, or may not be read.
        """
        try:
            found = self._all_partitions(consumer)
        except self._kafka.KafkaException as error:
            self._fail_unless_passing(error.args[0])  # else the consumer continues trying by itself
            return
        refuse_lost(self._reading, found)
        if not self._bounded:
            self._note_new(found)

    def _all_partitions(self, consumer: confluent_kafka.Consumer) -> list[Partition]:
        return [one for topic in self._topics for one in partitions_of(consumer, topic, _MEETING_S)]

    def _note_new(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Note and return the partitions of this instance that are not read yet."""
        mine = owned(partitions, self._topics, self._context.instance, self._context.parallelism)
        new = [partition for partition in mine if partition not in self._reading]
        self._reading |= {partition: _Reading(BEGINNING, None) for partition in new}
        return new

    def _add_new(
        self, consumer: confluent_kafka.Consumer, partitions: Collection[Partition]
    ) -> None:
        refuse_lost(self._reading, partitions)
        new = self._note_new(partitions)
        if new:
            consumer.incremental_assign(self._assignment(new))

    def _assignment(self, partitions: Iterable[Partition]) -> list[confluent_kafka.TopicPartition]:
        return [
            self._kafka.TopicPartition(*partition, self._reading[partition].next)
            for partition in partitions
        ]

    def _commit_to_group(self, consumer: confluent_kafka.Consumer, *, wait: bool) -> None:
        """Commit what was read to the group, for monitoring alone: nothing depends on it."""
        told = [
            self._kafka.TopicPartition(*partition, one.next)
            for partition, one in self._reading.items()
            if one.next >= 0
        ]
        if not told:
            return
        with suppress(self._kafka.KafkaException):  # the next time tells more
            if wait:
                consumer.commit(offsets=told, asynchronous=False)
            else:
                consumer.commit(offsets=told, asynchronous=True)

    def _fail_unless_passing(self, error: confluent_kafka.KafkaError) -> None:
        """Raise for an error that does not pass by itself."""
        kinds = self._kafka.KafkaError
        lasting = (
            kinds.UNKNOWN_TOPIC_OR_PART,
            kinds._UNKNOWN_TOPIC,
            kinds._UNKNOWN_PARTITION,
            kinds.TOPIC_AUTHORIZATION_FAILED,
            kinds.SASL_AUTHENTICATION_FAILED,
            kinds._AUTHENTICATION,
        )
        if error.code() in lasting or error.fatal():
            raise InputError(self._explain(error))

    def _explain(self, error: confluent_kafka.KafkaError) -> str:
        topics = ", ".join(repr(topic) for topic in self._topics)
        return self._cluster.explain(error, f"cannot read the topic {topics}", self._errors)
