"""The Kafka source, against librdkafka's stand-in of a cluster (see `kafka_cluster`)."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from tests.operators.kafka.kafka_cluster import PARTITIONS, MockCluster, mock_cluster
from tests.operators.kafka.reading import PATIENCE, batches, numbers, rows_of
from whale_ray import sources
from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators.event_time import EventTime
from whale_ray.operators.kafka import offsets
from whale_ray.operators.kafka import reader as readers
from whale_ray.operators.kafka.partitions import Partition, owned
from whale_ray.operators.snapshots import Position
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.operators.sources.kafka_topics import KafkaSource
from whale_ray.operators.split_event_times import SplitEventTimes
from whale_ray.testing import check_source
from whale_ray.testing.driving import instance_context
from whale_ray.transport.clock import SystemClock
from whale_ray.transport.wire.batch import Batch

FETCH = 1  # the kind of request


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as one:
        yield one


@pytest.fixture(scope="module")
def several() -> Iterator[MockCluster]:
    with mock_cluster(brokers=2) as one:
        yield one


@pytest.fixture(autouse=True)
def closes_readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the readers of a test."""
    yield
    while _readers:
        _readers.pop().close()


_readers: list[SourceReader] = []


def open_reader(
    source: Source,
    instance: int = 0,
    parallelism: int = 1,
    positions: Sequence[Position] | None = None,
) -> SourceReader:
    context = instance_context(instance, parallelism, clock=SystemClock())
    reader = source.open(context) if positions is None else source.open_at(context, positions)
    _readers.append(reader)
    return reader


def source_of(cluster: MockCluster, topic: str, **options: Any) -> Source:
    quick = {"fetch.wait.max.ms": 10, "reconnect.backoff.ms": 10}
    options = {"schema": {"n": "int64"}, "config": quick, **options}
    return sources.kafka(topic, cluster.servers, **options).materialize(cluster=False)


def sorted_numbers(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted(row["n"] for row in rows)


def test_all_that_a_message_has_becomes_columns(cluster: MockCluster) -> None:
    topic = cluster.topic()
    messages = [
        {
            "value": b'{"n": 1}',
            "key": b"k",
            "timestamp": 1_600_000_000_123,
            "headers": [("trace", b"\xff"), ("trace", b"new"), ("none", None)],
        },
        {"value": None, "key": b"gone", "timestamp": 1_600_000_000_124},
        {"value": b' {"more": [1], \r\n"n":\n2} ', "timestamp": 1_600_000_000_125},
    ]
    cluster.write(topic, [{**one, "partition": 2} for one in messages])
    columns = {
        "key": "key",
        "where": "topic",
        "part": "partition",
        "at": "offset",
        "time": "timestamp",
        "headers": "headers",
        "trace": "header:trace",
    }
    source = source_of(cluster, topic, columns=columns, end="latest")
    (batch,) = batches(open_reader(source))
    assert batch.schema == source.schema()
    time = dt.datetime(2020, 9, 13, 12, 26, 40, 123_000, dt.UTC)
    first = {
        "n": 1,
        "key": b"k",
        "where": topic,
        "part": 2,
        "at": 0,
        "time": time,
        "headers": '[["trace", "\\\\xff"], ["trace", "new"], ["none", null]]',
        "trace": b"new",
    }
    bare = {"where": topic, "part": 2, "headers": None, "trace": None}
    later = [time + dt.timedelta(milliseconds=more) for more in (1, 2)]
    assert batch.to_pylist() == [
        first,
        {"n": None, "key": b"gone", "at": 1, "time": later[0], **bare},
        {"n": 2, "key": None, "at": 2, "time": later[1], **bare},
    ]


def test_raw_bytes_and_functions(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, [{"value": b"%d" % n, "partition": 0} for n in range(5)])

    def decode(batch: Batch) -> dict[str, list[int]]:
        values = [int(row["value"]) * 10 + row["offset"] for row in batch.rows()]
        return {"n": [value for value in values if value % 2]}

    options: dict[str, Any] = {"end": "latest", "schema": None}
    raw = source_of(cluster, topic, value="bytes", **options)
    assert rows_of(open_reader(raw)) == [{"value": b"%d" % n} for n in range(5)]
    made = source_of(cluster, topic, value=decode, columns=["offset"], **options)
    assert made.schema() is None
    assert rows_of(open_reader(made)) == [{"n": 11}, {"n": 33}]
    declared = source_of(
        cluster, topic, value=decode, columns=["offset"], end="latest", schema={"n": "int32"}
    )
    assert declared.schema() is not None
    assert rows_of(open_reader(declared)) == [{"n": 11}, {"n": 33}]
    wrong = source_of(
        cluster,
        topic,
        value=lambda batch: pa.table({"m": [1]}),
        end="latest",
        schema={"n": "int32"},
    )
    with pytest.raises(InputError, match=r"returned .*m.*, but schema= says"):
        rows_of(open_reader(wrong))


def test_columns_that_nobody_needs_are_not_made(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, [{"value": b'{"n": 1, "m": 2}', "partition": 0}])
    whole = source_of(
        cluster, topic, schema={"n": "int64", "m": "int64"}, columns=["offset"], end="latest"
    )
    assert rows_of(open_reader(whole.with_columns_needed(frozenset({"m"})))) == [{"m": 2}]
    assert rows_of(open_reader(whole.with_columns_needed(frozenset({"offset"})))) == [{"offset": 0}]


@pytest.mark.parametrize("parallelism", [1, 3, 6])
def test_instances_share_the_partitions(cluster: MockCluster, parallelism: int) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 40))
    source = source_of(cluster, topic, columns=["partition", "offset"], end="latest")
    rows = []
    for instance in range(parallelism):
        reader = open_reader(source, instance, parallelism)
        mine = rows_of(reader)
        places = [(row["partition"], row["offset"]) for row in mine]
        assert sorted(places) == sorted(set(places))
        assert {place[0] for place in places} == {
            one for one in range(PARTITIONS) if one % parallelism == instance
        }
        rows += mine
        reader.close()
    assert sorted_numbers(rows) == list(range(40))


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_it_goes_on_from_positions_at_any_parallelism(
    cluster: MockCluster, parallelism: int
) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 60))
    source = source_of(cluster, topic)
    before: list[dict[str, Any]] = []
    positions = []
    for instance in range(3):
        reader = open_reader(source, instance, 3)
        for batch in batches(reader, rows=7, max_rows=4):
            before += batch.to_pylist()
        positions.append(json.loads(json.dumps(reader.position())))
        reader.close()
    after = []
    cluster.write(topic, numbers(60, 64))
    for instance in range(parallelism):
        reader = open_reader(source, instance, parallelism, positions)
        mine = len(owned([Partition(topic, n) for n in range(4)], [topic], instance, parallelism))
        left = sum(
            16 - max(0, position[topic][str(n)])
            for position in positions
            for n in range(PARTITIONS)
            if n % parallelism == instance and str(n) in position[topic]
        )
        assert mine
        after += rows_of(reader, rows=left)
        reader.close()
    assert sorted_numbers(before + after) == list(range(64))


