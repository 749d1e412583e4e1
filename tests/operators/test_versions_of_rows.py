"""Joins and de-duplications that go on from their snapshots: few new rows in each, the same result.

The store is a dict of files that are written once, by a writer that lags behind the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.test_sealing import MADE, PAIRS, TIMES, Running, steps_of
from tests.operators.windows.driving import arrivals
from whale_ray.operators.joins import row_versions
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.joins.join import Join
from whale_ray.operators.joins.join_streams import JoinStreams
from whale_ray.operators.snapshots import StateChunk
from whale_ray.testing import instance_context
from whale_ray.testing.conformance import difference
from whale_ray.transport.wire.batch import Batch

NAMES = [name for name in (*MADE, *PAIRS) if "join" in name or name == "first rows"]


class Files:
    """What a snapshot thread has written, by the chunks' identities."""

    def __init__(self) -> None:
        self.written: dict[str, Batch] = {}
        self.bytes = 0

    def write(self, chunks: Sequence[StateChunk]) -> list[StateChunk]:
        """Write what is not there yet; return the chunks as a restart reads them."""
        found = []
        for number, chunk in enumerate(chunks):
            name = chunk.identity or f"#{len(self.written)}-{number}"
            if name not in self.written:
                self.written[name] = chunk.rows.copy()
                self.bytes += self.written[name].nbytes
            found.append(StateChunk(self.written[name], name))
        return found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6)
@given(data=st.data())
def test_a_join_goes_on_from_any_of_its_snapshots(name: str, data: st.DataObject) -> None:
    make = {**MADE, **PAIRS}[name]
    steps = steps_of(data.draw(arrivals(TIMES)), name)
    straight = Running(make)
    straight.take(steps)
    wanted, _ = straight.ended(1)
    files, running = Files(), Running(make)
    for epoch, step in enumerate(steps):
        waiting = running.operator.chunks(epoch)
        if data.draw(st.booleans()):  # else the epoch fails, and its files were never written
            before, waiting = list(waiting), []
            written = running.out.rows.copy()
            running.take([step])
            found = files.write(before)
            if data.draw(st.integers(0, 3)) == 0:
                watermark_ns = running.operator._watermark_ns
                running = Running(make)
                running.out.rows = written
                running.operator._watermark_ns = _before(steps[:epoch], watermark_ns)
                running.operator.take(found, whole=True)
                running.take([step])
        else:
            running.take([step])
    rows, _ = running.ended(len(steps))
    assert not difference(wanted, rows)


def _before(steps: Sequence[Any], default: int) -> int:
    watermarks = [step for step in steps if isinstance(step, int)]
    return max(watermarks, default=-(1 << 63))


@pytest.fixture(autouse=True)
def small_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_versions, "VERSIONS_MAX", 2)
    monkeypatch.setattr(row_versions, "ROWS_MAX", 7)


def test_a_snapshot_writes_what_is_new_and_names_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 rows come between two snapshots, and a row is kept for 40 of them."""
    monkeypatch.undo()
    step_ns, kept_steps, new = 1_000_000_000, 40, 1_000
    within = TimeInterval(0, (kept_steps - 1) * step_ns)
    join = JoinStreams(Join((("key", "key2"),), within, how="inner"))
    join.open(instance_context(operator_id="join"))
    files, out = Files(), Running(PAIRS[next(iter(PAIRS))]).out
    written_rows = []
    for epoch in range(200):
        before = sum(rows.num_rows for rows in files.written.values())
        left = Batch.from_pydict({"key": np.arange(new) + epoch * new})
        join.on_left(left.with_times(np.full(new, epoch * step_ns)), out)
        join.on_watermark(epoch * step_ns, out)
        chunks = join.chunks(epoch)
        named = [chunk for chunk in files.write(chunks) if "left-" in str(chunk.identity)]
        kept = join._kept_rows
        assert len(named) <= row_versions.VERSIONS_MAX
        assert kept <= sum(chunk.rows.num_rows for chunk in named) <= 3 * kept + 3 * new
        written_rows.append(sum(rows.num_rows for rows in files.written.values()) - before)
    assert join._kept_rows > kept_steps * new
    assert sorted(written_rows)[100] <= 1.1 * new  # most have the new rows and the contents alone
    assert sum(written_rows) <= 5 * 200 * new
