"""The columns of Python rows do not depend on how the rows are cut into batches."""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whale_ray.configs.errors import BadRowError, InputError, UsageError, WhaleError
from whale_ray.operators import learnt_schema, sources
from whale_ray.operators.learnt_schema import LearntSchema
from whale_ray.operators.transforms import FlatMapRows, MapRows, Transform
from whale_ray.tasks.row_gatherer import RowGatherer
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

D = decimal.Decimal
NOON = datetime.datetime(2020, 1, 2, 12)  # noqa: DTZ001  # one without a zone is meant
ZONED = NOON.replace(tzinfo=datetime.UTC)
DAY = NOON.date()

FIRST = {
    "bool": (True, "bool"),
    "int": (1, "int64"),
    "float": (1.5, "float64"),
    "text": ("a", "string"),
    "bytes": (b"a", "binary"),
    "bytearray": (bytearray(b"a"), "binary"),
    "decimal": (D("1.5"), "decimal128(38, 18)"),
    "date": (DAY, "date32"),
    "naive": (NOON, "timestamp[us]"),
    "aware": (ZONED, "timestamp[us, tz=UTC]"),
    "time": (NOON.time(), "time64[us]"),
    "timedelta": (datetime.timedelta(1), "duration[us]"),
    "numpy bool": (np.bool_(True), "bool"),
    "numpy int8": (np.int8(1), "int64"),
    "numpy float32": (np.float32(1.5), "float64"),
    "numpy text": (np.str_("a"), "string"),
    "numpy day": (np.datetime64("2020-01-02"), "date32"),
    "numpy instant": (np.datetime64("2020-01-02T12", "ns"), "timestamp[ns]"),
    "numpy hours": (np.datetime64("2020-01-02T12", "h"), "timestamp[s]"),
    "numpy duration": (np.timedelta64(1, "ms"), "duration[ms]"),
    "pandas": (pd.Timestamp(NOON), "timestamp[ns]"),
    "pandas, zoned": (pd.Timestamp(ZONED), "timestamp[ns, tz=UTC]"),
    "pandas duration": (pd.Timedelta(1, "s"), "duration[ns]"),
}


def _gathered(values: Sequence[Any], cuts: Sequence[int] = ()) -> Batch:
    """Learn from values of one column, cut into stretches."""
    rows = [{"x": value} for value in values]
    learnt = LearntSchema()
    for start, stop in itertools.pairwise([0, *cuts, len(rows)]):
        learnt.look(rows[start:stop])
    learnt.settle()
    return learnt.batch(rows)


@pytest.mark.parametrize("what", FIRST)
def test_the_first_value_determines_the_type(what: str) -> None:
    value, kind = FIRST[what]
    batch = _gathered([None, value, None, value])
    assert str(batch.schema) == f"x: {kind}"
    first, second, third, fourth = batch.column("x").to_pylist()
    assert (first, third) == (None, None)
    expected = value
    if isinstance(value, np.datetime64):
        expected = DAY if kind == "date32" else NOON
    elif isinstance(value, np.timedelta64):
        expected = datetime.timedelta(milliseconds=1)
    assert second == fourth == expected


OTHERS = [
    # (first value, another one, the latter in the column; None: it is refused)
    (1, 2.0, 2),
    (1, 2.5, None),
    (1, True, None),
    (1, np.bool_(True), None),
    (1, "2", None),
    (1, D(2), 2),
    (1, D("2.5"), None),
    (1, 2**63, None),
    (1, float("nan"), None),
    (1, np.uint64(2**63), None),
    (1.5, 2, 2.0),
    (1.5, 2**53 + 1, None),
    (1.5, True, None),
    (1.5, D(2), None),
    (True, 1, None),
    ("a", b"b", None),
    (b"a", "b", None),
    (b"a", memoryview(b"b"), b"b"),
    (D(3), D("2.50"), D("2.50")),
    (D("2.5"), 3, D(3)),
    (D("2.5"), 3.5, None),
    (D("2.5"), D("1e20"), None),
    (D("2.5"), D("NaN"), None),
    (DAY, NOON, None),
    (NOON, DAY, None),
    (DAY, 5, None),
    (NOON, ZONED, None),
    (ZONED, NOON, None),
    (NOON, 5, None),
    (NOON, np.datetime64(NOON), NOON),
    (ZONED, np.datetime64(NOON), None),
    (NOON, np.datetime64("2020-01-02T12:00:00.000000001"), None),
    (NOON, pd.Timestamp("2020-01-02T12:00:00.000000001"), None),
    (NOON, pd.Timestamp(NOON), NOON),
    (NOON, pd.NaT, "null"),
    (1, pd.NA, "null"),
    (NOON, np.datetime64("NaT"), "null"),
    (np.datetime64(NOON, "s"), NOON, NOON),
    (np.datetime64(NOON, "ms"), NOON.replace(microsecond=1), None),
    (np.timedelta64(1, "s"), datetime.timedelta(1), datetime.timedelta(1)),
    (NOON.time(), datetime.time(1, tzinfo=datetime.UTC), None),
    (datetime.timedelta(1), np.timedelta64(1, "D"), datetime.timedelta(1)),
    (datetime.timedelta(1), 5, None),
    (ZONED, ZONED.astimezone(datetime.timezone(datetime.timedelta(hours=2))), ZONED),
]


