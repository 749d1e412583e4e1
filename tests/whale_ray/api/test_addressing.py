"""Instance-oriented addressing against worker-oriented, and changes from one to the other."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.api.submission import run, submit
from whale_ray.configs.errors import ProtocolError
from whale_ray.configs.loading import load_settings
from whale_ray.operators.groupings import All
from whale_ray.plan.explain import explain
from whale_ray.plan.physical import Edge
from whale_ray.plan.planner import plan_unsized
from whale_ray.state.watermarks import WATERMARK_END
from whale_ray.tasks.addressing import WorkerOriented
from whale_ray.tasks.edge_writer import EdgeWriter, Stamp
from whale_ray.tasks.instance_oriented import (
    InstanceOriented,
    InstanceOrientedReader,
    TwoRingProgress,
    TwoRingReader,
)
from whale_ray.tasks.ring_queue import OutRing
from whale_ray.transport.channel import Channel
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.slicing import StreamSlicer
from whale_ray.transport.wire import codec
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.messages import SchemaMessage, WorkerMessage
from whale_ray.worker.worker import Worker

INSTANCE_ORIENTED = {"runtime.addressing": "instance-oriented"}
EDGE = Edge(0, "from", "to", 0, 1, 0, All(), carries_time=False, ordered=False)
WORKERS = ((0, 1, 2), (3, 4))
"""The instances of each worker that reads."""


class Written:
    """One producer's way into a broadcast edge to two workers, and the reading ends."""

    def __init__(self, source: int = 0, like: Written | None = None, ring_bytes: int = 1 << 16):
        self.rings, self.ends = [], []
        if like is not None:
            self.ends = like.ends
            self.rings = [OutRing(r.stream, r.channel, r.instances, r.max_frame_bytes,
                                  r.per_instance, r.schemas_sent) for r in like.rings]  # fmt: skip
        else:
            for stream, instances in enumerate((sum(WORKERS, ()), *WORKERS)):
                readers = len(WORKERS) if stream == 0 else 1
                producer, consumers = create_inproc_ring(ring_bytes, readers, f"ring-{stream}")
                per_instance = stream > 0
                ring = OutRing(stream, producer, instances, producer.max_frame_bytes, per_instance)
                self.rings.append(ring)
                self.ends.append(consumers)
        stamp = Stamp(source, attempt=0, with_times=False, checksum=False)
        slicer = StreamSlicer(1 << 18, 0)
        addressings = {
            "worker-oriented": WorkerOriented(EDGE, self.rings[:1], with_times=False),
            "instance-oriented": InstanceOriented(EDGE, self.rings[1:], with_times=False),
        }
        self.writer = EdgeWriter(EDGE, stamp, addressings, slicer)

    def send(self, values: list[int], *, instance_oriented: bool) -> None:
        """Send rows as a slice of their own, as far as there is room."""
        self.writer.set_addressing("instance-oriented" if instance_oriented else "worker-oriented")
        self.writer.emit(Batch.from_pydict({"v": np.array(values, np.int64)}))
        self.writer.settle(0)

    def inputs_of(self, worker: int) -> list[Channel]:
        """Return the reading ends of a worker: the shared ring's, and its own ring's."""
        return [self.ends[0][worker], self.ends[1 + worker][0]]


def frames(channel: Channel) -> Iterator[np.ndarray[Any, Any]]:
    while (frame := channel.get()) is not None:
        yield frame.data.copy()
        channel.release_buffer(frame)


@pytest.mark.long
def test_the_wire_carries_one_message_for_each_instance() -> None:
    written = Written()
    written.send([1, 2, 3], instance_oriented=True)
    written.writer.end()
    written.writer.pump(0)
    batch = Batch.from_pydict({"v": np.array([1, 2, 3], np.int64)})
    assert not list(frames(written.ends[0][0])), "nothing in the ring for all"
    for worker, instances in enumerate(WORKERS):
        schemas: dict[int, whale.Schema] = {}
        addressed, nbytes = [], 0
        for data in frames(written.ends[1 + worker][0]):
            message = codec.decode(data, schemas)
            if isinstance(message, SchemaMessage):
                message.register(schemas)
            elif isinstance(message, WorkerMessage):
                assert message.destinations is not None
                addressed.append(message.destinations.tolist())
                assert message.batch.to_pylist() == batch.to_pylist()
                assert message.header.sequence == 0
                nbytes += 64 + message.header.payload_length
        assert addressed == [[[instance, 3]] for instance in instances]
        assert nbytes == len(instances) * codec.message_size(batch, 1)


