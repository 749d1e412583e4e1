"""The suite one-to-many: what it computes, what it refuses, and a small run of all modes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_ray.cli.main import main
from whale_ray.configs.errors import JobError, UsageError
from whale_ray.lab.bench.one_to_many import HOSTS, SIZES, check_sizes
from whale_ray.lab.bench.one_to_many import control_block as b
from whale_ray.lab.bench.one_to_many.accounting import ROLES, Role, Spent, role_of
from whale_ray.lab.bench.one_to_many.against_peers import PeerFound, compared
from whale_ray.lab.bench.one_to_many.deployment import Deployment, IntervalCounts, Shape
from whale_ray.lab.bench.one_to_many.encoding import frame_bytes, rows_of
from whale_ray.lab.bench.one_to_many.feed import (
    PICKLED_SCHEMA,
    SCHEMA,
    Feed,
    FeedReader,
    content_of,
)
from whale_ray.lab.bench.one_to_many.latency import latencies_of
from whale_ray.lab.bench.one_to_many.measuring import ModeResult, Plan, find
from whale_ray.lab.bench.one_to_many.modes import COMPARED, MODES, mode_named
from whale_ray.lab.bench.one_to_many.reading_kernels import CONTENT_WORDS, TILE_ROWS, read_rows
from whale_ray.lab.bench.one_to_many.rows import aims, measured_rows
from whale_ray.lab.bench.one_to_many.traffic import StreamBytes, reduction, stream_of
from whale_ray.lab.bench.peers import PeerResult
from whale_ray.operators.process import InstanceContext
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.wire.batch import Batch

CONTENT = content_of(0).view("V88").reshape(-1)
SMALL = {"transport.ring_bytes": 1 << 20, "runtime.source_batch_rows": 1000}


# --- reading -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3 * TILE_ROWS + 1), st.integers(1, 17), st.integers(0, 2**32 - 1))
@pytest.mark.smoke
def test_every_instance_reads_every_byte(rows: int, instances: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 2**32, rows, np.uint32)
    moments = random.integers(0, 2**64, rows, np.uint64)
    content = random.integers(0, 2**64, CONTENT_WORDS * rows, np.uint64)
    sums = random.integers(0, 2**64, instances, np.uint64)
    before = sums.copy()
    read_rows(numbers, moments, content, sums)
    parts = [part.astype(np.uint64).sum(dtype=np.uint64) for part in (numbers, moments, content)]
    assert (sums == before + np.array(parts).sum(dtype=np.uint64)).all()


def test_a_row_has_a_hundred_bytes() -> None:
    batch = rows_of(10)
    assert sum(column.data.nbytes for column in batch.columns) == 10 * 100


# --- the source --------------------------------------------------------------------------------


def reader_of(pickles: int = 0) -> tuple[FeedReader, b.ControlBlock, VirtualClock]:
    control_block = b.ControlBlock.create(
        b.ControlBlockShape(workers=1, instances=1, samples=64, bins=8)
    )
    clock = VirtualClock(start_ns=10**9)
    return FeedReader(control_block, pickles, 0, clock), control_block, clock


def words_of(batch: Batch) -> int:
    parts = [np.frombuffer(batch.column(name).data, np.uint8) for name in ("content",)]
    total = sum(int(part.view(np.uint64).sum(dtype=np.uint64)) for part in parts)
    total += int(batch.column("number").data.sum(dtype=np.uint64))
    total += int(batch.column("moment_ns").data.sum())
    return total % 2**64


def test_unpaced_rows_fill_each_read_and_their_sum_is_reported() -> None:
    reader, control_block, _ = reader_of()
    assert reader.read(100) is None
    control_block.orders[b.RATE] = b.UNPACED
    total = rows = 0
    for asked in (100, 70_000, 3):
        batch = reader.read(asked)
        assert batch is not None
        assert batch["number"].tolist() == list(range(rows, rows + batch.num_rows))
        assert batch.column("content").data[0] == CONTENT[rows % len(CONTENT)]
        rows += batch.num_rows
        total += words_of(batch)
        assert int(control_block.source[b.ROWS]) == rows
        assert int(control_block.source[b.WORD_SUM]) % 2**64 == total % 2**64
    control_block.close()


def test_paced_rows_come_when_they_are_due_and_none_is_left_out() -> None:
    reader, control_block, clock = reader_of()
    control_block.orders[b.RATE] = 1000
    control_block.orders[b.STRIDE] = 10
    moments: list[int] = []
    began = clock.monotonic_ns()
    reader.read(8192)
    while clock.monotonic_ns() - began < 10 * 10**9:
        clock.advance(max(reader.next_ready_ns() - clock.monotonic_ns(), 1))
        batch = reader.read(8192)
        if batch is not None:
            assert (batch["moment_ns"] <= clock.monotonic_ns()).all()
            assert batch.origin_ns == batch["moment_ns"][0]
            moments += batch["moment_ns"].tolist()
    assert moments == sorted(moments)
    assert 9_500 < len(moments) < 10_500
    gaps = np.diff(moments)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.1)  # as of a Poisson process
    followed = np.array(moments[::10])
    assert control_block.scheduled.tolist() == [  # the last ones, each in its place
        followed[np.arange(len(followed)) % 64 == place][-1] for place in range(64)
    ]
    control_block.close()


def test_pickled_rows_hold_the_same() -> None:
    reader, control_block, _ = reader_of(pickles=3)
    control_block.orders[b.RATE] = b.UNPACED
    batch = reader.read(8192)
    assert batch is not None
    assert batch.schema == PICKLED_SCHEMA
    rows = [pickle.loads(row) for row in batch["row"].to_pylist()]  # our own
    assert [number for number, _, _ in rows] == list(range(batch.num_rows))
    assert b"".join(content for _, _, content in rows) == content_of(0)[: len(rows)].tobytes()
    control_block.close()


def test_the_control_block_ends_the_source() -> None:
    reader, control_block, _ = reader_of()
    assert not reader.finished
    control_block.orders[b.STOP] = 1
    assert reader.finished
    control_block.close()


def test_the_feed_is_described_and_opened_by_its_handle() -> None:
    control_block = b.ControlBlock.create(
        b.ControlBlockShape(workers=1, instances=1, samples=64, bins=8)
    )
    feed = Feed(control_block.handle)
    assert feed.describe() == "rows of 100 bytes, at the rate in the control block"
    assert feed.schema() == SCHEMA
    context = InstanceContext("job", "feed", 0, (0,), 1, 0, VirtualClock())
    opened = feed.open(context)
    control_block.orders[b.RATE] = b.UNPACED
    assert opened.read(5) is not None
    assert int(control_block.source[b.ROWS]) == 5
    control_block.close()


# --- bytes -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 60), max_size=60))
def test_the_bytes_of_a_stream_equal_those_of_a_ring(rows: list[int]) -> None:
    producer, (consumer,) = create_inproc_ring(1 << 15, 1, "weight")
    sizes = [frame_bytes(count) for count in rows]
    for size in sizes:
        producer.put(size, lambda _buffer, size=size: size)  # type: ignore[misc] # its default
        frame = consumer.get()
        assert frame is not None
        end = frame.end
        consumer.release_buffer(frame)
        del frame
    assert stream_of(sizes, 1 << 15) == StreamBytes(end if rows else 0, len(rows))
    producer.close()
    consumer.close()


def test_each_child_gets_the_stream_and_a_header_per_message() -> None:
    assert StreamBytes(6400, 2).leaves(1) == 6400 + 2 * 32
    assert StreamBytes(6400, 2).leaves(480) == 480 * (6400 + 2 * 32)
    assert StreamBytes(5 << 20, 1).leaves(1) == (5 << 20) + 5 * 32  # a message has 1 MiB at most


def test_reduction() -> None:
    assert reduction(2.0, 100.0) == pytest.approx(-0.98)


# --- latencies ---------------------------------------------------------------------------------


def test_latencies_are_of_rows_that_came_everywhere() -> None:
    ms = 10**6
    scheduled = np.array([100, 200, 0, 400]) * ms
    arrived = np.array([[101, 203, 301, 401], [102, 202, 302, 0]]) * ms
    done = np.array([[103, 204, 301, 402], [104, 210, 302, 0]]) * ms
    found = latencies_of(scheduled, arrived, done)
    assert found is not None
    assert found.rows == 2
    assert found.multicast.mean_ms == pytest.approx((2 + 3) / 2)
    assert found.processing.mean_ms == pytest.approx((3 + 4 + 4 + 10) / 4)
    assert found.processing.p50_ms == pytest.approx(4)
    assert latencies_of(scheduled[2:3], arrived[:, 2:3], done[:, 2:3]) is None


# --- rows and aims -----------------------------------------------------------------------------


def measured(rate: float, source_ns: int, sent: int = 0, copies: int = 0) -> IntervalCounts:
    rows = 1000
    roles: dict[Role, int] = dict.fromkeys(ROLES, 0)
    roles["source"] = source_ns * rows
    return IntervalCounts(rows, rows / rate, Spent(roles), 0, sent, copies)


def test_aims_compare_what_was_measured_in_one_run() -> None:
    shape, small = Shape(30, 480), Shape(30, 120)
    found = [
        ModeResult(mode_named("star"), small, measured(1e6, 100)),
        ModeResult(mode_named("non-blocking"), shape, measured(5e5, 100, 102_400, 1)),
        ModeResult(mode_named("star"), shape, measured(1e6, 120, 3_072_000, 30)),
        ModeResult(mode_named("instances, tcp"), shape, measured(1e4, 10_000, 49_152_000, 30)),
    ]
    told = {(row.name, row.unit): row for row in aims(found, 480)}
    tuples = told["aim: tuples/s", "x of instances, tcp"]
    assert tuples.value == pytest.approx(100)
    assert tuples.parameters["mode"] == "star"
    assert tuples.aim is not None
    assert tuples.aim.met(tuples)
    assert told["aim: source's host's CPU", "x of instances, tcp"].value == pytest.approx(100)
    assert told["aim: bytes", "x of instances, tcp"].value == pytest.approx(-0.998, abs=1e-3)
    level = told["aim: source's CPU", "x of 120 instances"]
    assert level.value == pytest.approx(1.2)


def test_bytes_are_compared_with_the_formula() -> None:
    found = [ModeResult(mode_named("star"), Shape(30, 480), measured(1e6, 100, 3_072_000, 30))]
    told = {row.name: row for row in measured_rows(found)}
    weighed = told["bytes from the source's host"]
    assert weighed.value == pytest.approx(30.72)
    assert weighed.ratio == pytest.approx(1.0, abs=0.01)
    assert weighed.against == "formula, 30 copies"


def test_peers_are_compared_with_the_mode_that_is_like_them() -> None:
    many, few = Shape(30, 480), Shape(8, 8)
    ours = [
        ModeResult(mode_named("star"), many, measured(1e6, 100)),
        ModeResult(mode_named("one host"), many, measured(2e6, 100)),
        ModeResult(mode_named("instances, tcp"), many, measured(9e3, 100)),
        ModeResult(mode_named("one host"), few, measured(19e6, 100)),
    ]
    peers = [
        PeerFound(name, instances, batch, PeerResult(rate, None, 1e5, ""))
        for name, instances, batch, rate in (
            ("flink", 480, 1, 2e4),
            ("zeromq-push", 480, 100, 1e4),
            ("zeromq-push", 480, 2621, 3e4),
            ("zeromq-fan-out", 480, 2621, 1e4),
            ("openmpi", 8, 2621, 1e7),
            ("openmpi", 8, 32768, 2e7),
        )
    ]
    told = {row.unit: row for row in compared(ours, peers, few)}
    assert told["x of flink"].value == pytest.approx(100)
    assert told["x of zeromq-push"].value == pytest.approx(200)
    assert told["x of zeromq-fan-out"].value == pytest.approx(0.9)
    assert told["x of openmpi"].value == pytest.approx(0.95)
    assert all(row.aim is not None and row.aim.met(row) for row in told.values())


# --- members -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("whale worker 0", "source"),
        ("whale worker 12", "workers"),
        ("whale relay 0", "source's relay"),
        ("whale relay 7", "relays"),
        ("python", None),
        ("whale", None),
    ],
)
def test_members_are_known_by_name(name: str, role: str | None) -> None:
    assert role_of(name) == role


# --- arguments ---------------------------------------------------------------------------------


def test_sizes_are_those_that_the_hosts_share() -> None:
    assert check_sizes((480, 120, 480)) == (120, 480)
    assert check_sizes(SIZES) == SIZES
    for size in (0, -30, 100, 30 * 1000):
        with pytest.raises(UsageError, match=f"use multiples of {HOSTS} up to 960"):
            check_sizes((size,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one-to-many", "--sizes", "100"], "100 instances do not fit"),
        (["one-to-many", "--sizes", "many"], "'many' is no list of numbers such as 120,480"),
        (["one-to-many", "--only", "mode"], "has no part 'mode' (did you mean modes?)"),
        (["transport", "--sizes", "120"], "suite 'transport' takes no --sizes"),
        (["dynamics"], "unknown 'dynamics' (did you mean dynamic?)"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr().err.strip()
    assert message in told
    assert "\n" not in told


def test_modes_have_names_of_their_own() -> None:
    assert len(set(COMPARED)) == len(MODES)
    with pytest.raises(KeyError):
        mode_named("carrier pigeons")


# --- a run -------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_job_is_switched_from_mode_to_mode() -> None:
    shape = Shape(hosts=2, instances=4)
    names = ["star", "chain", "instances, tcp"]
    plan = Plan(warm_up_s=0.5, unpaced_s=1.0, paced_s=1.0)
    found = find(shape, plan, names, SMALL)
    assert sorted(one.mode.name for one in found) == sorted(names)
    copies = {one.mode.name: one.unpaced.copies for one in found}
    assert copies["star"] == copies["instances, tcp"] == 2
    assert copies["chain"] == 1
    per_row = {one.mode.name: one.unpaced.sent_bytes / max(one.unpaced.rows, 1) for one in found}
    assert 100 <= per_row["chain"] < 130  # headers, and padding of a ring as small as this
    assert 200 <= per_row["star"] < 260
    assert 400 <= per_row["instances, tcp"] < 520
    for one in found:
        assert one.unpaced.rows > 0
        assert one.unpaced.spent.by_role["workers"] > 0
        assert one.latencies is not None
        assert 0 < one.latencies.multicast.p50_ms <= one.latencies.multicast.p99_ms
    rows = list(measured_rows(found))
    assert len(rows) == 5 * len(found)
    assert list(aims(found, 4))


@pytest.mark.long
@pytest.mark.parametrize("name", ["instances, one host", "instances, tcp, pickled"])
def test_the_other_deployments_run(name: str) -> None:
    with Deployment(Shape(hosts=2, instances=4), mode_named(name), SMALL) as deployment:
        deployment.control_block.orders[b.RATE] = b.UNPACED
        read = deployment.control_block.workers[:, b.ROWS]
        deployment.wait_until(lambda: bool(read.all()), 60 * 10**9, "read")
        deployment.pause()  # checks what was read


@pytest.mark.long
def test_unread_rows_are_detected() -> None:
    with Deployment(Shape(hosts=1, instances=2), mode_named("one host"), SMALL) as deployment:
        with pytest.raises(ValueError, match="'star' needs another job than 'one host'"):
            deployment.switch(mode_named("star"))
        deployment.unpaced(0.1, 0.1)
        deployment.control_block.sums[1, 0] += 1
        with pytest.raises(JobError, match=r"1 instances have read something else .* first is 1 "):
            deployment.pause()
