"""Rows that are gathered for a pass over state on the disk: how long, how many, in which order."""

from __future__ import annotations

from whale_ray.tasks.gathered_rows import GatheredRows
from whale_ray.transport.wire.batch import Batch


def rows(*numbers: int) -> Batch:
    return Batch.from_pydict({"n": list(numbers)})


def test_rows_wait_as_long_as_the_last_pass_took_and_the_watermark_with_them() -> None:
    gathered = GatheredRows()
    gathered.add(rows(1), 100, kept=False)
    assert not gathered.waits(100, 1 << 20)  # no pass is known to take any time
    assert gathered.give_back().watermark_ns is None
    gathered.note_pass(50)
    gathered.add(rows(2, 3), 200, kept=False)
    gathered.hold(7)
    gathered.add(rows(4), 220, kept=False)
    gathered.hold(9)
    assert (gathered.due_ns, gathered.rows) == (250, 3)
    assert gathered.waits(249, 1 << 20)
    assert not gathered.waits(250, 1 << 20)
    found, watermark_ns = gathered.give_back()
    assert found is not None
    assert found.column("n").to_pylist() == [2, 3, 4]
    assert watermark_ns == 9
    assert (gathered.due_ns, gathered.rows) == (None, 0)


def test_no_more_rows_wait_than_there_is_memory_for() -> None:
    gathered = GatheredRows()
    gathered.note_pass(1_000)
    gathered.add(rows(*range(100)), 0, kept=False)
    assert gathered.waits(1, 100 * 60)
    assert not gathered.waits(1, 100 * 50)
    assert not gathered.waits(1, 0)  # the state has left the disk


def test_a_slow_pass_lets_rows_wait_for_two_seconds_at_most() -> None:
    gathered = GatheredRows()
    gathered.note_pass(10**12)
    gathered.add(rows(1), 5, kept=True)  # for event time, elsewhere
    assert gathered.due_ns == 5 + 2 * 10**9
    assert gathered.give_back().rows is None
