"""The types inferred for CSV and JSON lines: the same rules for both, without loss.

Each case is the same values in both formats; Python's int, Decimal and json are the oracles.
"""

from __future__ import annotations

import dataclasses
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators import sources
from whale_ray.testing import instance_context

BIG = 12345678901234567890
LEARNT_FROM_BYTES = 64
LINES = 100
"""More lines than fit into a first block of that size."""


def csv_of(folder: Path, values: list[str], **options: Any) -> sources.Source:
    path = folder / "a.csv"
    path.write_text("".join(f"{one}\n" for one in ["x", *values]), encoding="utf-8")
    return sources.csv(path, **options)


def json_of(folder: Path, values: list[str], **options: Any) -> sources.Source:
    path = folder / "a.jsonl"
    path.write_text("".join(f'{{"x":{one}}}\n' for one in values), encoding="utf-8")
    return sources.json_lines(path, **options)


FORMATS = pytest.mark.parametrize("written", [csv_of, json_of])


def read(source: sources.Source) -> list[Any]:
    reader = source.open(instance_context())
    found: list[Any] = []
    while not reader.finished:
        batch = reader.read(8192)
        found += [row["x"] for row in batch.to_pylist()] if batch else []
    return found


def same(left: list[Any], right: list[Any]) -> bool:
    """Return whether both lists have equal values of equal types; NaN equals NaN, -0.0 not 0.0."""
    return [(type(one), str(one)) for one in left] == [(type(one), str(one)) for one in right]


@FORMATS
@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1", "-0", "7"], "int64", [1, 0, 7]),
        ([str(2**63 - 1), str(-(2**63))], "int64", [2**63 - 1, -(2**63)]),
        ([str(2**63), "1"], "decimal128(38, 0)", [Decimal(2**63), Decimal(1)]),
        ([str(-(2**63) - 1)], "decimal128(38, 0)", [Decimal(-(2**63) - 1)]),
        ([str(BIG), str(BIG + 1)], "decimal128(38, 0)", [Decimal(BIG), Decimal(BIG + 1)]),
        (
            ["9" * 38, "-" + "9" * 38],
            "decimal128(38, 0)",
            [Decimal("9" * 38), Decimal("-" + "9" * 38)],
        ),
        (["1", "2.5"], "float64", [1.0, 2.5]),
        (["1", "1e5"], "float64", [1.0, 1e5]),
        (["-0.0", "1"], "float64", [-0.0, 1.0]),
        (["1", "NaN"], "float64", [1.0, math.nan]),
        ([str(BIG), "0.5"], "float64", [float(BIG), 0.5]),
    ],
)
def test_numbers_have_one_type_in_both_formats(
    tmp_path: Path, written: Any, values: list[str], kind: str, expected: list[Any]
) -> None:
    source = written(tmp_path, values)
    assert str(source.schema()) == f"x: {kind}"
    assert same(read(source), expected)


@FORMATS
@given(values=st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=8))
@example(values=[2**53 + 1, 2**63])
def test_no_integer_is_changed(values: list[int], written: Any, tmp_path_factory: Any) -> None:
    source = written(tmp_path_factory.mktemp("x"), [str(one) for one in values])
    assert [int(one) for one in read(source)] == values


@FORMATS
@pytest.mark.parametrize(
    ("values", "beside"),
    [(["9" * 39], ""), ([str(BIG), "NaN"], " beside values that are not integers")],
)
def test_integers_that_no_type_holds_are_refused(
    tmp_path: Path, written: Any, values: list[str], beside: str
) -> None:
    source = written(tmp_path, values)
    with pytest.raises(InputError) as error:
        source.schema()
    assert str(error.value) == (
        f"{source.paths.absolute[0]}: the column 'x' holds integers that no type holds without "
        f"loss, such as {values[0]}{beside}; pass schema= with the type to use"
    )


@FORMATS
@pytest.mark.parametrize("late", [str(BIG), "2.5", "1e5", "NaN", "true"])
def test_later_values_must_fit_the_inferred_type(tmp_path: Path, written: Any, late: str) -> None:
    source = written(tmp_path, ["1"] * LINES + [late])
    source = dataclasses.replace(source, block_bytes=LEARNT_FROM_BYTES)
    with pytest.raises(BadRowError) as error:
        read(source)
    line = LINES + (2 if written is csv_of else 1)
    assert str(error.value).startswith(f"{source.paths.absolute[0]}, line {line}: ")
    reader = source.with_bad_rows("drop").open(instance_context())
    rows = 0
    while not reader.finished:
        batch = reader.read(8192)
        rows += batch.num_rows if batch else 0
    assert rows == LINES
    assert dict(reader.rejected) == {"malformed line": 1}


