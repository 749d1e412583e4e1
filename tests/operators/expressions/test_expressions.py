"""Column expressions: Spark's results, text and names, columns read, and error messages."""

from __future__ import annotations

import copy
import datetime
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operators.expressions import expression_cases as spark
from whale_ray.configs.errors import ExpressionError
from whale_ray.operators.expressions import functions as F  # noqa: N812 - as in PySpark
from whale_ray.operators.expressions.expression import Expression, col, lit, when
from whale_ray.transport.wire.arrow import column_to_arrow
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import DataType, Schema

_GOLDENS = spark.goldens()
_ROWS = spark.batch()


@pytest.mark.parametrize("case", _GOLDENS)
def test_results_equal_sparks(case: str) -> None:
    kind, values = _GOLDENS[case]
    column = spark.built(case).evaluate(_ROWS)
    assert column.type.name == spark.whale_type(kind)
    mine = [spark.plain(value) for value in column.to_pylist()]
    rough = any(word in case for word in spark.ROUGH)
    pairs = zip(mine, values, strict=True)
    assert all(spark.same(own, theirs, rough) for own, theirs in pairs), (mine, values)


@pytest.mark.parametrize("case", _GOLDENS)
def test_rows_do_not_depend_on_their_neighbours(case: str) -> None:
    """Evaluate slices of the batch, with other validity and offsets, and without rows."""
    expression = spark.built(case)
    whole = expression.evaluate(_ROWS)
    assert expression.output_type(_ROWS.schema) == whole.type
    parts = [expression.evaluate(_ROWS.slice(at, at + 2)).to_pylist() for at in (0, 2, 4)]
    together = [spark.plain(value) for part in parts for value in part]
    for own, other in zip(together, map(spark.plain, whole.to_pylist()), strict=True):
        assert spark.same(own, other, rough=False)


_BATCH = Batch.from_pydict(
    {
        "n": [1, None, 3],
        "u8": [200, 100, 0],
        "u64": [2**63, 5, 0],
        "half": np.array([0.5, 1.5, -2.0], np.float16),
        "local": [datetime.datetime(2008, 5, 17, 3, 30, tzinfo=datetime.UTC)] * 3,
        "nanos": np.array([1, -1, 1_500_000_001], "M8[ns]"),
        "big": ["ä", "b", None],
        "clock": [datetime.time(23, 5, 6)] * 3,
        "fixed": [b"ab", b"cd", None],
    },
    Schema.of(
        n="int32",
        u8="uint8",
        u64="uint64",
        half="float16",
        local="timestamp[ms, tz=America/Los_Angeles]",
        nanos="timestamp[ns]",
        big="large_string",
        clock="time32[s]",
        fixed="fixed_size_binary(2)",
    ),
)


def _values(expression: Expression, batch: Batch = _BATCH) -> tuple[str, list[Any]]:
    column = expression.evaluate(batch)
    return column.type.name, column.to_pylist()


