"""Sources, transforms, table joins and sinks: kept at an epoch, and restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import whale_ray as whale
from tests.whale_ray.tasks.fleets import Board, Sunk, sent
from whale_ray.configs.errors import UsageError
from whale_ray.operators.event_time import EventTime, EventTimeAssigner
from whale_ray.operators.joins.table_join import TableJoin
from whale_ray.operators.sinks.base import SinkWriter, Staged
from whale_ray.operators.snapshots import OperatorSnapshot, Position
from whale_ray.operators.sources.base import SourceReader
from whale_ray.operators.transforms import FlatMapRows, MapBatches, MapRows, Transform
from whale_ray.plan.logical import TABLE
from whale_ray.plan.physical import Stage
from whale_ray.state.watermarks import WATERMARK_END, WATERMARK_IDLE, WATERMARK_NONE
from whale_ray.tasks.nodes import Node, SinkNode, TransformNode
from whale_ray.tasks.predecessors import Predecessors
from whale_ray.tasks.read_size import ReadSize
from whale_ray.tasks.side_input import SideInput
from whale_ray.tasks.source_node import EndedReader, SourceNode
from whale_ray.tasks.stage_task import StageTask
from whale_ray.tasks.table_join_node import TableJoinNode
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

MS = 1_000_000


def task_of(node: Node, inputs: Sequence[tuple[int, int]] = ((0, 0),), **more: Any) -> StageTask:
    name = node.context.operator_id
    stage = Stage(0, (name,), node.context.parallelism, (0,), False, {})
    takes = inputs if node.takes_input else ()
    return StageTask(stage, node.context.instances, node, [node], [], takes, **more)


def kept(task: StageTask) -> list[OperatorSnapshot]:
    return [sent(one) for one in task.snapshot(1)]


def restored(task: StageTask, *snapshots: OperatorSnapshot) -> StageTask:
    task.restore({one.operator_id: snapshots for one in snapshots})
    task.begin(Board())
    return task


# -- sources ------------------------------------------------------------------------------------


class Numbers(SourceReader):
    """The numbers from `at` to before `end`, four at a time, then quiet if it is `endless`."""

    def __init__(self, at: int, end: int, *, endless: bool = False) -> None:
        self.at, self.end, self.endless = at, end, endless

    def read(self, max_rows: int) -> Batch | None:
        if self.at == self.end:
            return None
        first, self.at = self.at, min(self.at + 4, self.end)
        return Batch.from_pydict({"number": np.arange(first, self.at)})

    @property
    def finished(self) -> bool:
        return not self.endless and self.at == self.end

    def position(self) -> Position | None:
        return {"at": self.at}


TIME = EventTime("number", unit="ms", max_out_of_order_ms=2, on_late="pass", idle_after_ms=5)


class Slots(Board):
    def __init__(self) -> None:
        self.shown: list[int] = []

    def set_watermark(self, slot: int, watermark_ns: int) -> None:
        self.shown.append(watermark_ns)


def source(
    reader: SourceReader, instance: int = 0, parallelism: int = 1
) -> tuple[StageTask, Sunk, SourceNode]:
    sunk = Sunk("main")
    context = instance_context(instance, parallelism, operator_id="numbers")
    assigner = EventTimeAssigner(TIME, "numbers")
    node = SourceNode(context, 0, reader, sunk, assigner, 0, ReadSize(100, 100), 10**12)
    return task_of(node), sunk, node


def test_a_source_goes_on_with_its_event_time() -> None:
    before, first, _ = source(Numbers(0, 8))
    before.begin(Board())
    before.poll(0)
    (snapshot,) = kept(before)
    assert snapshot.position == {"at": 4}
    before.poll(1)
    after, second, node = source(Numbers(snapshot.position["at"], 8))
    restored(after, snapshot)
    assert second.watermark_ns == (3 - 2) * MS - 1
    assert node.metrics.rows_in == 4
    after.poll(2)
    assert [one["number"] for one in second.rows] == [4, 5, 6, 7]
    assert (second.watermark_ns, node.metrics.rows_in) == (first.watermark_ns, 8)


def test_late_rows_are_those_of_an_uninterrupted_run() -> None:
    before, _, _ = source(Numbers(100, 104))
    before.begin(Board())
    before.poll(0)
    after, sunk, node = source(Numbers(0, 4))
    restored(after, *kept(before))
    after.poll(1)
    after.update_metrics()
    assert node.metrics.rows_late == 4
    assert len(sunk.rows) == 4


def test_instances_of_another_number_go_on_from_the_least_watermark() -> None:
    snapshots = []
    for instance, first in enumerate((100, 20)):
        task, _, _ = source(Numbers(first, first + 4), instance, 2)
        task.begin(Board())
        task.poll(0)
        snapshots += kept(task)
    after, sunk, node = source(Numbers(0, 4))
    restored(after, *snapshots)
    assert sunk.watermark_ns == (23 - 2) * MS - 1
    assert node.metrics.rows_in == 8


def test_a_source_that_was_idle_has_time_again_for_its_rows() -> None:
    before, first, _ = source(Numbers(0, 4, endless=True))
    before.begin(Board())
    for now_ns in (0, 1, 6 * MS):
        before.poll(now_ns)
    assert first.idle
    (snapshot,) = kept(before)
    after, second, node = source(Numbers(4, 4, endless=True))
    slots = Slots()
    after.restore({"numbers": [snapshot]})
    after.begin(slots)
    assert slots.shown == [MS - 1]
    assert (second.idle, second.watermark_ns) == (False, MS - 1)
    for now_ns in (0, 4 * MS):
        after.poll(now_ns)
        assert not second.idle
    after.poll(5 * MS)
    assert second.idle
    assert slots.shown == [MS - 1, WATERMARK_IDLE]
    assert not node.ended


def test_a_source_that_has_ended_is_not_read_again() -> None:
    before, _, _ = source(Numbers(0, 4))
    before.begin(Board())
    while not before.nodes[0].ended:
        before.poll(0)
    before.nodes[0].cut_short = True
    (snapshot,) = kept(before)
    after, sunk, node = source(EndedReader(snapshot.position))
    restored(after, snapshot)
    assert sunk.ended and node.ended and node.cut_short
    assert not after.poll(0)
    assert kept(after)[0].position == {"at": 4}


class Nowhere(Numbers):
    def position(self) -> Position | None:
        return None


def test_a_source_without_positions_is_named() -> None:
    task, _, _ = source(Nowhere(0, 4))
    with pytest.raises(
        UsageError, match=r"source 'numbers' says no position, .*: give Nowhere position\(\)"
    ):
        list(task.snapshot(1))


def test_rows_that_were_refused_go_on_being_counted() -> None:
    class Refusing(Numbers):
        @property
        def rejected(self) -> dict[str, int]:
            return {"malformed": 3}

    before, _, endless = source(Refusing(0, 4, endless=True))
    for _ in range(2):
        endless.update_metrics()
        assert endless.metrics.rows_dropped == {"malformed": 3}
    after, _, node = source(Refusing(4, 4))
    restored(after, *kept(before))
    while not node.ended:
        after.poll(0)
    assert node.metrics.rows_dropped == {"malformed": 6}


# -- transforms ---------------------------------------------------------------------------------


def with_x(row: Any) -> dict[str, Any]:
    return {"number": row.number, "x": float(row.number) if row.number == 3 else None}


TRANSFORMS: dict[str, Callable[[], Transform]] = {
    "rows": lambda: MapRows(with_x),
    "several rows": lambda: FlatMapRows(lambda row: [with_x(row)]),
    "columns": lambda: MapBatches(
        lambda batch: {
            "number": batch["number"],
            "x": [float(one) if one < 4 else None for one in batch["number"].tolist()],
        }
    ),
}


def transform(make: Callable[[], Transform], instance: int = 0, parallelism: int = 1) -> Any:
    sunk = Sunk("main")
    context = instance_context(instance, parallelism, operator_id="op")
    node = TransformNode(context, 0, make(), sunk, bounded=True)
    return task_of(node), sunk


def numbers(first: int, end: int) -> Batch:
    batch = Batch.from_pydict({"number": np.arange(first, end)})
    return batch.with_times(np.arange(first, end) * MS)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_transform_goes_on_with_its_columns_and_rows(
    name: str, parallelism: int, cut: int
) -> None:
    make = TRANSFORMS[name]
    straight, whole = transform(make)
    batches = [numbers(at, at + 2) for at in range(0, 10, 2)]
    for batch in batches:
        straight.deliver(0, 0, batch)
    straight.advance(0, 0, 2**63 - 1)
    before, first = transform(make)
    for number, batch in enumerate(batches[:cut]):
        before.deliver(0, 0, batch)
        before.advance(0, 0, number)
    snapshots = kept(before)
    tasks = [transform(make, instance, parallelism) for instance in range(parallelism)]
    for task, _ in tasks:
        restored(task, *snapshots)
        task.advance(0, 0, cut - 1)
    for batch in batches[cut:]:
        tasks[0][0].deliver(0, 0, batch)
    for task, _ in tasks:
        task.advance(0, 0, 2**63 - 1)
    found = first.rows + [row for _, sunk in tasks for row in sunk.rows]
    assert found == whole.rows
    assert set().union(first.columns, *(sunk.columns for _, sunk in tasks)) == whole.columns


def test_a_watermark_waits_for_the_rows_before_it_in_a_restored_job() -> None:
    before, _ = transform(TRANSFORMS["rows"])
    before.deliver(0, 0, numbers(0, 2))
    before.advance(0, 0, 7)
    after, sunk = transform(TRANSFORMS["rows"])
    restored(after, *kept(before))
    assert sunk.watermark_ns == WATERMARK_NONE
    after.deliver(0, 0, numbers(2, 4))
    after.advance(0, 0, 9)
    assert (sunk.watermark_ns, len(sunk.rows)) == (9, 4)


def test_the_end_has_the_latest_watermark_of_any_input_also_of_one_that_ended_before() -> None:
    def filtering() -> tuple[StageTask, Sunk]:
        sunk = Sunk("main")
        context = instance_context(0, 1, operator_id="op")
        keeps = MapRows(lambda row: row)
        return task_of(TransformNode(context, 0, keeps, sunk, bounded=True), [(0, 0), (0, 1)]), sunk

    before, _ = filtering()
    before.advance(0, 0, 9)
    before.advance(0, 1, 4)
    before.advance(0, 0, WATERMARK_END)
    after, sunk = filtering()
    restored(after, *kept(before))
    after.advance(0, 0, WATERMARK_END)
    after.advance(0, 1, 6)
    assert sunk.watermark_ns == 6
    after.advance(0, 1, WATERMARK_END)
    assert (sunk.watermark_ns, sunk.ended) == (9, True)


def test_an_end_that_is_told_again_after_a_restore_is_no_watermark() -> None:
    before, _ = transform(TRANSFORMS["rows"])
    before.deliver(0, 0, numbers(2, 4))
    before.advance(0, 0, WATERMARK_END)
    after, sunk = transform(TRANSFORMS["rows"])
    restored(after, *kept(before))
    after.nodes[0].end()  # as a source does before it in a stage, which had ended, too
    assert sunk.ended
    assert sunk.watermark_ns < WATERMARK_END


# -- sinks --------------------------------------------------------------------------------------


class Parts(SinkWriter):
    def __init__(self) -> None:
        self.rows, self.parts = 0, 0

    def write(self, batch: Batch) -> None:
        self.rows += batch.num_rows

    def stage(self) -> Staged:
        return Staged(0, self.rows)

    def stage_epoch(self, epoch: int) -> Staged | None:
        rows, self.rows = self.rows, 0
        return Staged(0, rows) if rows else None

    def publish_part(self) -> Staged | None:
        self.parts += 1
        return None

    def abort(self) -> None:
        pass


def test_a_sink_stages_at_each_epoch_and_publishes_nothing_by_itself() -> None:
    writer = Parts()
    node = SinkNode(instance_context(operator_id="out"), 0, writer, publishes_parts=False)
    task = task_of(node)
    task.deliver(0, 0, numbers(0, 4))
    (first,), (second,) = task.snapshot(1), task.snapshot(2)
    assert first.staged is not None
    assert first.staged.staged() == Staged(0, 4, epoch=1)
    assert second.staged is None
    task.deliver(0, 0, numbers(4, 9))
    node.publish_part()
    task.advance(0, 0, 2**63 - 1)
    assert node.ended and not writer.parts
    (last,) = task.snapshot(3)
    assert last.staged is not None
    assert last.staged.staged() == Staged(0, 5, epoch=3)
    after = SinkNode(instance_context(operator_id="out"), 0, Parts(), publishes_parts=False)
    restored(task_of(after), last)
    assert after.ended and after.metrics.rows_in == 9


# -- table joins --------------------------------------------------------------------------------

STREAM = whale.Schema.of(number="int64")
NAMES = whale.Schema.of(number="int64", name="string")
JOIN = TableJoin((("number", "number"),), "left", left=STREAM, right=NAMES)


def joining(instances: tuple[int, ...] = (0,), parallelism: int = 1) -> Any:
    """Return the tasks of one worker, which share a table, and what they emit."""
    made, table = [], None
    for instance in instances:
        context = replace(instance_context(instance, parallelism, operator_id="named"))
        sunk = Sunk("main")
        fills = table is None
        table = table or JOIN.make_table(context)
        node = TableJoinNode(context, 0, table, sunk, fills)
        side = SideInput(node, TABLE, [(1, 0)], (instance,))
        made.append((task_of(node, side_inputs={("named", TABLE): side}), sunk, side))
    return made


def names(*numbers_of: int) -> Batch:
    return Batch.from_pydict({"number": list(numbers_of), "name": [f"n{n}" for n in numbers_of]})


@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_a_table_is_not_read_again(old: int, new: int) -> None:
    before = joining(tuple(range(old)), old)
    for _, _, side in before:
        side.deliver(TABLE, 0, names(1, 2, 2))
        side.advance(1, 0, 2**63 - 1)
    before[0][0].deliver(0, 0, numbers(0, 4))
    snapshots = [one for task, _, _ in before for one in kept(task)]
    after = joining(tuple(range(new)), new)
    for task, _, _ in after:
        restored(task, *snapshots)
        assert task.accepts_rows and not task.done
    for task, sunk, side in after:
        side.advance(1, 0, 2**63 - 1)
        task.deliver(0, 0, numbers(0, 4))
        assert sunk.rows == before[0][1].rows


def test_a_table_that_has_not_changed_keeps_its_identity() -> None:
    ((task, _, side),) = joining()
    side.deliver(TABLE, 0, names(1, 2))
    side.advance(1, 0, 2**63 - 1)
    first, second = (next(task.snapshot(epoch)).chunks for epoch in (1, 2))
    assert first and [one.identity for one in first] == [one.identity for one in second]
    side.deliver(TABLE + 1, 0, names(3))
    (third,) = task.snapshot(3)
    assert {one.identity for one in third.chunks}.isdisjoint(one.identity for one in first)
    ((after, _, _),) = joining()
    after.restore({"named": [third]})
    assert [one.identity for one in next(after.snapshot(4)).chunks] == [
        one.identity for one in third.chunks
    ]


# -- who takes over what ------------------------------------------------------------------------


def test_each_object_goes_to_exactly_one() -> None:
    def snapshots(*served: tuple[int, ...]) -> list[OperatorSnapshot]:
        parallelism = sum(map(len, served))
        return [OperatorSnapshot("op", one, parallelism, 5) for one in served]

    for old in (snapshots((0,), (1,), (2,)), snapshots((0, 2), (1, 3)), snapshots((0,))):
        for new in ([(0,)], [(0,), (1,), (2,)], [(0, 2), (1,)], [(0, 1, 2, 3)], [(0, 2), (1, 3)]):
            parallelism = sum(map(len, new))
            dealt = []
            for instances in new:
                context = replace(
                    instance_context(instances[0], parallelism, operator_id="op"),
                    instances=instances,
                )
                dealt += Predecessors(old, context).dealt
            assert sorted(one.instances for one in dealt) == [one.instances for one in old]
