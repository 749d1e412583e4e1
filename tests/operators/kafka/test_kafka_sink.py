"""The Kafka sinks, against librdkafka's stand-in of a cluster (see `kafka_cluster`).

Of transactions it shows nothing: see `test_commit_protocol` for what they are made of. Here the
steps of a commit are written down in the place of a producer, or seen to be refused.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from tests.operators.kafka.kafka_cluster import MockCluster, mock_cluster
from whale_ray import sinks
from whale_ray.configs.errors import AttemptLostError, OutputError, UsageError
from whale_ray.operators.kafka import producing, transactions
from whale_ray.operators.kafka.commit_protocol import (
    CommitTransaction,
    Initialise,
    ReadRecord,
    Record,
    Write,
)
from whale_ray.operators.kafka.messages import MessageTable
from whale_ray.operators.kafka.producing import MessageWriter
from whale_ray.operators.sinks import kafka_sink
from whale_ray.operators.sinks.base import CommitId, Sink, SinkWriter, Staged
from whale_ray.operators.sinks.kafka_sink import TransactionalKafkaSink
from whale_ray.testing.driving import instance_context
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch

DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as one:
        yield one


def batch(*numbers: int) -> Batch:
    return Batch.from_pydict({"n": list(numbers)})


def read(cluster: MockCluster, topic: str, count: int) -> list[Any]:
    """Return the messages of a topic, by partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": "test", "fetch.wait.max.ms": 10}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(4)])
    found: list[Any] = []
    while len(found) < count:
        (message,) = consumer.consume(1, 20) or pytest.fail(f"{len(found)} of {count} came")
        assert message.error() is None
        found.append(message)
    assert not consumer.consume(1, 0.05)
    consumer.close()
    return found


def writer_of(sink: Sink, instance: int = 0, clock: VirtualClock | None = None) -> SinkWriter:
    context = instance_context(instance, 2, operator_id="out", clock=clock)
    return sink.for_operator("out").open(context, "job-1")


def test_messages_are_sent_as_rows_come(cluster: MockCluster) -> None:
    topic = cluster.topic()
    sink = sinks.kafka(
        topic,
        cluster.servers,
        transactional=False,
        key="who",
        headers={"trace": "mark"},
        timestamp="at",
    )
    time = dt.datetime(2020, 9, 13, 12, 26, 40, 123_456, dt.UTC)
    rows: dict[str, list[Any]] = {"who": ["ä", None, "b"], "mark": [b"\xff", b"", None]}
    rows |= {"at": [time] * 3, "n": [1, 2, 3]}
    writer = writer_of(sink)
    writer.write(Batch.from_pydict(rows))
    assert writer.stage_epoch(1) == Staged(0, 3)
    assert writer.stage_epoch(2) is None
    found = {json.loads(one.value())["n"]: one for one in read(cluster, topic, 3)}
    assert [found[n].key() for n in (1, 2, 3)] == ["ä".encode(), None, b"b"]
    assert [found[n].headers() for n in (1, 2, 3)] == [
        [("trace", b"\xff")],
        [("trace", b"")],
        [("trace", None)],
    ]
    assert found[2].timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1_600_000_000_123)
    at = "2020-09-13T12:26:40.123456Z"
    assert json.loads(found[2].value()) == {"who": None, "at": at, "n": 2}
    writer.write(Batch.from_pydict({name: values[:1] for name, values in rows.items()}))
    assert writer.stage() == Staged(0, 1)
    assert sink.publish("job-1", [Staged(0, 1), Staged(1, 2)]).rows == 3
    writer.abort()
    writer.abort()


def test_keys_go_where_javas_clients_send_them(cluster: MockCluster) -> None:
    """Computed by the murmur2 hash of Kafka's Java client: `toPositive(murmur2(key)) % 4`."""
    topic = cluster.topic()
    sink = sinks.kafka(topic, cluster.servers, transactional=False, key="k", value="bytes")
    writer = writer_of(sink)
    keys = ["kafka", "giberish123456789", "21", "foobar"]
    writer.write(Batch.from_pydict({"k": keys, "value": [b"", None, b"v", b"w"]}))
    writer.stage()
    writer.abort()
    places = {one.key().decode(): one.partition() for one in read(cluster, topic, 4)}
    # Apache Kafka's UtilsTest has the hashes of two of them: -973932308 ("21"),
    # -790332482 ("foobar").
    assert places["21"] == (-973932308 & 0x7FFFFFFF) % 4
    assert places["foobar"] == (-790332482 & 0x7FFFFFFF) % 4