@FORMATS
@pytest.mark.parametrize(
    ("value", "kind"), [("1e400", "float64"), ("-1e300", "float32"), ("70000", "float16")]
)
def test_numbers_beyond_their_types_range_are_malformed(
    tmp_path: Path, written: Any, value: str, kind: str
) -> None:
    source = written(tmp_path, ["1.5", value, "2.5"], schema={"x": kind})
    assert read(source.with_bad_rows("drop")) == [1.5, 2.5]
    infinite = "Infinity" if written is json_of else "inf"
    assert read(written(tmp_path, ["1.5", f"-{infinite}"], schema={"x": kind})) == [1.5, -math.inf]


@FORMATS
@pytest.mark.parametrize("value", ["100000000", "999999999", "-100000000.0", "1e8"])
def test_decimals_longer_than_their_type_are_malformed(
    tmp_path: Path, written: Any, value: str
) -> None:
    """They have no more digits than the type, until its scale adds zeros."""
    source = written(tmp_path, ["1", "-99999999.99", value], schema={"x": "decimal(10, 2)"})
    assert read(source.with_bad_rows("drop")) == [Decimal("1.00"), Decimal("-99999999.99")]
    with pytest.raises(BadRowError, match=r"'x': -?[19]0*9*\.00 is beyond the range of decimal"):
        read(source)


@pytest.mark.parametrize(
    "values",
    [["007", "7"], ["+49301234", "1"], ["0x1f", "1"], ["-007"], ["00012345678901234567890"]],
)
def test_codes_stay_text_in_csv(tmp_path: Path, values: list[str]) -> None:
    source = csv_of(tmp_path, values)
    assert str(source.schema()) == "x: string"
    assert read(source) == values


def test_a_declared_integer_may_have_zeros_and_spaces_before_it(tmp_path: Path) -> None:
    assert read(csv_of(tmp_path, ["007", " 7 ", "0x1f"], schema={"x": "int64"})) == [7, 7, 31]
    assert read(csv_of(tmp_path, ["0", "-0.5", "0.25", "00.5"])) == [0, -0.5, 0.25, 0.5]


@pytest.mark.parametrize(
    ("value", "kind"), [("0xFFFFFFFFFFFFFFFF", "int64"), (" 0X80", "int8"), ("0xffff", "int16")]
)
def test_hexadecimal_numbers_never_become_negative(tmp_path: Path, value: str, kind: str) -> None:
    source = csv_of(tmp_path, ["0x7f", "-5", value, "1"], schema={"x": kind})
    assert read(source.with_bad_rows("drop")) == [127, -5, 1]
    with pytest.raises(BadRowError) as error:
        read(source)
    assert f"line 4: column 'x': {value} is beyond the range of {kind}: " in str(error.value)


def test_zeros_and_ones_are_booleans_only_if_declared(tmp_path: Path) -> None:
    assert read(csv_of(tmp_path, ["0", "1"])) == [0, 1]
    values = ["0", "1", "true", "False"]
    assert read(csv_of(tmp_path, values, schema={"x": "bool"})) == [False, True, True, False]
    source = json_of(tmp_path, ["true", "1", "false"], schema={"x": "bool"})
    assert read(source.with_bad_rows("drop")) == [True, False]


def quoted(values: list[str]) -> list[str]:
    return [json.dumps(one) for one in values]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["2008-05-31"], "date32"),
        (["07:00:00", "08:00"], "time32[s]"),
        (["2008-05-31 07:00:00", "2008-05-31"], "timestamp[us]"),
        (["2008-05-31T07:00:00Z", "2008-05-31T07:00:00+02:00"], "timestamp[us, tz=UTC]"),
        (["2008-05-31T07:00:00.123Z"], "timestamp[ns, tz=UTC]"),
        (["2008-05-31T07:00:00.5"], "timestamp[ns]"),
        (["2008-05-31T07:00:00Z", "2008-05-31T07:00:00"], "string"),
        (["2008-05-31", "soon"], "string"),
        (["2008-02-30"], "string"),
    ],
)
def test_times_have_one_type_in_both_formats(tmp_path: Path, values: list[str], kind: str) -> None:
    assert str(csv_of(tmp_path, values).schema()) == f"x: {kind}"
    assert str(json_of(tmp_path, quoted(values)).schema()) == f"x: {kind}"
    assert read(csv_of(tmp_path, values)) == read(json_of(tmp_path, quoted(values)))