@dataclass
class Seen:
    """A task that writes down what it gets."""

    instances: tuple[int, ...]
    accepts_rows: bool = True
    one_by_one: bool = False

    def __post_init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.calls: list[tuple[int, ...]] = []
        self.watermarks: list[tuple[int, int]] = []

    def deliver(self, port: int, source: int, batch: Batch) -> None:
        self.rows += [(source, value) for value in batch["v"].tolist()]
        self.calls.append(self.instances)

    def deliver_to(self, instance: int, port: int, source: int, batch: Batch) -> None:
        if self.one_by_one:
            self.calls.append((instance,))
        elif instance == self.instances[-1]:
            self.deliver(port, source, batch)

    def advance(self, edge: int, source: int, watermark_ns: int) -> None:
        self.watermarks.append((source, watermark_ns))

    def settle(self, now_ns: int) -> None:
        pass


def reading_ends(
    written: Written, worker: int, tasks: list[Seen], sources: int
) -> list[TwoRingReader]:
    by_instance: Any = {instance: task for task in tasks for instance in task.instances}
    progress = TwoRingProgress(range(sources), by_instance)
    return [
        kind(EDGE, ring.stream, channel, 0, by_instance, progress)
        for kind, channel, ring in zip(
            (TwoRingReader, InstanceOrientedReader),
            written.inputs_of(worker),
            (written.rings[0], written.rings[1 + worker]),
            strict=True,
        )
    ]


@given(
    slices=st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 40), st.booleans(), st.booleans()), max_size=30
    ),
    turns=st.lists(st.integers(0, 3), max_size=200),
    ring_bytes=st.sampled_from([1 << 12, 1 << 16]),
)
def test_every_instance_gets_every_row_once_and_in_order_whatever_the_rings_bring_first(
    slices: list[tuple[int, int, bool, bool]], turns: list[int], ring_bytes: int
) -> None:
    """Two producers, each slice addressed by chance, marks in between; readers in any order."""
    written = Written(0, ring_bytes=ring_bytes)
    producers = [written, Written(1, like=written)]
    tasks = [[Seen((instance,)) for instance in instances] for instances in WORKERS]
    readers = [
        reader
        for worker in range(len(WORKERS))
        for reader in reading_ends(written, worker, tasks[worker], 2)
    ]
    sent: list[list[int]] = [[], []]
    order = iter(turns)
    for source, count, instance_oriented, marked in slices:
        values = list(range(len(sent[source]), len(sent[source]) + count))
        sent[source] += values
        producers[source].send(values, instance_oriented=instance_oriented)
        if marked:
            producers[source].writer.advance(len(sent[source]))
            producers[source].writer.pump(0)
        for turn in (next(order, None), next(order, None)):
            if turn is not None:
                readers[turn].poll(0)
    for producer in producers:
        producer.writer.end()
    moved = True
    while moved:
        moved = sum(reader.poll(0) for reader in readers) > 0
        moved |= sum(producer.writer.pump(0) for producer in producers) > 0
    assert all(producer.writer.done for producer in producers)
    for task in (task for local in tasks for task in local):
        for source in (0, 1):
            assert [v for from_, v in task.rows if from_ == source] == sent[source]
            told = [at for from_, at in task.watermarks if from_ == source]
            assert told == sorted(told)
            assert told[-1] == WATERMARK_END


def test_rows_that_neither_ring_brings_are_missed() -> None:
    written = Written()
    written.send([1], instance_oriented=True)
    written.send([2], instance_oriented=False)
    written.send([3], instance_oriented=True)
    task = Seen((0, 1, 2))
    shared, own = reading_ends(written, 0, [task], 1)
    assert own.poll(0), "the schema"
    for _ in WORKERS[0]:
        lost = own.channel.get()
        assert lost is not None
        own.channel.release_buffer(lost)
    assert shared.poll(0)
    assert shared.poll(0)
    assert not shared.available(), "row 1 waits for row 0"
    with pytest.raises(ProtocolError, match="sent row 2 where row 0 was due"):
        own.poll(0)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_an_object_that_serves_several_instances_is_called_for_each_if_it_wants(
    one_by_one: bool,
) -> None:
    written = Written()
    task = Seen(WORKERS[0], one_by_one=one_by_one)
    shared, own = reading_ends(written, 0, [task], 1)
    written.send([1, 2], instance_oriented=True)
    while own.poll(0):
        pass
    written.send([3], instance_oriented=False)
    while shared.poll(0):
        pass
    alone = [(0,), (1,), (2,)] if one_by_one else [(0, 1, 2)]
    assert task.calls == [*alone, (0, 1, 2)]