@pytest.mark.parametrize("transactional", [True, False])
def test_a_topic_that_is_not_there_is_refused_before_rows_are_read(
    cluster: MockCluster, transactional: bool
) -> None:
    sink = sinks.kafka("nowhere", cluster.servers, transactional=transactional)
    told = r"^cannot write into the topic 'nowhere' of Kafka at .*; it is not there; create it, or"
    with pytest.raises(OutputError, match=told):
        sink.prepare("job-1", bounded=True)
    with pytest.raises(OutputError, match=told):
        sink.recover("job-1", [], bounded=False)
    sinks.kafka(cluster.topic(), cluster.servers).prepare("job-1", bounded=True)


def test_a_broker_that_is_gone_fails_the_epoch() -> None:
    config = {"message.timeout.ms": 300, "reconnect.backoff.ms": 10}
    sink = sinks.kafka("t", "127.0.0.1:1", transactional=False, config=config)
    writer = writer_of(sink)
    writer.write(batch(1))
    with pytest.raises(
        OutputError, match=r"cannot write into the topic 't' of Kafka at 127\.0"
    ) as told:
        writer.stage_epoch(1)
    assert "\n" not in str(told.value)
    writer.abort()


def test_the_loop_does_not_wait_for_brokers_at_a_marker() -> None:
    """Rows that have not arrived are gone with their producer: the job reads them again."""
    config = {"message.timeout.ms": 300, "reconnect.backoff.ms": 10}
    writer = writer_of(sinks.kafka("t", "127.0.0.1:1", transactional=False, config=config))
    writer.write(batch(1))
    stage = writer.cut_epoch(1)
    assert stage is not None
    assert writer.cut_epoch(2) is None  # no rows, and what is under way may still arrive
    with pytest.raises(OutputError, match="cannot write into the topic"):
        stage()
    with pytest.raises(AttemptLostError, match="rows of a checkpoint could not be written"):
        writer.cut_epoch(3)
    writer.abort()


def test_brokers_that_do_not_answer_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producing, "SILENT_S", 0.1)
    config = {"message.timeout.ms": 300, "reconnect.backoff.ms": 10}
    writer = writer_of(sinks.kafka("t", "127.0.0.1:1", transactional=False, config=config))
    writer.write(batch(1))
    with pytest.raises(OutputError, match="cannot write into the topic"):
        writer.stage_epoch(1)
    writer.abort()
    (told,) = caplog.messages
    assert told.startswith(
        "sink 'out': no broker of Kafka at 127.0.0.1:1 has taken a message of the topic 't' for 10"
        " s ("
    )
    assert told.endswith("then the job goes back to its last checkpoint, or fails without one")


def test_each_silence_of_brokers_is_told_of_once() -> None:
    told: list[int] = []
    producer = Answering()
    writer = MessageWriter(producer, "t", lambda: told.append(writer.answers))
    writer.write(table(1, 2, 3, 4))
    for flushes in (150, 250, 450, 150):  # of 0.05 s each, for one answer
        producer.pauses += [0] * (flushes - 1) + [1]
    writer.wait(writer.cut())
    assert told == [1, 2]


def test_whoever_waits_for_brokers_is_released_by_the_end_of_the_attempt() -> None:
    config = {"message.timeout.ms": 600_000, "reconnect.backoff.ms": 10}
    writer = writer_of(sinks.kafka("t", "127.0.0.1:1", transactional=False, config=config))
    writer.write(batch(1))
    stage = writer.cut_epoch(1)
    assert stage is not None
    ended: list[str] = []

    def wait() -> None:
        try:
            stage()
        except OutputError as error:
            ended.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    writer.abort()
    thread.join(60)
    assert len(ended) == 1


def test_an_epoch_waits_for_its_own_messages_alone() -> None:
    """The loop sends on meanwhile; a thread that waited for all might wait without end."""
    producer = Answering()
    writer = MessageWriter(producer, "t")
    writer.write(table(1, 2))
    first = writer.cut()
    writer.write(table(3))
    second = writer.cut()
    producer.answers = 2
    writer.wait(first)
    assert (first.has_all_answers, second.has_all_answers) == (True, False)
    producer.answers = 1
    writer.wait(second)
    assert not producer.waiting


