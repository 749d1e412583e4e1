"""The sinks of a Kafka topic: exactly once by transactions, or at least once without them.

Exactly once: a writer makes messages of its rows and keeps them. What it has staged for an epoch
is part of the checkpoint (`Staged.payload`); once the epoch counts, the coordinator writes the
messages of all instances in one transaction, together with a record of the commit. How that works
when any of it fails, and why no transaction stays open from the marker to the commit, is told in
`operators.kafka.commit_protocol`.

At least once: messages are sent as rows come, and a checkpoint waits until all have arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...configs.errors import InputError, OutputError, UsageError
from ..arguments import check_bool, check_type
from ..kafka.client import ClientErrors, KafkaCluster
from ..kafka.commit_protocol import IfUnknown
from ..kafka.messages import Encode, MessageFormat, MessageTable
from ..kafka.offsets import Questions
from ..kafka.producing import SILENT_S, MessageWriter
from ..kafka.transactions import TransactionLog
from .base import CommitId, Delivery, Sink, SinkResult, SinkWriter, Staged
from .cut_output import CutOutput
from .row_buffer import RowBuffer

if TYPE_CHECKING:
    from typing import Self

    import confluent_kafka
    import pyarrow as pa

    from ...configs.settings import Settings
    from ...transport.wire.batch import Batch
    from ..process import InstanceContext

_log = logging.getLogger(__name__)

_PUBLICATION = 1
_BYTES_MAX = 512 << 20
_RENEW_NS = 86_400 * 1_000_000_000
_TRIES = 3


@dataclass(frozen=True)
class KafkaResult(SinkResult):
    """The messages that a job wrote to a topic; they are not read again.

    Attributes:
        topic: the topic.
    """

    topic: str = ""

    @property
    def whereabouts(self) -> str:
        """Where the rows are, in words."""
        return f"in the topic {self.topic}"

    def preview(self, rows: int = 5) -> list[dict[str, Any]]:
        """Return no rows."""
        return []

    def to_arrow(self) -> pa.Table:
        """Raise `UsageError`: the rows are messages of the topic."""
        msg = f"the rows are messages of the topic {self.topic!r}: read it with sources.kafka"
        raise UsageError(msg)


@dataclass(frozen=True)
class _KafkaSink(Sink):
    """What both sinks share."""

    cluster: KafkaCluster
    topic: str
    format: MessageFormat
    operator_id: str = ""

    publishes_parts: ClassVar[bool] = True
    staged_as = "kafka"

    def for_operator(self, operator_id: str) -> Self:
        """See `Sink.for_operator`: the record of commits is one operator's."""
        return replace(self, operator_id=operator_id)

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Look whether the topic is there, before rows are read for it."""
        self.check_reachable()

    def check_reachable(self) -> None:
        """Look whether the topic is there; see `Sink.check_reachable`."""
        with Questions(self.cluster) as ask:
            try:
                ask.partitions([self.topic], to="write into")
            except InputError as error:
                raise OutputError(str(error)) from None

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Publish the rows so far: messages are added, never replaced."""
        return self.publish(token, staged)

    def describe(self) -> str:
        """Return the topic, and where it is."""
        return f"kafka {self.topic} at {self.cluster.bootstrap_servers}"

    def _result(self, staged: Sequence[Staged]) -> SinkResult:
        return KafkaResult(
            rows=sum(part.rows for part in staged),
            nbytes=sum(part.nbytes for part in staged),
            topic=self.topic,
        )


