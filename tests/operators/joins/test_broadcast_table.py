"""The table of a table join against a plain Python model: a list of rows for each key."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_ray.configs.errors import StateFullError, UsageError
from whale_ray.operators.expressions.expression import col
from whale_ray.operators.joins import broadcast_table, row_log, table_index
from whale_ray.operators.joins.broadcast_table import BroadcastTable
from whale_ray.operators.joins.table_join import TableJoin
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

HOWS = ("inner", "left", "semi", "anti")
INTEGERS = st.none() | st.integers(-1, 3)
FLOATS = st.none() | st.sampled_from([0.0, -0.0, float("nan"), -float("nan"), 1.5])
TEXTS = st.none() | st.sampled_from(["", "a", "ab", "é", "longer than a word"])
KEYS = {
    ("int32",): (("int64",), st.tuples(INTEGERS)),
    ("int64",): (("int8",), st.tuples(INTEGERS | st.just(1 << 8))),
    ("double",): (("float",), st.tuples(FLOATS)),
    ("string",): (("large_string",), st.tuples(TEXTS)),
    ("int64", "string", "double"): (
        ("uint8", "string", "double"),
        st.tuples(st.none() | st.just(1), st.sampled_from(["", "é"]), FLOATS),
    ),
}


def comparable(key: tuple) -> tuple | None:
    """Return a value that is equal for equal keys; None for one that equals nothing."""
    if None in key:
        return None
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in key)


class Model:
    """What a table holds, and what comes of a row."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.rows: dict[tuple, list[int]] = {}

    def add(self, key: tuple, number: int) -> None:
        if (equal := comparable(key)) is not None:
            self.rows.setdefault(equal, []).append(number)

    def change(self, key: tuple, number: int, deletes: bool) -> None:
        if (equal := comparable(key)) is not None:
            self.rows[equal] = [] if deletes else [number]

    def join(self, key: tuple) -> list[int | None]:
        """Return what follows the row: numbers of the table, or None for one row without them."""
        equal = comparable(key)
        found = self.rows.get(equal, []) if equal is not None else []
        match self.how:
            case "semi":
                return [None] if found else []
            case "anti":
                return [] if found else [None]
            case "left":
                return found or [None]
        return list(found)


def text_of(number: int | None) -> str | None:
    return None if number is None or number % 5 == 0 else f"row {number}"


def columns_of(types: tuple[str, ...], side: str) -> dict[str, str]:
    return {f"{side}{at}": kind for at, kind in enumerate(types)}


def batch_of(rows: list[tuple[tuple, int]], schema: Schema, **more: list[Any]) -> Batch:
    """Return rows of a key and a number; a text is made of the number."""
    columns = {name: [key[at] for key, _ in rows] for at, name in enumerate(schema.names[:-2])}
    numbers = [number for _, number in rows]
    columns |= {
        schema.names[-2]: [text_of(number) for number in numbers],
        schema.names[-1]: numbers,
    }
    schema = Schema.of(**{f.name: f.type for f in schema}, **dict.fromkeys(more, "string"))
    return Batch.from_pydict(columns | more, schema)


@st.composite
def histories(draw: Any) -> tuple[tuple[str, ...], list[tuple[str, list[Any]]]]:
    """Draw types of keys, and batches of the table, then of changes and of the stream."""
    types = draw(st.sampled_from(list(KEYS)))
    _, keys = KEYS[types]
    if types == ("int64",):  # its table holds int8
        table_keys = st.tuples(INTEGERS)
    else:
        table_keys = keys
    batches: list[tuple[str, list[Any]]] = [
        ("table", some) for some in draw(st.lists(st.lists(table_keys, max_size=8), max_size=4))
    ]
    changed = st.tuples(table_keys, st.booleans())
    step = st.tuples(st.just("changes"), st.lists(changed, max_size=6)) | st.tuples(
        st.just("stream"), st.lists(keys, max_size=8)
    )
    return types, [*batches, *draw(st.lists(step, max_size=6)), ("stream", draw(st.lists(keys)))]