class Keep(whale.Process):
    """Passes rows on, with the instance that got them and their place among those it got."""

    def open(self, context: whale.InstanceContext) -> None:
        self.instance, self.seen = context.instance, 0

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        places = np.arange(self.seen, self.seen + batch.num_rows)
        self.seen += batch.num_rows
        instance = np.full(batch.num_rows, self.instance)
        out.emit({"v": batch["v"].copy(), "instance": instance, "place": places})


class KeepTogether(whale.Process):
    """The same for all instances of a worker, told apart by what the call is for."""

    per_worker: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = True

    def open(self, context: whale.InstanceContext) -> None:
        self.seen = Counter[int]()

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        for instance in out.instances:
            places = np.arange(self.seen[instance], self.seen[instance] + batch.num_rows)
            self.seen[instance] += batch.num_rows
            same = np.full(batch.num_rows, instance)
            out.emit({"v": batch["v"].copy(), "instance": same, "place": places})


def address(addressing: str) -> None:
    """Change the addressing of the worker in this process."""
    for found in gc.get_objects():
        if isinstance(found, Worker):
            found.set_addressing(addressing)


def changing(count: int, every: int) -> Any:
    """Return rows on whose way the addressing changes again and again."""

    def rows() -> Iterator[dict[str, int]]:
        for value in range(count):
            if value % every == every - 1:
                instance_oriented = value // every % 2
                address("instance-oriented" if instance_oriented else "worker-oriented")
            yield {"v": value}

    return rows


def topology_of(rows: Any, process: type[whale.Process], parallelism: int = 6) -> whale.Topology:
    topology = whale.Topology("addressing")
    source = topology.source(whale.sources.iterable(rows), id="rows")
    kept = source.broadcast().process(process, id="keep", parallelism=parallelism)
    kept.sink(whale.sinks.collect(), id="out")
    return topology


SMALL = {"runtime.source_batch_rows": 64, "transport.wtl_ms": 0.0}
RUNNERS = {
    "inline": lambda topology, settings: run(topology, settings=settings),
    "processes": lambda topology, settings: submit(
        topology, on="processes", workers=3, settings=settings
    ).wait(60),
    "hosts": lambda topology, settings: submit(
        topology, on="processes", workers=4, settings={**settings, "runtime.hosts": 4}
    ).wait(60),
}


@pytest.mark.parametrize(
    ("runner", "mode"),
    [
        ("inline", "worker-oriented"),
        ("inline", "instance-oriented"),
        ("inline", "changing"),
        ("processes", "changing"),
        ("hosts", "instance-oriented"),
        ("hosts", "changing"),
    ],
)
@pytest.mark.parametrize("process", [Keep, KeepTogether])
def test_results_are_the_same_in_every_mode(
    runner: str, process: type[whale.Process], mode: str, no_leaks: None
) -> None:
    count = 6000
    plain = [{"v": value} for value in range(count)]
    addressing = "worker-oriented" if mode == "worker-oriented" else "instance-oriented"
    rows = changing(count, 700) if mode == "changing" else plain
    settings = {**SMALL, "runtime.addressing": addressing}
    job = RUNNERS[runner](topology_of(rows, process), settings)
    found = job.results("out").to_arrow().to_pylist()
    assert len(found) == 6 * count
    for instance in range(6):
        mine = [row for row in found if row["instance"] == instance]
        mine.sort(key=lambda row: row["place"])
        assert [row["place"] for row in mine] == list(range(count))
        assert [row["v"] for row in mine] == list(range(count))


@pytest.mark.parametrize(
    ("addressing", "copies"), [("worker-oriented", 1), ("instance-oriented", 3)]
)
def test_the_bytes_that_leave_the_sources_host(
    addressing: str, copies: int, no_leaks: None
) -> None:
    """One message for each host in a star, or one for each of the three instances of a host."""
    topology = topology_of([{"v": value} for value in range(20_000)], Keep, 6)
    settings = {
        "runtime.hosts": 2,
        "runtime.addressing": addressing,
        "runtime.route": "star",
        "runtime.source_batch_rows": 1000,
    }
    job = submit(topology, on="processes", workers=2, settings=settings).wait(60)
    sent = sum(
        link.bytes_sent
        for relay in job.metrics().relays
        for link in relay.links
        if relay.host == "host-0"
    )
    # The sink's rows stay on each host; messages of 8-byte rows, their headers and the links' own.
    rows_bytes = 20_000 * 8
    assert copies * rows_bytes <= sent <= copies * rows_bytes * 1.3


class AsOf(whale.CoProcess):
    """For every question, how many facts came before, and their sum; one object for all."""

    per_worker: ClassVar[bool] = True

    def open(self, context: whale.InstanceContext) -> None:
        self.count = self.total = 0

    def on_left(self, batch: whale.Batch, out: whale.Output) -> None:
        self.count += batch.num_rows
        self.total += int(batch["v"].sum())

    def on_right(self, batch: whale.Batch, out: whale.Output) -> None:
        out.emit_rows([{"q": q, "count": self.count, "total": self.total} for q in batch["q"]])


