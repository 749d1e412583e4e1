"""Snapshots in a worker's memory against a plain model, and the snapshots of a manifest."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.snapshot_files import chunk_to_bytes, values_to_bytes
from whale_ray.operators.snapshots import OperatorSnapshot, StateChunk
from whale_ray.state.epochs.manifest import ChunkFile, Lineage, Manifest, OperatorPart
from whale_ray.state.watermarks import WATERMARK_END
from whale_ray.transport.wire.batch import Batch
from whale_ray.worker.kept_snapshots import KeptSnapshots
from whale_ray.worker.restored_snapshots import snapshots_of


def snapshot(instance: int, watermark_ns: int = 5, rows: int = 0) -> OperatorSnapshot:
    chunks = [StateChunk(Batch.from_pydict({"key": np.arange(rows)}))] if rows else ()
    return OperatorSnapshot("op", (instance,), 3, watermark_ns, chunks)


def key(instance: int) -> tuple[str, tuple[int, ...], int]:
    return "op", (instance,), 3


@given(
    ends=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    durable=st.integers(1, 8),
    back=st.integers(1, 8),
)
def test_what_is_kept_is_that_of_each_epoch(ends: list[int], durable: int, back: int) -> None:
    kept, model = KeptSnapshots(), {}
    for epoch in range(1, 9):
        taken = []
        for instance, end in enumerate(ends):
            if epoch <= end:
                ns = WATERMARK_END if epoch == end else epoch
                taken.append(snapshot(instance, ns))
                model[epoch, instance] = taken[-1]
            else:
                model[epoch, instance] = model[epoch - 1, instance]
        kept.remember(epoch, taken)
    kept.forget_before(durable)
    if back >= durable:
        kept.forget_after(back)
    for epoch in range(1, 9):
        gone = epoch < durable or (back >= durable and epoch > back)
        wanted = {} if gone else {key(one): model[epoch, one] for one in range(3)}
        assert kept.at(epoch) == wanted


class Files:
    """Files by name, and the names that were read."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.read_names: list[str] = []

    def write(self, name: str, data: bytes) -> ChunkFile:
        self.data[name] = data
        return ChunkFile(name, len(data), zlib.crc32(data))

    def read(self, file: ChunkFile) -> bytes:
        self.read_names.append(file.name)
        return self.data[file.name]


def stored(files: Files, snapshots: Sequence[OperatorSnapshot]) -> Manifest:
    parts = []
    for number, one in enumerate(snapshots):
        chunks = [
            files.write(f"c{number}-{at}", chunk_to_bytes(chunk))
            for at, chunk in enumerate(one.chunks)
        ]
        values = files.write(f"v{number}", values_to_bytes(one.values)) if one.values else None
        parts.append(
            OperatorPart(
                one.operator_id,
                one.instances,
                one.parallelism,
                one.watermark_ns,
                tuple(chunks),
                values,
                one.position,
            )
        )
    return Manifest(4, 3, Lineage("job"), "topology", 0, 1024, tuple(parts))


def test_snapshots_come_from_the_store_when_they_are_asked_for() -> None:
    files = Files()
    there = [snapshot(0, rows=3), snapshot(1, rows=2)]
    values: dict[str, Any] = {"learnt": [1, None]}
    there.append(OperatorSnapshot("source", (0,), 1, 7, values=values, position={"at": 3}))
    found = snapshots_of(stored(files, there), files.read)
    assert not files.read_names
    assert [one.instances for one in found["op"]] == [(0,), (1,)]
    (source,) = found["source"]
    assert (source.position, source.watermark_ns, dict(source.values)) == ({"at": 3}, 7, values)
    for one, wanted in zip(found["op"], there, strict=False):
        (chunk,) = one.chunks[:1]
        assert chunk.rows.equals(wanted.chunks[0].rows)
        assert not one.chunks[1:] and not one.values
    assert sorted(files.read_names) == ["c0-0", "c1-0", "v2"]
    assert found["op"][0].chunks[0].identity == "c0-0"
    with pytest.raises(IndexError):
        found["op"][0].chunks[1]


def test_a_survivor_reads_nothing_of_its_own() -> None:
    files = Files()
    there = [snapshot(0, rows=3), snapshot(1, rows=2)]
    kept = KeptSnapshots()
    kept.remember(4, there[:1])
    found = snapshots_of(stored(files, there), files.read, kept.at(4))
    assert list(found["op"][0].chunks) == list(there[0].chunks)
    assert not files.read_names
    assert found["op"][1].chunks[0].rows.num_rows == 2
    assert files.read_names == ["c1-0"]