def restored(table: BroadcastTable, join: TableJoin, finished: bool) -> BroadcastTable:
    """Return a new table of what another one dumps, in three parts."""
    made = BroadcastTable(join, instance_context(operator_id="join"))
    for part in range(3):
        for batch in table.dump(np.arange(part, 1024, 3)):
            made.load(batch)
    if finished:
        made.finish()
    return made


@pytest.mark.long
@settings(max_examples=250)
@given(histories(), st.sampled_from(HOWS), st.booleans(), st.integers(0, 12))
def test_rows_are_those_of_the_model(
    history: tuple[tuple[str, ...], list[tuple[str, list[Any]]]], how: Any, small: bool, moved: int
) -> None:
    types, batches = history
    stream = Schema.of(**columns_of(types, "a"), s="string", n="int64")
    right = Schema.of(**columns_of(KEYS[types][0], "b"), t="string", m="int64")
    pairs = tuple((f"a{at}", f"b{at}") for at in range(len(types)))
    join = TableJoin(
        pairs, how=how, right=right, has_changes=True, delete_when=col("op") == "delete"
    )
    with pytest.MonkeyPatch.context() as patch:
        if small:  # several batches of rows, pieces of results, and much compaction
            patch.setattr(row_log, "_BATCH_BYTES_MAX", 200)
            patch.setattr(row_log, "_SPILLED_BYTES_MIN", 100)
            patch.setattr(broadcast_table, "_MERGED_BYTES_MAX", 200)
            patch.setattr(table_index, "_PAIRS_MAX", 3)
            patch.setattr(broadcast_table, "_DEAD_ROWS_MIN", 1)
        table, model = BroadcastTable(join, instance_context(operator_id="join")), Model(how)
        number, finished = 0, False
        for step, (kind, given_rows) in enumerate(batches):
            if step == moved:
                table = restored(table, join, finished)
            if kind != "table" and not finished:
                table.finish()
                finished = True
            numbers = range(number, number + len(given_rows))
            number += len(given_rows)
            if kind == "table":
                table.add(batch_of(list(zip(given_rows, numbers, strict=True)), right))
                for key, row in zip(given_rows, numbers, strict=True):
                    model.add(key, row)
            elif kind == "changes":
                keys = [key for key, _ in given_rows]
                ops = ["delete" if deletes else "upsert" for _, deletes in given_rows]
                table.change(batch_of(list(zip(keys, numbers, strict=True)), right, op=ops))
                for (key, deletes), row in zip(given_rows, numbers, strict=True):
                    model.change(key, row, deletes)
            else:
                made = list(
                    table.join(batch_of(list(zip(given_rows, numbers, strict=True)), stream))
                )
                found = [row for piece in made for row in piece.to_pylist()]
                expected = [
                    (row, other)
                    for key, row in zip(given_rows, numbers, strict=True)
                    for other in model.join(key)
                ]
                assert [(row["n"], row.get("m")) for row in found] == expected
                assert all(row.get("t") == text_of(row.get("m")) for row in found)
    assert table.keys == sum(bool(rows) for rows in model.rows.values())


def test_a_table_goes_back_to_a_seal() -> None:
    join = TableJoin((("k", "k"),), how="left", right=Schema.of(k="int32", v="string"))
    table = BroadcastTable(join, instance_context(operator_id="join"))
    table.add(Batch.from_pydict({"k": [1, 1, 2], "v": ["a", "b", None]}, join.right))
    table.finish()
    rows = Batch.from_pydict({"k": [1, 2, 3]}, Schema.of(k="int32"))

    def joined() -> dict[str, list[Any]]:
        return Batch.concat(list(table.join(rows))).to_pydict()

    before = joined()
    assert before == {"k": [1, 1, 2, 3], "v": ["a", "b", None, None]}
    table.seal(1)
    table.change(Batch.from_pydict({"k": [1, 3], "v": ["c", "d"]}, join.right))
    table.seal(2)
    assert joined() == {"k": [1, 2, 3], "v": ["c", None, "d"]}
    table.roll_back(1)
    assert not table.loaded
    table.finish()
    assert joined() == before
    table.release(1)


