"""The JSON-lines source, against Python's own json module and golden messages."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operators.sources.opened import message_of, rows_of
from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators import sources
from whale_ray.testing import instance_context


def put(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


VALUES = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text(st.characters(codec="utf-8"), max_size=8),
        "b": st.none() | st.booleans(),
    }
)


@given(rows=st.lists(VALUES, min_size=1, max_size=20))
def test_equals_python_json(rows: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    path = put(tmp_path_factory.mktemp("json") / "a.jsonl", *rows)
    schema = {"i": "int64", "f": "float64", "s": "string", "b": "bool"}
    assert rows_of(sources.json_lines(path, schema)) == rows


def test_inference_covers_all_lines_of_the_first_block(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", {"x": 1}, {"x": 2.5, "y": "a"}, "", {"y": None})
    source = sources.json_lines(path)
    assert str(source.schema()) == "x: float64, y: string"
    assert rows_of(source) == [
        {"x": 1.0, "y": None},
        {"x": 2.5, "y": "a"},
        {"x": None, "y": None},
    ]


def test_every_type_can_be_declared(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.jsonl",
        {
            "ts": "2008-05-31T07:00:00.25Z",
            "naive": "2008-05-31 07:00:00",
            "day": "2008-05-31",
            "day64": "2008-05-31",
            "clock": "07:00:00.5",
            "span": 1500,
            "money": "12.50",
            "half": 0.5,
            "raw": "AAH/",
            "four": "AQIDBA==",
        },
        {},
    )
    schema = {
        "ts": "timestamp[ms, tz=UTC]",
        "naive": "timestamp[us]",
        "day": "date32",
        "day64": "date64",
        "clock": "time64[us]",
        "span": "duration[ms]",
        "money": "decimal128(10, 2)",
        "half": "float16",
        "raw": "binary",
        "four": "fixed_size_binary(4)",
    }
    first, second = rows_of(sources.json_lines(path, schema))
    assert first == {
        "ts": dt.datetime(2008, 5, 31, 7, 0, 0, 250_000, tzinfo=dt.UTC),
        "naive": dt.datetime.fromisoformat("2008-05-31T07:00:00"),
        "day": dt.date(2008, 5, 31),
        "day64": dt.date(2008, 5, 31),
        "clock": dt.time(7, 0, 0, 500_000),
        "span": dt.timedelta(seconds=1.5),
        "money": Decimal("12.50"),
        "half": 0.5,
        "raw": b"\x00\x01\xff",
        "four": b"\x01\x02\x03\x04",
    }
    assert set(second.values()) == {None}


def test_other_fields_are_ignored_once_columns_are_chosen(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", {"x": 1, "tags": ["a"]}, {"x": 2, "new": {"a": 1}})
    assert rows_of(sources.json_lines(path, columns=["x"])) == [{"x": 1}, {"x": 2}]
    assert rows_of(sources.json_lines(path, {"x": "int8"})) == [{"x": 1}, {"x": 2}]
    assert message_of(InputError, sources.json_lines(path)).startswith(
        f"{path}: column 'tags' has type list<item: string>, which whale-ray does not support; "
    )


REMEDY = (
    "; each line must hold one JSON object that fits schema=; correct it, "
    "or pass on_bad_rows='drop' to leave such lines out and count them"
)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"x": 1', "not one JSON object"),
        ("garbage", "not one JSON object"),
        ("null", "not one JSON object"),
        ('{"x": 1} null {"x": 2}', "not one JSON object"),
        ('{"x": 1}{"x": 2}', "not one JSON object"),
        ("{'x': 1}", "Missing a name for object member"),
        ('{"x": 1, "x": 2}', "Column(/x) was specified twice"),
        (
            '{"x": 12345678901234567890}',
            "Failed to convert JSON to int64, couldn't parse:12345678901234567890",
        ),
        ('{"x": "one"}', "Column(/x) changed from number to string"),
        ('{"x": 1.5}', "Failed to convert JSON to int64, couldn't parse:1.5"),
        ("[1]", "not one JSON object"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = put(tmp_path / "a.jsonl", {"x": 1}, "", {"x": 2}, line, {"x": 3})
    source = sources.json_lines(path, {"x": "int64"})
    assert message_of(BadRowError, source) == f"{path}, line 4: {reason}: {line!r}{REMEDY}"
    reader = source.with_bad_rows("drop").open(instance_context())
    batches = [reader.read(100) for _ in range(5)]
    assert [row["x"] for batch in batches if batch for row in batch.to_pylist()] == [1, 2, 3]
    assert dict(reader.rejected) == {"malformed line": 1}
    assert reader.finished


def test_a_field_that_appears_late_is_not_lost_silently(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", {"x": 1})
    b = put(tmp_path / "b.jsonl", {"x": 2, "y": 3})
    line = '\'{"x": 2, "y": 3}\''
    source = sources.json_lines(tmp_path)
    assert message_of(BadRowError, source) == f"{b}, line 1: unexpected field: {line}{REMEDY}"


def test_files_that_are_not_json_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("<xml/>\n")
    assert message_of(InputError, sources.json_lines(path)) == (
        f"{path}, line 1 and all others of the first block: not one JSON object: '<xml/>'; "
        "is it a JSON-lines file?"
    )
    path.write_text("\n\n")
    assert message_of(InputError, sources.json_lines(path)) == (
        f"{path}: the file is empty, so its columns' types are unknown; "
        "pass schema=, or leave the file out"
    )
    put(path, {"x": None})
    assert message_of(InputError, sources.json_lines(path)) == (
        f"{path}: the column 'x' holds only nulls in the first block, so its type is unknown; "
        "pass schema= (or the columns= wanted)"
    )


def test_the_first_lines_decide_where_types_differ(tmp_path: Path) -> None:
    lines = [{"x": 1, "t": "2008-05-31"}, {"x": "a", "t": "soon"}, {"x": 2.5, "t": None}]
    path = put(tmp_path / "a.jsonl", *lines, *[{"x": "b"}, {"x": 3}] * 300)
    source = sources.json_lines(path)
    assert str(source.schema()) == "x: float64, t: date32"
    rows = rows_of(source.with_bad_rows("drop"))
    assert [row["x"] for row in rows] == [1.0, 2.5] + [3.0] * 300
    message = message_of(BadRowError, source)
    assert message.startswith(f"{path}, line 2: Column(/x) changed from number to string: ")


def test_half_a_surrogate_pair_is_a_malformed_line(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", {"x": "a"}, r'{"x": "\ud834"}', {"x": "\U0001d11e"})
    source = sources.json_lines(path, {"x": "string"})
    assert "line 2: The surrogate pair in string is invalid" in message_of(BadRowError, source)
    assert rows_of(source.with_bad_rows("drop")) == [{"x": "a"}, {"x": "\U0001d11e"}]


def test_lists_in_lists_are_bounded(tmp_path: Path) -> None:
    deep = '{"x": 2, "y": ' + "[" * 200_000 + "]" * 200_000 + "}"
    brackets = {"x": 3, "y": "[" * 200}
    path = put(tmp_path / "a.jsonl", deep)
    assert "line 1 and all others of the first block: lists or objects within" in message_of(
        InputError, sources.json_lines(path)
    )
    put(path, {"x": 1, "y": "a"}, deep, brackets)
    rows = [{"x": 1, "y": "a"}, brackets]
    assert rows_of(sources.json_lines(path).with_bad_rows("drop")) == rows
    put(path, {"x": 1}, deep, {"x": "a"})
    schema = {"x": "int64"}
    assert rows_of(sources.json_lines(path, schema).with_bad_rows("drop")) == [
        {"x": 1},
        {"x": 2},
    ]
    put(path, '{"x": 1} null', deep)
    assert rows_of(sources.json_lines(path, schema).with_bad_rows("drop")) == [{"x": 2}]


def test_a_long_type_is_shortened(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", {"x": {f"field {number}": 1 for number in range(1000)}})
    message = message_of(InputError, sources.json_lines(path))
    assert len(message) < 300 + len(str(path))
    assert "column 'x' has type struct<field 0: int64, field 1: int64, " in message