# ---- types that Spark lacks ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "kind", "values"),
    [
        (col("u8") + 100, "int32", [300, 200, 100]),
        (col("u8") + lit(np.uint8(100)), "uint8", [44, 200, 100]),
        (col("u8") + lit(np.int8(-1)), "int16", [199, 99, -1]),
        (col("u64") + 1, "uint64", [2**63 + 1, 6, 1]),
        (col("u64") > 5, "bool", [True, False, False]),
        (col("half") * 2, "float32", [1.0, 3.0, -4.0]),
        (F.hour("local"), "int32", [20, 20, 20]),
        (col("local").cast("date"), "date32", [datetime.date(2008, 5, 16)] * 3),
        (
            col("local").cast("timestamp_ntz"),
            "timestamp[us]",
            [datetime.datetime(2008, 5, 16, 20, 30)] * 3,  # noqa: DTZ001 - the local clock
        ),
        (col("local").cast("string"), "string", ["2008-05-16 20:30:00"] * 3),
        (col("local") == "2008-05-16 20:30:00", "bool", [True] * 3),
        (
            col("local") == lit(datetime.datetime(2008, 5, 17, 3, 30, tzinfo=datetime.UTC)),
            "bool",
            [True] * 3,
        ),
        (F.unix_micros("nanos"), "int64", [0, -1, 1_500_000]),
        (F.upper("big"), "large_string", ["Ä", "B", None]),
        (col("big") == "b", "bool", [False, True, None]),
        (F.concat("big", lit("!")), "string", ["ä!", "b!", None]),
        (
            F.concat("big", lit(datetime.date(2008, 5, 17)), lit(1e10)),
            "string",
            ["ä2008-05-171.0E10", "b2008-05-171.0E10", None],
        ),
        (F.minute("clock"), "int32", [5, 5, 5]),
        (col("clock").cast("string"), "string", ["23:05:06"] * 3),
        (col("fixed") == lit(b"cd"), "bool", [False, True, None]),
        (F.length("fixed"), "int32", [2, 2, None]),
        (col("n").cast("uint8"), "uint8", [1, None, 3]),
        (lit(-1.5).cast("uint64"), "uint64", [0, 0, 0]),
        (lit(1e30).cast("uint64"), "uint64", [2**64 - 1] * 3),
        (F.nullif("n", lit(1)), "int32", [None, None, 3]),
        (F.nullif("n", lit(3.0)), "int32", [1, None, None]),  # the type is that of the first
        (F.nullif("half", col("n")), "float16", [0.5, 1.5, -2.0]),
        (F.nullif(lit(None), col("n")), "int32", [None] * 3),
        (F.split_part(lit("a,b,c"), ",", 2), "string", ["b"] * 3),
        (F.split_part(lit("a,b,c"), ",", -1), "string", ["c"] * 3),
        (F.split_part(lit("a,b,c"), ",", 9), "string", [""] * 3),
        (F.replace(lit("aXbX"), "X", "--"), "string", ["a--b--"] * 3),
        (lit(True), "bool", [True] * 3),
    ],
)
def test_types_beyond_spark(expression: Expression, kind: str, values: list[Any]) -> None:
    assert _values(expression) == (kind, values)


@given(st.floats(-1e6, 1e6), st.integers(0, 6))
def test_round_uses_the_decimal_digits(number: float, scale: int) -> None:
    from decimal import ROUND_HALF_UP, Decimal

    batch = Batch.from_pydict({"d": [number]})
    wanted = float(Decimal(str(number)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP))
    (rounded,) = F.round("d", scale).evaluate(batch).to_pylist()
    assert rounded == wanted


@given(st.lists(st.none() | st.floats(), min_size=1), st.none() | st.floats(allow_nan=True))
def test_comparison_is_a_total_order(values: list[float | None], other: float | None) -> None:
    """NaN equals itself and is greater than all numbers; null makes null."""
    batch = Batch.from_pydict({"d": values}, Schema.of(d="float64"))
    right = lit(other).cast("double")

    def key(value: float) -> tuple[bool, float]:
        return math.isnan(value), 0.0 if math.isnan(value) else value

    pairs: list[tuple[Expression, Callable[[Any, Any], bool]]] = [
        (col("d") < right, lambda a, b: a < b),
        (col("d") <= right, lambda a, b: a <= b),
        (col("d") == right, lambda a, b: a == b),
        (col("d") != right, lambda a, b: a != b),
        (col("d") > right, lambda a, b: a > b),
        (col("d") >= right, lambda a, b: a >= b),
    ]
    for expression, compare in pairs:
        wanted = [
            None if value is None or other is None else compare(key(value), key(other))
            for value in values
        ]
        assert expression.evaluate(batch).to_pylist() == wanted


# ---- text, names and columns -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "text", "name"),
    [
        (col("a"), "a", "a"),
        (lit("x"), "'x'", "'x'"),
        (lit(None), "NULL", "NULL"),
        ((col("a") + 1).alias("b"), "(a + 1) AS b", "b"),
        (~(col("a") > col("b")) | True, "((NOT (a > b)) OR True)", None),
        (1 / col("a") % 2 - -(col("b") ** 2), "(((1 / a) % 2) - (- (b ** 2)))", None),
        (col("a").isin([1, "{x}"]), "(a IN (1, '{x}'))", None),
        (col("a").between(1, 2), "((a >= 1) AND (a <= 2))", None),
        (col("a").cast("timestamp"), "CAST(a AS timestamp[us, tz=UTC])", None),
        (col("a").rlike("x{2}"), "(a RLIKE 'x{2}')", None),
        (F.substring("a", 1, 2), "substring(a, 1, 2)", None),
        (F.concat_ws("{", "a", "b"), "concat_ws('{', a, b)", None),
        (F.date_trunc("hour", "t"), "date_trunc('hour', t)", None),
        (F.to_date("a", "yyyyMMdd"), "to_date(a, 'yyyyMMdd')", None),
        (
            when(col("a") > 1, "x").when(col("b"), col("c")).otherwise(0),
            "CASE WHEN (a > 1) THEN 'x' WHEN b THEN c ELSE 0 END",
            None,
        ),
    ],
)
def test_text_and_name(expression: Expression, text: str, name: str | None) -> None:
    assert str(expression) == text
    assert expression.output_name == (name or text)
    assert repr(expression) == f"<{text}>"