class Answering:
    """A producer whose messages are answered, oldest first, as `flush` is called."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.answers = 0
        self.pauses: list[int] = []  # how many answers the next calls bring, unless `answers` says

    def produce(self, topic: str, *, on_delivery: Any, **message: Any) -> None:
        self.waiting.append(on_delivery)

    def poll(self, timeout: float) -> None:
        pass

    def flush(self, timeout: float) -> None:
        self.answers = self.pauses.pop(0) if self.pauses else self.answers
        assert self.answers or self.pauses, "waits for messages of a later epoch"
        for on_delivery in self.waiting[: self.answers]:
            on_delivery(None, None)
        del self.waiting[: self.answers]
        self.answers = 0


def table(*numbers: int) -> MessageTable:
    rows = {"key": [b"k" for _ in numbers], "value": [str(number).encode() for number in numbers]}
    return MessageTable(pa.table(rows))


def test_a_message_that_is_too_large_fails_the_epoch(cluster: MockCluster) -> None:
    config = {"message.max.bytes": 1000}
    sink = sinks.kafka(
        cluster.topic(), cluster.servers, transactional=False, value="bytes", config=config
    )
    writer = writer_of(sink)
    with pytest.raises(OutputError, match=r"MSG_SIZE_TOO_LARGE.*raise message\.max\.bytes"):
        writer.write(Batch.from_pydict({"value": [bytes(2000)]}))
    writer.abort()


class Log:
    """Stands for the brokers: what was carried out, and the records of commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: dict[str, int] = {}
        self.rows: list[Any] = []
        self.steps: list[str] = []
        self.fails_at: type | None = None
        log = self

        class Port:
            def __init__(self, cluster: Any, topic: str, name: str) -> None:
                self.name = name
                self.written: list[Any] = []
                self.epoch = -1

            def __enter__(self) -> Port:
                return self

            def __exit__(self, *_: object) -> None:
                return

            def carry_out(self, step: Any) -> int | None:
                log.steps.append(type(step).__name__)
                match step:
                    case ReadRecord():
                        return log.records.get(self.name)
                    case Write(tables):
                        self.written = [
                            one["value"] for table in tables for one in table.messages()
                        ]
                    case Record(epoch):
                        self.epoch = epoch
                    case CommitTransaction():
                        log.rows += self.written
                        log.records[self.name] = self.epoch
                if log.fails_at is type(step):
                    log.fails_at = None
                    raise OutputError("nobody knows")
                return None

        class Topics:
            def __init__(self, cluster: Any) -> None:
                assert cluster.bootstrap_servers == "b:1"

            def __enter__(self) -> Topics:
                return self

            def __exit__(self, *_: object) -> None:
                return

            def partitions(self, topics: Sequence[str], to: str) -> None:
                assert (topics, to) == (["t"], "write into")

        monkeypatch.setattr(transactions, "_Transactions", Port)
        monkeypatch.setattr(kafka_sink, "Questions", Topics)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def transactional(**options: Any) -> TransactionalKafkaSink:
    sink = sinks.kafka("t", "b:1", **options).for_operator("out")
    assert isinstance(sink, TransactionalKafkaSink)
    return sink


def staged(sink: Sink, epoch: int, *numbers: int, instance: int = 0) -> Staged:
    writer = writer_of(sink, instance)
    writer.write(batch(*numbers))
    part = writer.stage_epoch(epoch)
    assert part is not None
    return Staged(**{**vars(part), "epoch": epoch})


def values(*numbers: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in numbers]


def test_an_epoch_is_one_transaction_and_is_not_repeated(log: Log) -> None:
    sink = transactional()
    sink.prepare("job-1", bounded=False)
    log.steps.clear()
    parts = [staged(sink, 2, 5, instance=1), staged(sink, 2, 3, 4), staged(sink, 1, 1, 2)]
    for _ in range(3):
        sink.commit(CommitId("job-1", 2), parts)
    assert log.rows == values(1, 2, 3, 4, 5)
    whole = [step.__name__ for step in (Initialise, ReadRecord, Write, Record, CommitTransaction)]
    assert log.steps == whole + whole[:2] * 2
    assert log.records == {"whale-ray.job-1.out": 2}
    sink.commit(CommitId("job-2", 2), [])
    assert log.steps == whole + whole[:2] * 2


@pytest.mark.parametrize("step", [Initialise, Write, Record, CommitTransaction])
def test_a_commit_is_tried_again_with_a_new_producer(log: Log, step: type) -> None:
    sink = transactional()
    sink.prepare("job-1", bounded=False)
    parts = [staged(sink, 1, 1)]
    log.fails_at = step
    with pytest.raises(OutputError, match="nobody knows"):
        sink.commit(CommitId("job-1", 1), parts)
    sink.commit(CommitId("job-1", 1), parts)
    assert log.rows == values(1)


def test_a_record_that_is_gone(log: Log) -> None:
    sink = transactional()
    parts = [staged(sink, 1, 1)]
    with pytest.raises(
        OutputError, match=r"group 'whale-ray\.job-1\.out'.*pass if_unknown='write'"
    ):
        sink.commit(CommitId("job-1", 1), parts)
    transactional(if_unknown="skip").commit(CommitId("job-1", 1), parts)
    assert (log.rows, log.records) == ([], {"whale-ray.job-1.out": 1})
    log.records.clear()
    transactional(if_unknown="write").commit(CommitId("job-1", 1), parts)
    assert log.rows == values(1)


