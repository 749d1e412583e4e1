"""Epochs where stages join tables, and where a job is stopped at a savepoint."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.worker.ring_jobs import Counting, EpochJob, Keep, Numbered, Record
from whale_ray.configs.errors import OutputError
from whale_ray.operators.snapshots import OperatorSnapshot
from whale_ray.state.epochs.epoch_commands import EpochDurable, EpochForgotten, InjectMarker
from whale_ray.tasks.read_size import HURRIED_NS, ReadSize
from whale_ray.tasks.source_node import SourceNode
from whale_ray.worker.epoch_schedule import (
    AHEAD_IN_FLIGHT,
    LITTLE_IN_FLIGHT,
    EpochSchedule,
    exchanges_in_a_row,
)

SETTINGS = {
    "transport.ring_bytes": 65_536,
    "transport.ring_bytes_min": 65_536,
    "transport.wtl_ms": 0.0,
}


def two_stages(record: Record, rows: int = 400) -> whale.Topology:
    topology = whale.Topology("stages")
    source = topology.source(Numbered("a", rows, 2_000), id="a", parallelism=2)
    kept = source.key_by("n").process(lambda: Keep(record.seen), id="keep", parallelism=2)
    kept.sink(Counting(), id="out")
    return topology


def joined(record: Record) -> whale.Topology:
    """Return a stream that is joined with a table, whose source feeds another stage, too."""
    topology = whale.Topology("joined")
    stream = topology.source(Numbered("a", 200, 500), id="a", parallelism=2)
    table = topology.source(Numbered("b", 60, 500), id="b")
    spread = stream.shuffle().process(lambda: Keep(record.seen), id="first", parallelism=2)
    known = spread.join_table(table, on="n", how="semi", id="known")
    seen = known.shuffle().process(lambda: Keep(record.seen), id="keep", parallelism=2)
    seen.sink(Counting(), id="out")
    table.shuffle().process(lambda: Keep(record.seen), id="beside").sink(Counting(), id="rest")
    return topology


def test_a_tables_source_tells_only_its_end_and_snapshots_wait_for_the_table() -> None:
    record = Record()
    with EpochJob(joined(record), 2, record, SETTINGS) as job:
        assert exchanges_in_a_row(job.plan) == 2, "no marker comes with the table"
        tables = job.plan.stage_of("b").id
        joins = job.plan.stage_of("known").id
        chance = Random(3)
        job.tell_all(InjectMarker(1))
        while ("taken", (joins, 0), 1) not in record.told:
            job.turn(chance)
        assert tables in {participant[0] for participant in record.last}, "the table is whole"
        assert not [told for told in record.told if told[1][0] == tables]
        while not job.is_whole(1):
            job.turn(chance)
        joined_by_then = [key for key in record.cuts[1] if key[0] == "known"]
        assert len(joined_by_then) == 2
        job.tell_all(EpochDurable(1))
        job.tell_all(InjectMarker(2))
        job.run_to_the_end()
        assert record.last.keys() == job.participants
        got = {row for (name, _), rows in record.seen.items() if name == "keep" for row in rows}
        assert got == {("a", p, n) for p in (0, 1) for n in range(60)}


def rows_out(job: EpochJob) -> int:
    counters = [worker.counters() for worker in job.workers]
    return sum(one.rows_out for each in counters for one in each.instances)


def test_behind_a_stop_nothing_is_read_and_nothing_ends() -> None:
    record = Record()
    with EpochJob(two_stages(record), 2, record, SETTINGS) as job:
        chance = Random(5)
        for _ in range(3):
            job.turn(chance)
        job.tell_all(InjectMarker(1, stop=True))
        for _ in range(200):
            job.turn(chance)
        assert job.is_whole(1)
        assert not job.turn(), "everything rests"
        assert not record.last
        assert all(task.paused for worker in job.workers for task in worker._tasks)
        before = rows_out(job)
        job.check_cut(1, {"a": 400})
        reads = sum(cut for (name, _), cut in record.cuts[1].items() if name == "a")
        assert 0 < reads < 800

        job.forgotten.add(1)  # it could not be written: the stop is tried again
        job.tell_all(EpochForgotten(1))
        job.tell_all(InjectMarker(2, stop=True))
        for _ in range(200):
            job.turn(chance)
        assert job.is_whole(2)
        assert record.cuts[2] == record.cuts[1]
        assert rows_out(job) == before
        assert not record.last


def test_a_snapshot_that_fails_is_told_and_the_marker_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What other sinks have staged by then belongs to the next epoch."""
    record = Record()
    with EpochJob(two_stages(record), 1, record, SETTINGS) as job:
        epochs = job.workers[0]._epochs
        assert epochs is not None
        stage = epochs.by_stage[job.plan.stage_of("keep").id]
        first, second = stage._tasks
        genuine = second.snapshot

        def fail(epoch: int) -> Iterator[OperatorSnapshot]:
            if epoch == 1:
                msg = "no space left"
                raise OutputError(msg)
            return genuine(epoch)

        monkeypatch.setattr(second, "snapshot", fail)
        for epoch in (1, 2):
            for _ in range(20):
                job.turn()
            job.tell_all(InjectMarker(epoch))
            while not [told for told in record.told if told[1:] == (stage.participant, epoch)]:
                job.turn()
        kinds = [kind for kind, participant, _ in record.told if participant == stage.participant]
        assert kinds == ["aligned", "failed: no space left", "aligned", "taken"]
        staged = {
            part.operator.instances: [one.staged().path for one in part.staged]
            for part in record.parts[stage.participant, 2]
            if part.operator.operator_id == "out"
        }
        assert staged == {
            first.instances: ["part-0-1", "part-0-2"],
            second.instances: ["part-1-2"],
        }
        job.tell_all(EpochDurable(2))
        job.run_to_the_end()
        job.check_cut(-1, {"a": 400})