@pytest.mark.parametrize(("first", "other", "becomes"), OTHERS, ids=range(len(OTHERS)))
def test_other_values_fit_exactly_or_are_refused(first: Any, other: Any, becomes: Any) -> None:
    if becomes is None:
        with pytest.raises(InputError, match="^column 'x', .*; declare"):
            _gathered([first, other])
        return
    found = _gathered([first, other]).column("x").to_pylist()[1]
    assert found == (None if becomes == "null" else becomes)


def test_an_integer_beyond_64_bits_is_named() -> None:
    with pytest.raises(InputError) as caught:
        _gathered([1, 2**63])
    assert str(caught.value) == (
        "column 'x', int64: 9223372036854775808 does not fit; declare decimal128(38, 0), or string"
        " and pass text"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "column 'x' has type list<item: int64>, which whale-ray does not support"),
        ({"a": 1}, "column 'x' has type struct<a: int64>, which whale-ray does not support"),
        (object(), "column 'x': Could not convert <object object"),
    ],
)
def test_values_of_unsupported_types_are_refused(value: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        _gathered([None, value])


# ---- however rows are cut ------------------------------------------------------------------------

VALUES = st.sampled_from(
    [None, *(value for value, _ in FIRST.values()), *(other for _, other, _ in OTHERS), [1], {}]
)
TWO_COLUMNS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=7)
FEW_KINDS = st.sets(st.sampled_from(range(len(OTHERS))), min_size=1, max_size=2).flatmap(
    lambda chosen: st.lists(
        st.sampled_from([None, *(value for one in chosen for value in OTHERS[one][:2])]),
        min_size=1,
        max_size=7,
    )
)


@st.composite
def _cut_rows(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[int]]:
    few = st.tuples(FEW_KINDS, FEW_KINDS).map(lambda two: list(zip(*two, strict=False)))
    values = draw(TWO_COLUMNS | few)
    rows = [dict(zip("xy", pair, strict=True)) for pair in values]
    cuts = draw(st.sets(st.integers(1, max(1, len(rows) - 1))))
    return rows, sorted(cuts)


def _shown(batches: Sequence[Batch | None]) -> str:
    present = [batch for batch in batches if batch is not None]
    schemas = {str(batch.schema) for batch in present}
    assert len(schemas) <= 1
    return repr((schemas, [row for batch in present for row in batch.to_pylist()]))


def _outcome(made: Iterator[Batch | None]) -> str:
    try:
        return _shown(list(made))
    except WhaleError:
        return "refused"


def _pieces(rows: list[dict[str, Any]], cuts: Sequence[int]) -> list[list[dict[str, Any]]]:
    return [rows[a:b] for a, b in itertools.pairwise([0, *cuts, len(rows)]) if a < b]


def _transformed(transform: Transform, pieces: list[list[Any]]) -> Iterator[Batch | None]:
    """Let a function return the rows of each piece, ignoring its input."""
    one = transform.instance()
    for piece in pieces:
        places.extend(piece)
        yield one.apply(Batch.from_pydict({"n": np.arange(len(piece))}))
    yield one.finish()


places: list[dict[str, Any]] = []


def _next_place(row: Any) -> dict[str, Any]:
    return places.pop(0)


def _next_in_a_list(row: Any) -> list[dict[str, Any]]:
    return [places.pop(0)]


def _emitted(pieces: list[list[Any]]) -> Iterator[Batch | None]:
    gatherer = RowGatherer("op", None)
    for piece in pieces:
        for row in piece:
            gatherer.add_all([dict(row)], None)
        yield gatherer.take(final=False)
    yield gatherer.take(final=True)


def _read(
    rows: list[Any], max_rows: int, policy: Any, rejected: list[int] | None = None
) -> Iterator[Batch | None]:
    source = sources.iterable(rows).with_bad_rows(policy)
    reader = source.open(instance_context())
    while not reader.finished:
        yield reader.read(max_rows)
    if rejected is not None:
        rejected.extend(reader.rejected.values())


