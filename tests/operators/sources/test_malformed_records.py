"""Many malformed lines: exactly those that cannot be read alone, found with few parses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from whale_ray.configs.errors import BadRowError
from whale_ray.operators import sources
from whale_ray.operators.sources import json_lines_files
from whale_ray.operators.sources.csv_files import CsvSource
from whale_ray.testing import instance_context, read_all

TYPES = [
    "int8", "uint8", "int64", "uint64", "float32", "float64", "decimal(10, 2)", "bool", "date32",
    "timestamp[us]", "timestamp[us, tz=UTC]", "time64[us]", "string", "binary",
]  # fmt: skip
VALUES = [
    "", "0", "-0", "+7", "007", "7", " 7 ", "7\t", "7_000", "7,0", "0x1f", "0X1F", "-0x1f",
    "0x", "1e3", "1.5", ".5", "5.", "-.5e-3", "1e400", "nan", "NaN", "-nan", "nan(7)", "inf",
    "-Infinity", "infin", "127", "128", "-128", "-129", "255", "256",
    "0000000000000000000000127", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "18446744073709551615", "18446744073709551616",
    "99999999999999999999", "12345678.90", "123456789.00", "1.005", "true", "TRUE", "True",
    "tRuE", "t", "yes", "2020-02-29", "2020-02-30", "2020-1-1", "20200101",
    "2020-01-01T10:00:00", "2020-01-01 10:00:00.123456", "2020-01-01T10:00:00Z",
    "2020-01-01T10:00:00+02:00", "2020-01-01 10:00", "10:00:00", "10:00", "25:00:00",
    "10:00:00.5", "abc", "N/A", "NULL", '""', '"7"', '" 7"', "\u0667", "\u00a07", "x\u00ff",
]  # fmt: skip
UNDECODABLE = b"caf\xe9"


def rows_of(path: Path, kind: str, policy: Any) -> tuple[list[Any], dict[str, int]]:
    source = sources.csv(path, schema={"v": kind, "n": "int64"}).with_bad_rows(policy)
    reader = source.open(instance_context())
    rows = []
    while not reader.finished:
        batch = reader.read(1 << 20)
        if batch is not None:
            rows += batch.column("n").to_pylist()
    return rows, dict(reader.rejected)


@pytest.mark.parametrize("kind", TYPES)
def test_dropped_lines_are_those_that_cannot_be_read_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    values = [*(value.encode() for value in VALUES), UNDECODABLE]
    lines = [b"%s,%d\n" % (value, n) for n, value in enumerate(values)]
    lines += [b"1\n", b"\n", b"1,2,3\n", b'"1,2\n']
    expected = []
    for line in lines:
        path.write_bytes(b"v,n\n" + line)
        try:
            expected += rows_of(path, kind, "fail")[0]
        except BadRowError:
            continue
    order = random.Random(kind).sample(range(len(lines) - 1), len(lines) - 1)
    path.write_bytes(b"v,n\n" + b"".join(lines[n] for n in [*order, -1]))
    rows, rejected = rows_of(path, kind, "drop")
    assert sorted(rows) == expected
    assert sum(rejected.values()) == len(lines) - len(expected) - 1  # an empty line is skipped


@pytest.mark.parametrize(
    "bad", ["abc,1.5,x", "1,2", "1,1.5,x,y", '1,1.5,"x" y', "1,1.5,caf\xe9", "9" * 20 + ",1,x"]
)
def test_many_malformed_lines_take_few_parses(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(("i,f,s\n" + f"{bad}\n1,1.5,x\n" * 5_000).encode("latin-1"))
    schema = {"i": "int64", "f": "float64", "s": "string"}
    parses = counted_parses(monkeypatch)
    source = sources.csv(path, schema=schema).with_bad_rows("drop")
    assert sum(batch.num_rows for batch in read_all(source)) == 5_000
    assert len(parses) <= 2  # of the only block, and of its remaining records


PLAUSIBLE = [
    ("timestamp[ms]", "2020-02-29 10:00:00", "2021-02-29 10:00:00"),
    ("timestamp[ms]", "2020-02-29 23:00:00", "2020-02-29 25:00:00"),
    ("timestamp[us]", "2020-02-29T10:00:00", "2020-02-29T10:00:00Z"),
    ("timestamp[us, tz=UTC]", "2020-02-29T10:00:00Z", "2020-02-29T10:00:00"),
    ("date32", "2020-02-29", "2020-02-30"),
    ("time64[us]", "10:59:00", "10:60:00"),
    ("float64", "1.23", "1.2.3"),
    ("int64", "9223372036854775807", "9223372036854775808"),
    ("uint8", "0xff", "0x100"),
    ("decimal(10, 2)", "12345678.90", "1.005"),
    ("decimal(10, 2)", "12345678.90", "123456789.00"),
]


@pytest.mark.parametrize(("kind", "good", "bad"), PLAUSIBLE)
def test_malformed_lines_that_look_right_take_a_parse_each(
    kind: str, good: str, bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("n,v\n" + (f"1,{good}\n" * 99 + f"1,{bad}\n") * 20)
    parses = counted_parses(monkeypatch)
    source = sources.csv(path, schema={"n": "int64", "v": kind}).with_bad_rows("drop")
    assert sum(batch.num_rows for batch in read_all(source)) == 20 * 99
    assert len(parses) == 2 + 20 + 1


OBJECTS = ['{"n": 1, "v"', "[]", '{"n": "x", "v": 1.5}', '{"n": 1.5, "v": 1.5}', "{} {}", "nothing"]


@pytest.mark.parametrize("bad", OBJECTS)
def test_malformed_objects_take_a_parse_each(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(('{"n": 1, "v": 1.5}\n' * 99 + f"{bad}\n") * 20)
    parses = []
    parse = json_lines_files.parse_objects

    def counted(data: bytes, *others: Any) -> Any:
        parses.append(len(data))
        return parse(data, *others)

    monkeypatch.setattr(json_lines_files, "parse_objects", counted)
    source = sources.json_lines(path, schema={"n": "int64", "v": "float64"}).with_bad_rows("drop")
    assert sum(batch.num_rows for batch in read_all(source)) == 20 * 99
    assert len(parses) == 2 + 20 + 1


def counted_parses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will have the size of what is parsed each time."""
    parses: list[int] = []
    parse = CsvSource._parse

    def counted(*args: Any) -> Any:
        parses.append(len(args[1]))
        return parse(*args)

    monkeypatch.setattr(CsvSource, "_parse", counted)
    return parses
