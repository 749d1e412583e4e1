"""Tables in memory as sources, against the tables themselves."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from whale_ray.configs.errors import InputError
from whale_ray.operators import sources
from whale_ray.testing import read_all


def table_of(source: sources.Source, instance: int = 0, parallelism: int = 1) -> pa.Table:
    batches = [batch.to_arrow() for batch in read_all(source, instance, parallelism)]
    return pa.Table.from_batches(batches)


def test_an_arrow_table_comes_back_exactly() -> None:
    table = pa.table(
        {
            "big": pa.array([2**53 + 1, None, -(2**63)], pa.int64()),
            "text": ["a", None, ""],
            "at": pa.array([0, 1, None], pa.timestamp("ns", "Europe/Paris")),
            "yes": [True, None, False],
        }
    )
    source = sources.arrow(pa.concat_tables([table, table]))
    assert table_of(source).equals(pa.concat_tables([table, table]))
    assert str(source.schema()) == (
        "big: int64, text: string, at: timestamp[ns, tz=Europe/Paris], yes: bool"
    )
    assert source.describe() == "arrow 6 rows"
    copy = pickle.loads(pickle.dumps(source))
    assert table_of(copy).equals(table_of(source))


def test_other_objects_with_arrow_data_are_accepted() -> None:
    table = pa.table({"x": [1, 2]})
    assert table_of(sources.arrow(table.to_batches()[0])).equals(table)
    assert table_of(sources.arrow(table.to_reader())).equals(table)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    assert table_of(sources.arrow(stream.getvalue().to_pybytes())).equals(table)
    with pytest.raises(InputError, match="arrow\\(\\) got 4 bytes that are no Arrow IPC stream"):
        sources.arrow(b"none")
    with pytest.raises(InputError) as error:
        sources.arrow([{"x": 1}])
    assert str(error.value) == (
        "arrow() got a list; pass a pyarrow Table, or use whale.sources.iterable for rows and "
        "whale.sources.pandas for a frame"
    )


@pytest.mark.parametrize("parallelism", [2, 3])
def test_runs_of_rows_are_assigned_round_robin(parallelism: int) -> None:
    rows = 3 * 8192 + 5
    source = sources.arrow(pa.table({"x": np.arange(rows)}))
    for instance in range(parallelism):
        x = table_of(source, instance, parallelism)["x"].to_numpy()
        numbers = np.arange(rows)
        assert np.array_equal(x, numbers[numbers // 8192 % parallelism == instance])


def test_a_frame_is_read_as_it_was() -> None:
    frame = pd.DataFrame(
        {"id": [2**53 + 1, 5], "x": [1.5, np.nan], "name": ["a", None]}, index=[7, 9]
    )
    source = sources.pandas(frame)
    frame["id"] = 0
    assert [row for batch in read_all(source) for row in batch.to_pylist()] == [
        {"id": 2**53 + 1, "x": 1.5, "name": "a"},
        {"id": 5, "x": None, "name": None},
    ]
    assert source.describe() == "pandas 2 rows"


def test_unsupported_tables_are_named() -> None:
    with pytest.raises(InputError) as error:
        sources.pandas(pd.DataFrame({"x": [1, "a"]}))
    message = str(error.value)
    assert message.startswith("the pandas frame: ")
    assert "column x" in message
    assert message.endswith("; give the column one type with astype()")
    with pytest.raises(InputError) as error:
        sources.pandas(pd.DataFrame([[1, 2]], columns=["x", "x"]))
    assert str(error.value) == "the pandas frame: the column 'x' occurs twice; rename one of them"
    with pytest.raises(InputError) as error:
        sources.arrow(pa.table({"tags": [["a"]]}))
    assert str(error.value).startswith(
        "the Arrow table: column 'tags' has type list<item: string>, which whale-ray does not "
        "support"
    )


DAY = datetime.date(2024, 1, 1)
MOMENT = datetime.datetime(2024, 1, 1, 5)  # noqa: DTZ001 - beside one with a zone


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([DAY, MOMENT], "date32: Could not convert datetime.datetime(2024, 1, 1, 5, 0)"),
        ([MOMENT.replace(tzinfo=datetime.UTC), MOMENT], "tz=UTC]: Could not convert"),
        ([MOMENT, 5], "timestamp[us]: Could not convert 5 with type int"),
        ([datetime.timedelta(1), 5], "duration[us]: Could not convert 5 with type int"),
        ([MOMENT, pd.Timestamp(1)], "timestamp[us]: Could not convert Timestamp("),
        ([b"x", "y"], "binary: Could not convert 'y' with type str"),
        ([1.5, True], "float64: Could not convert True with type bool"),
        ([2**63, 1], "too large"),
        (["\ud800"], "surrogates not allowed"),
    ],
)
def test_values_of_a_frame_that_would_change_are_refused(values: list[Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        sources.pandas(pd.DataFrame({"n": [1] * len(values), "x": pd.Series(values, dtype=object)}))
    assert str(error.value).startswith("the pandas frame: column 'x'")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_values_of_a_frame_that_fit_are_read_as_they_are() -> None:
    frame = pd.DataFrame({"n": [1, None, 2.0], "d": [1, Decimal("1.5"), np.nan], "s": ["a"] * 3})
    frame = frame.astype(object)
    assert [row for batch in read_all(sources.pandas(frame)) for row in batch.to_pylist()] == [
        {"n": 1, "d": Decimal("1.0"), "s": "a"},
        {"n": None, "d": Decimal("1.5"), "s": "a"},
        {"n": 2, "d": None, "s": "a"},
    ]


def test_what_is_no_frame_is_named_with_the_source_that_reads_it() -> None:
    with pytest.raises(
        InputError, match=r"^pandas\(\) got a list; pass a pandas DataFrame, or use"
    ):
        sources.pandas([1])  # type: ignore[arg-type]  # the mistake tested
    with pytest.raises(InputError, match=r"^iterable\(\) got a DataFrame, which is a table: pass"):
        sources.iterable(pd.DataFrame({"x": [1]}))