def test_columns_are_named_once_in_order() -> None:
    expression = when(col("b") > col("a"), col("c")).otherwise(F.coalesce("a", "d", lit(1)))
    assert expression.columns == ("b", "a", "c", "d")
    assert lit(1).columns == ()


def test_a_plain_column_is_not_copied() -> None:
    assert col("n").evaluate(_BATCH) is _BATCH.column("n")
    assert col("n").alias("m").evaluate(_BATCH) is _BATCH.column("n")
    assert (col("n") + 0).plain_column is None


def test_expressions_can_be_pickled_and_copied() -> None:
    expression = when(col("n") > 1, F.concat(lit("x"), col("big"))).otherwise(None)
    for other in (pickle.loads(pickle.dumps(expression)), copy.deepcopy(expression)):
        assert str(other) == str(expression)
        assert _values(other) == _values(expression)


def test_building_imports_neither_numpy_nor_pyarrow() -> None:
    code = (
        "import sys\n"
        "import whale_ray as whale\n"
        "F, col = whale.functions, whale.col\n"
        "F.upper('a').like('B%') | (F.date_trunc('day', 't') < 1.5) & col('c').isin(1, 2)\n"
        "whale.when(col('a') > 0, F.date_format('t', 'yyyy')).otherwise(None).alias('b').columns\n"
        "print(sorted({'numpy', 'pyarrow'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    assert ran.stdout == b"[]\n"


def test_casts_accept_names_of_whale_ray_and_spark() -> None:
    for spark_name, whale_name in (("bigint", "int64"), ("decimal(5,2)", "decimal128(5, 2)")):
        assert str(col("a").cast(spark_name)) == f"CAST(a AS {whale_name})"
    assert str(col("a").cast(DataType.parse("uint16"))) == "CAST(a AS uint16)"


# ---- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: col("a") > 1 and col("b"),
            "(a > 1) has no truth value before it is evaluated: write & for and, | for or, ~ for"
            " not, and parentheses around comparisons: (col('a') > 0) & (col('b') < 1)",
        ),
        (lambda: col(3), "col takes a column's name, not 3"),
        (
            lambda: lit([1]),
            "a list cannot be a literal in an expression: use a number, text, bytes, a date or"
            " time, or None",
        ),
        (
            lambda: lit(2**63),
            "the literal 9223372036854775808 does not fit in 64 bits: use decimal.Decimal",
        ),
        (lambda: col("a").alias(""), "alias takes a name, not ''"),
        (lambda: when(True, 1), "when takes a condition such as col('a') > 0, not True"),
        (lambda: col("a").like(3), "like takes its pattern as text, not 3"),
        (
            lambda: F.upper(3),
            "expected a column or its name, not 3: make a constant with lit(3)",
        ),
        (F.coalesce, "coalesce needs at least one column"),
        (lambda: F.round("a", 1.5), "expected a plain integer, not 1.5"),
        (
            lambda: F.date_trunc("fortnight", "t"),
            "cannot truncate times to 'fortnight': use one of year, quarter, month, week, day,"
            " hour, minute, second, millisecond, microsecond",
        ),
        (
            lambda: F.to_date("a", "yyyy-QQ"),
            "the date pattern 'yyyy-QQ' holds 'QQ', which is not supported: use yyyy, y, yy, M, MM,"
            " MMM, MMMM, d, dd, D, DD, DDD, E, EEEE, H, HH, h, hh, m, mm, s, ss, S…SSSSSSSSS, a,"
            " and quote other letters",
        ),
        (
            lambda: F.split_part("a", ",", 0),
            "split_part counts parts from 1, or from the end with -1: there is no part 0",
        ),
    ],
)
def test_mistakes_while_building(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        make()
    assert str(caught.value) == message


def test_an_unknown_type_names_those_that_exist() -> None:
    with pytest.raises(ExpressionError, match="cannot cast to 'list<int>': whale-ray has no type"):
        col("a").cast("list<int>")


def test_pysparks_method_names_give_a_hint() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = col("a").isNull
    assert str(caught.value) == (
        "a column expression has no attribute 'isNull': it is called is_null here"
    )
    assert not hasattr(col("a"), "nonsense")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (col("locl"), "no column 'locl'; did you mean 'local'?"),
        (
            col("big") + 1,
            "cannot add large_string and int32: cast both to numbers, or use functions.concat to"
            " join text, in (big + 1)",
        ),
        (
            col("n") == "x",
            "int32 and string have no common type: cast one of them, in (n = 'x')",
        ),
        (
            col("u64") + col("n"),
            "uint64 and int32 share no integer type: cast the uint64 to 'long' or 'double', in"
            " (u64 + n)",
        ),
        (
            col("nanos") < col("local"),
            "timestamp[ms, tz=America/Los_Angeles] and timestamp[ns]: one has a zone and the other"
            " has none: cast one to 'timestamp' or 'timestamp_ntz', in (nanos < local)",
        ),
        (
            col("local") > "noon",
            "'noon' is no date or time: write it as '2008-05-17 12:00:00', in (local > 'noon')",
        ),
        (
            col("n") & True,
            "& | ~ combine conditions, not int32: put comparisons in parentheses, (col('a') > 0) &"
            " (col('b') < 1); for bits use bitwise_and, in (n AND True)",
        ),
        (
            when(col("n"), 1),
            "when needs a condition, not int32: compare it, in CASE WHEN n THEN 1 ELSE NULL END",
        ),
        (
            F.contains("big", lit(5)),
            "a search takes text, not int32: cast it to 'string', in contains(big, 5)",
        ),
        (F.upper("n"), "upper takes text, not int32: cast it to 'string', in upper(n)"),
        (
            F.year("n"),
            "year takes a date or timestamp, not int32: cast it to 'timestamp', in year(n)",
        ),
        (
            F.abs("big"),
            "abs takes a number, not large_string: cast it to 'int' or 'double', in abs(big)",
        ),
        (-col("u8"), "cannot negate uint8: cast it to a signed number, in (- u8)"),
        (
            col("fixed").cast("int"),
            "there is no cast from fixed_size_binary[2] to int32, in CAST(fixed AS int32)",
        ),
        (
            col("big").rlike("("),
            "'(' is no regular expression: missing ), unterminated subpattern at position 0, in"
            " (big RLIKE '(')",
        ),
        (
            F.regexp_extract("big", "(.)", 2),
            "the pattern '(.)' has groups 0 to 1, not 2, in regexp_extract(big, '(.)', 2)",
        ),
        *(
            (
                pad("big", 2**31, "x"),
                "6,442,450,944 characters in one batch are more than 2,147,483,647, in"
                f" {pad.__name__}(big, 2147483648, 'x')",
            )
            for pad in (F.lpad, F.rpad)
        ),
        (
            F.repeat("big", 2**31),
            "6,442,450,944 characters in one batch are more than 2,147,483,647, in"
            " repeat(big, 2147483648)",
        ),
        (
            lit(None),
            "the result of NULL cannot be a column: a column holds nothing but nulls; declare its"
            " type",
        ),
    ],
)
def test_mistakes_while_evaluating(expression: Expression, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        expression.evaluate(_BATCH)
    assert str(caught.value) == message
    with pytest.raises(ExpressionError):
        expression.output_type(_BATCH.schema)


_TICKS = [0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("literal", [False, True])
def test_sums_and_differences_of_durations_beyond_64_bits_are_null(literal: bool) -> None:
    """As a time plus a duration is, and against Python's whole numbers."""
    for right in _TICKS:
        others = pa.array([right] * len(_TICKS), pa.duration("us"))
        batch = Batch.from_arrow(pa.table({"a": pa.array(_TICKS, pa.duration("us")), "b": others}))
        taken = abs(right) <= 2**62  # pyarrow takes no longer one of Python's
        other = lit(datetime.timedelta(microseconds=right)) if literal and taken else col("b")
        for expression, results in (
            (col("a") + other, [left + right for left in _TICKS]),
            (col("a") - other, [left - right for left in _TICKS]),
            (other - col("a"), [right - left for left in _TICKS]),
        ):
            found = column_to_arrow(expression.evaluate(batch))
            assert found.type == pa.duration("us")
            exact = [one if -(2**63) <= one < 2**63 else None for one in results]
            assert found.cast(pa.int64()).to_pylist() == exact