def test_a_stage_that_is_told_of_an_epoch_twice_or_late_does_nothing() -> None:
    record = Record()
    with EpochJob(two_stages(record, 20), 1, record, SETTINGS) as job:
        job.tell_all(EpochForgotten(4))
        job.tell_all(InjectMarker(4))
        job.run_to_the_end()
        job.tell_all(InjectMarker(5))
        assert not job.turn()
        assert not record.told


def reads_of(job: EpochJob) -> set[int]:
    """Give the epochs of all workers a turn; return how many rows the sources read at a time."""
    for worker in job.workers:
        assert worker._epochs is not None
        worker._epochs.turn(job.now_ns)
    return {size.rows for size in read_sizes(job)}


def read_sizes(job: EpochJob) -> list[ReadSize]:
    heads = (task.nodes[0] for worker in job.workers for task in worker._tasks)
    return [head._read_size for head in heads if isinstance(head, SourceNode)]


def let_reads_take(job: EpochJob, times: int) -> None:
    """Let sources learn that a read takes so many times as long as it may when markers wait."""
    for size in read_sizes(job):
        size.note_time(size.rows, times * HURRIED_NS)


def test_sources_read_little_until_the_markers_have_come_everywhere_or_do_not_count() -> None:
    record = Record()
    with EpochJob(two_stages(record), 2, record, SETTINGS) as job:
        (usual,) = reads_of(job)
        let_reads_take(job, 4)
        job.tell_all(InjectMarker(1))
        assert reads_of(job) == {usual // 4}
        while not job.is_whole(1):
            job.turn()
        assert reads_of(job) == {usual}
        job.tell_all(EpochForgotten(2))
        job.tell_all(InjectMarker(2))
        job.tell_all(EpochForgotten(2))
        assert reads_of(job) == {usual}


def test_rings_are_emptied_before_sources_are_read_on_while_markers_are_on_their_way() -> None:
    """A marker waits behind the frames in its ring, and those behind reads, if both take turns."""
    record = Record()
    with EpochJob(two_stages(record, rows=10_000), 2, record, SETTINGS) as job:
        worker, other = job.workers
        source: Any = next(task.nodes[0] for task in worker._tasks if task.reads)

        def fill() -> int:
            """Let the other worker's source fill its ring; return how many rows wait here."""
            while any(task.poll(job.now_ns) for task in other._tasks if task.reads):
                pass
            return sum(reader.channel.available() for reader in worker._readers)

        def read_in_a_turn() -> int:
            before = source._reader.next
            worker._turn(job.now_ns)
            return int(source._reader.next - before)

        assert fill()
        assert read_in_a_turn(), "both take turns as long as no marker is on its way"
        job.tell(0, InjectMarker(1))
        frames = 0
        while any(reader.available() for reader in worker._readers):
            frames += 1
            assert not read_in_a_turn()
        assert frames > 1
        assert read_in_a_turn(), "the marker of the other worker is still to come"
        job.tell(1, InjectMarker(1))
        while not job.is_whole(1):
            job.turn()
        assert worker._epochs is not None
        worker._epochs.turn(job.now_ns)
        assert not any(worker._epochs.comes_first(reader.stage) for reader in worker._readers)


def test_sources_read_little_when_an_epoch_is_near() -> None:
    """What is in the rings when its marker comes was read before."""
    record, ms = Record(), 1_000_000
    settings = {**SETTINGS, "checkpoints.interval_ms": 1_000, "checkpoints.in_flight_ms": 10}
    near_ms = 1_000 - LITTLE_IN_FLIGHT * 10
    with EpochJob(two_stages(record), 2, record, settings) as job:

        def reads_at(now_ms: int) -> set[int]:
            job.now_ns = now_ms * ms
            return reads_of(job)

        assert exchanges_in_a_row(job.plan) == 1
        (usual,) = reads_at(5_000)
        let_reads_take(job, 4)
        assert reads_at(5_000 + near_ms - 1) == {usual}
        assert reads_at(5_000 + near_ms) == {usual // 4}
        job.tell_all(InjectMarker(1))
        assert reads_at(6_010) == {usual // 4}
        while not job.is_whole(1):
            job.turn()  # on a clock that stands still, so reads take no time
        let_reads_take(job, 4)
        assert reads_at(6_900) == {usual}
        assert reads_at(6_010 + near_ms) == {usual // 4}
        assert reads_at(6_010 + 2_000 - near_ms) == {usual}, "it is late: nobody knows how late"


def test_rings_come_before_sources_when_an_epoch_is_near() -> None:
    record, ms = Record(), 1_000_000
    settings = {**SETTINGS, "checkpoints.interval_ms": 1_000, "checkpoints.in_flight_ms": 10}
    near_ms = 1_000 - AHEAD_IN_FLIGHT * 10
    with EpochJob(two_stages(record), 2, record, settings) as job:
        worker, other = job.workers
        source: Any = next(task.nodes[0] for task in worker._tasks if task.reads)

        def reads_besides_frames_at(now_ms: int) -> bool:
            """Let the other worker's source fill its ring, and this one take a turn."""
            job.now_ns = now_ms * ms
            while any(task.poll(job.now_ns) for task in other._tasks if task.reads):
                pass
            assert any(reader.available() for reader in worker._readers)
            before = source._reader.next
            assert worker._epochs is not None
            worker._epochs.turn(job.now_ns)
            worker._turn(job.now_ns)
            return int(source._reader.next - before) > 0

        assert reads_besides_frames_at(5_000)
        assert reads_besides_frames_at(5_000 + near_ms - 1)
        assert not reads_besides_frames_at(5_000 + near_ms)
        while any(reader.available() for reader in worker._readers):
            worker._turn(job.now_ns)
        before = source._reader.next
        worker._turn(job.now_ns)
        assert source._reader.next > before, "there is nothing else to do"


def test_a_marker_is_passed_on_before_frames_that_are_in_the_rings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command that comes while the worker sleeps, or at the end of its turn, waits for none."""
    record = Record()
    with EpochJob(two_stages(record), 2, record, SETTINGS) as job:
        worker, other = job.workers
        while any(task.poll(job.now_ns) for task in other._tasks if task.reads):
            pass
        assert any(reader.available() for reader in worker._readers)
        job.tell(0, InjectMarker(1))
        sources = job.plan.stage_of("a").id
        passed_on: list[bool] = []

        def noted(_: object, now_ns: int) -> bool:
            passed_on.append(("aligned", (sources, 0), 1) in record.told)
            return False

        for reader in worker._readers:
            monkeypatch.setattr(type(reader), "poll", noted)
        worker._turn(job.now_ns)
        assert passed_on
        assert all(passed_on)


def test_a_job_whose_rings_may_be_full_reads_as_much_before_an_epoch_as_ever() -> None:
    schedule = EpochSchedule(1_000, 0, 0)
    assert not any(schedule.puts_rings_first(now) for now in range(3_000))
    assert not any(schedule.reads_little(now) for now in range(3_000))
    short = EpochSchedule(80, 1_000, 4)
    assert [now for now in range(200) if short.puts_rings_first(now)] == list(range(70, 90))
    assert [now for now in range(200) if short.reads_little(now)] == list(range(76, 84))


def test_stages_behind_a_marker_read_on_when_no_ring_has_a_frame_before_it() -> None:
    """Else the rows that they emit keep the marker of the stage behind them waiting."""
    record = Record()
    topology = whale.Topology("stages")
    rows = topology.source(Numbered("a", 1_000, 2_000), id="a", parallelism=2)
    for name in ("first", "second"):
        rows = rows.shuffle().process(lambda: Keep(record.seen), id=name, parallelism=2)
    rows.sink(Counting(), id="out")
    with EpochJob(topology, 2, record, SETTINGS) as job:
        assert exchanges_in_a_row(job.plan) == 2
        worker, other = job.workers
        first, second = job.plan.stage_of("first").id, job.plan.stage_of("second").id

        def fill() -> None:
            """Let the sources fill their rings, and the other worker those of our last stage."""
            for task in [task for one in job.workers for task in one._tasks if task.reads]:
                while task.poll(job.now_ns):
                    pass
            for reader in other._readers:
                while reader.stage == first and reader.poll(job.now_ns):
                    pass

        def seen(name: str) -> int:
            return len(record.seen.get((name, (0,)), ()))

        for _ in range(5):
            job.turn()
        job.tell_all(InjectMarker(1))
        for one in job.workers:
            assert one._epochs is not None
            one._epochs.turn(job.now_ns)
        assert worker._epochs is not None
        while not worker._epochs.has_passed_on(first):
            for reader in worker._readers:
                if reader.stage == first:
                    reader.poll(job.now_ns)
            worker._epochs.turn(job.now_ns)
        fill()
        assert not worker._epochs.has_passed_on(second)
        taken = 0
        while any(one.available() for one in worker._readers if one.stage == second):
            before = seen("first")
            worker._turn(job.now_ns)
            assert seen("first") == before
            taken += 1
        assert taken
        before = seen("first")
        worker._turn(job.now_ns)
        assert seen("first") > before
        job.run_to_the_end()
        assert job.is_whole(1)
        job.check_cut(1, {"a": 1_000})


def test_an_epoch_begins_between_the_frames_of_two_rings() -> None:
    """A frame may take as long as a turn; the marker does not wait for those of other rings."""
    record = Record()
    with EpochJob(two_stages(record, rows=10_000), 2, record, SETTINGS) as job:
        for task in [task for worker in job.workers for task in worker._tasks if task.reads]:
            while task.poll(job.now_ns):
                pass
        worker = job.workers[0]
        first, second = worker._readers
        told_then: list[Any] = []

        def poll_first(now_ns: int, poll: Any = first.poll) -> bool:
            found = bool(poll(now_ns))
            worker.tell(0, InjectMarker(1))
            return found

        def poll_second(now_ns: int, poll: Any = second.poll) -> bool:
            told_then.extend(record.told)
            return bool(poll(now_ns))

        vars(first)["poll"], vars(second)["poll"] = poll_first, poll_second
        assert first.available()
        worker._turn(job.now_ns)
        assert ("taken", (0, 0), 1) in told_then