@settings(max_examples=150, deadline=None)
@given(_cut_rows())
@example(([{"x": None, "y": 1}, {"x": 1.5, "y": 1}], [1]))
@example(([{"x": 1, "y": 1}, {"x": 1.5, "y": 1}], [1]))
def test_the_cut_into_batches_does_not_change_the_rows(
    cut: tuple[list[dict[str, Any]], list[int]],
) -> None:
    rows, cuts = cut
    whole, pieces = [rows], _pieces(rows, cuts)
    for transform in (MapRows(_next_place), FlatMapRows(_next_in_a_list)):
        results = []
        for parts in (whole, pieces):
            places.clear()
            results.append(_outcome(_transformed(transform, parts)))
        assert results[0] == results[1]
    expected = _outcome(_emitted(whole))
    assert _outcome(_emitted(pieces)) == expected == results[0]
    for max_rows in (1, 2, 100):
        assert _outcome(_read(rows, max_rows, "fail")) == expected
    kept = []
    for max_rows in (1, 2, 100):
        rejected: list[int] = []
        kept.append((_outcome(_read(rows, max_rows, "drop", rejected)), rejected))
    assert kept[0] == kept[1] == kept[2]
    if expected != "refused":
        assert kept[0] == (expected, [])


@settings(max_examples=30, deadline=None)
@given(_cut_rows())
def test_the_cut_into_batches_does_not_change_the_refused_row(
    cut: tuple[list[Any], list[int]],
) -> None:
    rows, _ = cut
    said = set()
    for max_rows in (1, 3, 100):
        try:
            list(_read(rows, max_rows, "fail"))
        except (BadRowError, InputError) as error:
            said.add(str(error))
        else:
            said.add("")
    assert len(said) == 1


# ---- columns without a value ---------------------------------------------------------------------


def _ints(values: Sequence[int | None]) -> Batch:
    schema = Schema.of(x="int64")
    return Batch.from_pydict({"x": list(values)}, schema).with_times(np.arange(len(values)))


def test_a_map_waits_for_the_first_value_and_keeps_times_and_origin() -> None:
    one = MapRows(lambda row: {"x": None if row.x < 2 else row.x / 2}).instance()
    assert one.apply(_ints([0]).with_origin(7)) is None
    assert one.apply(_ints([1]).with_origin(8)) is None
    assert one.waiting_rows == 2
    result = one.apply(_ints([3, 4]).with_origin(9))
    assert result is not None
    assert str(result.schema) == "x: float64"
    assert result.to_pylist() == [{"x": None}, {"x": None}, {"x": 1.5}, {"x": 2.0}]
    assert result.times is not None
    assert result.times.tolist() == [0, 0, 0, 1]
    assert result.origin_ns == 7
    assert (one.waiting_rows, one.finish()) == (0, None)


def test_a_column_of_nulls_has_the_type_of_the_input() -> None:
    one = MapRows(lambda row: {"x": None}).instance()
    assert one.apply(_ints([0])) is None
    result = one.finish()
    assert result is not None
    assert (str(result.schema), result.to_pylist()) == ("x: int64", [{"x": None}])
    gatherer = RowGatherer("op", None)
    gatherer.inputs = [Schema.of(k="string"), Schema.of(x="date32", k="binary")]
    gatherer.add_all([{"x": None, "k": None}], None)
    assert gatherer.take(final=False) is None
    emitted = gatherer.take(final=True)
    assert emitted is not None
    assert str(emitted.schema) == "x: date32, k: string"


def test_without_an_input_column_of_that_name_the_user_declares_it() -> None:
    one = MapRows(lambda row: {"y": None}).instance()
    assert one.apply(_ints([0])) is None
    with pytest.raises(UsageError) as caught:
        one.finish()
    assert str(caught.value) == (
        "map function <lambda>: column 'y' holds nothing but nulls; declare its type with"
        " schema=whale.Schema.of(…)"
    )


@pytest.mark.parametrize("policy", ["fail", "drop"])
@pytest.mark.parametrize("max_rows", [1, 10])
def test_a_column_of_nulls_fails_under_any_policy_for_rows(policy: str, max_rows: int) -> None:
    rows = [{"x": number, "y": None} for number in range(3)]
    with pytest.raises(InputError) as caught:
        list(_read(rows, max_rows, policy))
    assert str(caught.value) == (
        "column 'y' holds nothing but nulls; declare its type: pass schema=, or rows without it"
    )


