"""Snapshots of what has changed, against the whole state: random keys, epochs and restores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray import state
from whale_ray.operators.keyed import changed_keys, keyed_state
from whale_ray.operators.keyed.changed_keys import VERSIONS_MAX, is_a_version, latest_rows
from whale_ray.operators.process import Output
from whale_ray.operators.snapshots import StateChunk
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

ROWS = whale.Schema.of(key="string", number="int64")


class Kept(whale.KeyedProcess):
    """Keeps the rows of a key until it gets a negative number."""

    sum = state.sum("int64")
    numbers = state.list("int64")
    counts = state.map("int64", "int64")
    names = state.map("string", "binary")
    words = state.list("string")
    text = state.value("string")
    at = state.timer()

    def on_row(self, row: Any, out: Output) -> None:
        if row.number < 0:
            self.clear()
            return
        self.sum.add(row.number)
        self.numbers.append(row.number)
        self.counts[row.number % 3] = row.number
        self.names["ö" * (row.number % 4)] = row.number.to_bytes(2, "big")
        self.words.append("w" * (row.number % 5))
        if row.number % 7 == 0:
            self.names.pop("ö")
        self.text.set(f"{row.key}{row.number}" if row.number % 2 else None)
        self.at.set(out.time_ns + 3)

    def on_timer(self, timer: Any, out: Output) -> None:
        if self.sum.get() % 4 == 0:
            self.clear()


class Nowhere(Output):
    def emit(self, batch, times=None):
        pass

    def emit_rows(self, rows):
        pass

    def emit_to(self, output, rows, times=None):
        pass


class Plain(whale.KeyedProcess):
    """As `Kept`, without lists and maps: the thread that writes its snapshots makes their rows."""

    sum = state.sum("int64")
    text = state.value("string")
    brief = state.value("int64", ttl="1 microsecond")
    at = state.timer()

    def on_row(self, row: Any, out: Output) -> None:
        if row.number < 0:
            self.clear()
            return
        self.sum.add(row.number)
        self.text.set(f"{row.key}{row.number}" if row.number % 2 else None)
        self.brief.set(row.number)
        self.at.set(out.time_ns + 1_200)

    def on_timer(self, timer: Any, out: Output) -> None:
        if self.sum.get() % 4 == 0:
            self.clear()


def opened(attempt: int = 0, made: type[Any] = Kept) -> Any:
    operator = made()
    operator.open(replace(instance_context(operator_id="op", attempt=attempt), keys=(("key",),)))
    return operator


def take(operator: Any, keys: Sequence[int], time_ns: int, number: int = 1) -> None:
    columns = {"key": [f"k{key}" for key in keys], "number": [number] * len(keys)}
    batch = Batch.from_pydict(columns, ROWS).with_times(np.full(len(keys), time_ns))
    out = Nowhere()
    out.time_ns = time_ns
    operator.on_batch(batch, out)
    operator.on_watermark(time_ns, out)


def whole(operator: Any) -> list[list[str]]:
    """Return all that is kept, sorted; ids of lists and maps differ from object to object."""
    found = []
    for batch in operator.dump(np.arange(1024)):
        rows = [
            {name: one for name, one in row.items() if not name.endswith((" id", "queued"))}
            for row in batch.to_pylist()
        ]
        found.append(sorted(map(repr, rows)))
    return found


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 12), max_size=6),
        st.integers(-1, 5),
        st.sampled_from(["goes on", "goes on", "is loaded", "survives"]),
        st.booleans(),
    ),
    max_size=30,
)


@pytest.mark.long
@pytest.mark.parametrize("made", [Kept, Plain])
@settings(max_examples=30, deadline=None)
@given(steps=STEPS, made_now_max=st.sampled_from([0, 4, 1 << 10]))
def test_each_snapshot_is_the_whole_state_then(
    made: type[Any], steps: list[tuple[list[int], int, str, bool]], made_now_max: int
) -> None:
    """Whatever follows: rows are made when they are asked for, of some in the end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(changed_keys, "MADE_NOW_MAX", made_now_max)
        check_snapshots(made, steps)


def check_snapshots(made: type[Any], steps: list[tuple[list[int], int, str, bool]]) -> None:
    operator = opened(made=made)
    snapshots: list[tuple[Sequence[StateChunk], list[list[str]]]] = []
    for number, (keys, value, how, written) in enumerate(steps):
        time_ns = 400 * number
        take(operator, keys, time_ns, value)
        chunks = operator.chunks(number + 1)
        wanted = whole(operator)
        snapshots.append((chunks, wanted))
        if written:
            assert sum(chunk.rows.num_rows for chunk in chunks) >= 0
        if how == "is loaded":
            operator = opened(number + 1, made)
            operator.take(chunks, whole=True)
            operator._watermark_ns = time_ns
        elif how == "survives" and chunks:
            take(operator, [*keys, 3, 13], time_ns + 2_000, 4)
            operator.chunks(number + 2)
            take(operator, [5], time_ns + 2_000, -1)
            survivor = operator.survivor(number + 1)
            operator = opened(number + 1, made)
            operator._watermark_ns = time_ns
            operator.take_over(survivor)
            assert whole(operator) == wanted
    named: dict[str, Batch] = {}
    for chunks, wanted in snapshots:
        restored = opened(made=made)
        restored.take(chunks, whole=False)
        assert [one for one in whole(restored) if one] == [one for one in wanted if one]
        assert sum(is_a_version(chunk.rows) for chunk in chunks) <= VERSIONS_MAX
        for chunk in chunks:
            assert chunk.identity is not None
            assert named.setdefault(chunk.identity, chunk.rows).equals(chunk.rows)