def test_recovery_leaves_a_record_only_if_no_rows_of_the_job_wait(log: Log) -> None:
    sink = transactional()
    parts = [staged(sink, 1, 1)]
    sink.recover("job-1", parts, bounded=False)
    assert log.records == {}
    sink.recover("job-2", parts, bounded=False)
    assert log.records == {"whale-ray.job-2.out": 0}
    sink.recover("job-3", parts, bounded=True)
    assert log.records == {"whale-ray.job-2.out": 0}


def test_a_sign_of_life_renews_the_record(log: Log) -> None:
    sink, clock = transactional(), VirtualClock()
    sink.prepare("job-1", bounded=False)
    first, second = writer_of(sink, 0, clock), writer_of(sink, 1, clock)
    assert first.stage_epoch(1) is None
    clock.sleep_ns(DAY_NS)
    assert first.stage_epoch(2) == Staged(0, 0)
    assert second.stage_epoch(2) is None
    assert first.stage_epoch(3) is None
    sink.commit(CommitId("job-1", 2), [Staged(0, 0, epoch=2)])
    assert (log.rows, log.records) == ([], {"whale-ray.job-1.out": 2})


def test_a_bounded_job_is_one_transaction(log: Log) -> None:
    sink = transactional()
    writer = writer_of(sink)
    writer.write(batch(3))
    parts = [writer.stage(), staged(sink, 1, 1), Staged(1, 0)]
    for _ in range(2):
        result = sink.publish("job-1", parts)
        assert (result.rows, result.whereabouts) == (2, "in the topic t")
    assert log.rows == values(1, 3)
    with pytest.raises(UsageError, match=r"read it with sources\.kafka"):
        result.to_arrow()


def test_parts_of_a_job_without_checkpoints(log: Log) -> None:
    writer = writer_of(transactional(), 1)
    assert writer.publish_part() is None
    for number in (1, 2):
        writer.write(batch(number))
        log.fails_at = CommitTransaction
        part = writer.publish_part()
        assert part is not None
        assert (part.rows, part.payload) == (1, None)
    assert log.rows == values(1, 2)
    assert log.records == {"whale-ray.job-1.out#1": 2}


def test_what_an_instance_keeps_is_bounded() -> None:
    writer = writer_of(TransactionalKafkaSink(**{**vars(transactional()), "max_bytes": 1000}))
    with pytest.raises(OutputError, match=r"more than 1,000 bytes.*checkpoints more often"):
        writer.write(batch(*range(200)))


def test_a_transaction_is_carried_out_by_librdkafka(cluster: MockCluster) -> None:
    """The stand-in takes transactions without checking them: only that the calls fit together."""
    topic = cluster.topic()
    sink = sinks.kafka(topic, cluster.servers, if_unknown="write").for_operator("out")
    sink.commit(CommitId("job-1", 1), [staged(sink, 1, 1, 2, 3)])
    found = sorted(one.value() for one in read(cluster, topic, 3))
    assert found == values(1, 2, 3)


def test_a_transaction_without_brokers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_STEP_S", 0.3)
    sink = sinks.kafka("t", "127.0.0.1:1").for_operator("out")
    no_answer = r"cannot commit to the topic 't'.*no broker answers"
    with pytest.raises(OutputError, match=no_answer) as told:
        sink.commit(CommitId("job-1", 1), [staged(sink, 1, 1)])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ({"n": [1]}, {"key": "k"}, "no column 'k' for Kafka's messages; the rows have n"),
        ({"n": [1]}, {"value": "bytes"}, "no column 'value'"),
        ({"n": ["x"]}, {"timestamp": "n"}, "is of type string"),
        ({"n": pa.array([2**63], pa.uint64())}, {"timestamp": "n"}, "a time beyond 64 bits of ms"),
        ({"n": [5, 0]}, {"timestamp": "n"}, "has a time 0 ms after the beginning of 1970"),
        ({"n": [1]}, {"value": lambda batch: []}, "returned 0 values for 1 rows"),
    ],
)
def test_rows_that_do_not_fit(rows: dict[str, Any], options: dict[str, Any], told: str) -> None:
    with pytest.raises(OutputError, match=told):
        writer_of(transactional(**options)).write(Batch.from_arrow(pa.record_batch(rows)))


@pytest.mark.parametrize(
    ("topic", "options", "told"),
    [
        ("", {}, "name one topic"),
        ("t", {"value": "avro"}, "it is 'json', 'bytes'"),
        ("t", {"if_unknown": "ask"}, "it is 'fail', 'write' or 'skip'"),
    ],
)
def test_arguments_that_are_refused(topic: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        sinks.kafka(topic, "b:1", **options)


def test_values_made_by_a_function(log: Log) -> None:
    def encode(batch: Batch) -> Sequence[bytes | None]:
        return [b"%d" % row["n"] if row["n"] else None for row in batch.rows()]

    sink = transactional(value=encode)
    sink.publish("job-1", [staged(sink, 1, 1, 0)])
    assert log.rows == [b"1", None]
