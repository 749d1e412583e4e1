"""What a batch refuses, and the messages."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from whale_ray.configs.errors import InputError
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

INT64 = DataType.parse("int64")
STRING = DataType.parse("string")
TWO = Schema.of(a="int64", b="string")


def numbers(count: int) -> Column:
    return Column(INT64, np.arange(count))


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def batch() -> Batch:
    return Batch.from_pydict({"a": [1, 2], "b": ["x", "y"]})


CASES = {
    "wrong number of columns": (
        lambda: Batch(TWO, [numbers(2)]),
        "1 columns for a schema of 2: a: int64, b: string",
    ),
    "wrong type": (
        lambda: Batch(TWO, [numbers(2), numbers(2)]),
        "column 'b' holds int64, its schema says string",
    ),
    "wrong length": (
        lambda: Batch(Schema.of(a="int64", b="int64"), [numbers(2), numbers(3)]),
        "column 'b' has 3 rows, the batch 2",
    ),
    "wrong storage": (
        lambda: Column(INT64, np.zeros(2, np.int32)),
        "data must be an array of int64 (n,), not int32 (2,)",
    ),
    "no offsets": (
        lambda: Column(STRING, np.zeros(2, np.uint8)),
        "a column of string needs offsets",
    ),
    "useless offsets": (
        lambda: Column(INT64, np.zeros(2, np.int64), int32(0, 1)),
        "a column of int64 has no offsets",
    ),
    "empty offsets": (
        lambda: Column(STRING, np.zeros(2, np.uint8), int32()),
        "offsets are empty; n rows need n + 1 of them",
    ),
    "offsets beyond the pool": (
        lambda: Column(STRING, np.zeros(2, np.uint8), int32(0, 3)),
        "offsets must rise from 0 or more to at most the pool's 2 bytes",
    ),
    "falling offsets": (
        lambda: Column(STRING, np.zeros(2, np.uint8), int32(0, 2, 1, 2)),
        "offsets must rise from 0 or more to at most the pool's 2 bytes",
    ),
    "validity of another length": (
        lambda: Column(INT64, np.zeros(2, np.int64), None, np.ones(3, np.bool_)),
        "validity has 3 rows, its column 2",
    ),
    "index too large": (
        lambda: batch().take([0, 2]),
        "an index is outside the batch's rows",
    ),
    "negative index": (
        lambda: batch().take([-1]),
        "an index is outside the batch's rows",
    ),
    "a mask as indices": (
        lambda: batch().take(np.array([True, False])),
        "indices must be integers (m,), not bool (2,); masks go to filter",
    ),
    "indices as a mask": (
        lambda: batch().filter(np.array([0, 1])),
        "a mask must be bool (2,), not int64 (2,)",
    ),
    "a mask of another length": (
        lambda: batch().filter(np.array([True])),
        "a mask must be bool (2,), not bool (1,)",
    ),
    "event times of another length": (
        lambda: batch().with_times(np.arange(3)),
        "event times must be int64 (2,), not int64 (3,)",
    ),
    "nothing to concatenate": (
        lambda: Batch.concat([]),
        "concat needs at least one batch; use Batch.empty(schema)",
    ),
    "event times in some": (
        lambda: Batch.concat([batch(), batch().with_times(np.arange(2))]),
        "some of the batches have event times and some have none; use with_times",
    ),
    "a column too short": (
        lambda: batch().with_column("c", [1]),
        "column 'c' has 1 rows, the batch 2",
    ),
    "no such column": (
        lambda: batch()["c"],
        "no column 'c'; it has a, b",
    ),
    "a value too large": (
        lambda: Batch.from_pydict({"a": [300]}, Schema.of(a="int8")),
        "column 'a', int8: Value 300 too large to fit in C integer type; "
        "declare the type that its values have",
    ),
    "nothing but nulls": (
        lambda: Batch.from_pydict({"a": [None, None]}),
        "column 'a' holds nothing but nulls; declare its type",
    ),
    "lists": (
        lambda: Batch.from_pydict({"a": [[1], [2, 3]]}),
        "column 'a' has type list<item: int64>, which whale-ray does not support; make its parts "
        "columns of their own, or turn it into a string",
    ),
    "a number": (
        lambda: Batch.from_pydict({"a": 1}),
        "column 'a' is an int, not one value per row; give a list or an array, even of one value; "
        "out.emit_row(column=value, …) emits a single row",
    ),
    "text, which is no list of letters": (
        lambda: Batch.from_pydict({"a": "ann", "b": "bob"}),
        "column 'a' is a str, not one value per row; give a list or an array, even of one value; "
        "out.emit_row(column=value, …) emits a single row",
    ),
    "a set, which has no order": (
        lambda: Batch.from_pydict({"a": {1, 2}}, Schema.of(a="int64")),
        "column 'a' is a set, not one value per row; give a list or an array, even of one value; "
        "out.emit_row(column=value, …) emits a single row",
    ),
    "a mapping": (
        lambda: Batch.from_pydict({"a": {"x": 1}}),
        "column 'a' is a dict, not one value per row; give a list or an array, even of one value; "
        "out.emit_row(column=value, …) emits a single row",
    ),
    "bytes": (
        lambda: Batch.from_pydict({"a": b"ab"}),
        "column 'a' is a bytes, not one value per row; give a list or an array, even of one value; "
        "out.emit_row(column=value, …) emits a single row",
    ),
    "a generator": (
        lambda: Batch.from_pydict({"a": (n for n in range(2))}),
        "column 'a' is a generator, not one value per row; give a list or an array, even of one "
        "value; out.emit_row(column=value, …) emits a single row",
    ),
    "too many digits before the point": (
        lambda: Batch.from_pydict({"a": [None, Decimal("1e30")]}, Schema.of(a="decimal(38, 18)")),
        "column 'a', decimal128(38, 18): 1E+30 does not fit; declare a decimal with as many digits "
        "before and behind the point, or string",
    ),
    "two dimensions": (
        lambda: Batch.from_pydict({"a": np.zeros((2, 2))}),
        "column 'a' must be one-dimensional, not of shape (2, 2)",
    ),
    "other names": (
        lambda: Batch.from_pydict({"a": [1], "c": [2]}, TWO),
        "the columns lack 'b' and have 'c', not in the schema; the schema is [a: int64, b: string]",
    ),
    "a row that lacks a column": (
        lambda: Batch.from_rows([{"a": 1, "b": "x"}, {"a": 2}]),
        "row 1 lacks column 'b'; give None where there is no value",
    ),
    "a row with one more": (
        lambda: Batch.from_rows([{"a": 1}, {"a": 2, "b": "x"}]),
        "row 1 has column 'b', the others do not; declare a schema",
    ),
    "a row with more than its schema": (
        lambda: Batch.from_rows([{"a": 1, "b": "x", "c": 2}], TWO),
        "row 0 has column 'c', not in the schema [a: int64, b: string]",
    ),
    "a tuple too short": (
        lambda: Batch.from_rows([(1, "x"), (2,)], TWO),
        "row 1 has 1 values for 2 columns: a, b",
    ),
    "tuples without a schema": (
        lambda: Batch.from_rows([(1, "x")]),
        "rows without names; give a schema, or mappings by column name",
    ),
    "no rows and no schema": (
        lambda: Batch.from_rows([]),
        "there is no row to take the columns from; give a schema",
    ),
    "a text as a row": (
        lambda: Batch.from_rows([(1, "x"), "yz"], TWO),
        "row 1 is 'yz', str: a row is a mapping, or a tuple of values",
    ),
    "a number as a row": (
        lambda: Batch.from_rows([5], TWO),
        "row 0 is 5, int: a row is a mapping, or a tuple of values",
    ),
    "mixed rows": (
        lambda: Batch.from_rows([{"a": 1}, (1,)]),
        "rows are of different kinds; make all of them mappings, or all of them tuples",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_gets_one_clear_line(case):
    attempt, expected = CASES[case]
    with pytest.raises(InputError) as error:
        attempt()
    assert str(error.value) == expected


def test_a_batch_is_not_iterated():
    with pytest.raises(TypeError, match="not iterable"):
        iter(batch())
