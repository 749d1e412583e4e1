"""Rows that go to one instance each, through rings, against a loop over the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators.groupings import Key
from whale_ray.plan.physical import Edge
from whale_ray.state.keys import hash_keys, virtual_node_of
from whale_ray.state.owners import Owners
from whale_ray.tasks.addressing import AddressingStrategy, KeyedAddressing, OneWorker
from whale_ray.tasks.edge_writer import EdgeWriter, Stamp
from whale_ray.tasks.partitioner import make_partitioner
from whale_ray.tasks.ring_queue import OutRing
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.slicing import StreamSlicer
from whale_ray.transport.wire import codec
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.messages import SchemaMessage, WorkerMessage
from whale_ray.transport.wire.types import Schema

EDGE = Edge(0, "from", "to", 0, 1, 0, Key(("k",)), carries_time=True, ordered=False)
SCHEMA = Schema.of(k="string", n="int64")
NODES = 64

keys = st.lists(st.none() | st.sampled_from("abcdefghijklm"), max_size=60)
divisions = st.lists(st.integers(1, 4), min_size=1, max_size=4)
"""How many instances each worker has."""


def batch_of(names: list[str | None], first: int = 0) -> Batch:
    rows = [{"k": name, "n": first + number} for number, name in enumerate(names)]
    return Batch.from_rows(rows, SCHEMA).with_times(np.arange(first, first + len(names)))


class Written:
    """One producer on a keyed edge to some workers, and the reading ends of their rings."""

    def __init__(self, division: list[int], *, together: bool, edge: Edge = EDGE) -> None:
        self.parallelism = sum(division)
        self.owners = Owners.even(NODES, self.parallelism)
        self.rings, self.ends = [], []
        first = 0
        for number, count in enumerate(division):
            producer, (end,) = create_inproc_ring(1 << 16, 1, f"ring-{number}")
            instances = tuple(range(first, first + count))
            self.rings.append(OutRing(number, producer, instances, producer.max_frame_bytes))
            self.ends.append(end)
            first += count
        partitioner = make_partitioner(edge, self.parallelism, self.owners, (), 0)
        self.addressing: AddressingStrategy
        if together and len(division) == 1:
            self.addressing = OneWorker(edge, self.rings, ("k",), with_times=True)
        else:
            self.addressing = KeyedAddressing(
                edge, self.rings, partitioner, self.parallelism, together=together, with_times=True
            )
        stamp = Stamp(0, attempt=0, with_times=True, checksum=False)
        ways = {"keyed": self.addressing}
        self.writer = EdgeWriter(edge, stamp, ways, StreamSlicer(1, 0))

    def instances_of(self, batch: Batch) -> list[int]:
        hashes, _ = hash_keys(batch, ("k",))
        found = self.owners.of(virtual_node_of(hashes, NODES))
        return [int(one) for one in found]

    def messages(self, ring: int) -> Iterator[WorkerMessage]:
        schemas: dict[int, Any] = {}
        while (frame := self.ends[ring].get()) is not None:
            message = codec.decode(frame.data.copy(), schemas)
            self.ends[ring].release_buffer(frame)
            if isinstance(message, SchemaMessage):
                message.register(schemas)
            elif isinstance(message, WorkerMessage):
                yield message


def kept(batch: Batch) -> list[tuple[Any, ...]]:
    assert batch.times is not None
    rows = [tuple(row.values()) for row in batch.to_pylist()]
    return [(*row, time) for row, time in zip(rows, batch.times.tolist(), strict=True)]


@given(slices=st.lists(keys, max_size=4), division=divisions, together=st.booleans())
def test_each_row_comes_to_its_worker_once(
    slices: list[list[str | None]], division: list[int], together: bool
) -> None:
    written = Written(division, together=together, edge=replace(EDGE, on_null_key="keep"))
    expected: list[list[tuple[Any, ...]]] = [[] for _ in division]
    first = 0
    for names in slices:
        batch = batch_of(names, first)
        first += len(names)
        written.writer.emit(batch)
        rows = list(zip(written.instances_of(batch), kept(batch), strict=True))
        if not together:
            rows.sort(key=lambda row: row[0])  # stable: an instance's rows keep their order
        for ring, one in enumerate(written.rings):
            expected[ring] += [row for instance, row in rows if instance in one.instances]
    written.writer.settle(1)
    for ring, one in enumerate(written.rings):
        found: list[tuple[Any, ...]] = []
        for message in written.messages(ring):
            assert message.header.sequence == len(found)
            found += kept(message.batch)
            if together:
                assert message.destinations is None
                continue
            assert message.destinations is not None
            start = 0
            for instance, end in message.destinations.tolist():
                assert instance in one.instances
                part = message.batch.slice(start, end)
                assert set(written.instances_of(part)) == {instance}
                start = end
        assert found == expected[ring]


@given(names=keys, division=divisions, together=st.booleans())
def test_rows_with_a_null_key_are_counted_or_refused(
    names: list[str | None], division: list[int], together: bool
) -> None:
    written = Written(division, together=together, edge=replace(EDGE, on_null_key="drop"))
    written.writer.emit(batch_of(names))
    written.writer.settle(1)
    found = [
        row
        for ring in range(len(division))
        for m in written.messages(ring)
        for row in m.batch["n"].tolist()
    ]
    assert sorted(found) == [number for number, name in enumerate(names) if name is not None]
    assert written.writer.rows_dropped == names.count(None)
    refusing = Written(division, together=together, edge=replace(EDGE, on_null_key="fail"))
    if None not in names:
        refusing.writer.emit(batch_of(names))
        return
    with pytest.raises(BadRowError, match=rf"null key .*\{{k=None, n={names.index(None)}\}}"):
        refusing.writer.emit(batch_of(names))


@pytest.mark.parametrize("division", [[1], [2, 1]])
def test_a_slice_without_the_key_names_the_operator(division: list[int]) -> None:
    written = Written(division, together=True)
    batch = Batch.from_pydict({"n": np.arange(3)}).with_times(np.arange(3))
    with pytest.raises(InputError, match="after operator 'from': .*'k'"):
        written.writer.emit(batch)


@pytest.mark.parametrize("division", [[2], [1, 1], [2, 3]])
def test_a_slice_larger_than_a_frame_is_parted(division: list[int]) -> None:
    written = Written(division, together=True)
    batch = batch_of(["a" * 900, "b" * 900, "c" * 900, "d" * 900] * 6)
    written.writer.emit(batch)
    found = []
    for now in range(1, 50):
        written.writer.settle(now)
        found += [
            row
            for ring in range(len(division))
            for m in written.messages(ring)
            for row in m.batch["n"].tolist()
        ]
    assert sorted(found) == list(range(24))
