"""Every process of the project: kept in the middle of its input, and restored, as if never stopped.

An operator takes random rows of two producers per input, out of order. At a random place its
snapshots go through bytes, as through a store, into new objects, of as many instances or others.
What both emit must be what objects emit that were never stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.test_sealing import (
    KEYS,
    MADE,
    MOVED,
    PAIRS,
    TIMES,
    US,
    Everything,
    Taken,
    renamed,
)
from tests.operators.windows.driving import arrivals, batch_of
from tests.operators.windows.model import Event
from tests.whale_ray.tasks.fleets import SOURCES, Fleet, Reached, Rows, Step, last_watermarks, sent
from whale_ray.configs.errors import UsageError
from whale_ray.operators.groupings import All, Key, Shuffle
from whale_ray.operators.process import CoProcess, Output, Process
from whale_ray.operators.snapshot_files import chunk_to_bytes
from whale_ray.operators.snapshots import OperatorSnapshot
from whale_ray.testing import instance_context
from whale_ray.testing.conformance import counted, difference
from whale_ray.transport.wire.batch import Batch


class Declared(Everything):
    """A keyed process whose rows may have nothing but nulls."""

    schema = whale.Schema.of(
        key="int32",
        rows="int64",
        least="double",
        **dict.fromkeys(("text", "numbers", "words", "ratios", "named"), "string"),
        **dict.fromkeys(("brief", "brief_numbers", "brief_ratios"), "string"),
    )


class Latest(Process):
    """State in rows: the last number of each key, emitted at the next one."""

    schema = whale.Schema.of(key="int32", before="int64", number="int64")

    def open(self, context: Any) -> None:
        self._context, self._last = context, {}

    def on_row(self, row: Any, out: Output) -> None:
        out.emit_row(key=row.key, before=self._last.get(row.key), number=row.number)
        self._last[row.key] = row.number

    def dump(self, nodes: Any) -> Iterator[Batch]:
        if not self._last:
            return
        columns = {"key": list(self._last), "number": list(self._last.values())}
        schema = whale.Schema.of(key="int32", number="int64")
        batch = Batch.from_pydict(columns, schema)
        yield batch.filter(np.isin(self._context.nodes_of(batch), nodes))

    def load(self, batch: Batch) -> None:
        self._last.update(zip(batch.to_pydict()["key"], batch.to_pydict()["number"], strict=True))


class Counting(Process):
    """Opaque: a count of all rows, which no key divides."""

    schema = whale.Schema.of(key="int32", count="int64")

    def open(self, context: Any) -> None:
        self.count = 0

    def on_row(self, row: Any, out: Output) -> None:
        self.count += 1
        out.emit_row(key=row.key, count=self.count)

    def close(self, out: Output) -> None:
        if self.count:
            out.emit_row(key=None, count=self.count)


class Passing(Process):
    """Without state, but for what it was made with; emits nulls first, on two outputs."""

    outputs = ("main", "odd")
    one_more = 1

    def open(self, context: Any) -> None:
        self.added = {"more": self.one_more}

    def on_row(self, row: Any, out: Output) -> None:
        late = row.number is not None and row.number > 5
        out.emit_row(key=row.key, number=row.number, text="late" if late else None)
        out.emit_to("odd", [{"key": row.key, "text": row.text}])


class Times(CoProcess):
    """Emits its merged rows in the order in which it gets them."""

    schema = whale.Schema.of(key="int32", side="int8", number="int64")  # all may be null

    def on_left_row(self, row: Any, out: Output) -> None:
        out.emit_row(key=row.key, side=0, number=row.number)

    def on_right_row(self, row: Any, out: Output) -> None:
        out.emit_row(key=row.key, side=1, number=row.number2)


OWN: dict[str, Callable[[], Process | CoProcess]] = {
    "rows of a user": Latest,
    "without state": Passing,
    "merged join": Times,
}
WHOLE: dict[str, Callable[[], Process | CoProcess]] = {"opaque": Counting}
EVERY = {**MADE, **PAIRS, **OWN, **WHOLE, "keyed process": Declared}


def ports_of(name: str) -> int:
    return 2 if "join" in name else 1


def steps_of(drawn: Sequence[tuple[list[Any], int]], name: str) -> list[Step]:
    """Return rows of all producers, in turns, and their watermarks, which hold where they must."""
    ports = ports_of(name)
    in_order = EVERY[name]().input_order != "arrival"
    steps: list[Step] = []
    for number, (events, promised_ns) in enumerate(drawn):
        port, source = number % ports, number // ports % SOURCES
        if events:
            batch = batch_of(events)
            steps.append(Rows(port, source, renamed(batch) if port else batch))
        later = [
            event.time_ns
            for after, (others, _) in enumerate(drawn[number + 1 :], number + 1)
            if (after % ports, after // ports % SOURCES) == (port, source)
            for event in others
        ]
        bound_ns = min(later, default=promised_ns + 1) - 1
        watermark_ns = min(promised_ns, bound_ns) if in_order else promised_ns
        steps.append(Reached(port, source, watermark_ns))
    return steps


def fleet(name: str, parallelism: int, **more: Any) -> Fleet:
    return Fleet(EVERY[name], parallelism, groupings=[Key(KEYS)] * ports_of(name), **more)


def moved(before: Fleet, name: str, parallelism: int, steps: Sequence[Step], **more: Any) -> Fleet:
    """Return other objects that go on from where these are, behind some steps."""
    snapshots = [sent(one) for one in before.snapshot(2)]
    after = fleet(name, parallelism, restored={"op": snapshots}, **more)
    after.take(last_watermarks(steps))
    return after


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=4)
@given(data=st.data())
def test_what_follows_a_restore_is_as_if_nothing_had_been(name: str, data: st.DataObject) -> None:
    steps = steps_of(data.draw(arrivals(TIMES)), name)
    earlier, cut = sorted(data.draw(st.tuples(*[st.integers(0, len(steps))] * 2)))
    old = data.draw(st.sampled_from((1, 3)))
    straight = fleet(name, old)
    straight.take(steps)
    straight.end()
    before = fleet(name, old)
    before.take(steps[:earlier])
    before.snapshot(1)  # what follows may be saved as what has changed since
    before.take(steps[earlier:cut])
    after = moved(before, name, old, steps[:cut])
    after.take(steps[cut:])
    after.end()
    for whole, first, second in zip(straight.sunk, before.sunk, after.sunk, strict=True):
        for wanted, head, tail in zip(whole, first, second, strict=True):
            assert head.rows + tail.rows == wanted.rows or not difference(
                counted(wanted.rows), counted(head.rows + tail.rows)
            )
            assert tail.ended


@pytest.mark.long
@pytest.mark.parametrize("name", [*MOVED, *OWN])
@settings(max_examples=4)
@given(data=st.data())
def test_state_and_waiting_rows_move_to_other_instances(name: str, data: st.DataObject) -> None:
    steps = steps_of(data.draw(arrivals(TIMES)), name)
    earlier, cut = sorted(data.draw(st.tuples(*[st.integers(0, len(steps))] * 2)))
    old, new = data.draw(st.sampled_from([(1, 3), (3, 7), (7, 1), (3, 1), (7, 2)]))
    straight = fleet(name, 1)
    straight.take(steps)
    straight.end()
    before = fleet(name, old)
    before.take(steps[:earlier])
    before.snapshot(1)
    before.take(steps[earlier:cut])
    after = moved(before, name, new, steps[:cut])
    after.take(steps[cut:])
    after.end()
    wanted, found = straight.rows, [*before.rows, *after.rows]
    if name == "no window":  # there the event time is that of the latest row of the instance
        wanted, found = ([{**row, "(time)": 0} for row in rows] for rows in (wanted, found))
    assert not difference(counted(wanted), counted(found))


def rows(port: int, source: int, times: Sequence[int], first: int = 0) -> Rows:
    """Return a step with a row at each time, numbered from `first`."""
    numbers = list(range(first, first + len(times)))
    columns = {"key": [number % 5 for number in numbers], "number": numbers}
    batch = Batch.from_pydict(columns, whale.Schema.of(key="int32", number="int64"))
    batch = batch.rename({"number": "number2"}) if port else batch
    return Rows(port, source, batch.with_times(np.array(times, np.int64)))


@pytest.mark.long
def test_what_happens_later_does_not_change_a_snapshot() -> None:
    for name in EVERY:
        drawn = [([Event(at * US, at % 3, at, 1.5, "a")], at * US) for at in range(12)]
        steps = steps_of(drawn, name)
        before = fleet(name, 3)
        before.take(steps[:14])
        snapshots = before.snapshot()
        kept = [in_bytes(one) for one in snapshots]
        before.take(steps[14:])
        before.end()
        assert [in_bytes(one) for one in snapshots] == kept, name


def in_bytes(snapshot: OperatorSnapshot) -> tuple[list[bytes], list[Any]]:
    return [chunk_to_bytes(one) for one in snapshot.chunks], sorted(
        map(repr, snapshot.values.items())
    )


class Reversed(Process):
    """Tells in which order it gets rows."""

    def on_batch(self, batch: Batch, out: Output) -> None:
        out.emit(batch)


@settings(max_examples=20)
@given(
    times=st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=8),
    cut=st.integers(0, 8),
    parallelism=st.sampled_from((1, 3)),
)
def test_waiting_rows_come_in_the_order_of_an_uninterrupted_run(
    times: list[list[int]], cut: int, parallelism: int
) -> None:
    # About three rows fit into memory, so most of them wait on the disk.
    steps: list[Step] = [
        rows(0, number % SOURCES, some, 100 * number) for number, some in enumerate(times) if some
    ]
    steps.insert(len(steps) // 2, Reached(0, 0, -1))

    def made(**more: Any) -> Fleet:
        return Fleet(Reversed, parallelism, buffer_bytes=5000, **more)

    straight = made()
    straight.take(steps)
    straight.end()
    before = made()
    before.take(steps[:cut])
    after = made(restored={"op": [sent(one) for one in before.snapshot()]})
    after.take([*last_watermarks(steps[:cut]), *steps[cut:]])
    after.end()
    for one in (straight, before, after):
        one.close()
    assert not before.rows
    assert after.rows == straight.rows


class Owning(CoProcess):
    """Its left input goes to every instance, which passes on the rows of its own keys."""

    def open(self, context: Any) -> None:
        self.context = context

    def on_left(self, batch: Batch, out: Output) -> None:
        nodes = self.context.nodes_of(batch, ("key",))
        out.emit(batch.filter(np.isin(nodes, self.context.owned_nodes)))

    def on_right_row(self, row: Any, out: Output) -> None:
        out.emit_to("right", [{"key": row.key, "number": row.number2}])

    outputs = ("main", "right")


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 7), (7, 1), (7, 2)])
def test_waiting_rows_are_divided_as_their_input_divides_rows(old: int, new: int) -> None:
    groupings = [All(), Shuffle()]
    before = Fleet(Owning, old, groupings=groupings)
    times = list(range(50))
    before.take([rows(0, 0, times), rows(1, 1, times)])
    before.take([Reached(port, source, 9) for port in (0, 1) for source in (0, 1)])
    snapshots = [sent(one) for one in before.snapshot()]
    after = Fleet(Owning, new, groupings=groupings, restored={"op": snapshots})
    after.end()
    found = [*before.rows, *after.rows]
    assert sorted(one["(time)"] for one in before.rows) == sorted([*range(10)] * 2)
    for output in ("main", "right"):
        mine = sorted(one["number"] for one in found if one["(output)"] == output)
        assert mine == times


def test_an_opaque_state_is_not_divided() -> None:
    before = fleet("opaque", 2)
    before.take([rows(0, 0, [1, 2, 3]), Reached(0, 0, 9), Reached(0, 1, 9)])
    with pytest.raises(
        UsageError,
        match=r"operator 'op': the state of Counting moves whole, .* restore it with"
        r" parallelism 2 and as many workers as then, or define dump and load",
    ):
        moved(before, "opaque", 3, [])


def test_a_class_that_keeps_its_state_otherwise_is_refused() -> None:
    step = [rows(0, 0, [1, 2, 3]), Reached(0, 0, 9), Reached(0, 1, 9)]
    opaque, by_key = fleet("opaque", 1), fleet("rows of a user", 1)
    for before, name, how in (
        (opaque, "rows of a user", "Latest kept its state as a whole, and now defines dump"),
        (by_key, "opaque", "Counting kept its state by key, and now defines no dump"),
    ):
        before.take(step)
        with pytest.raises(UsageError, match=f"operator 'op': {how}"):
            moved(before, name, 1, step)


class Unlocked(Process):
    """Keeps what cannot be pickled."""

    def open(self, context: Any) -> None:
        self.lock = threading.Lock()

    def on_row(self, row: Any, out: Output) -> None:
        pass


def test_state_that_cannot_be_saved_is_told_before_the_first_row() -> None:
    with pytest.raises(UsageError, match="'op': cannot save what it keeps in self, lock: "):
        Fleet(Unlocked, 1)


class SavesItself(whale.KeyedProcess):
    """Says what is kept of it; the handle `n` is none of that."""

    n = whale.state.count()

    def open(self, context: Any) -> None:
        super().open(context)
        self.lock, self.rows = threading.Lock(), 0

    def on_row(self, row: Any, out: Output) -> None:
        with self.lock:
            self.n.add(1)
            self.rows += 1
            out.emit_row(key=row.key, rows=self.rows, n=self.n.get())

    def __getstate__(self) -> dict[str, Any]:
        return {name: one for name, one in vars(self).items() if name != "lock"} | {"lost": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        assert state.pop("lost")
        assert set(state) == {"rows"}
        vars(self).update(state, lock=threading.Lock())


class Opaque(Process):
    """Says what is kept of it, but not as attributes."""

    def __init__(self) -> None:
        self.rows = 0

    def on_row(self, row: Any, out: Output) -> None:
        self.rows += 1
        out.emit_row(key=row.key, rows=self.rows)

    def __getstate__(self) -> int:
        return self.rows


class OpaqueAgain(Opaque):
    """The same, which takes it back."""

    def __setstate__(self, rows: int) -> None:
        self.rows = rows


def test_a_class_that_says_what_is_kept_of_it_is_asked() -> None:
    for operator in (SavesItself, OpaqueAgain):
        before, whole = Fleet(operator, 1), Fleet(operator, 1)
        for one in (before, whole):
            one.take([rows(0, 0, [1, 2, 3]), Reached(0, 0, 9), Reached(0, 1, 9)])
        after = Fleet(operator, 1, restored={"op": [sent(one) for one in before.snapshot()]})
        for one in (after, whole):
            one.take([rows(0, 0, [10, 11], 5)])
            one.end()
        assert [*before.rows, *after.rows] == whole.rows
        assert len(whole.rows) == 5
    before = Fleet(Opaque, 1)
    before.take([rows(0, 0, [1]), Reached(0, 0, 9), Reached(0, 1, 9)])
    with pytest.raises(UsageError, match=r"returned no dict, .* int: define Opaque.__setstate__"):
        Fleet(Opaque, 1, restored={"op": [sent(one) for one in before.snapshot()]})


def test_a_class_that_says_what_is_kept_of_it_goes_back_to_that() -> None:
    process, out = SavesItself(), Taken()
    process.open(replace(instance_context(operator_id="op"), keys=(("key",),)))
    batch = Batch.from_pydict({"key": [1, 1, 2]})
    process.on_batch(batch, out)
    process.seal(1)
    process.on_batch(batch, out)
    process.roll_back(1)
    process.on_batch(batch, out)
    assert [row["rows"] for row in out.rows] == [1, 2, 3, 4, 5, 6, 4, 5, 6]
    assert [row["n"] for row in out.rows] == [1, 2, 1, 3, 4, 2, 3, 4, 2]


@pytest.mark.parametrize(("old", "new"), [(1, 1), (3, 3), (3, 1), (2, 7)])
def test_what_has_ended_stays_ended(old: int, new: int) -> None:
    before = fleet("rows of a user", old)
    before.take([rows(0, 0, [1, 2, 3])])
    before.end()
    snapshots = [sent(one) for one in before.snapshot()]
    after = fleet("rows of a user", new, restored={"op": snapshots})
    assert all(sunk.ended for outputs in after.sunk for sunk in outputs)
    after.end()
    assert not after.rows


class Learning(Process):
    """Says the type of a column in its first row alone."""

    def on_row(self, row: Any, out: Output) -> None:
        out.emit_row(key=row.key, found=2.5 if row.number == 0 else None)


@pytest.mark.parametrize("new", [1, 3])
def test_columns_are_learnt_once(new: int) -> None:
    before = Fleet(Learning, 1)
    before.take([rows(0, 0, [1, 2]), Reached(0, 0, 5), Reached(0, 1, 5)])
    after = Fleet(Learning, new, restored={"op": [sent(one) for one in before.snapshot()]})
    after.take([rows(0, 0, [7, 8, 9], 5)])
    after.end()
    assert after.columns == before.columns
    assert len(after.rows) == 3


def test_rows_that_wait_for_the_types_of_their_columns_wait_in_a_restored_job() -> None:
    before = Fleet(Learning, 1)
    before.take([rows(0, 0, [1, 2], 5), Reached(0, 0, 5), Reached(0, 1, 5)])
    assert not before.rows
    after = Fleet(Learning, 1, restored={"op": [sent(one) for one in before.snapshot()]})
    assert after.sunk[0][0].watermark_ns < 1  # they come before it
    after.take([rows(0, 0, [7]), Reached(0, 0, 8), Reached(0, 1, 8)])
    assert [(one["(time)"], one["found"]) for one in after.rows] == [(1, None), (2, None), (7, 2.5)]
    assert after.sunk[0][0].watermark_ns == 8


def test_the_watermark_is_told_again_and_does_not_go_back() -> None:
    before = fleet("rows of a user", 1)
    before.take([rows(0, 0, [1, 20]), Reached(0, 0, 7), Reached(0, 1, 9)])
    after = moved(before, "rows of a user", 1, [])
    assert after.sunk[0][0].watermark_ns == 7
    after.take([Reached(0, 0, 5), Reached(0, 1, 6), Reached(0, 0, 8)])
    assert after.sunk[0][0].watermark_ns == 7
    after.take([Reached(0, 1, 30), Reached(0, 0, 30)])
    assert [one["(time)"] for one in before.rows] == [1]
    assert [one["(time)"] for one in after.rows] == [20]


def test_counts_go_on() -> None:
    before = fleet("rows of a user", 3)
    before.take([rows(0, 0, [1, 2, 3]), Reached(0, 0, 7), Reached(0, 1, 9)])
    for new in (3, 1, 7):
        after = moved(before, "rows of a user", new, [])
        assert sum(one.rows_in for task in after.tasks for one in task.metrics) == 3