def test_what_counts_is_held_by_files_alone() -> None:
    """A snapshot takes no memory for rows: they are made from the state, or dropped."""
    for made in (Kept, Plain):
        operator = opened(made=made)
        for epoch in range(1, 20):
            take(operator, range(10), epoch)
            chunks = operator.chunks(epoch)
            assert all(callable(chunk.held) for chunk in chunks)
            rows = [chunk.rows.num_rows for chunk in chunks]
            assert sum(rows) >= 10
            operator.survivor(epoch).release()


class Spent(whale.KeyedProcess):
    spent = state.sum("int64")

    def on_batch(self, batch: Batch, out: Output) -> None:
        slots = self.slots(batch)
        self.spent[slots] = self.spent[slots] + 1


def test_bytes_follow_what_has_changed() -> None:
    operator = Spent()
    operator.open(replace(instance_context(operator_id="op"), keys=(("key",),)))
    keys = np.arange(100_000)
    operator.on_batch(Batch.from_pydict({"key": keys}), Nowhere())
    full = operator.chunks(1)
    known = {chunk.identity for chunk in full}
    for epoch in range(2, 6):
        operator.on_batch(Batch.from_pydict({"key": keys[epoch::100]}), Nowhere())
        chunks = operator.chunks(epoch)
        added = sum(chunk.rows.nbytes for chunk in chunks if chunk.identity not in known)
        assert 0 < added <= 0.03 * sum(chunk.rows.nbytes for chunk in full)
        known |= {chunk.identity for chunk in chunks}
    assert operator.chunks(9) == chunks  # nothing has changed


def test_versions_are_merged_and_made_anew() -> None:
    operator = opened()
    take(operator, range(100), 0)
    first = operator.chunks(1)
    for epoch in range(2, VERSIONS_MAX + 4):
        take(operator, [1, 2], 0)
        chunks = operator.chunks(epoch)
        assert chunks[: len(first)] == first
        assert sum(is_a_version(chunk.rows) for chunk in chunks) <= VERSIONS_MAX
    assert sum(is_a_version(chunk.rows) for chunk in chunks) == 2
    take(operator, range(60), 0)
    chunks = operator.chunks(99)
    assert not any(is_a_version(chunk.rows) for chunk in chunks)


@pytest.mark.long
def test_keys_that_come_and_go_do_not_make_snapshots_larger_and_larger() -> None:
    """4,000 keys stay, 20 others are there for an epoch each."""
    operator = opened(made=Plain)
    take(operator, range(4_000), 0)
    rows, merged = [], 0
    for epoch in range(1, 20 * VERSIONS_MAX):
        passing = range(4_000 + 20 * epoch, 4_020 + 20 * epoch)
        take(operator, passing, 10_000 * epoch)
        chunks = operator.chunks(epoch)
        rows.append(sum(chunk.rows.num_rows for chunk in chunks))
        operator.survivor(epoch).release()
        take(operator, passing, 10_000 * epoch, -1)
        changes = operator._versions._changes
        merged += bool(changes) and changes[0].rows > VERSIONS_MAX * 20
        assert not any(one._earlier or one._before for one in changes), "merged ones are let go"
    assert merged > 0
    assert max(rows) <= 1.6 * 4_000


def test_keys_with_many_entries_are_left_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_state, "_MADE_NOW_ENTRIES_MAX", 30)
    operator = opened()
    take(operator, range(10), 0)
    operator.chunks(1)
    take(operator, [1, 2], 0)
    few = operator.chunks(2)[-1]
    for number in range(40):
        take(operator, [1], 0, number)
    many = operator.chunks(3)[-1]
    assert callable(few.held) and callable(many.held)
    assert isinstance(few.held, changed_keys._MadeRows)
    assert not isinstance(many.held, changed_keys._MadeRows)
    assert whole(operator) == whole_of(operator.chunks(4))


def whole_of(chunks: Sequence[StateChunk]) -> list[list[str]]:
    """Return what an operator keeps that begins with a snapshot."""
    operator = opened(1)
    operator.take(chunks, whole=True)
    return whole(operator)


def test_latest_rows_need_no_operator() -> None:
    operator = opened()
    take(operator, [1, 2], 0, 6)
    operator.chunks(1)
    take(operator, [2], 1, 7)
    chunks = operator.chunks(2)
    rows = [
        row
        for batch in latest_rows(chunks, ("key",), StateBudget())
        if "#sum" in batch.schema
        for row in batch.to_pylist()
    ]
    assert sorted((row["key"], row["#sum"]) for row in rows) == [("k1", 6), ("k2", 13)]


def test_what_is_kept_beside_declared_state_moves_whole() -> None:
    class Beside(Kept):
        def open(self, context: Any) -> None:
            super().open(context)
            self.rules = {"a": 1}

    made = Beside()
    made.open(replace(instance_context(operator_id="op"), keys=(("key",),)))
    made.rules["b"] = 2
    kept = made.kept_beside()
    other = Beside()
    other.open(replace(instance_context(operator_id="op"), keys=(("key",),)))
    assert kept is not None and kept != other.kept_beside()
    other.take_beside(kept)
    assert other.rules == {"a": 1, "b": 2}
