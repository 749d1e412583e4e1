"""The files of a path, and the messages if there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whale_ray.configs.errors import InputError
from whale_ray.operators.sources.files import FileSet
from whale_ray.operators.sources.units_left import UnitsLeft


def parquet_files(*paths: str | Path) -> list[str]:
    return FileSet.of(list(paths), "Parquet", (".parquet", ".pq")).files()


def touch(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [str(folder / name) for name in names]


def test_a_folder_means_its_visible_files_sorted_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "b.parquet", "a.pq", ".hidden.parquet", "_SUCCESS", "notes.txt", "c/d.parquet")
    assert parquet_files(tmp_path) == [str(tmp_path / "a.pq"), str(tmp_path / "b.parquet")]


def test_a_pattern_may_go_deep(tmp_path: Path) -> None:
    touch(tmp_path, "2008/06/b.parquet", "2008/05/a.parquet", "x.csv")
    found = parquet_files(tmp_path / "**" / "*.parquet")
    assert found == [
        str(tmp_path / "2008/05/a.parquet"),
        str(tmp_path / "2008/06/b.parquet"),
    ]


def test_a_file_is_taken_whatever_its_name_and_lists_keep_their_order(tmp_path: Path) -> None:
    b, a = touch(tmp_path, "b.bin", "a.parquet")
    assert parquet_files(b, a) == [b, a]


def test_a_name_with_brackets_is_a_name_if_it_exists(tmp_path: Path) -> None:
    (name,) = touch(tmp_path, "run[1].parquet")
    assert parquet_files(name) == [name]


def test_compressed_files_have_their_formats_suffix_before(tmp_path: Path) -> None:
    found = touch(tmp_path, "a.csv.gz", "b.csv")
    assert FileSet.of(tmp_path, "CSV", (".csv",)).files() == found


def test_a_name_that_is_not_utf_8_is_refused_in_one_line(tmp_path: Path) -> None:
    (name,) = touch(tmp_path, os.fsdecode(b"caf\xe9.parquet"))
    with pytest.raises(InputError, match=r"caf\\udce9\.parquet' is not UTF-8; rename the file"):
        parquet_files(tmp_path)
    with pytest.raises(InputError, match="is not UTF-8"):
        parquet_files(name)


def test_relative_paths_are_resolved_where_the_topology_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "gps/a.parquet")
    monkeypatch.chdir(tmp_path)
    files = FileSet.of("gps", "Parquet", (".parquet",))
    monkeypatch.chdir("/")
    assert files.files() == [str(tmp_path / "gps/a.parquet")]
    assert files.describe() == "gps"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gsp", "no file or folder '{tmp}/gsp'; correct the path"),
        (
            "gsp/may/a.parquet",
            "no file or folder '{tmp}/gsp/may/a.parquet'; correct the path "
            "(it exists as far as '{tmp}')",
        ),
        ("x-*.parquet", "the pattern '{tmp}/x-*.parquet' matches no file; correct it"),
        (
            "nowhere/*.parquet",
            "the pattern '{tmp}/nowhere/*.parquet' matches no file; correct it "
            "(it exists as far as '{tmp}')",
        ),
        (
            "empty",
            "the folder '{tmp}/empty' holds no Parquet file (.parquet, .pq), it is empty; "
            "correct the path or fill the folder first",
        ),
        (
            "others",
            "the folder '{tmp}/others' holds no Parquet file (.parquet, .pq) but others such as "
            "'a.csv'; pass '{tmp}/others/*' to read all",
        ),
        (
            "deep",
            "the folder '{tmp}/deep' holds no Parquet file (.parquet, .pq) itself but folders "
            "such as 'day=1'; pass '{tmp}/deep/**/*.parquet'",
        ),
    ],
)
def test_messages_when_there_is_no_file(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "others/a.csv", "deep/day=1/a.parquet")
    with pytest.raises(InputError) as error:
        parquet_files(tmp_path / path)
    assert str(error.value) == message.format(tmp=tmp_path)


def test_urls_and_nothing_are_refused() -> None:
    with pytest.raises(InputError) as error:
        FileSet.of("s3://bucket/gps", "Parquet", (".parquet",))
    assert str(error.value) == (
        "'s3://bucket/gps' is a URL; a Parquet source reads local and mounted paths: "
        "mount the store, or read it with Spark or Ray Data and pass that"
    )
    with pytest.raises(InputError) as error:
        FileSet.of([], "CSV", (".csv",))
    assert str(error.value) == "a CSV source got no path; name a file, a folder or a pattern"


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = touch(tmp_path, "a.parquet")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(InputError) as error:
        parquet_files(name)
    assert str(error.value) == f"no permission to read '{name}'; change its mode or its owner"


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_shares_are_disjoint_and_cover_all(parallelism: int) -> None:
    shares = [
        UnitsLeft.of_share(instance, parallelism).before(7) for instance in range(parallelism)
    ]
    assert sorted(unit for one in shares for unit in one) == list(range(7))
