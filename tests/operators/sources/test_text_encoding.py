"""Text files in other encodings than UTF-8, against Python's own decoding."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import BadRowError, InputError
from whale_ray.operators import sources
from whale_ray.testing import instance_context

TEXT = "Käse, 5 €"
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def rows_of(source: sources.Source) -> tuple[list[dict[str, Any]], dict[str, int]]:
    reader = source.open(instance_context())
    rows: list[dict[str, Any]] = []
    while not reader.finished:
        batch = reader.read(8192)
        rows += batch.to_pylist() if batch else []
    return rows, dict(reader.rejected)


def source_of(path: Path, **options: Any) -> sources.Source:
    read: Any = sources.csv if ".csv" in path.name else sources.json_lines
    source: sources.Source = read(path, **options)
    return source


def written(name: str) -> str:
    return (
        f'x,né\n1,"{TEXT}"\n2,b\n'
        if "csv" in name
        else f'{{"x":1,"né":"{TEXT}"}}\n{{"x":2,"né":"b"}}\n'
    )


ROWS = [{"x": 1, "né": TEXT}, {"x": 2, "né": "b"}]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize(
    "encoding", ["cp1252", "utf-16", "UTF-16LE", "utf-32", "utf-8-sig", "utf8"]
)
@pytest.mark.parametrize("suffix", list(COMPRESSED))
def test_every_encoding_works_in_all_readers(
    tmp_path: Path, name: str, encoding: str, suffix: str
) -> None:
    path = tmp_path / (name + suffix)
    path.write_bytes(COMPRESSED[suffix](written(name).encode(encoding)))
    assert rows_of(source_of(path, encoding=encoding)) == (ROWS, {})


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "S"])), max_size=6),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-16-be", "shift_jis", "cp1252", "gb18030"]),
    block_bytes=st.integers(1, 40),
)
def test_text_cut_anywhere_is_decoded_as_python_does(
    texts: list[str], encoding: str, block_bytes: int, tmp_path_factory: Any
) -> None:
    texts = [one.encode(encoding, "ignore").decode(encoding) for one in texts]
    path = tmp_path_factory.mktemp("encoded") / "a.csv"
    path.write_bytes("".join(f"{one}\n" for one in ["x", *texts]).encode(encoding))
    source: Any = sources.csv(path, {"x": "string"}, encoding=encoding, null_values=[])
    source = dataclasses.replace(source, block_bytes=block_bytes)
    assert [row["x"] for row in rows_of(source)[0]] == texts


@pytest.mark.parametrize(("name", "line"), [("a.csv", 3), ("a.jsonl", 2)])
def test_lines_that_are_not_utf8_are_named_and_counted(
    tmp_path: Path, name: str, line: int
) -> None:
    text = "x,y\n1,a\n2,ä\n3,c\n"
    if "json" in name:
        text = '{"x":1,"y":"a"}\n{"x":2,"y":"ä"}\n{"x":3,"y":"c"}\n'
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    source = source_of(path)
    assert str(source.schema()) == "x: int64, y: string"
    with pytest.raises(BadRowError) as error:
        rows_of(source)
    shown = text.splitlines()[line - 1].replace("ä", "�")
    assert str(error.value) == (
        f"{path}, line {line}: not UTF-8: {shown!r}; pass the file's encoding=, such as 'latin-1', "
        "or pass on_bad_rows='drop' to leave such lines out and count them"
    )
    kept = [{"x": 1, "y": "a"}, {"x": 3, "y": "c"}]
    assert rows_of(source.with_bad_rows("drop")) == (kept, {"not UTF-8": 1})


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_file_without_a_line_of_utf8_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(("x,y\n\n\nä,b\n" if "csv" in name else '\n{"x":"ä"}\n').encode("latin-1"))
    with pytest.raises(InputError) as error:
        rows_of(source_of(path))
    message = str(error.value)
    assert message.startswith(f"{path}, line {4 if 'csv' in name else 2} and all others")
    assert message.endswith("; pass the file's encoding=, such as 'latin-1'")
    assert "\n" not in message


def test_undecodable_bytes_make_their_line_malformed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,y\n1,\x80\n2,\x81\n3,c\n")  # cp1252 has a euro at 0x80, nothing at 0x81
    source = sources.csv(path, encoding="cp1252")
    with pytest.raises(BadRowError, match=r"line 3: not CP1252: .* pass the file's true encoding="):
        rows_of(source)
    kept = [{"x": 1, "y": "€"}, {"x": 3, "y": "c"}]
    assert rows_of(source.with_bad_rows("drop")) == (kept, {"not CP1252": 1})
    path.write_bytes("x\na\nb".encode("utf-16")[:-1])
    assert rows_of(sources.csv(path, encoding="utf-16").with_bad_rows("drop")) == (
        [{"x": "a"}],
        {"not UTF-16": 1},
    )


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("x\n1\n".encode("utf-16"), "UTF-16 text; pass encoding='utf-16'"),
        ("x\n1\n".encode("utf-32"), "UTF-32 text; pass encoding='utf-32'"),
        (
            gzip.compress(b"x\n1\n", mtime=0),
            "compressed by gzip, not text; let its name end in .gz",
        ),
        (
            COMPRESSED[".zst"](b"x\n1\n"),
            "compressed by zstd, not text; let its name end in .zst",
        ),
        (
            b"PK\x03\x04...",
            "a ZIP archive (or a spreadsheet), not text; unpack it (or export it as text)",
        ),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_files_with_a_known_signature_are_named(
    tmp_path: Path, name: str, data: bytes, what: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        rows_of(source_of(path))
    assert str(error.value) == f"{path}: this is {what}"


@pytest.mark.parametrize("encoding", ["utf-9", "rot13", "hex", "", "latin 1 "])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    for read in (sources.csv, sources.json_lines):
        if encoding == "latin 1 ":
            read(tmp_path / "a", encoding=encoding)  # Python forgives spaces
            continue
        with pytest.raises(InputError) as error:
            read(tmp_path / "a", encoding=encoding)
        assert str(error.value) == (
            f"encoding={encoding!r} is unknown; "
            "use one of Python's, such as 'utf-8', 'latin-1', 'cp1252' or 'utf-16'"
        )


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_archives_that_were_cut_short_are_named(tmp_path: Path, suffix: str, share: float) -> None:
    whole = COMPRESSED[suffix]("".join(f"{one},{one * one}\n" for one in range(2000)).encode())
    for name in ("a.csv", "a.jsonl"):
        path = tmp_path / (name + suffix)
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InputError) as error:
            rows_of(source_of(path, schema={"x": "int64"}).with_bad_rows("drop"))
        assert str(error.value).startswith(f"{path}: cannot be read beyond line ")
        assert str(error.value).endswith("; copy or write it again")
        assert "\n" not in str(error.value)
