"""Snapshots become files beside the loop: what is told, what is not written twice, what fails."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from tests.state.epochs.manifests import small_manifest
from whale_ray.configs.errors import AttemptLostError, OutputError
from whale_ray.operators.sinks.base import Staged
from whale_ray.operators.sinks.cut_rows import CutRows
from whale_ray.operators.sinks.staged_json import staged_from_json
from whale_ray.operators.snapshot_files import chunk_from_bytes, values_from_bytes
from whale_ray.operators.snapshots import OperatorSnapshot, StateChunk
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.coordinator_events import (
    Aligned,
    ParticipantEnded,
    SnapshotFailed,
    SnapshotWritten,
)
from whale_ray.state.epochs.manifest import ChunkFile, InlineChunk, Manifest, OperatorPart
from whale_ray.tasks.stage_epochs import TakenSnapshot
from whale_ray.transport.wire.batch import Batch
from whale_ray.worker import snapshot_writer
from whale_ray.worker.kept_snapshots import KeptSnapshots
from whale_ray.worker.snapshot_writer import SnapshotWriter

PARTICIPANT = (2, 1)
LARGE = 1_000
"""Rows of a chunk that gets a file of its own."""


def rows(*values: int) -> Batch:
    return Batch.from_pydict({"key": np.array(values, np.int64)})


def taken(
    *chunks: tuple[str | None, int], values: Any = None, staged: tuple[CutRows, ...] = ()
) -> tuple[TakenSnapshot, ...]:
    """Return the snapshot of one operator, with a large chunk for each (identity, key)."""
    state = [StateChunk(rows(*[key] * LARGE), identity) for identity, key in chunks]
    kept = OperatorSnapshot("sum", (3, 4), 6, 17, state, values or {}, {"next": 5})
    return (TakenSnapshot(kept, staged),)


def cut(staged: Staged) -> CutRows:
    return CutRows(1, lambda: staged)


class GatedStore:
    """A store of checkpoints whose writes wait at a gate, or fail."""

    def __init__(self, folder: Path) -> None:
        self.store = CheckpointStore.at(str(folder))
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.names: list[str] = []
        self.failures = 0

    def write_chunk(self, name: str, data: bytes) -> ChunkFile:
        self.reached.set()
        assert self.gate.wait(60)
        self.names.append(name)
        if self.failures:
            self.failures -= 1
            raise OutputError("no space left in 'folder'; make room")
        return self.store.write_chunk(name, data)


class Written:
    """A writer, and what it tells."""

    def __init__(self, folder: Path, closing_s: float = 60.0) -> None:
        self.told: Queue[Any] = Queue()
        self.woken = threading.Semaphore(0)
        self.store = GatedStore(folder)
        self.kept = KeptSnapshots()
        self.writer = SnapshotWriter(
            self.store,
            self.kept,
            "job",
            0,
            self.told.put,
            self.woken.release,
            retry_s=0.001,
            closing_s=closing_s,
        )

    def next(self) -> Any:
        return self.told.get(timeout=60)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    written = Written(tmp_path)
    yield written
    written.store.gate.set()
    written.writer.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "snapshots"]


def test_rows_that_are_made_when_asked_for_are_made_by_the_thread(written: Written) -> None:
    made_by: list[str] = []

    def make() -> Batch:
        made_by.append(threading.current_thread().name)
        return rows(7)

    chunk = StateChunk(make, "late")
    kept = OperatorSnapshot("sum", (3, 4), 6, 17, [chunk])
    for epoch in (1, 2):
        written.writer.taken(PARTICIPANT, epoch, (TakenSnapshot(kept),))
        told = written.next()
        (file,) = told.part[0].chunks
        assert chunk_from_bytes(written.store.store.read_chunk(file)).rows.equals(rows(7))
    assert made_by == ["snapshots"]  # the second epoch has the file of the first


def test_a_snapshot_can_be_read_from_what_is_told_of_it(written: Written) -> None:
    staged = Staged(3, 2, path="part-3-1", epoch=1), Staged(3, 9, payload=bytes(9_000), epoch=1)
    output = tuple(map(cut, staged))
    parts = taken((None, 1), ("b", 2), values={"object": {1, 2}}, staged=output)
    written.writer.aligned(PARTICIPANT, 1)
    written.writer.taken(PARTICIPANT, 1, parts)
    assert written.next() == Aligned(PARTICIPANT, 1)
    told = written.next()
    assert isinstance(told, SnapshotWritten)
    assert (told.participant, told.epoch) == (PARTICIPANT, 1)
    (part,) = told.part
    assert isinstance(part, OperatorPart)
    assert (part.operator_id, part.instances, part.parallelism) == ("sum", (3, 4), 6)
    assert (part.watermark_ns, part.position) == (17, {"next": 5})
    store = written.store.store
    chunks = [chunk_from_bytes(store.read_chunk(file)).rows.to_pylist() for file in part.chunks]
    assert chunks == [[{"key": 1}] * LARGE, [{"key": 2}] * LARGE]
    assert part.values is not None
    assert values_from_bytes(store.read_chunk(part.values)) == {"object": {1, 2}}
    assert tuple(staged_from_json(one, store.read_chunk) for one in part.staged) == staged
    written.writer.wait()
    assert written.writer.idle
    assert written.woken.acquire(timeout=60)


def test_what_is_small_goes_along_with_the_message(written: Written) -> None:
    parts = OperatorSnapshot("sum", (0,), 1, 17, [StateChunk(rows(7), "a")], {"object": {1, 2}})
    written.writer.taken(PARTICIPANT, 1, (TakenSnapshot(parts),))
    (part,) = written.next().part
    assert written.store.names == []
    read = written.store.store.read_chunk
    assert chunk_from_bytes(read(part.chunks[0])).rows.equals(rows(7))
    assert values_from_bytes(read(part.values)) == {"object": {1, 2}}


def test_only_so_many_bytes_of_an_object_go_along(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chunks(epoch: int, *keys: int) -> list[ChunkFile]:
        made = [StateChunk(rows(key), f"of {key}") for key in keys]
        written.writer.taken(
            PARTICIPANT, epoch, (TakenSnapshot(OperatorSnapshot("sum", (0,), 1, 17, made)),)
        )
        (part,) = written.next().part
        assert [int(read(one)["key"][0]) for one in part.chunks] == list(keys)
        return list(part.chunks)

    def read(file: ChunkFile) -> Batch:
        return chunk_from_bytes(written.store.store.read_chunk(file)).rows

    one, two, three = chunks(1, 1, 2, 3)
    assert all(isinstance(file, InlineChunk) for file in (one, two, three))
    monkeypatch.setattr(snapshot_writer, "_INLINE_BYTES_OF_OBJECT_MAX", one.nbytes + two.nbytes)
    kept = chunks(2, 1, 2, 3, 4)
    assert kept[:2] == [one, two]
    assert not any(isinstance(file, InlineChunk) for file in kept[2:])
    assert chunks(3, 1, 2, 3, 4) == kept, "what has a file is not written again"
    assert len(written.store.names) == 2


def test_a_chunk_that_gets_a_file_of_its_own_later_stays_though_old_files_are_removed(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removal goes on beside the next epoch, whose manifest does not list the file yet."""

    def write(epoch: int) -> tuple[ChunkFile, Manifest]:
        made = OperatorSnapshot("sum", (0,), 1, 17, [StateChunk(rows(1), "of 1")])
        written.writer.taken(PARTICIPANT, epoch, (TakenSnapshot(made),))
        parts = written.next().part
        return parts[0].chunks[0], replace(small_manifest(epoch, job="job"), parts=parts)

    store = written.store.store
    claim = store.take_claim("job", "topology")
    try:
        for epoch in (1, 2):
            store.write_manifest(write(epoch)[1])
        monkeypatch.setattr(snapshot_writer, "_INLINE_BYTES_OF_OBJECT_MAX", 0)
        file, manifest = write(3)
        store.remove_unlisted(keep=1)
        store.write_manifest(manifest)
        assert not isinstance(file, InlineChunk)
        assert chunk_from_bytes(store.read_chunk(file)).rows.equals(rows(1))
    finally:
        claim.close()


