"""Rows that are gathered for a pass over state on the disk: how long, how many, in which order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import whale_ray as whale
from whale_ray.operators.groupings import Global
from whale_ray.tasks.gathered_rows import GatheredRows
from whale_ray.tasks.process_node import ProcessNode
from whale_ray.testing import VirtualClock, instance_context
from whale_ray.transport.wire.batch import Batch


def rows(*numbers: int) -> Batch:
    return Batch.from_pydict({"n": list(numbers)}, whale.Schema.of(n="int64"))


def test_rows_wait_three_times_as_long_as_the_last_pass_took_and_the_watermark_with_them() -> None:
    gathered = GatheredRows()
    gathered.add(rows(1), 100, kept=False)
    assert not gathered.waits(100, 1 << 20)  # no pass is known to take any time
    assert gathered.give_back().watermark_ns is None
    gathered.note_pass(50)
    gathered.add(rows(2, 3), 200, kept=False)
    gathered.hold(7)
    gathered.add(rows(4), 220, kept=False)
    gathered.hold(9)
    assert (gathered.due_ns, gathered.rows) == (350, 3)
    assert gathered.waits(349, 1 << 20)
    assert not gathered.waits(350, 1 << 20)
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


class SlowOnDisk(whale.KeyedProcess):
    """Says that its state is on the disk; each pass takes a millisecond."""

    clock = VirtualClock()

    def __init__(self, *, takes: bool = False) -> None:
        self._put_off: list[Batch] = []
        self._takes = takes

    @property
    def stored_parts(self) -> Any:
        """What a pass takes, in place of what divides rows by where their state lies."""
        return SimpleNamespace(bytes_gathered_max=10_000, put_off=self.put_off)

    def put_off(self, batch: Batch) -> bool:
        if self._takes:
            self._put_off.append(batch)
        return self._takes

    def take_rows(self, batch: Batch, out: Any) -> None:
        batches, self._put_off = [*self._put_off, batch], []
        for one in batches:
            self.on_batch(one, out)

    def on_batch(self, batch: Batch, out: Any) -> None:
        self.slots(batch)
        self.clock.sleep_ns(1_000_000)
        out.emit(batch)


class Told:
    """What follows the process: notes what it is told, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def emit(self, batch: Batch) -> None:
        self.seen += batch.column("n").to_pylist()

    def advance(self, watermark_ns: int) -> None:
        self.seen.append(f"up to {watermark_ns}")

    def set_idle(self, idle: bool) -> None:
        self.seen.append("idle" if idle else "busy")

    def end(self) -> None:
        self.seen.append("end")


def test_rows_and_watermark_that_were_gathered_come_before_a_marker_an_idle_input_and_the_end() -> (
    None
):
    told, clock = Told(), SlowOnDisk.clock
    context = replace(instance_context(clock=clock), keys=(("n",),))
    node = ProcessNode(
        context,
        0,
        SlowOnDisk(),
        [told],
        None,
        False,
        True,
        remake=SlowOnDisk,
        groupings=(Global(),),
    )

    def gathered(number: int) -> list[Any]:
        told.seen.clear()
        node.accept(0, 0, rows(number))
        node.advance(number)
        assert told.seen == []
        assert node.due_ns(clock.monotonic_ns()) == clock.monotonic_ns() + 3_000_000
        return [number, f"up to {number}"]

    node.accept(0, 0, rows(0))  # the first is not gathered
    assert told.seen == [0]
    expected = gathered(1)
    node.empty_for_marker()
    assert told.seen == expected
    expected = gathered(2)
    node.set_idle(True)
    assert told.seen == [*expected, "idle"]
    expected = gathered(3)
    clock.sleep_ns(3_000_000)
    assert node.poll(clock.monotonic_ns())
    assert told.seen == expected
    expected = gathered(4)
    node.accept(0, 0, rows(*range(5, 300)))  # more than there is memory for
    assert told.seen == [4, *range(5, 300), "up to 4"]
    expected = gathered(300)
    node.end()
    assert told.seen == [*expected, "end"]


def node_of(process: SlowOnDisk, told: Told) -> ProcessNode:
    """Return the node of a process whose first rows have come, so that the next are gathered."""
    context = replace(instance_context(clock=SlowOnDisk.clock), keys=(("n",),))
    node = ProcessNode(
        context, 0, process, [told], None, False, True, remake=SlowOnDisk, groupings=(Global(),)
    )
    node.accept(0, 0, rows(0))
    node.accept(0, 0, rows(1))
    node.empty_for_marker()  # the pass takes a millisecond
    assert told.seen == [0, 1]
    told.seen.clear()
    return node


def test_rows_for_which_there_is_no_memory_wait_elsewhere_until_the_pass() -> None:
    told = Told()
    node, clock = node_of(SlowOnDisk(takes=True), told), SlowOnDisk.clock
    for more in ([2], []):
        node.accept(0, 0, rows(*range(300, 600)))
        node.advance(7)
        node.accept(0, 0, rows(*range(600, 900)))
        for number in more:
            node.accept(0, 0, rows(number))
        node.update_metrics()
        assert (told.seen, node.metrics.buffered_rows) == ([], 600 + len(more))
        assert not node.poll(clock.monotonic_ns())
        due_ns = node.due_ns(clock.monotonic_ns())
        assert due_ns is not None
        clock.sleep_ns(due_ns - clock.monotonic_ns())
        assert node.poll(clock.monotonic_ns())
        assert told.seen == [*range(300, 900), *more, "up to 7"]
        node.update_metrics()
        assert node.metrics.buffered_rows == 0
        told.seen.clear()
    node.accept(0, 0, rows(*range(300)))
    clock.sleep_ns(9_000_000)
    node.accept(0, 0, rows(*range(300, 600)))  # the pass is due: nothing waits any longer
    assert told.seen == [*range(600)]


def test_rows_that_wait_elsewhere_come_before_others_of_other_columns_and_before_a_deadline() -> (
    None
):
    told, process = Told(), SlowOnDisk(takes=True)
    node = node_of(process, told)

    def on_deadline(_: int, out: Any) -> None:
        out.emit({"n": [-1]})

    node.accept(0, 0, rows(*range(300)))
    node.accept(0, 0, Batch.from_pydict({"n": [3], "more": ["a"]}))
    assert told.seen == [*range(300)]
    node.empty_for_marker()
    told.seen.clear()
    node.accept(0, 0, rows(*range(300)))
    assert told.seen == []
    with (  # as a timer that is due
        mock.patch.object(process, "deadline_ns", process.clock.wall_ns),
        mock.patch.object(process, "on_deadline", on_deadline),
    ):
        assert node.poll(process.clock.monotonic_ns())
    assert told.seen == [*range(300), -1]


def test_rows_of_other_columns_are_not_joined_with_those_that_wait() -> None:
    told = Told()
    context = replace(instance_context(clock=SlowOnDisk.clock), keys=(("n",),))
    node = ProcessNode(
        context,
        0,
        SlowOnDisk(),
        [told],
        None,
        False,
        True,
        remake=SlowOnDisk,
        groupings=(Global(),),
    )
    node.accept(0, 0, rows(0))  # the first is not gathered
    node.accept(0, 0, rows(1))
    node.accept(0, 0, rows(2))
    assert told.seen == [0]
    node.accept(0, 0, Batch.from_pydict({"n": [3], "more": ["a"]}))
    assert told.seen == [0, 1, 2]
    node.accept(0, 0, Batch.from_pydict({"n": [4], "more": [0.5]}))
    assert told.seen == [0, 1, 2, 3]
    node.end()
    assert told.seen == [0, 1, 2, 3, 4, "end"]
