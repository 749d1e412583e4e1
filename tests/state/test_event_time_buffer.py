"""The buffer against a model: the order of released rows does not depend on slices or arrival."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import ResourceError
from whale_ray.operators.snapshots import StateChunk
from whale_ray.state import event_time_buffer
from whale_ray.state.event_time_buffer import MERGE_RUNS, RUN_OVERHEAD_BYTES, EventTimeBuffer
from whale_ray.state.spill import SpillFile
from whale_ray.state.watermarks import WATERMARK_END
from whale_ray.transport.wire import codec
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.messages import WorkerMessage
from whale_ray.transport.wire.types import Schema

SCHEMA = Schema.of(row="int64", name="string")


def batch_of(times: list[int], first_row: int) -> Batch:
    rows = [{"row": first_row + i, "name": f"row {first_row + i}"} for i in range(len(times))]
    return Batch.from_rows(rows, SCHEMA).with_times(np.array(times, dtype=np.int64))


@dataclass
class BufferModel:
    """All rows as (time, port, source, number), released by sorting everything."""

    waiting: list[tuple[int, int, int, int]] = field(default_factory=list)

    def release(self, watermark: int) -> list[tuple[int, int]]:
        due = sorted(row for row in self.waiting if row[0] <= watermark)
        self.waiting = [row for row in self.waiting if row[0] > watermark]
        return [(port, number) for _, port, _, number in due]


slices = st.tuples(
    st.integers(0, 1), st.integers(0, 2), st.lists(st.integers(0, 30), min_size=1, max_size=8)
)
steps = st.lists(slices | st.integers(0, 30), max_size=30)
Steps = list[tuple[int, int, list[int]] | int]


def drain(buffer: EventTimeBuffer, watermark: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for released in buffer.release(watermark):
        ports = [[] if b is None else [r["row"] for r in b.rows()] for b in released.ports]
        taken = [iter(rows) for rows in ports]
        merged += [(int(port), next(taken[int(port)])) for port in released.order]
        assert all(next(rest, None) is None for rest in taken)
    return merged


@given(steps=steps, memory_bytes=st.sampled_from([1 << 30, 4000, 0]))
def test_rows_are_released_by_time_port_source_and_sequence(
    steps: Steps, memory_bytes: int
) -> None:
    hold_against_the_model(steps, memory_bytes)


@pytest.mark.long
@given(
    seed=st.integers(0, 2**32),
    memory_bytes=st.sampled_from([1 << 30, 20_000, 4000]),
    merge_runs=st.sampled_from([0, 3, 20]),
    merged_bytes_max=st.sampled_from([300, 1 << 18]),
    spill_piece_bytes=st.sampled_from([100, 1 << 20]),
)
def test_the_order_is_the_same_if_runs_are_always_merged_and_spilled(
    seed: int, memory_bytes: int, merge_runs: int, merged_bytes_max: int, spill_piece_bytes: int
) -> None:
    limits = {
        "MERGE_RUNS": merge_runs,
        "MERGED_BYTES_MAX": merged_bytes_max,
        "MERGED_SHARE": 1,
        "SPILL_PIECE_BYTES": spill_piece_bytes,
    }
    chance, steps = random.Random(seed), cast(Steps, [])
    for _ in range(150):
        rows = chance.choice([1, 1, 1, 5])
        times = [chance.randrange(8) for _ in range(rows)]
        steps.append((chance.randrange(2), chance.randrange(2), times))
        if chance.random() < 0.05:
            steps.append(len(steps) // 20)
    with mock.patch.multiple(event_time_buffer, **limits):
        hold_against_the_model(steps, memory_bytes)


@given(steps=steps, memory_bytes=st.sampled_from([1 << 30, 4000]), merge_runs=st.integers(0, 9))
def test_rows_of_a_frame_outlive_it_only_as_copies(
    steps: Steps, memory_bytes: int, merge_runs: int
) -> None:
    """Each step is one call: rows come in a frame, some are released, then the frame is reused."""
    buffer = EventTimeBuffer(2, memory_bytes, lambda: SpillFile("join", 1 << 20))
    model, number, watermark = BufferModel(), 0, -1
    with mock.patch.object(event_time_buffer, "MERGE_RUNS", merge_runs):
        for step in steps:
            if isinstance(step, int):
                watermark = max(watermark, step)
                continue
            port, source, offsets = step
            times = [watermark + 1 + offset for offset in offsets]
            frame, batch = received(batch_of(times, number))
            buffer.add(port, source, batch)
            model.waiting += [(t, port, source, number + i) for i, t in enumerate(times)]
            number += len(times)
            watermark += number % 3
            assert drain(buffer, watermark) == model.release(watermark)
            buffer.own()
            del batch
            frame[:] = 0xEE
    assert drain(buffer, WATERMARK_END) == model.release(WATERMARK_END)
    buffer.close()


@given(steps=steps, memory_bytes=st.sampled_from([1 << 30, 4000, 0]))
def test_rows_that_wait_at_a_marker_are_the_same_when_they_are_written_later(
    steps: Steps, memory_bytes: int
) -> None:
    """All are written in the end, when none waits any more and the frames are of other rows."""
    buffer = EventTimeBuffer(2, memory_bytes, lambda: SpillFile("join", 1 << 20))
    model, number, watermark = BufferModel(), 0, -1
    markers: list[tuple[list[tuple[int, int, StateChunk]], list[tuple[int, int, int, int]]]] = []
    for step in steps:
        if isinstance(step, int):
            watermark = max(watermark, step)
            assert drain(buffer, watermark) == model.release(watermark)
            continue
        port, source, offsets = step
        times = [watermark + 1 + offset for offset in offsets]
        frame, batch = received(batch_of(times, number))
        buffer.add(port, source, batch)
        model.waiting += [(t, port, source, number + i) for i, t in enumerate(times)]
        number += len(times)
        waiting = [(*place, StateChunk(batches)) for *place, batches in buffer.waiting()]
        markers.append((waiting, list(model.waiting)))
        del batch
        frame[:] = 0xEE
    drain(buffer, WATERMARK_END)
    buffer.close()
    for waiting, wanted in markers:
        restored = EventTimeBuffer(2, 1 << 30, lambda: SpillFile("join", 1 << 20))
        for port, source, chunk in waiting:
            restored.add(port, source, chunk.rows)
        assert drain(restored, WATERMARK_END) == BufferModel(wanted).release(WATERMARK_END)
        restored.close()


def received(batch: Batch) -> tuple[npt.NDArray[np.uint8], Batch]:
    """Return a batch as it comes out of a ring, and the frame of which it is a view."""
    frame = np.zeros(codec.message_size(batch, with_times=True), np.uint8)
    codec.encode_into(frame, batch, stream=0, source=0, attempt=0, sequence=0, with_times=True)
    message = codec.decode(frame, {batch.schema.schema_id: batch.schema})
    assert isinstance(message, WorkerMessage)
    assert not message.batch.owned
    return frame, message.batch


def hold_against_the_model(steps: Steps, memory_bytes: int) -> None:
    buffer = EventTimeBuffer(2, memory_bytes, lambda: SpillFile("join", 1 << 20))
    model, number, watermark = BufferModel(), 0, -1
    for step in steps:
        if isinstance(step, int):
            watermark = max(watermark, step)
            assert drain(buffer, watermark) == model.release(watermark)
            continue
        port, source, offsets = step
        times = [watermark + 1 + offset for offset in offsets]
        buffer.add(port, source, batch_of(times, number))
        model.waiting += [(t, port, source, number + i) for i, t in enumerate(times)]
        number += len(times)
    assert buffer.buffered_rows == len(model.waiting)
    assert drain(buffer, WATERMARK_END) == model.release(WATERMARK_END)
    assert buffer.buffered_rows == buffer.buffered_bytes == buffer.spilled_bytes == 0
    buffer.close()


def test_the_rest_of_a_piece_that_is_spilled_again_stays_before_the_next_piece() -> None:
    buffer = EventTimeBuffer(1, 0, lambda: SpillFile("slow", 1 << 20))
    whole = batch_of([0, 0, 1, 1, 1, 1, 2, 2], 0)
    with mock.patch.object(
        event_time_buffer, "SPILL_PIECE_BYTES", (whole.nbytes + RUN_OVERHEAD_BYTES) // 2 + 1
    ):
        buffer.add(0, 0, whole)
        assert len(buffer._runs[0]) == 2
        assert drain(buffer, 0) == [(0, 0), (0, 1)]
        buffer.add(0, 0, batch_of([3], 8))  # two rows have no room now and are spilled one by one
        assert len(buffer._runs[0]) == 4
        assert drain(buffer, WATERMARK_END) == [(0, number) for number in range(2, 9)]
    buffer.close()


def test_rows_added_one_by_one_take_little_more_memory_than_large_slices() -> None:
    buffer = EventTimeBuffer(1, 1 << 20, lambda: SpillFile("slow", 1 << 24))
    times = [i - i % 7 for i in range(6000)]
    whole = batch_of(times, 0)
    for i in range(6000):
        buffer.add(0, i % 3, whole.slice(i, i + 1))
        assert len(buffer._runs[0]) <= MERGE_RUNS + 1
    assert buffer.spilled_bytes == 0
    assert buffer.buffered_bytes < 2 * whole.nbytes + MERGE_RUNS * RUN_OVERHEAD_BYTES
    by_time_and_source = sorted(range(6000), key=lambda i: (times[i], i % 3, i))
    assert [number for _, number in drain(buffer, 3000)] == [
        i for i in by_time_and_source if times[i] <= 3000
    ]
    assert [number for _, number in drain(buffer, WATERMARK_END)] == [
        i for i in by_time_and_source if times[i] > 3000
    ]
    assert buffer.buffered_bytes == 0
    buffer.close()


def test_rows_are_copied_a_logarithmic_number_of_times() -> None:
    buffer = EventTimeBuffer(1, 1 << 24, lambda: SpillFile("slow", 1 << 24))
    whole = batch_of(list(range(20_000)), 0)
    copied = 0
    real = Batch.concat

    def counted(batches: list[Batch]) -> Batch:
        nonlocal copied
        copied += sum(batch.num_rows for batch in batches)
        return real(batches)

    with mock.patch.object(Batch, "concat", counted):
        for i in range(20_000):
            buffer.add(0, 0, whole.slice(i, i + 1))
    assert 0 < copied < 6 * 20_000
    buffer.close()


def test_runs_of_different_types_are_not_merged() -> None:
    buffer = EventTimeBuffer(1, 1 << 20, lambda: SpillFile("slow", 1 << 20))
    for i in range(2 * MERGE_RUNS):
        column = np.array([i], dtype=np.int64 if i < MERGE_RUNS else np.float64)
        batch = Batch.from_pydict({"v": column}).with_times(np.array([i], dtype=np.int64))
        buffer.add(0, 0, batch)
    (early,) = (released.ports[0] for released in buffer.release(MERGE_RUNS - 1))
    (late,) = (released.ports[0] for released in buffer.release(WATERMARK_END))
    assert early is not None and late is not None
    assert (early["v"].dtype, late["v"].dtype) == (np.int64, np.float64)
    buffer.close()


def test_memory_stays_within_its_limit_and_the_file_is_used_again() -> None:
    buffer = EventTimeBuffer(1, 10_000, lambda: SpillFile("slow", 1 << 22))
    for start in range(0, 20_000, 500):
        buffer.add(0, 0, batch_of(list(range(start, start + 500)), start))
        assert buffer.buffered_bytes <= 10_000
    spilled = buffer.spilled_bytes
    assert spilled > 20_000 * 8
    numbers = [number for _, number in drain(buffer, WATERMARK_END)]
    assert numbers == list(range(20_000))
    assert buffer.spilled_bytes == 0
    buffer.close()


def test_rows_are_released_in_pieces_that_fit_into_memory_and_keep_equal_times_together() -> None:
    buffer = EventTimeBuffer(1, 20_000, lambda: SpillFile("slow", 1 << 24))
    for start in range(0, 10_000, 500):
        times = [(start + i) // 7 for i in range(500)]
        buffer.add(0, 0, batch_of(times, start))
    last_ns, rows = -1, 0
    for released in buffer.release(WATERMARK_END):
        (batch,) = released.ports
        assert batch is not None
        assert batch.times is not None
        assert batch.times[0] > last_ns
        last_ns, rows = int(batch.times[-1]), rows + batch.num_rows
        assert batch.nbytes < 100_000
    assert rows == 10_000
    buffer.close()


def test_spill_files_are_freed_as_they_are_read() -> None:
    spill = SpillFile("slow", 100_000, page_bytes=10_000)
    records = [spill.append(batch_of(list(range(100)), 0)) for _ in range(4)]
    for number in range(200):  # far more in all than fits at a time
        records.append(spill.append(batch_of(list(range(100)), number)))
        assert spill.read(records.pop(0)).num_rows == 100
    assert spill.size_bytes <= 30_000
    spill.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    spill = SpillFile("join", 1 << 20, str(tmp_path / "missing"))
    with pytest.raises(ResourceError, match="cannot spill to .*missing: No such file"):
        spill.append(batch_of([1], 0))


def test_a_full_spill_file_names_the_operator_and_the_remedy() -> None:
    buffer = EventTimeBuffer(1, 0, lambda: SpillFile("join", 1_000))
    with pytest.raises(ResourceError) as caught:
        buffer.add(0, 0, batch_of(list(range(1000)), 0))
    assert str(caught.value) == (
        "operator 'join' would spill more than 1,000 bytes waiting for event time to advance; "
        "raise runtime.spill_bytes_max or lower runtime.max_drift_ms"
    )
    buffer.close()


def test_rows_without_times_are_refused() -> None:
    buffer = EventTimeBuffer(1, 1000, lambda: SpillFile("join", 1_000))
    with pytest.raises(ValueError, match="needs rows with event times"):
        buffer.add(0, 0, Batch.from_rows([{"row": 1, "name": "a"}], SCHEMA))