def test_texts_of_json_stay_texts(tmp_path: Path) -> None:
    for values in (["1", "2"], ["2008"], ["", "2008-05-31"], ["true"], ["1.5"], ["a,b", 'x"y']):
        source = json_of(tmp_path, quoted(values))
        assert str(source.schema()) == "x: string"
        assert read(source) == values


def test_a_zone_is_never_dropped_or_added(tmp_path: Path) -> None:
    zoned, naive = '"2008-05-31T07:00:00+02:00"', '"2008-05-31T07:00:00"'
    source = json_of(tmp_path, [zoned, naive], schema={"x": "timestamp[us]"})
    assert [str(one) for one in read(source.with_bad_rows("drop"))] == ["2008-05-31 07:00:00"]
    source = json_of(tmp_path, [zoned, naive], schema={"x": "timestamp[us, tz=UTC]"})
    assert [str(one) for one in read(source.with_bad_rows("drop"))] == ["2008-05-31 05:00:00+00:00"]


def test_files_of_a_folder_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    b = tmp_path / "b.csv"
    b.write_text("x,y,z\n1,2,3\n")
    with pytest.raises(InputError) as error:
        read(sources.csv(tmp_path))
    assert str(error.value) == (
        f"{b}: the column 'z' is missing in the first file; "
        "name the columns= wanted, or pass schema="
    )
    assert read(sources.csv(tmp_path, columns=["x"])) == [1, 1]


def test_a_first_file_without_rows_does_not_decide(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n")
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "c.csv").write_text("x\n1\n2")
    assert read(sources.csv(tmp_path)) == [1, 2]
    (tmp_path / "c.csv").unlink()
    with pytest.raises(InputError) as error:
        read(sources.csv(tmp_path))
    assert str(error.value) == (
        f"{tmp_path}/a.csv: the file has a header but no rows, so its columns' types are unknown; "
        "pass schema=, or leave the file out"
    )
    assert read(sources.csv(tmp_path, {"x": "int64"})) == []


def test_a_block_whose_lines_do_not_fit_the_header_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1;2\n3;4\n")
    with pytest.raises(InputError) as error:
        read(sources.csv(path))
    assert str(error.value) == (
        f"{path}: no line of the first block has 2 fields, as the header has; "
        "correct it, or pass the delimiter= (now ',')"
    )


SOME_LINES = st.sampled_from(
    [
        '{"x": 1}',
        ' {"x": 2, "y": "é\\n"} ',
        '{"x": 1}{"x": 2}',
        '{"x": 1, "other": {"x": [1, {}]}}',
        '{"other": [{}',
        '{"x":',
        "3}",
        "}",
        "",
        "  ",
        "{}",
        "null",
        '{"x": 1} null {"x": 2}',
        '{"y": "}null"}',
        '{"other": {}, "x": null}',
        "[1]",
        '[{"x": 1}]',
        '{"x": 1.5}',
        '{"x": null, "y": null}',
        '{"x": "1"}',
        '{"x": 1, "x": 2}',
        f'{{"x": {BIG}}}',
        '{"y": "a}\\n{b"}',
        '{"x": 1},',
        "{'x': 1}",
        '{"x": 007}',
    ]
)


def expected_object(line: str) -> dict[str, Any] | None:
    """Return the row of a line by Python's json and our rules, None if it is malformed."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        known = [name for name, _ in pairs if name in {"x", "y"}]
        if len(known) > len(set(known)):
            raise ValueError(line)
        return dict(pairs)

    try:
        found = json.loads(line, object_pairs_hook=once)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    x, y = found.get("x"), found.get("y")
    fits = x is None or (isinstance(x, int) and -(2**63) <= x < 2**63)
    return {"x": x, "y": y} if fits else None


@given(
    lines=st.lists(SOME_LINES, max_size=12),
    block_bytes=st.integers(1, 80),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    ends=st.booleans(),
)
@example(lines=['{"x": 1}{"x":', "3}"], block_bytes=80, line_end="\n", ends=True)
def test_each_line_is_one_object_for_any_block_size(
    lines: list[str], block_bytes: int, line_end: str, ends: bool, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    text = line_end.join([*lines, ""] if ends else lines)
    path.write_text(text, encoding="utf-8", newline="")
    source = sources.json_lines(path, {"x": "int64", "y": "string"})
    source = dataclasses.replace(source, block_bytes=block_bytes).with_bad_rows("drop")
    reader = source.open(instance_context())
    rows: list[Any] = []
    while not reader.finished:
        batch = reader.read(8192)
        rows += batch.to_pylist() if batch else []
    expected = [expected_object(one) for one in lines if one.strip()]
    assert rows == [one for one in expected if one is not None]
    assert sum(reader.rejected.values()) == expected.count(None)