@pytest.mark.parametrize("runner", list(RUNNERS))
def test_a_join_in_event_time_order_equals_sql_while_the_addressing_changes(
    runner: str, no_leaks: None
) -> None:
    facts = [{"k": i % 50, "v": i, "t": i // 3} for i in range(900)]
    questions = [{"q": i, "t": i * 2} for i in range(150)]

    def asked() -> Iterator[dict[str, int]]:
        for place, row in enumerate(questions):
            if place % 20 == 0:
                address("worker-oriented" if place % 40 else "instance-oriented")
            yield row

    topology = whale.Topology("as-of")
    left = topology.source(
        whale.sources.iterable(facts), id="facts", event_time="t", event_time_unit="ms"
    )
    right = topology.source(
        whale.sources.iterable(asked), id="questions", event_time="t", event_time_unit="ms"
    )
    joined = left.key_by("k").connect(right.broadcast()).process(AsOf, id="join", parallelism=6)
    joined.sink(whale.sinks.collect(), id="out")
    settings = {**INSTANCE_ORIENTED, "runtime.source_batch_rows": 7, "transport.wtl_ms": 0.0}
    found = RUNNERS[runner](topology, settings).results("out").to_arrow()
    tables = {"facts": pa.Table.from_pylist(facts), "questions": pa.Table.from_pylist(questions)}
    with duckdb.connect() as database:
        for name, table in {**tables, "found": found}.items():
            database.register(name, table)
        expected = database.sql(
            "SELECT q, count(v) AS count, coalesce(sum(v), 0)::BIGINT AS total "
            "FROM questions LEFT JOIN facts ON facts.t <= questions.t GROUP BY q ORDER BY q"
        ).fetchall()
        summed = database.sql(
            "SELECT q, sum(count)::BIGINT, sum(total)::BIGINT FROM found GROUP BY q ORDER BY q"
        ).fetchall()
    assert summed == expected


def test_the_rings_of_a_job_that_may_change_its_addressing() -> None:
    """The shared one as ever, first; beside it one for each worker, only where that was asked."""
    topology = topology_of([{"v": 1}], Keep)

    def rings(addressing: str) -> list[tuple[int, tuple[int, ...], bool]]:
        settings = load_settings(overrides={"runtime.addressing": addressing, "runtime.hosts": 3})
        laid = plan_unsized(topology.logical_plan(), settings, 3)
        return [(r.producer_worker, r.consumer_workers, r.per_instance) for r in laid.rings]

    shared = [(0, (0, 1, 2), False)]
    assert rings("worker-oriented") == shared
    assert rings("instance-oriented") == [*shared, *((0, (w,), True) for w in range(3))]


def test_each_layout_has_a_line_of_its_own_in_the_explanation() -> None:
    settings = load_settings(overrides=INSTANCE_ORIENTED)
    told = str(explain(topology_of([{"v": 1}], Keep).logical_plan(), settings, 3))
    table = told[told.index("Rings:") :].splitlines()
    assert [line.split("  ")[1:2] for line in table[2:4]] == [["0"], ["0, one by one"]]
    assert table[2].endswith("3 workers")
    assert table[3].endswith("1 worker")


@dataclass
class KillOnce(Keep):
    """Kills a process forked from the same one as this, after row 500 of instance 0, once."""

    victim: str
    marker: Path

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        super().on_batch(batch, out)
        if self.instance == 0 and self.seen > 500 and not self.marker.exists():
            self.marker.touch()
            others = psutil.Process(os.getppid()).children()
            next(other for other in others if other.name() == self.victim).kill()


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "restarts"), [("whale relay 0", 0), ("whale relay 2", 0), ("whale worker 2", 1)]
)
def test_messages_for_single_instances_survive_the_death_of_relays_and_workers(
    victim: str, restarts: int, tmp_path: Path, no_leaks: None
) -> None:
    process: Any = partial(KillOnce, victim, tmp_path / "killed")
    topology = topology_of([{"v": value} for value in range(5000)], process, 4)
    settings = {**SMALL, **INSTANCE_ORIENTED, "runtime.hosts": 4}
    job = submit(topology, on="processes", workers=4, settings=settings).wait(100)
    found = job.results("out").to_arrow().to_pylist()
    by_instance = [[row["v"] for row in found if row["instance"] == place] for place in range(4)]
    assert by_instance == [list(range(5000))] * 4
    assert job.outcome().restarts == restarts