@dataclass(frozen=True)
class TransactionalKafkaSink(_KafkaSink):
    """Writes the rows of an epoch, or of a bounded job, in one transaction.

    Attributes:
        max_bytes: how much an instance may keep until the next epoch.
        if_unknown: what to do if the brokers have forgotten whether an epoch was committed.
    """

    max_bytes: int | None = None
    if_unknown: IfUnknown = "fail"

    delivery: ClassVar[Delivery | None] = "exactly once"

    def configured(self, settings: Settings) -> Self:
        """Return this sink with `runtime.collect_bytes_max` as its limit."""
        return replace(self, max_bytes=settings.runtime.collect_bytes_max)

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Look for the topic; leave a record before the first epoch.

        So a record that is lost can be told from none.
        """
        super().prepare(token, bounded=bounded)
        if not bounded:
            self.log(token).begin()

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Fence producers of an earlier attempt; nothing of theirs can be committed any more.

        Without rows of this job that wait for their commit, a record that is gone is left anew.
        """
        super().prepare(token, bounded=bounded)
        if not bounded and all(origin["job"] != token for _, origin in _opened(staged)):
            self.log(token).begin()

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's buffer."""
        return TransactionalWriter(self, context, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Write all rows in one transaction, unless it was done; see `Sink.publish`."""
        tables = [table for table, _ in _opened(staged)]
        if tables:
            self.log(token).commit(_PUBLICATION, tables, if_unknown="write")
        return self._result(staged)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        """Write an epoch's rows in one transaction, unless it was done; see `Sink.commit`."""
        if staged:
            tables = [table for table, _ in _opened(staged)]
            self.log(commit.lineage).commit(commit.epoch, tables, if_unknown=self.if_unknown)

    def log(self, job: str, instance: int | None = None) -> TransactionLog:
        """Return the commits of a job, or of one of its writers."""
        name = f"whale-ray.{job}.{self.operator_id}"
        return TransactionLog(
            self.cluster, self.topic, name if instance is None else f"{name}#{instance}"
        )


class TransactionalWriter(SinkWriter):
    """Keeps the messages of one instance until they are staged."""

    def __init__(self, sink: TransactionalKafkaSink, context: InstanceContext, token: str) -> None:
        self._sink = sink
        self._context = context
        self._token = token
        self._max_bytes = _BYTES_MAX if sink.max_bytes is None else sink.max_bytes
        self._buffer: RowBuffer | None = None
        self._parts = 0
        self._staged_ns = context.clock.monotonic_ns()

    def write(self, batch: Batch) -> None:
        """Make messages of the rows and keep them; see `SinkWriter.write`."""
        operator_id = self._context.operator_id
        record = self._sink.format.messages(batch if batch.owned else batch.copy(), operator_id)
        if self._buffer is None:
            self._buffer = RowBuffer(record.schema)
        self._buffer.add(record)
        if self._buffer.nbytes > self._max_bytes:
            self._buffer = None
            msg = (
                f"sink {operator_id!r}: an instance keeps more than {self._max_bytes:,} bytes of "
                "messages until they are committed; take checkpoints more often, raise the "
                "setting runtime.collect_bytes_max, or pass transactional=False"
            )
            raise OutputError(msg)

    def stage(self) -> Staged:
        """Return the messages since the last epoch, as bytes."""
        return self._staged() or Staged(self._context.instance, 0)

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Return the messages since the last epoch; once a day without any, a sign of life.

        It lets the coordinator record a commit again, which brokers forget after some days.
        """
        stage = self.cut_epoch(epoch)
        return None if stage is None else stage()

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """See `SinkWriter.cut_epoch`: messages are made bytes beside the loop."""
        now_ns = self._context.clock.monotonic_ns()
        stage = self._cut()
        if stage is None and self._context.instance == 0:
            if now_ns - self._staged_ns >= _RENEW_NS:
                stage = partial(Staged, 0, 0)
        if stage is not None:
            self._staged_ns = now_ns
        return stage

    def publish_part(self) -> Staged | None:
        """Write the messages since the last call in a transaction of this instance.

        Raises:
            OutputError: it could not be done, also when it was tried again.
        """
        staged = self._staged()
        if staged is None:
            return None
        self._parts += 1
        log = self._sink.log(self._token, self._context.instance)
        tables = [table for table, _ in _opened([staged])]
        first = self._parts == 1
        for tried in range(1, _TRIES + 1):
            try:
                log.commit(self._parts, tables, if_unknown="write" if first else "fail")
                break
            except OutputError:
                if tried == _TRIES:
                    raise
        return replace(staged, payload=None)

    def abort(self) -> None:
        """Drop what was not staged."""
        self._buffer = None

    def _staged(self) -> Staged | None:
        stage = self._cut()
        return None if stage is None else stage()

    def _cut(self) -> Callable[[], Staged] | None:
        """Set the messages since the last call apart; None without any."""
        if self._buffer is None or not self._buffer.rows:
            return None
        buffer, self._buffer = self._buffer, None
        origin = {"job": self._token, "operator": self._context.operator_id}
        return partial(_serialized, self._context.instance, buffer, origin)


def _serialized(instance: int, buffer: RowBuffer, origin: Mapping[str, str]) -> Staged:
    """Return the messages as bytes; the buffer keeps them, since this may have to be done again."""
    payload = MessageTable(buffer.table()).to_bytes(origin)
    return Staged(instance, buffer.rows, buffer.nbytes, payload=payload)


def _opened(staged: Sequence[Staged]) -> list[tuple[MessageTable, dict[str, Any]]]:
    """Return the messages of parts in the order in which they were staged, and their origins."""
    parts = sorted(staged, key=lambda part: (part.epoch or _LAST, part.instance))
    return [MessageTable.of_bytes(part.payload) for part in parts if part.payload is not None]


_LAST = 1 << 62  # what a bounded job stages at its end belongs to no epoch


@dataclass(frozen=True)
class IdempotentKafkaSink(_KafkaSink):
    """Sends rows as they come; the brokers leave out what the client sends again by itself."""

    delivery: ClassVar[Delivery | None] = "at least once"

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Connect one instance's producer."""
        return IdempotentWriter(self, context)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Count the rows, which have been sent."""
        return self._result(staged)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        """Do nothing: the rows have been sent."""

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Look for the topic; rows after the epoch are sent again."""
        self.prepare(token, bounded=bounded)


class _SentRows(CutOutput[Staged]):
    """The rows that one instance has sent for an epoch; complete once all have arrived."""

    def __init__(self, staged: Staged, wait: Callable[[], None]) -> None:
        super().__init__()
        self._staged, self._wait = staged, wait

    def _encode(self) -> None:
        self._wait()

    def _sync(self) -> Staged:
        return self._staged

    def _free(self) -> None:
        """Nothing: the producer, which the writer purges, holds the messages."""


class IdempotentWriter(SinkWriter):
    """Sends the rows of one instance."""

    def __init__(self, sink: IdempotentKafkaSink, context: InstanceContext) -> None:
        self._sink = sink
        self._context = context
        self._errors = ClientErrors()
        self._producer: confluent_kafka.Producer | None = None
        self._messages: MessageWriter | None = None
        self._rows = 0
        self._cut: list[_SentRows] = []

    def write(self, batch: Batch) -> None:
        """Hand the rows to the producer; waits while its queue is full. See `SinkWriter.write`."""
        if not batch.num_rows:
            return
        import pyarrow as pa

        record = self._sink.format.messages(batch, self._context.operator_id)
        table = MessageTable(pa.Table.from_batches([record]))
        if self._messages is None:
            self._producer = self._sink.cluster.producer({"enable.idempotence": True}, self._errors)
            self._messages = MessageWriter(
                self._producer, self._sink.topic, on_silence=self._tell_of_silence
            )
        with self._explained():
            self._messages.write(table)
        self._rows += batch.num_rows

    def stage(self) -> Staged:
        """Wait until all rows have arrived, also those of earlier epochs; return their number."""
        stage = self._cut_rows()
        for sent in self._cut:
            sent.complete()
        return Staged(self._context.instance, 0) if stage is None else stage()

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Wait until all rows have arrived, and return their number."""
        stage = self.cut_epoch(epoch)
        return None if stage is None else stage()

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """See `SinkWriter.cut_epoch`: brokers are waited for beside the loop."""
        return self._cut_rows()

    def publish_part(self) -> Staged | None:
        """Wait until all rows have arrived, and return their number."""
        stage = self._cut_rows()
        return None if stage is None else stage()

    def abort(self) -> None:
        """Drop what was not sent yet; a thread that waits for its arrival is told so."""
        for sent in self._cut:
            sent.drop()
        self._cut.clear()
        if self._producer is not None:
            self._producer.purge()
            self._producer = self._messages = None

    def _cut_rows(self) -> Callable[[], Staged] | None:
        self._cut = [sent for sent in self._cut if not sent.is_complete]
        for earlier in self._cut:
            earlier.check()
        if self._messages is None or not self._rows:
            return None
        rows, self._rows = self._rows, 0
        messages, sent = self._messages, self._messages.cut()

        def wait() -> None:
            with self._explained():
                messages.wait(sent)

        cut = _SentRows(Staged(self._context.instance, rows), wait)
        self._cut.append(cut)
        return cut.complete

    def _tell_of_silence(self) -> None:
        told = self._sink.cluster.silence(self._sink.topic, SILENT_S, self._errors)
        _log.warning("sink %r: %s", self._context.operator_id, told)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of the client into one line."""
        import confluent_kafka

        try:
            yield
        except confluent_kafka.KafkaException as error:
            what = f"cannot write into the topic {self._sink.topic!r}"
            msg = self._sink.cluster.explain(error.args[0], what, self._errors)
            raise OutputError(msg) from None


def kafka(
    topic: str,
    bootstrap_servers: str | Sequence[str],
    *,
    value: Literal["json", "bytes"] | Encode = "json",
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timestamp: str | None = None,
    transactional: bool = True,
    if_unknown: IfUnknown = "fail",
    config: Mapping[str, Any] | None = None,
) -> Sink:
    """Write rows as messages of a topic of Kafka; needs the extra `kafka`.

    **Exactly once** (`transactional=True`), for readers with `isolation.level=read_committed`: a
    bounded job writes all its rows in one transaction at its end, an unbounded one with checkpoints
    those of an epoch once it counts. So rows appear once per `checkpoint_interval`. Until then an
    instance keeps its messages, at most `runtime.collect_bytes_max` bytes, and the checkpoint holds
    them. The transaction also commits the epoch as the offset of a consumer group,
    `whale-ray.JOB.OPERATOR`, from which a repeated commit learns that it was done. Without
    checkpoints, each instance of an unbounded job writes a transaction every
    `runtime.commit_interval_ms`; what was committed before a failure appears again after it.

    **At least once** (`transactional=False`): messages are sent as rows come, with little delay;
    those after the last checkpoint are sent again after a failure.

    Messages with a key go to the partition to which Java's clients send it. Rows of one instance
    keep their order within a partition. The cluster must allow the job to write into the topic,
    and, for transactions, to use groups and transactional ids that begin with `whale-ray.`. A
    transaction must end within its `transaction.timeout.ms` (5 minutes unless `config` says
    otherwise). The brokers keep a group's offset for `offsets.retention.minutes` (a week); a job
    that was down for longer in the middle of a commit is refused, unless `if_unknown` says what to
    do.

    Args:
        topic: its name; it must be there.
        bootstrap_servers: `host:port` of one broker or several.
        value: "json": an object of all columns, but those in `headers`; values as `json_lines`
            writes them. "bytes": the column `value`, binary or text; null makes a tombstone. A
            function: gets a batch, returns the value of each row.
        key: the column of the key; what is neither binary nor text is written as its text.
        headers: header name → column.
        timestamp: the column of messages' times, after 1970-01-01; null: the time of sending.
        transactional: whether rows are written by transactions.
        if_unknown: if the brokers have forgotten whether an epoch was committed: "fail", "write" it
            (maybe again) or "skip" it (maybe it is lost).
        config: settings of the client by librdkafka's names, such as those of TLS and SASL.

    Raises:
        ResourceError: confluent-kafka is not installed.
        UsageError: an argument is not allowed.
        OutputError: while running: a column is missing, no broker answers, the topic is not there
            or may not be written.
    """
    if not topic or not isinstance(topic, str):
        msg = f"sinks.kafka(topic={topic!r}): name one topic"
        raise UsageError(msg)
    if not callable(value) and value not in ("json", "bytes"):
        msg = f"sinks.kafka(value={value!r}): it is 'json', 'bytes' or a function of a batch"
        raise UsageError(msg)
    if if_unknown not in ("fail", "write", "skip"):
        msg = f"sinks.kafka(if_unknown={if_unknown!r}): it is 'fail', 'write' or 'skip'"
        raise UsageError(msg)
    check_bool("sinks.kafka", "transactional", transactional)
    cluster = KafkaCluster.of(bootstrap_servers, config)
    format = _format(value, key, headers, timestamp)
    if not transactional:
        return IdempotentKafkaSink(cluster, topic, format)
    return TransactionalKafkaSink(cluster, topic, format, if_unknown=if_unknown)


def _format(
    value: Literal["json", "bytes"] | Encode,
    key: str | None,
    headers: Mapping[str, str] | None,
    timestamp: str | None,
) -> MessageFormat:
    """Return what becomes of a row; raise `UsageError` for an argument of another type."""
    for name, column in (("key", key), ("timestamp", timestamp)):
        check_type("sinks.kafka", name, column, (str, type(None)), "the name of a column")
    wanted = "a mapping from names of headers to columns"
    check_type("sinks.kafka", "headers", headers, (Mapping, type(None)), wanted)
    return MessageFormat(value, key, tuple((headers or {}).items()), timestamp)