def test_a_chunk_is_written_once_as_long_as_each_snapshot_has_it(written: Written) -> None:
    def files(epoch: int, *chunks: tuple[str | None, int]) -> list[ChunkFile]:
        written.writer.taken(PARTICIPANT, epoch, taken(*chunks))
        (part,) = written.next().part
        return list(part.chunks)

    first = files(1, ("a", 1), ("b", 2), (None, 3))
    second = files(2, ("b", 2), ("a", 1), (None, 3))
    assert second[:2] == [first[1], first[0]]
    assert second[2] != first[2]
    third = files(3, ("a", 1))
    assert third == [first[0]]
    fourth = files(4, ("a", 1), ("b", 2))
    assert fourth[0] == first[0]
    assert fourth[1] != first[1], "an epoch did without it, so it may be gone"
    assert len(written.store.names) == 5


def test_a_payload_that_is_named_again_stays_in_its_file(written: Written) -> None:
    """The controller compares what workers name with what it has committed."""
    first, second = (cut(Staged(3, number, payload=bytes(9_000))) for number in (1, 2))
    named = []
    for epoch, staged in enumerate(((first,), (first, second), (second,)), 1):
        written.writer.taken(PARTICIPANT, epoch, taken(staged=staged))
        (part,) = written.next().part
        named.append(part.staged)
    assert named[1] == (*named[0], *named[2])
    assert len(written.store.names) == 2


