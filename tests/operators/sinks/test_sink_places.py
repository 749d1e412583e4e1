"""Which paths an output may have, and when an earlier output may be removed."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.configs.errors import OutputError, TopologyError
from whale_ray.operators import sinks, sources
from whale_ray.operators.sinks import manifest, staging
from whale_ray.testing import instance_context, read_all, write_all
from whale_ray.transport.wire.batch import Batch

BATCH = Batch.from_pydict({"id": [1, 2, 3]})


def refusal(sink: whale.sinks.Sink) -> str:
    with pytest.raises(OutputError) as error:
        sink.check()
    return str(error.value)


def files_below(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# --- places ---------------------------------------------------------------------------------


def below_a_file(folder: Path) -> tuple[Path, str]:
    (folder / "notes").touch()
    return folder / "notes/deep/out", f"lies below '{folder}/notes', which is a file; "


def a_file(folder: Path) -> tuple[Path, str]:
    (folder / "out").touch()
    return folder / "out", "is a file, and must be a folder; remove it"


def a_dangling_link(folder: Path) -> tuple[Path, str]:
    (folder / "out").symlink_to(folder / "nowhere")
    return folder / "out", "is a link that leads nowhere, and must be a folder"


def below_a_dangling_link(folder: Path) -> tuple[Path, str]:
    (folder / "data").symlink_to(folder / "nowhere")
    return folder / "data/out", f"lies below '{folder}/data', which is a link that leads nowhere; "


def a_socket(folder: Path) -> tuple[Path, str]:
    os.mkfifo(folder / "out")
    return folder / "out", "is no folder, and must be a folder"


def a_long_name(folder: Path) -> tuple[Path, str]:
    return folder / ("x" * 250), "is too long; use at most 183 bytes"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "make",
    [below_a_file, a_file, a_dangling_link, below_a_dangling_link, a_socket, a_long_name],
)
def test_impossible_folders_are_reported_in_one_line_before_the_start(
    tmp_path: Path, make: Callable[[Path], tuple[Path, str]], overwrite: bool
) -> None:
    out, expected = make(tmp_path)
    before = sorted(os.listdir(tmp_path))
    message = refusal(sinks.parquet(out, overwrite=overwrite))
    assert expected in message
    assert "\n" not in message
    topology = whale.Topology("refused")
    rows = topology.source(whale.sources.iterable(lambda: pytest.fail("it ran")), id="rows")
    rows.sink(whale.sinks.parquet(out, overwrite=overwrite), id="out")
    with pytest.raises(OutputError) as error:
        whale.run(topology)
    assert str(error.value) == message
    assert sorted(os.listdir(tmp_path)) == before


def test_the_longest_possible_name_is_written(tmp_path: Path) -> None:
    sink = sinks.csv(tmp_path / ("x" * 183))
    sink.check()
    write_all(sink, [BATCH], token="a" * 40 + "-12345678-10")


def test_errors_of_the_system_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(sinks.csv("/proc")) == (
        "the output '/proc' is a mount point, which cannot be renamed; "
        "name a folder in it, such as '/proc/result'"
    )
    out = sinks.csv(tmp_path / "out")
    with monkeypatch.context() as patched:  # root may write everywhere
        patched.setattr(staging, "_nameless", lambda folder: None)
        patched.setattr(os, "access", lambda path, mode: False)
        assert refusal(out) == (
            f"no permission to write in '{tmp_path}'; change its mode or name another output"
        )

    def read_only(folder: str) -> None:
        raise OSError(30, "Read-only file system", folder)

    monkeypatch.setattr(staging, "_nameless", read_only)
    assert refusal(out) == (
        f"cannot write in '{tmp_path}': Read-only file system; correct that or name another output"
    )


def test_invalid_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", "a\0b", "s3://bucket/out"):
        with pytest.raises(OutputError, match="must be a folder on a local or mounted file system"):
            sinks.csv(path)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(OutputError, match="is relative, and the current folder was removed"):
        sinks.csv("out")


def test_an_output_behind_a_link_is_written_to_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk/results").mkdir(parents=True)
    link = tmp_path / "results"
    link.symlink_to(tmp_path / "disk/results")
    for _ in range(2):
        write_all(sinks.csv(link, overwrite=True), [BATCH])
    assert link.is_symlink()
    assert (tmp_path / "disk/results/part-00000.csv").exists()
    assert os.listdir(tmp_path / "disk") == ["results"]


def test_outputs_within_each_other_are_refused(tmp_path: Path) -> None:
    topology = whale.Topology("nested")
    rows = topology.source(whale.sources.iterable([{"x": 1}]), id="rows")
    rows.sink(sinks.csv(tmp_path / "out"), id="first")
    rows.sink(sinks.csv(tmp_path / "out-two"), id="beside")
    for path in (tmp_path / "out/late", tmp_path):
        with pytest.raises(TopologyError, match=r"'first' writes to .*/out already: give each"):
            rows.sink(sinks.csv(path), id="second")


# --- what may be removed --------------------------------------------------------------------


def test_the_manifest_has_each_part_with_its_size(tmp_path: Path) -> None:
    result = write_all(sinks.csv(tmp_path / "out"), [BATCH], [], [BATCH])
    lines = (tmp_path / "out/_whale-parts").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        *({"name": os.path.basename(one), "bytes": os.path.getsize(one)} for one in result.parts),
        {"published_by": "test"},
    ]


@pytest.mark.parametrize("bounded", [True, False])
def test_an_output_of_whale_ray_is_overwritten(tmp_path: Path, bounded: bool) -> None:
    out = tmp_path / "out"
    if bounded:
        write_all(sinks.parquet(out), [BATCH], [BATCH])
    else:
        put_parts(sinks.parquet(out))
        names = ["_whale-parts-00000", "part-00000-000000.parquet", "part-00000-000001.parquet"]
        assert sorted(os.listdir(out)) == names
    write_all(sinks.csv(out, overwrite=True), [BATCH])
    assert sorted(os.listdir(out)) == ["_whale-parts", "part-00000.csv"]
    sinks.csv(out, overwrite=True).prepare("t", bounded=False)
    assert os.listdir(tmp_path) == []


def put_parts(sink: whale.sinks.Sink) -> None:
    writer = sink.open(instance_context(), "t")
    for _ in range(2):
        writer.write(BATCH)
        writer.publish_part()
    writer.abort()


def a_users_part(out: Path) -> str:
    (out / "part-00007.parquet").write_bytes(b"mine")
    return "part-00007.parquet"


def a_users_file(out: Path) -> str:
    (out / "thesis.tex").touch()
    return "thesis.tex"


def a_changed_part(out: Path) -> str:
    with open(out / "part-00000.parquet", "ab") as stream:
        stream.write(b"more")
    return "part-00000.parquet"


def a_folder(out: Path) -> str:
    (out / "part-00001.parquet").mkdir()
    return "part-00001.parquet"


def a_link(out: Path) -> str:
    (out / "part-00000.parquet").rename(out.parent / "moved")
    (out / "part-00000.parquet").symlink_to(out.parent / "moved")
    return "part-00000.parquet"


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize(
    "spoil",
    [a_users_part, a_users_file, a_changed_part, a_folder, a_link],
    ids=lambda it: it.__name__,
)
def test_files_that_no_sink_wrote_are_never_removed(
    tmp_path: Path, spoil: Callable[[Path], str], bounded: bool
) -> None:
    out = tmp_path / "home"
    write_all(sinks.parquet(out), [BATCH])
    name = spoil(out)
    before = files_below(tmp_path)
    sink = sinks.parquet(out, overwrite=True)
    assert refusal(sink) == (
        f"overwrite=True replaces only what whale-ray wrote, and '{out}/{name}' is something else, "
        "or was changed; move it away or name another output"
    )
    with pytest.raises(OutputError):
        sink.prepare("t", bounded=bounded)
    assert files_below(tmp_path) == before


def test_parts_without_a_manifest_are_never_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_all(sinks.parquet(out), [BATCH])
    (out / "_whale-parts").unlink()  # like an output of Spark, or of an earlier version
    assert refusal(sinks.parquet(out, overwrite=True)) == (
        f"the output '{out}' is not replaced: it has no list of its parts (_whale-parts), so an "
        "earlier version or another program wrote it; remove it yourself or name another output"
    )


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("bounded", [True, False])
def test_a_file_added_while_an_output_is_replaced_is_kept(
    tmp_path: Path, exchange: bool, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_all(sinks.csv(out), [BATCH])
    if not exchange:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    looks = []

    def look_and_lose(folder: int) -> str | None:
        looks.append(folder)
        stranger = manifest.unlisted_entry(folder)
        if (
            len(looks) == look
        ):  # the user's file is added right after the last check before the swap
            (out / "thesis.tex").write_text("years")
        return stranger

    monkeypatch.setattr(staging, "unlisted_entry", look_and_lose)
    sink = sinks.csv(out, overwrite=True)
    look = 2 if not bounded else 3  # of: check (write_all), prepare, publish
    call = (
        partial(write_all, sink, [BATCH]) if bounded else partial(sink.prepare, "t", bounded=False)
    )
    with pytest.raises(OutputError, match=r"thesis\.tex' is something else"):
        call()
    assert sorted(files_below(tmp_path)) == [
        "out/_whale-parts",
        "out/part-00000.csv",
        "out/thesis.tex",
    ]


class Listed:
    """A result of `os.scandir`, read at once."""

    def __init__(self, entries: list[os.DirEntry[str]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __enter__(self) -> Listed:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("moment", range(1, 6))
def test_another_job_may_replace_the_output_at_the_same_time(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so right after the folder was listed for the n-th time, which makes that stale."""
    out = tmp_path / "out"
    first, second = (
        sinks.csv(out, overwrite=True).open(instance_context(n, 2), "0") for n in (0, 1)
    )
    for writer in (first, second):
        writer.write(BATCH)
    sinks.csv(out).publish("0", [first.stage(), second.stage()])
    other = sinks.csv(out, overwrite=True)
    scandir, listed = os.scandir, []

    def list_and_replace(folder: str | int) -> Listed:
        with scandir(folder) as found:
            entries = list(found)
        listed.append(folder)
        if len(listed) == moment:
            assert write_all(other, [BATCH, BATCH]).rows == 6
        return Listed(entries)

    mine = sinks.csv(out, overwrite=True)
    monkeypatch.setattr(os, "scandir", list_and_replace)
    mine.check()
    assert write_all(mine, [BATCH]).rows == 3
    monkeypatch.undo()
    assert len(listed) >= moment
    assert (out / "part-00000.csv").read_text().count("\n") == 4
    assert files_below(tmp_path).keys() == {"out/_whale-parts", "out/part-00000.csv"}


