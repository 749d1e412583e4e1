"""Records of text files, against a grammar of RFC 4180, Python's csv module and DuckDB.

Whatever a file holds, the same records are found in blocks of every size: none lost, none invented.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators import sources
from whale_ray.operators.sources.csv_files import CsvSource
from whale_ray.operators.sources.text_blocks import Quoting, TextBlock, read_blocks
from whale_ray.testing import instance_context

FIELD = r'(?:"((?:[^"]|"")*)"|([^",\r\n][^,\r\n]*|))'
LINE_END = r"(?:\r\n|\n|\r|\Z)"
RECORD = re.compile(FIELD + f"(?:,{FIELD})*" + LINE_END)
LINE = re.compile(r"[^\r\n]*" + LINE_END)
TWO_FIELDS = re.compile(f"{FIELD},{FIELD}{LINE_END}")

TEXT = st.text(st.sampled_from('ab"",,\n\r '), max_size=60)
WELL_FORMED = st.lists(
    st.tuples(
        st.sampled_from(["a", "", '"a"', '"a,b"', '"a\nb"', '"\r\n"', '"""x"""', 'a"b']), TEXT
    ),
    max_size=12,
).map(lambda rows: "".join(f'{first},"{rest.replace(chr(34), "")}"\n' for first, rest in rows))
TEXTS = TEXT | WELL_FORMED


def expected_records(text: str, over_lines: bool = True) -> list[tuple[str, bool]]:
    """Return the records by the grammar, and whether each is bad; a bad one is a single line."""
    found = []
    at = 0
    while at < len(text):
        line = LINE.match(text, at)
        assert line
        good = RECORD.match(text, at) if over_lines else RECORD.fullmatch(line[0])
        match = good or line
        found.append((match[0], good is None))
        at += len(match[0])
    return found


def put(folder: Path, text: str) -> Path:
    path = folder / "a.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def read(source: sources.Source) -> tuple[list[dict[str, Any]], int]:
    reader = source.with_bad_rows("drop").open(instance_context())
    rows: list[dict[str, Any]] = []
    while not reader.finished:
        batch = reader.read(8192)
        rows += batch.to_pylist() if batch else []
    return rows, sum(reader.rejected.values())


@given(text=TEXTS, block_bytes=st.integers(1, 70), over_lines=st.booleans())
@example(text='"a\rb"\r', block_bytes=4, over_lines=True)
@example(text='a,"\n"\n"b\n', block_bytes=4, over_lines=True)
def test_records_are_those_of_the_grammar(
    text: str, block_bytes: int, over_lines: bool, tmp_path_factory: Any
) -> None:
    path = put(tmp_path_factory.mktemp("text"), text)
    seen: list[tuple[str, bool]] = []
    line = 1
    quoting = Quoting(",", over_lines)
    for block in read_blocks(str(path), quoting, block_bytes=block_bytes):
        assert block.first_line == line
        line += len(re.findall(r"\r\n|\r|\n", block.data.decode()))
        records, bad = block.split()
        assert block.has_bad_quotes == any(bad)
        first, is_bad, rest = block.split_first()
        assert (first, is_bad) == (records[0], bad[0])
        assert rest.split() == (records[1:], bad[1:])
        seen += zip((one.decode() for one in records), bad, strict=True)
    assert seen == expected_records(text, over_lines)


@given(text=TEXTS, block_bytes=st.integers(1, 70))
def test_rows_are_those_of_the_grammar(text: str, block_bytes: int, tmp_path_factory: Any) -> None:
    path = put(tmp_path_factory.mktemp("text"), "x,y\n" + text)
    source = sources.csv(path, {"x": "string", "y": "string"}, null_values=[])
    assert isinstance(source, CsvSource)
    expected = []
    rejected = 0
    for record, bad in expected_records(text):
        if not record.strip("\r\n"):
            continue  # an empty line
        match = None if bad else TWO_FIELDS.fullmatch(record)
        if match is None:
            rejected += 1
            continue
        quoted_x, x, quoted_y, y = match.groups()
        expected.append(
            {
                "x": x if quoted_x is None else quoted_x.replace('""', '"'),
                "y": y if quoted_y is None else quoted_y.replace('""', '"'),
            }
        )
    assert read(replace(source, block_bytes=block_bytes)) == (expected, rejected)


@given(
    fields=st.lists(st.sampled_from(["", "a", '"a\n"', '""', 'a"b']), min_size=1, max_size=12),
    block_bytes=st.integers(1, 40),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_empty_lines_of_a_single_column_are_nulls(
    fields: list[str], block_bytes: int, line_end: str, tmp_path_factory: Any
) -> None:
    path = put(tmp_path_factory.mktemp("single"), line_end.join(["x", *fields, ""]))
    source = sources.csv(path, {"x": "string"})
    assert isinstance(source, CsvSource)
    expected = {"": None, "a": "a", '"a\n"': "a\n", '""': "", 'a"b': 'a"b'}
    rows, rejected = read(replace(source, block_bytes=block_bytes))
    assert [row["x"] for row in rows] == [expected[one] for one in fields]
    assert rejected == 0


VALUE = st.text(st.sampled_from('ab",\n\r éx'), max_size=8)


@given(
    rows=st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=20),
    block_bytes=st.integers(1, 64),
    written=st.sampled_from(
        [
            ("\n", csv.QUOTE_ALL),
            ("\r", csv.QUOTE_ALL),
            ("\r\n", csv.QUOTE_ALL),
            ("\r\n", csv.QUOTE_MINIMAL),  # else it leaves line ends of another kind unquoted
        ]
    ),
    ends=st.booleans(),
)
def test_what_python_writes_is_read_back(
    rows: list[tuple[str, str]],
    block_bytes: int,
    written: tuple[str, Any],
    ends: bool,
    tmp_path_factory: Any,
) -> None:
    out = io.StringIO()
    line_end, quoting = written
    csv.writer(out, lineterminator=line_end, quoting=quoting).writerows([("x", "y"), *rows])
    text = out.getvalue() if ends else out.getvalue().removesuffix(line_end)
    path = put(tmp_path_factory.mktemp("rows"), text)
    source = sources.csv(path, {"x": "string", "y": "string"}, null_values=[])
    assert isinstance(source, CsvSource)
    found, rejected = read(replace(source, block_bytes=block_bytes))
    assert [(row["x"], row["y"]) for row in found] == rows
    assert rejected == 0


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.zst"])
def test_a_large_file_with_quoted_line_ends_equals_duckdbs_and_pythons_reading(
    tmp_path: Path, suffix: str
) -> None:
    """Values have line ends, quotes and texts that look like rows, over many blocks."""
    path = tmp_path / f"notes.{suffix}"
    tricky = ["plain", "two\nlines", 'said ""no""\r\n9,\nend', "1,2,3\n4,5,6", "x" * 2000 + "\n"]
    duckdb.sql(
        "create or replace temp table notes as select i as id, "
        "list_extract($1, (i * 7) % 5 + 1) as note, i % 10 as kind from range(9000) t(i)",
        params=[tricky],
    )
    duckdb.sql(f"copy notes to '{path}' (header, force_quote (note))")
    expected = duckdb.sql("select id, note, kind from notes order by id").fetchall()
    rows, rejected = read(sources.csv(path))
    assert rejected == 0
    assert [tuple(row.values()) for row in rows] == expected
    if suffix == "csv":
        assert path.stat().st_size > 3 << 20
        with path.open(newline="") as file:
            told = [(int(a), b, int(c)) for a, b, c in list(csv.reader(file))[1:]]
        assert told == expected


def test_an_unclosed_quote_affects_its_own_line_only(tmp_path: Path) -> None:
    path = put(tmp_path, 'x,y\n1,"open\n2,"two"\n3,"a\nb"\n4,"x"y\n5,"5""\n6,six\n')
    source = sources.csv(path)
    rows, rejected = read(source)
    assert [row["x"] for row in rows] == [2, 3, 6]
    assert rejected == 3
    with pytest.raises(BadRowError) as error:
        read_all_rows(source)
    assert str(error.value) == (
        f"{path}, line 2: a quote that is not closed, or that is followed by more than the field's "
        "end: '1,\"open'; correct it, pass schema= with another type, or pass on_bad_rows='drop' "
        "to leave such lines out and count them"
    )


def read_all_rows(source: sources.Source) -> list[dict[str, Any]]:
    reader = source.open(instance_context())
    rows: list[dict[str, Any]] = []
    while not reader.finished:
        batch = reader.read(8192)
        rows += batch.to_pylist() if batch else []
    return rows


def test_an_unclosed_quote_does_not_read_the_whole_file(tmp_path: Path) -> None:
    path = put(tmp_path, '"open\n' + "line\n" * 100 + '"a\nb"\n')
    blocks = list(read_blocks(str(path), Quoting(","), block_bytes=64, most_bytes=256))
    records = [pair for block in blocks for pair in zip(*block.split(), strict=True)]
    assert records == [(b'"open\n', True), *[(b"line\n", False)] * 100, (b'"a\nb"\n', False)]


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "x\n" + "1" * 1000)
    with pytest.raises(InputError) as error:
        list(read_blocks(str(path), block_bytes=64, most_bytes=256))
    assert str(error.value) == (
        f"{path}, line 2: no end within 0 MiB; is this not a text file of one record per line?"
    )


def test_long_quoted_fields_are_read(tmp_path: Path) -> None:
    long = "line\n" * 600_000
    path = put(tmp_path, f'x,y\n1,"{long}"\n2,b\n')
    assert [(row["x"], len(row["y"])) for row in read_all_rows(sources.csv(path))] == [
        (1, len(long)),
        (2, 1),
    ]


def test_every_line_is_a_row_if_values_hold_no_line_ends(tmp_path: Path) -> None:
    path = put(tmp_path, 'x,y\n1,"a\n2,b"\n3,"c"\n')
    rows, rejected = read(sources.csv(path, newlines_in_values=False))
    assert rows == [{"x": 2, "y": 'b"'}, {"x": 3, "y": "c"}]
    assert rejected == 1
    assert read(sources.csv(path))[0] == [{"x": 1, "y": "a\n2,b"}, {"x": 3, "y": "c"}]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_are_numbered_over_blocks(tmp_path: Path, line_end: str) -> None:
    path = put(tmp_path, "".join(f"{i}{line_end}" for i in range(1000)))
    blocks = list(read_blocks(str(path), block_bytes=100))
    assert len(blocks) > 10
    assert all(int(block.data.split()[0]) == block.first_line - 1 for block in blocks)
    assert blocks[0] == TextBlock(blocks[0].data, 1)


def test_a_file_without_quotes_does_not_load_compiled_code(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    code = (
        "import sys\n"
        "from whale_ray.operators import sources\n"
        "from whale_ray.testing import read_all\n"
        f"(batch,) = read_all(sources.csv({str(tmp_path)!r}))\n"
        "assert batch.to_pylist() == [{'x': 1, 'y': 2}]\n"
        "assert 'whale_ray.operators.sources.quoted_records' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
