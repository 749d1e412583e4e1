"""The source of Kafka topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from ...configs.errors import InputError
from ..arguments import check_type, names
from ..kafka.client import KafkaCluster
from ..kafka.offsets import Questions
from ..kafka.partitions import BEGINNING, checked_place, owned, positions_in, refuse_lost
from ..kafka.reader import KafkaReader, ReadingRules
from ..kafka.topic_ids import ids_in, refuse_other_topics, topic_ids
from ..kafka.values import RowFormat, take_columns
from .arrow_reader import kept_columns
from .base import Source
from .text_source import check_policy, take_schema

if TYPE_CHECKING:
    import datetime as dt
    from typing import Self

    import pyarrow as pa

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..kafka.partitions import Partition, Place
    from ..kafka.reader import Expired
    from ..process import InstanceContext
    from ..snapshots import Position
    from .base import BadRows, SourceReader
    from .text_source import SchemaLike

_UNREACHABLE_S = 300.0


@dataclass(frozen=True)
class KafkaSource(Source):
    """A source of the messages of topics; partitions are dealt out to instances.

    Attributes:
        cluster: where it is.
        topics: their names.
        rows: makes rows of messages.
        rules: how to read.
        start: where to begin, unless `begins` says it.
        end: where to stop, None for a source without an end.
        begins: the first offset of each partition; asked for once, before the job starts.
        ends: likewise, where to stop.
        ids: of topics, likewise; those that the brokers tell.
    """

    position_kind = "Kafka"

    cluster: KafkaCluster
    topics: tuple[str, ...]
    rows: RowFormat
    rules: ReadingRules
    start: Place
    end: Place | None
    begins: Mapping[Partition, int] | None = None
    ends: Mapping[Partition, int] | None = None
    ids: Mapping[str, str] = field(default_factory=dict)

    has_splits = True

    @property
    def bounded(self) -> bool:  # type: ignore[override]  # it depends on the arguments
        """Whether an end was given."""
        return self.end is not None

    @property
    def on_bad_rows(self) -> BadRows:
        """The policy for values that cannot be read."""
        return self.rows.on_bad_rows

    def schema(self) -> Schema | None:
        """Return the columns; None for a function that does not declare them."""
        return self.rows.schema

    def with_columns_needed(self, columns: frozenset[str]) -> Source:
        """See `Source.with_columns_needed`: other fields are not parsed."""
        schema = self.rows.schema
        if schema is None:
            return self
        return replace(self, rows=self.rows.only(kept_columns(schema, columns)))

    def with_bad_rows(self, policy: BadRows) -> Self:
        """Return this source with another policy for values that cannot be read."""
        return replace(self, rows=replace(self.rows, on_bad_rows=check_policy(policy)))

    def materialize(self, *, cluster: bool) -> Source:
        """Ask the cluster where to begin and to end, so that every attempt reads the same rows."""
        if self.begins is not None:
            return self
        with Questions(self.cluster) as ask:
            partitions = ask.partitions(self.topics)
            begins = ask.offsets(partitions, self.start, "start")
            ends = None if self.end is None else ask.offsets(partitions, self.end, "end")
        return replace(self, begins=begins, ends=ends, ids=topic_ids(self.cluster, self.topics))

    def as_resumed(self) -> Source:
        """Ask for the topics' ids: one may have been created anew since the job was submitted."""
        return replace(self, ids=topic_ids(self.cluster, self.topics))

    def open(self, context: InstanceContext) -> SourceReader:
        """Open the instance's partitions where the source begins."""
        return self._open(context, {}, {})

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open the instance's partitions where all instances had read to.

        A partition that no position has is a new one: it is read from its beginning.

        Raises:
            InputError: a topic was deleted and created anew since then, or is not read any more.
        """
        return self._open(context, positions_in(positions, self.topics), ids_in(positions))

    def _open(
        self, context: InstanceContext, offsets: Mapping[Partition, int], ids: Mapping[str, str]
    ) -> SourceReader:
        ready = self.materialize(cluster=False)
        assert isinstance(ready, KafkaSource)
        assert ready.begins is not None
        refuse_other_topics(ids, ready.ids)
        mine = owned(
            ready.begins.keys() | offsets.keys(), self.topics, context.instance, context.parallelism
        )
        if ready.ends is not None:
            refuse_lost(mine, ready.ends)  # asked for anew, if the job was submitted again
        first = dict.fromkeys(mine, BEGINNING) if offsets else ready.begins
        return KafkaReader(
            self.cluster,
            self.topics,
            self.rules,
            self.rows,
            {partition: offsets.get(partition, first[partition]) for partition in mine},
            None if ready.ends is None else {one: ready.ends[one] for one in mine},
            context,
            {**ids, **ready.ids},
        )

    def describe(self) -> str:
        """Return the topics, where they are, and where reading begins and ends."""
        end = "without an end" if self.end is None else f"to {_told(self.end)}"
        where = f"{', '.join(self.topics)} at {self.cluster.bootstrap_servers}"
        return f"kafka {where}, from {_told(self.start)}, {end}"


def _told(place: Place) -> str:
    return place if isinstance(place, str) else getattr(place, "isoformat", lambda: "offsets")()


def kafka(
    topics: str | Sequence[str],
    bootstrap_servers: str | Sequence[str],
    *,
    value: Literal["json", "bytes"]
    | Callable[[Batch], Batch | pa.RecordBatch | pa.Table | Mapping[str, Any]] = "json",
    schema: SchemaLike | None = None,
    columns: Sequence[str] | Mapping[str, str] = (),
    start: Literal["earliest", "latest"] | dt.datetime | Mapping[Any, Any] = "earliest",
    end: Literal["latest"] | dt.datetime | Mapping[Any, Any] | None = None,
    on_expired: Expired = "fail",
    group: str | None = None,
    find_partitions_s: float = 30.0,
    config: Mapping[str, Any] | None = None,
) -> Source:
    """Read topics of Kafka; needs the extra `kafka`.

    Partitions are dealt out to the source's instances; an instance without one is idle. New
    partitions are found while the job runs, and read from their beginning. With event time, every
    partition has a watermark of its own, and that of an instance is the least of them; with
    `idle_after_ms`, a partition whose end was reached is left out after that time without a row.
    Messages of transactions that were not committed are left out (`read_committed`), unless
    `config` sets `isolation.level`.

    The position of a checkpoint is the next offset of each partition, and the topic's id, if the
    brokers tell it (Kafka 2.8 and later): a job does not go on with a topic that was deleted and
    created anew. Offsets are committed to a
    consumer group only if `group` names one, for monitoring: nothing is read from there.
    `job.metrics()` tells how many rows each partition is behind its end ("rows behind").

    Args:
        topics: one name or several, which have the same columns.
        bootstrap_servers: `host:port` of one broker or several.
        value: "json": one object per message, whose fields `schema` names; other fields are
            ignored, and a message without a value is a row of nulls. "bytes": a binary column
            `value`. A function: gets a batch of the messages of one partition, with the column
            `value` and those of `columns`, and returns the rows.
        schema: the fields of "json", as a `Schema`, an Arrow schema or a mapping such as
            `{"id": "int64", "at": "timestamp[ms]"}`; of a function: the columns of its rows, if
            they are to be known before it runs.
        columns: what else of a message becomes a column: "key" (binary), "topic" (string),
            "partition" (int32), "offset" (int64), "timestamp" (timestamp[ms, tz=UTC]), "headers"
            (a JSON list of [name, value] in a string) and "header:NAME" (binary: the last of this
            name). A mapping gives them other names: `{"order_key": "key"}`.
        start: "earliest", "latest" (of the time of submission), a datetime with a time zone (the
            first message at or after it), or offsets: `{partition: offset}`, with several topics
            `{topic: {partition: offset}}`. A job that is restored begins at its checkpoint.
        end: likewise, where to stop; None: the source has no end.
        on_expired: what to do if the next message was removed before it was read: "fail", or
            continue at the "earliest" or "latest" one that exists; rows left out are counted.
        group: a consumer group to which the offsets are committed, for monitoring.
        find_partitions_s: how often new partitions are looked for, in seconds.
        config: settings of the client by librdkafka's names, such as those of TLS and SASL.

    Raises:
        ResourceError: confluent-kafka is not installed.
        InputError: an argument is not allowed; while planning or running: no broker answers, the
            topic is not there or may not be read, the next message has expired.
        BadRowError: while running: a value is not an object that fits the schema, unless
            `Topology.source` got `on_bad_rows="drop"`.
    """
    topic_names = _checked(topics, on_expired, group, find_partitions_s, end)
    return KafkaSource(
        KafkaCluster.of(bootstrap_servers, config),
        topic_names,
        _rows(value, take_schema(schema), take_columns(columns)),
        ReadingRules(on_expired, group, find_partitions_s, _UNREACHABLE_S),
        checked_place(start, topic_names, "start"),
        None if end is None else checked_place(end, topic_names, "end"),
    )


def _checked(
    topics: object, on_expired: str, group: object, find_partitions_s: float, end: object
) -> tuple[str, ...]:
    """Return the names of the topics; raise `InputError` for an argument that is not allowed."""
    check_type("kafka", "find_partitions_s", find_partitions_s, Real, "seconds")
    check_type("kafka", "group", group, (str, type(None)), "the name of a consumer group")
    if group == "":
        msg = "group='' names no consumer group; leave it out, and none is told what was read"
        raise InputError(msg)
    several = names("kafka", "topics", topics, "a name, or a list of names", or_one=True)
    if not several or not all(several) or len(set(several)) != len(several):
        msg = f"topics={several!r} of the Kafka source must be one name, or several different ones"
        raise InputError(msg)
    if on_expired not in ("fail", "earliest", "latest"):
        msg = f"on_expired={on_expired!r} is unknown; use 'fail', 'earliest' or 'latest'"
        raise InputError(msg)
    if not 0 < find_partitions_s < float("inf"):
        msg = f"find_partitions_s={find_partitions_s} must be above 0, and finite"
        raise InputError(msg)
    if end == "earliest":
        msg = "end='earliest' of the Kafka source leaves no row; pass 'latest', a time or offsets"
        raise InputError(msg)
    return several


def _rows(value: Any, fields: Schema | None, columns: tuple[tuple[str, str], ...]) -> RowFormat:
    from ...transport.wire.types import Schema

    if not callable(value) and value not in ("json", "bytes"):
        near = get_close_matches(str(value), ("json", "bytes"), n=1) or ["json"]
        msg = f"value={value!r} is unknown; did you mean {near[0]!r}? A function decodes others"
        raise InputError(msg)
    if value == "json" and fields is None:
        msg = "value='json' of the Kafka source needs schema=, such as {'id': 'int64'}"
        raise InputError(msg)
    if value == "bytes":
        if fields is not None:
            msg = "value='bytes' of the Kafka source has one column, 'value'; leave out schema="
            raise InputError(msg)
        fields = Schema.of(**{RowFormat.VALUE: "binary"})
    taken = {RowFormat.VALUE} if callable(value) else set(fields.names if fields else ())
    for name, _ in columns:
        if name in taken:
            msg = (
                f"the Kafka source has two columns {name!r}; rename one, such as "
                f"columns={{'kafka_{name}': …}}"
            )
            raise InputError(msg)
        taken.add(name)
    return RowFormat(value, fields, columns)