@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_number_of_waiting_rows_is_limited(monkeypatch: Any, size: int) -> None:
    """A value in the next row is too late, even if it is in the same batch."""
    monkeypatch.setattr(learnt_schema, "WAITING_ROWS_MAX", 10)
    for nulls, kind in ((9, "float64"), (10, "int64")):
        values = [*[None] * nulls, 0.5]
        one = MapRows(lambda row, values=values: {"x": values[row.x]}).instance()
        batches = [_ints(range(i, min(i + size, nulls + 1))) for i in range(0, nulls + 1, size)]
        if kind == "int64":
            with pytest.raises(UsageError, match="column 'x', int64: Could not convert 0.5"):
                [one.apply(batch) for batch in batches]
            continue
        last = [one.apply(batch) for batch in batches][-1]
        assert last is not None
        assert str(last.schema) == "x: float64"


@pytest.mark.parametrize(
    ("own", "value", "kind"),
    [
        ("float32", 0, "float64"),
        ("decimal128(10, 2)", 0, "decimal128(10, 2)"),
        ("decimal128(10, 2)", D("1.50"), "decimal128(10, 2)"),
        ("uint64", 5, "uint64"),
        ("int32", 5, "int64"),
        ("date64", DAY, "date64"),
        ("date64", 5, "int64"),
        ("time32[s]", NOON.time(), "time32[s]"),
        ("timestamp[ms, tz=UTC]", ZONED, "timestamp[ms, tz=UTC]"),
        ("timestamp[ms, tz=UTC]", NOON, "timestamp[us]"),
        ("large_string", "a", "large_string"),
        ("string", b"a", "binary"),
        ("float64", True, "bool"),
    ],
)
def test_which_types_of_the_input_a_map_keeps(own: str, value: Any, kind: str) -> None:
    batch = Batch.from_pydict({"x": [None]}, Schema.of(x=own))
    result = MapRows(lambda row: {"x": value}).apply(batch)
    assert result is not None
    assert str(result.schema) == f"x: {kind}"


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[{1: "a"}], [{"a": 1, ("b", 2): 1}]])
def test_names_are_text(rows: list[Any]) -> None:
    said = "a column is called "
    with pytest.raises(UsageError, match=said):
        MapRows(lambda row: rows[0]).apply(_ints([1]))
    with pytest.raises(WhaleError, match=said):
        list(_emitted_all(rows))
    with pytest.raises(BadRowError, match=f"^row 0: {said}"):
        list(_read(rows, 10, "fail"))
    with pytest.raises(InputError, match=said):
        Batch.from_rows(rows)
    with pytest.raises(InputError, match=said):
        Batch.from_pydict({1: [2]})  # type: ignore[dict-item]  # the mistake tested


def test_a_later_row_with_another_kind_of_name() -> None:
    with pytest.raises(BadRowError, match="^row 1: has the key 1; the names of columns are"):
        list(_read([{"a": 1}, {"a": 1, 1: 2}], 10, "fail"))


def _emitted_all(rows: list[Any]) -> Iterator[Batch | None]:
    gatherer = RowGatherer("op", None)
    gatherer.add_all(rows, None)
    yield gatherer.take(final=True)


def test_the_first_mapping_with_text_names_determines_the_columns() -> None:
    rejected: list[int] = []
    rows: list[Any] = [7, {1: 2}, {"a": [1]}, {"a": None}, {"a": 5}, (1,), {"a": 1.5}]
    batches = list(_read(rows, 2, "drop", rejected))
    assert _shown(batches) == repr(({"a: int64"}, [{"a": None}, {"a": 5}]))
    assert rejected == [5]


def test_rows_without_columns_are_rows() -> None:
    learnt = LearntSchema()
    assert learnt.look([{}, {}])
    assert learnt.batch([{}, {}]).num_rows == 2


# ---- work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("emits", [1, 100])
def test_each_row_is_examined_once(monkeypatch: Any, emits: int) -> None:
    """Rows that wait for a type are not examined again with each new row."""
    looked_at = []
    look = LearntSchema.look
    monkeypatch.setattr(
        LearntSchema, "look", lambda self, rows: looked_at.append(len(rows)) or look(self, rows)
    )
    gatherer = RowGatherer("op", None)
    for _ in range(4000 // emits):
        for _ in range(emits):
            gatherer.add_all([{"x": None, "y": 1}], None)
        assert gatherer.take(final=False) is None
    gatherer.add_all([{"x": 1, "y": 1}], None)
    batch = gatherer.take(final=False)
    assert batch is not None
    assert batch.num_rows == sum(looked_at) == 4001