def test_rows_keep_their_times_and_all_of_them_without_a_copy() -> None:
    join = TableJoin((("k", "k"),))
    table = BroadcastTable(join, instance_context(operator_id="join"))
    table.add(Batch.from_pydict({"k": [1, 2], "name": ["a", "b"]}))
    table.finish()
    times = np.array([30, 10, 20], np.int64)
    rows = Batch.from_pydict({"k": [2, 1, 2]}).with_times(times).with_origin(7)
    (joined,) = table.join(rows)
    assert joined.to_pydict() == {"k": [2, 1, 2], "name": ["b", "a", "b"]}
    assert joined.times is not None
    assert joined.times.tolist() == [30, 10, 20]
    assert joined.origin_ns == 7
    assert joined.column("k").data is rows.column("k").data
    (fewer,) = table.join(Batch.from_pydict({"k": [9, 1]}).with_times(times[:2]))
    assert fewer.times is not None
    assert fewer.times.tolist() == [10]


def test_a_table_of_its_key_alone_adds_no_column() -> None:
    for how in ("inner", "left"):
        join = TableJoin((("k", "k"),), how=how)
        table = BroadcastTable(join, instance_context(operator_id="join"))
        table.add(Batch.from_pydict({"k": [1, 1]}))
        table.finish()
        (joined,) = table.join(Batch.from_pydict({"k": [1, 2], "x": ["a", "b"]}))
        found = [1, 1] if how == "inner" else [1, 1, 2]
        assert joined.to_pydict() == {"k": found, "x": ["a", "a", "b"][: len(found)]}


def test_changes_do_not_pile_up() -> None:
    budget = StateBudget()
    context = dataclasses.replace(instance_context(operator_id="join"), state_budget=budget)
    table = BroadcastTable(TableJoin((("k", "k"),), has_changes=True), context)
    keys = list(range(20_000))
    table.add(Batch.from_pydict({"k": keys, "v": keys}))
    table.finish()
    before = budget.used_bytes
    for turn in range(50):
        table.change(Batch.from_pydict({"k": keys, "v": [turn] * len(keys)}))
    assert budget.used_bytes < 8 * before
    (joined,) = table.join(Batch.from_pydict({"k": [7, 20_001]}))
    assert joined.to_pydict() == {"k": [7], "v": [49]}


def test_a_table_beyond_the_memory_for_state_is_refused_in_a_line() -> None:
    budget = StateBudget(1 << 20)
    context = dataclasses.replace(instance_context(operator_id="named"), state_budget=budget)
    table = BroadcastTable(TableJoin((("k", "k"),)), context)
    pieces = [
        Batch.from_pydict({"k": list(range(at, at + 1_000)), "v": ["some text"] * 1_000})
        for at in range(0, 100_000, 1_000)
    ]

    def fill() -> None:
        for piece in pieces:
            table.add(piece)

    with pytest.raises(
        StateFullError, match=r"'named': its state of .* keys .*runtime.state_bytes"
    ):
        fill()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"k": [1]}, "the changes lack column 'v' of the table; there are k"),
        ({"k": [1], "v": ["a"]}, "column 'v' is string in the changes, and was int64 in the table"),
    ],
)
def test_changes_must_have_the_columns_of_the_table(changes: dict[str, Any], said: str) -> None:
    join = TableJoin((("k", "k"),), has_changes=True)
    table = BroadcastTable(join, instance_context(operator_id="join"))
    table.add(Batch.from_pydict({"k": [1], "v": [1]}))
    table.finish()
    with pytest.raises(UsageError, match=said):
        table.change(Batch.from_pydict(changes))


def test_keys_that_can_never_be_equal_are_refused_when_they_come() -> None:
    table = BroadcastTable(TableJoin((("k", "k"),)), instance_context(operator_id="join"))
    table.add(Batch.from_pydict({"k": [1]}))
    table.finish()
    with pytest.raises(UsageError, match="'k', which is string, with 'k', which is int64"):
        list(table.join(Batch.from_pydict({"k": ["1"]})))