def test_where_to_begin_and_to_end(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 8))
    offsets = dict.fromkeys(range(PARTITIONS), 1)
    late = source_of(cluster, topic, start=offsets, end="latest")
    latest = source_of(cluster, topic, start="latest")
    bounded = source_of(cluster, topic, end={topic: {0: 1, 1: 2, 2: 0, 3: 1}})
    assert (bounded.bounded, latest.bounded) == (True, False)
    cluster.write(topic, numbers(8, 12))
    assert sorted_numbers(rows_of(open_reader(late))) == [4, 5, 6, 7]
    assert sorted_numbers(rows_of(open_reader(latest), rows=4)) == [8, 9, 10, 11]
    reader = open_reader(bounded)
    assert sorted_numbers(rows_of(reader)) == [0, 1, 3, 5]
    assert reader.position() == {topic: {"0": 1, "1": 2, "2": 0, "3": 1}}
    assert reader.read(10) is None


def test_values_that_are_no_objects(cluster: MockCluster) -> None:
    topic = cluster.topic()
    values = [b'{"n": 0}', b"", b"[1]", b'{"n": 1}{"n": 2}', b'{"n": "x"}', b"\xff", b'{"n": 5}']
    cluster.write(topic, [{"value": value, "partition": 1} for value in values])
    source = source_of(cluster, topic, columns=["offset"], end="latest")
    with pytest.raises(BadRowError) as raised:
        rows_of(open_reader(source))
    assert str(raised.value).startswith(f"topic {topic!r}, partition 1, offset 1: ")
    assert "on_bad_rows='drop'" in str(raised.value)
    reader = open_reader(source.with_bad_rows("drop"))
    assert rows_of(reader) == [{"n": 0, "offset": 0}, {"n": 5, "offset": 6}]
    assert reader.rejected == {"malformed message": 5}


def test_how_far_it_is_behind_and_which_partitions_may_have_rows(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, [{"value": b'{"n": 1}', "partition": 3}] * 10)
    reader = open_reader(source_of(cluster, topic))
    names = [f"{topic}/{number}" for number in range(PARTITIONS)]
    assert reader.splits() == dict.fromkeys(names, True)
    assert sum(batch.num_rows for batch in batches(reader, rows=4, max_rows=1)) == 4
    assert reader.split == names[3]
    assert reader.gauges()["rows behind"][names[3]] == 6
    assert reader.splits()[names[3]]
    rows_of(reader, rows=6)
    assert reader.read(10) is None
    for _ in range(PATIENCE):
        if not any((reader.splits() or {}).values()):
            break
        reader.read(10)
        threading.Event().wait(0.001)
    assert reader.splits() == dict.fromkeys(names, False)
    assert sum(reader.gauges()["rows behind"].values()) == 0
    reader.close()
    reader.close()
    assert reader.read(1) is None


