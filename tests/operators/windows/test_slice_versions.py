"""Snapshots of groups that have changed, against a dump of all groups at the marker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows.driving import Emitted, take
from whale_ray.operators.keyed.changed_keys import VERSIONS_MAX
from whale_ray.operators.snapshots import StateChunk
from whale_ray.operators.windows.aggregate_windows import AggregateWindows
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.slice_versions import latest_groups
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

F = whale.functions
KEYS = ("key",)
AGGREGATES = (F.sum("number").alias("sum"), F.max("text").alias("last"))


def opened() -> AggregateWindows:
    operator = AggregateWindows(Aggregation(KEYS, TimeWindow("time", 1_000, 1_000, 0), AGGREGATES))
    operator.open(replace(instance_context(operator_id="windows"), keys=(KEYS,)))
    return operator


def rows_of(batches: Sequence[Batch]) -> Counter[str]:
    return Counter(repr(row) for batch in batches for row in batch.to_pylist())


@settings(max_examples=15)
@given(
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, 30), max_size=12), st.integers(-300, 900)), max_size=40
    ),
    late=st.integers(0, 20),
)
def test_each_snapshot_is_the_dump_at_its_marker(
    steps: list[tuple[list[int], int]], late: int
) -> None:
    """The rows of a snapshot are made so many markers later, when the groups have changed."""
    operator, time_ns = opened(), 0
    waiting: list[tuple[Sequence[StateChunk], Counter[str]]] = []
    named: dict[str, Batch] = {}
    for epoch, (keys, later_ns) in enumerate(steps, 1):
        time_ns = max(0, time_ns + later_ns)
        take(operator, keys, time_ns)
        operator.on_watermark(time_ns - 500, Emitted())
        wanted = rows_of(list(operator.dump(np.arange(1024)))[1:])
        waiting.append((operator.chunks(epoch), wanted))
        if len(waiting) > late:
            check(waiting.pop(0), named)
            operator.release(epoch - late)
    for one in waiting:
        check(one, named)


def check(taken: tuple[Sequence[StateChunk], Counter[str]], named: dict[str, Batch]) -> None:
    chunks, wanted = taken
    kept = []
    for chunk in chunks:
        assert chunk.identity is not None
        named.setdefault(chunk.identity, chunk.rows)
        kept.append(StateChunk(named[chunk.identity]))
    assert rows_of(list(latest_groups(kept, KEYS, StateBudget()))) == wanted
    restored = opened()
    restored.take(kept, whole=True)
    assert rows_of(list(restored.dump(np.arange(1024)))[1:]) == wanted


def test_bytes_follow_what_has_changed() -> None:
    operator = opened()
    take(operator, range(50_000), 1)
    full = operator.chunks(1)
    known = {chunk.identity for chunk in full}
    for epoch in range(2, VERSIONS_MAX + 6):
        take(operator, range(epoch, 50_000, 1_000), 2)
        chunks = operator.chunks(epoch)
        added = [chunk.rows.num_rows for chunk in chunks if chunk.identity not in known]
        assert sum(added) in (50, 50 * (epoch - 1))  # the latter where versions become one
        assert len(chunks) <= len(full) + VERSIONS_MAX
        known |= {chunk.identity for chunk in chunks}
    again = operator.chunks(epoch + 1)
    assert [one.identity for one in again] == [one.identity for one in chunks]  # none has changed
    operator.on_watermark(1_000, Emitted())
    assert sum(chunk.rows.num_rows for chunk in operator.chunks(epoch + 2)) == 0