def test_an_output_that_other_jobs_keep_replacing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_all(sinks.csv(out), [BATCH])

    def never_whole(_folder: int) -> str | None:
        raise FileNotFoundError

    monkeypatch.setattr(staging, "unlisted_entry", never_whole)
    assert refusal(sinks.csv(out, overwrite=True)) == (
        f"other jobs keep replacing the output '{out}' at the same time; run one job after the "
        "other, or name another output"
    )


def test_a_truncated_manifest_lists_its_complete_lines(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_parts(sinks.csv(out))
    listed = out / "_whale-parts-00000"
    listed.write_bytes(listed.read_bytes()[:-9])
    assert "part-00000-000001.csv' is something else" in refusal(sinks.csv(out, overwrite=True))
    (out / "part-00000-000001.csv").unlink()
    sinks.csv(out, overwrite=True).check()


def test_a_part_is_appended_behind_a_truncated_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_parts(sinks.csv(out))
    listed = out / "_whale-parts-00000"
    whole = listed.read_bytes()
    (out / "part-00000-000001.csv").unlink()
    listed.write_bytes(whole[:-9])  # no room for the rest
    put_parts(sinks.csv(out))
    assert whole.splitlines()[0] in listed.read_bytes().splitlines()
    sinks.csv(out, overwrite=True).check()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "empty folder", "link", "dangling link", "our output"])