def test_new_partitions_are_read_from_their_beginning(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in cannot add partitions, so the reader is shown only two of four at first."""
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 8))
    shown = [2]
    whole = offsets.partitions_of
    for module in (offsets, readers):
        monkeypatch.setattr(
            module, "partitions_of", lambda *args: whole(*args)[: shown[0]], raising=True
        )
    source = source_of(cluster, topic, find_partitions_s=0.001, start="latest")
    seldom = source_of(cluster, topic, find_partitions_s=3600)
    reader = open_reader(source)
    times = SplitEventTimes(EventTime("n", unit="ns", on_late="drop"), "s")

    def read(rows: int) -> list[int]:
        found: list[int] = []
        for batch in batches(reader, rows):
            found += [row["n"] for row in batch.to_pylist()]
            times.observe(reader.splits() or {}, 0)
            times.assign(reader.split, batch)
        return sorted(found)

    cluster.write(topic, numbers(8, 12))
    assert read(2) == [8, 9]
    assert times.watermark_ns == 7
    assert reader.position() == {topic: {"0": 3, "1": 3}}
    shown[0] = 4
    assert read(6) == [2, 3, 6, 7, 10, 11]
    assert reader.position() == {topic: {str(n): 3 for n in range(PARTITIONS)}}
    behind = {f"{topic}/{number}": 0 for number in range(PARTITIONS)}
    assert reader.gauges() == {"rows behind": behind}
    assert (times.late_rows, times.watermark_ns) == (4, 7)  # those behind what had been told
    cluster.write(topic, numbers(12, 14))
    assert read(2) == [12, 13]
    assert times.watermark_ns == 9  # partition 2, where 10 was last, holds it back
    reader.close()
    # Those that appeared since a checkpoint are there from the first row on.
    reader = open_reader(seldom, positions=[{topic: {"0": 4, "1": 4}}])
    assert reader.splits() == {f"{topic}/{number}": True for number in range(PARTITIONS)}
    assert sorted_numbers(rows_of(reader, rows=6)) == [2, 3, 6, 7, 10, 11]
    reader.close()


def test_messages_that_have_expired(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 20))
    reader = open_reader(source_of(cluster, topic))
    rows_of(reader, rows=20)
    position = {topic: {**reader.position()[topic], "1": 1}}
    reader.close()
    cluster.expire(topic, 1, 3)
    source = source_of(cluster, topic)
    with pytest.raises(InputError) as raised:
        rows_of(open_reader(source, positions=[position]), rows=1)
    assert str(raised.value) == (
        f"topic {topic!r}, partition 1: the next message, offset 1, is not there: the partition "
        "holds 3 to 5; the topic's retention has removed it, or the topic was created anew. Keep "
        "messages longer, or pass on_expired='earliest' (or 'latest') to go on without them"
    )
    for policy, left in (("earliest", [13, 17]), ("latest", [])):
        reader = open_reader(
            source_of(cluster, topic, on_expired=policy, end="latest"), positions=[position]
        )
        assert sorted_numbers(rows_of(reader)) == left
        lost = 4 - len(left)
        assert reader.rejected == {"removed from the topic before they were read": lost}


def test_what_a_cluster_refuses_is_one_line_with_the_remedy(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"n": "int64"}
    gone = sources.kafka("never-created", cluster.servers, schema=schema)
    with pytest.raises(InputError, match=r"'never-created'.*create it, or correct its name"):
        gone.materialize(cluster=False)
    monkeypatch.setattr("whale_ray.operators.kafka.offsets.ANSWER_S", 0.3)
    monkeypatch.setattr(
        "whale_ray.operators.kafka.offsets.partitions_of.__defaults__", (0.3,), raising=True
    )
    nobody = sources.kafka("t", "127.0.0.1:1", schema=schema)
    with pytest.raises(
        InputError, match=r"127\.0\.0\.1:1: .*no broker answers; start it"
    ) as raised:
        nobody.materialize(cluster=False)
    assert "\n" not in str(raised.value)


def test_a_broker_that_dies_is_waited_for(several: MockCluster) -> None:
    topic = several.topic(brokers=2)
    several.write(topic, numbers(0, 40))
    quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 20, "fetch.wait.max.ms": 10}
    reader = open_reader(source_of(several, topic, config=quick))
    assert sorted_numbers(rows_of(reader, rows=40)) == list(range(40))
    several.write(topic, numbers(40, 48))
    several.stop_broker(2)
    first = rows_of(reader, rows=4)
    several.start_broker(2)
    more = 8 - len(first)
    assert sorted_numbers(first + rows_of(reader, rows=more)) == list(range(40, 48))


def test_requests_that_fail_are_tried_again(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 8))
    not_leader, unavailable = 6, 8
    cluster.fail_requests(FETCH, *[not_leader, unavailable] * 3)
    reader = open_reader(source_of(cluster, topic, end="latest"))
    assert sorted_numbers(rows_of(reader)) == list(range(8))


def test_a_topic_that_is_removed_while_it_is_read(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 8))
    config = {"topic.metadata.propagation.max.ms": 0, "fetch.wait.max.ms": 10}
    reader = open_reader(source_of(cluster, topic, find_partitions_s=0.01, config=config))
    rows_of(reader, rows=8)
    cluster.delete(topic)
    with pytest.raises(InputError, match=r"cannot read the topic 'topic-\d+'.*create it") as told:
        rows_of(reader, rows=1)
    assert "\n" not in str(told.value)


def test_a_topic_that_is_gone_when_a_job_goes_on(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.write(topic, numbers(0, 8))
    source = source_of(cluster, topic)
    reader = open_reader(source)
    rows_of(reader, rows=8)
    cluster.delete(topic)
    with pytest.raises(InputError, match=r"cannot read the topic 'topic-\d+'.*create it"):
        open_reader(source, positions=[reader.position()])


@pytest.mark.parametrize("submitted_again", [False, True])
@pytest.mark.parametrize("end", [None, "latest"])
def test_a_topic_that_has_fewer_partitions_than_were_read(
    cluster: MockCluster, end: Any, submitted_again: bool
) -> None:
    topic = cluster.topic()
    source = source_of(cluster, topic, end=end)
    before = open_reader(source).position()
    cluster.create_anew(topic, PARTITIONS - 1)
    if submitted_again:
        source = source_of(cluster, topic, end=end)
    with pytest.raises(InputError, match=rf"topic '{topic}' has no partition 3 any more, .* anew"):
        open_reader(source, positions=[before])


def test_a_topic_that_may_not_be_read(cluster: MockCluster) -> None:
    topic = cluster.topic()
    cluster.fail_topic(topic, confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(InputError, match=r"the user may not; let the cluster's administrator"):
        source_of(cluster, topic)


def test_no_broker_for_too_long(several: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MEETING_S", 0.2)
    topic = several.topic()
    source = source_of(several, topic, find_partitions_s=0.01)
    assert isinstance(source, KafkaSource)
    source = replace(source, rules=replace(source.rules, unreachable_s=0.05))
    reader = open_reader(source)
    several.stop_broker(-1)
    try:
        with pytest.raises(InputError, match="no broker answers; start it"):
            rows_of(reader, rows=1)
    finally:
        several.start_broker(-1)


def test_settings_that_the_client_refuses(cluster: MockCluster) -> None:
    source = sources.kafka("t", cluster.servers, schema={"n": "int64"}, config={"no.such": 1})
    with pytest.raises(InputError, match=r"refuses config=: .*no\.such"):
        source.materialize(cluster=False)


def test_positions_and_offsets_of_other_topics_are_refused(cluster: MockCluster) -> None:
    topic = cluster.topic()
    source = source_of(cluster, topic)
    with pytest.raises(InputError, match=r"topic 'other', which the source does not read"):
        open_reader(source, positions=[{"other": {"0": 1}}])
    with pytest.raises(InputError, match=r"names no offset for topic-\d+/1"):
        source_of(cluster, topic, start={0: 1})
    with pytest.raises(InputError, match=r"names topic-\d+/9; it is not there"):
        source_of(cluster, topic, start=dict.fromkeys([*range(PARTITIONS), 9], 0))


def test_it_keeps_to_the_contract_of_sources() -> None:
    """All messages are in one partition: those of several come in any order."""
    program = """
        import sys
        from tests.operators.kafka.kafka_cluster import mock_cluster
        with mock_cluster() as cluster:
            topic = cluster.topic()
            cluster.write(topic, [{"value": b'{"n":%d}' % n, "partition": 1} for n in range(50)])
            print(cluster.servers, topic, flush=True)
            sys.stdin.read()
    """
    # In a process of its own: sockets that stay open here are the source's, not the cluster's.
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        servers, topic = process.stdout.readline().split()
        config = {"fetch.wait.max.ms": 5}
        check_source(
            lambda: sources.kafka(
                topic, servers, schema={"n": "int64"}, end="latest", config=config
            )
        )
        process.communicate("")
