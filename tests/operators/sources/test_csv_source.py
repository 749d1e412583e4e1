"""The CSV source, against Python's own csv module and golden messages."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.operators.sources.opened import message_of, rows_of
from whale_ray.configs.errors import BadRowError, InputError, UsageError
from whale_ray.operators import sources
from whale_ray.testing import instance_context

GPS = "vehicle_id,event_time,lat\na,2008-05-31 07:00:00.5,37.5\n,2008-05-31 07:00:01,\n"


def put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_types_are_inferred_and_empty_fields_are_null(tmp_path: Path) -> None:
    source = sources.csv(put(tmp_path / "a.csv", GPS))
    assert str(source.schema()) == "vehicle_id: string, event_time: timestamp[ns], lat: float64"
    first, second = rows_of(source)
    assert first["vehicle_id"] == "a"
    assert str(first["event_time"]) == "2008-05-31 07:00:00.500000"
    assert second["vehicle_id"] is None
    assert second["lat"] is None
    assert pickle.loads(pickle.dumps(source)) == source


def test_whole_seconds_leave_room_for_fractions(tmp_path: Path) -> None:
    source = sources.csv(put(tmp_path / "a.csv", "t\n2008-05-31 07:00:00\n"))
    assert str(source.schema()) == "t: timestamp[us]"


def test_a_schema_says_types_and_columns(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "x,y,z\n1,2,3\n")
    source = sources.csv(path, schema={"z": "int8", "x": "string"})
    assert rows_of(source) == [{"z": 3, "x": "1"}]
    assert rows_of(sources.csv(path, columns=["y"])) == [{"y": 2}]


def test_quoted_and_unquoted_emptiness_differ(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", 'x,y\n"",1\n,2\nNA,3\n')
    assert [row["x"] for row in rows_of(sources.csv(path))] == ["", None, "NA"]
    source = sources.csv(path, null_values=["", "NA"])
    assert [row["x"] for row in rows_of(source)] == ["", None, None]
    path = put(tmp_path / "b.csv", "x\nNA\nN\nA\n")
    assert [row["x"] for row in rows_of(sources.csv(path, null_values="NA"))] == [None, "N", "A"]


@pytest.mark.parametrize("end", ["", "\n", "\r"])
def test_an_empty_last_field_is_a_null_whatever_ends_the_file(tmp_path: Path, end: str) -> None:
    path = put(tmp_path / "a.csv", f'x,y,z\n1,"a",b\n2,"a",{end}')
    assert [row["z"] for row in rows_of(sources.csv(path))] == ["b", None]


def test_a_single_column_may_hold_empty_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "x\n1\n\n3\n")
    assert rows_of(sources.csv(path)) == [{"x": 1}, {"x": None}, {"x": 3}]


def test_delimiter_byte_order_mark_line_ends_and_compression(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress("\ufeffx;y\r\n1;ä\r\n2;ö".encode()))
    assert rows_of(sources.csv(path, delimiter=";")) == [{"x": 1, "y": "ä"}, {"x": 2, "y": "ö"}]


def test_headers_may_come_in_another_order_in_later_files(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "x,y\n1,one\n")
    put(tmp_path / "b.csv", "y,x\ntwo,2\n")
    assert rows_of(sources.csv(tmp_path)) == [{"x": 1, "y": "one"}, {"x": 2, "y": "two"}]


def test_files_are_dealt_out_whole(tmp_path: Path) -> None:
    for index in range(5):
        put(tmp_path / f"{index}.csv", f"x\n{index}\n")
    source = sources.csv(tmp_path)
    assert [row["x"] for row in rows_of(source, 1, 2)] == [1, 3]
    assert [row["x"] for row in rows_of(source, 6, 7)] == []


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "x,y\n")
    assert rows_of(sources.csv(path, schema={"x": "int64", "y": "string"})) == []


BAD = "id,x\n1,5\n2,abc\n3,7,9\n4,8\n"


def test_a_malformed_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", BAD)
    assert message_of(BadRowError, sources.csv(path, schema={"id": "int64", "x": "int64"})) == (
        f"{path}, line 3: column 'x': CSV conversion error to int64: invalid value 'abc': "
        "'2,abc'; correct it, pass schema= with another type, "
        "or pass on_bad_rows='drop' to leave such lines out and count them"
    )


def test_malformed_lines_are_dropped_and_counted(tmp_path: Path) -> None:
    source = sources.csv(put(tmp_path / "a.csv", BAD), schema={"id": "int64", "x": "int64"})
    reader = source.with_bad_rows("drop").open(instance_context())
    rows: list[dict[str, Any]] = []
    while not reader.finished:
        batch = reader.read(100)
        rows += batch.to_pylist() if batch else []
    assert rows == [{"id": 1, "x": 5}, {"id": 4, "x": 8}]
    assert dict(reader.rejected) == {"malformed line": 2}


def test_a_line_of_another_length_does_not_stop_the_inference(tmp_path: Path) -> None:
    source = sources.csv(put(tmp_path / "a.csv", "id,x\n1,5\n3,7,9\n"))
    assert rows_of(source.with_bad_rows("drop")) == [{"id": 1, "x": 5}]


def test_golden_messages(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "id,x,x\n1,,3\n")
    assert message_of(InputError, sources.csv(path)) == (
        f"{path}: the column 'x' occurs twice; rename one of them"
    )
    assert message_of(InputError, sources.csv(path, columns=["ids"])) == (
        f"{path}: no column 'ids'; did you mean 'id'?"
    )
    put(path, "id,x\n1,\n")
    assert message_of(InputError, sources.csv(path)) == (
        f"{path}: the column 'x' holds only nulls in the first block, so its type is unknown; "
        "pass schema= (or the columns= wanted)"
    )
    assert rows_of(sources.csv(path, columns=["id"])) == [{"id": 1}]
    put(path, "")
    assert message_of(InputError, sources.csv(path)) == (
        f"{path}: the file is empty, so its columns' types are unknown; "
        "pass schema=, or leave the file out"
    )
    put(path, "\n1\n")
    assert message_of(InputError, sources.csv(path)) == (
        f"{path}: the header line is empty; name the columns there"
    )
    path.write_bytes(b"n\xe4me\n1\n")
    assert message_of(InputError, sources.csv(path)) == (
        f"{path}: the header is not UTF-8; pass the file's encoding=, such as 'latin-1'"
    )
    with pytest.raises(InputError) as error:
        sources.csv(path, delimiter="::")
    assert str(error.value) == "delimiter='::' must be one ASCII character, such as ';' or '\\t'"
    with pytest.raises(InputError, match=r"^encoding=None is unknown; use one of Python's, such"):
        sources.csv(path, encoding=None)  # type: ignore[arg-type]  # as pandas may be told
    mistakes: dict[str, Any] = {"delimiter": None, "null_values": None, "newlines_in_values": "no"}
    for name, given in mistakes.items():
        with pytest.raises(UsageError, match=rf"^csv\({name}=…\) got {given!r}: pass"):
            sources.csv(path, **{name: given})
    with pytest.raises(InputError) as error:
        sources.csv(path).with_bad_rows("skip")  # type: ignore[arg-type]  # the mistake tested
    assert str(error.value) == "on_bad_rows='skip' is unknown; use 'fail' or 'drop'"


def test_a_later_file_without_a_column_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "x,y\n1,2\n")
    b = put(tmp_path / "b.csv", "x\n1\n")
    assert message_of(InputError, sources.csv(tmp_path)) == f"{b}: no column 'y'; it has 'x'"


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(GPS.encode())[:-12])
    message = message_of(InputError, sources.csv(path))
    assert message.startswith(f"{path}: cannot be read beyond line 1 (")
    assert message.endswith("); copy or write it again")


def test_quoted_line_ends_are_read(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", 'x,y\n"a\nb",1\n"c",x\n"d\n\n",3\n')
    source = sources.csv(path, {"x": "string", "y": "int64"})
    assert rows_of(source.with_bad_rows("drop")) == [{"x": "a\nb", "y": 1}, {"x": "d\n\n", "y": 3}]
    assert message_of(BadRowError, source).startswith(f"{path}, line 4: ")