def test_the_output_of_a_stopped_job_replaces_nothing_else(
    tmp_path: Path, kind: str, overwrite: bool
) -> None:
    taken, elsewhere = tmp_path / "out.partial", tmp_path / "elsewhere"
    if kind == "file":
        taken.write_text("mine")
    elif kind == "empty folder":
        taken.mkdir()
    elif kind == "link":
        write_all(sinks.csv(elsewhere), [BATCH])
        taken.symlink_to(elsewhere)
    elif kind == "dangling link":
        taken.symlink_to(elsewhere)
    else:
        write_all(sinks.csv(taken), [BATCH])
    replaced = kind == "empty folder" or (kind == "our output" and overwrite)
    kept = {} if replaced else files_below(tmp_path)
    sink = sinks.csv(tmp_path / "out", overwrite=overwrite)
    writer = sink.open(instance_context(), "t")
    writer.write(BATCH.slice(0, 1))
    result = sink.publish_partial("t", [writer.stage()])
    writer.abort()
    sink.discard("t")
    assert result.path == str(taken) + ("" if replaced else "-2")
    assert result.to_arrow().to_pylist() == [{"id": 1}]
    assert files_below(tmp_path).items() >= kept.items()
    assert not list(tmp_path.glob(".*"))


def test_an_output_that_a_dead_job_moved_aside_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_all(sinks.csv(out), [BATCH])
    out.rename(tmp_path / ".out.whale-dead-old")  # it died between the two renames
    (tmp_path / ".out.whale-dead").mkdir()
    with pytest.raises(OutputError, match="exists; name another"):
        sinks.csv(out).prepare("next", bounded=True)
    assert sorted(files_below(tmp_path)) == ["out/_whale-parts", "out/part-00000.csv"]


def test_readers_of_folders_ignore_the_manifest(tmp_path: Path) -> None:
    for bounded in (True, False):
        out = tmp_path / str(bounded)
        if bounded:
            write_all(sinks.parquet(out), [BATCH])
        else:
            put_parts(sinks.parquet(out))
        rows = [1, 2, 3] * (1 if bounded else 2)
        assert pandas.read_parquet(out)["id"].tolist() == rows
        assert pq.read_table(out)["id"].to_pylist() == rows
        found: list[Any] = [one for b in read_all(sources.parquet(out)) for one in b.to_pylist()]
        assert [row["id"] for row in found] == rows