def test_output_is_staged_beside_the_loop_and_again_if_that_failed(written: Written) -> None:
    stagings = []

    def stage() -> Staged:
        stagings.append(threading.current_thread().name)
        if len(stagings) == 1:
            raise OutputError("no space left")
        return Staged(3, 2, path="part")

    output = taken(staged=(CutRows(1, stage),))
    written.writer.taken(PARTICIPANT, 1, output)
    assert written.next() == SnapshotFailed(PARTICIPANT, 1, "no space left")
    for epoch in (2, 3):
        written.writer.taken(PARTICIPANT, epoch, output)
        (part,) = written.next().part
        assert staged_from_json(part.staged[0]) == Staged(3, 2, path="part", epoch=1)
    assert stagings == ["snapshots"] * 2


def test_what_fails_is_told_and_the_next_epoch_is_written(written: Written) -> None:
    written.store.failures = 1
    written.writer.taken(PARTICIPANT, 1, taken(("a", 1), ("b", 2)))
    assert written.next() == SnapshotFailed(PARTICIPANT, 1, "no space left in 'folder'; make room")
    written.writer.taken(PARTICIPANT, 2, taken(values={"object": threading.Lock()}))
    failed = written.next()
    assert isinstance(failed, SnapshotFailed)
    assert (failed.epoch, failed.reason.split(":")[0]) == (2, "TypeError")
    written.writer.taken(PARTICIPANT, 3, taken(("a", 1)))
    assert isinstance(written.next(), SnapshotWritten)


def test_a_later_epoch_takes_the_place_of_one_that_waits(written: Written) -> None:
    written.store.gate.clear()
    written.writer.taken((0, 0), 1, taken(("a", 1)))
    assert written.store.reached.wait(60)
    for epoch in range(1, 9):
        written.writer.taken(PARTICIPANT, epoch, taken(("a", epoch)))
    assert len(written.writer._due) == 1
    written.store.gate.set()
    told = [written.next(), written.next()]
    assert [(one.participant, one.epoch) for one in told] == [((0, 0), 1), (PARTICIPANT, 8)]


def test_the_last_snapshot_is_tried_again_until_it_is_written(written: Written) -> None:
    written.store.failures = 3
    written.writer.ended(PARTICIPANT, 4, taken(("a", 1)))
    failed = [written.next() for _ in range(3)]
    assert {(one.participant, one.epoch) for one in failed} == {(PARTICIPANT, 5)}
    told = written.next()
    assert isinstance(told, ParticipantEnded)
    assert (told.participant, told.behind, len(told.part)) == (PARTICIPANT, 4, 1)


def test_a_last_snapshot_that_cannot_be_written_ends_the_attempt(written: Written) -> None:
    written.store.failures = 1_000
    written.writer.ended(PARTICIPANT, 4, taken(("a", 1)))
    written.writer.wait()
    with pytest.raises(OutputError, match="stage 2 kept at their end .* no space left"):
        assert written.writer.idle


def test_output_that_is_lost_at_the_end_lets_the_job_go_back_at_once(written: Written) -> None:
    """To try again would help nothing: only those who read the rows again have them."""
    tries = []

    def stage() -> Staged:
        tries.append(1)
        if len(tries) == 1:
            raise OutputError("no space left")
        raise AttemptLostError("rows of a checkpoint could not be written: no space left")

    written.writer.ended(PARTICIPANT, 4, taken(staged=(CutRows(5, stage),)))
    assert written.next() == SnapshotFailed(PARTICIPANT, 5, "no space left")
    written.writer.wait()
    with pytest.raises(AttemptLostError, match="no space left"):
        assert written.writer.idle
    assert len(tries) == 2


def test_a_writer_that_is_closed_tells_nothing_more(written: Written) -> None:
    written.store.gate.clear()
    written.writer.taken((0, 0), 1, taken(("a", 1)))
    written.writer.taken(PARTICIPANT, 1, taken(("a", 1)))
    assert written.store.reached.wait(60)
    closing = threading.Thread(target=written.writer.close)
    closing.start()
    while not written.writer._closed:
        pass
    written.store.gate.set()
    closing.join(60)
    assert written.told.empty()
    assert len(written.store.names) == 1


def test_a_write_that_hangs_is_left_behind_and_told_and_its_thread_writes_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = Written(tmp_path, closing_s=0.01)
    written.store.gate.clear()
    state = taken(("a", 1), ("b", 2)), taken(("c", 3), values={"object": bytes(9_000)})
    written.writer.taken(PARTICIPANT, 1, (*state[0], *state[1]))
    assert written.store.reached.wait(60)
    written.writer.close()
    (told,) = caplog.messages
    assert "still being written after 0.01 s" in told and "\n" not in told
    (thread,) = (one for one in threading.enumerate() if one.name == "snapshots")
    written.store.gate.set()
    thread.join(60)
    assert len(written.store.names) == 1
    assert written.told.empty()


def test_a_writer_that_is_closed_reads_no_more_state(written: Written) -> None:
    """It may be rolled back from then on."""
    asked = []

    def make() -> Batch:
        asked.append(1)
        return rows(7)

    written.store.gate.clear()
    state = [StateChunk(rows(*[1] * LARGE), "a"), StateChunk(make, "b")]
    written.writer.taken(
        PARTICIPANT, 1, (TakenSnapshot(OperatorSnapshot("sum", (0,), 1, 17, state)),)
    )
    assert written.store.reached.wait(60)
    closing = threading.Thread(target=written.writer.close)
    closing.start()
    while not written.writer._closed:
        pass
    written.store.gate.set()
    closing.join(60)
    assert asked == []


def test_what_is_written_is_kept_in_memory_too(written: Written) -> None:
    written.writer.taken(PARTICIPANT, 1, taken(("a", 1)))
    written.writer.ended(PARTICIPANT, 1, taken(("a", 2)))
    written.next(), written.next()
    assert [len(written.kept.at(epoch)) for epoch in (1, 2)] == [1, 1]


def test_epochs_that_do_not_count_are_not_kept_in_memory() -> None:
    kept = KeptSnapshots()
    for epoch in range(1, 6):
        kept.remember(epoch, [taken(("a", epoch))[0].operator])
    kept.forget_before(2)
    kept.forget(4)
    assert [epoch for epoch in range(1, 6) if kept.at(epoch)] == [2, 5]
