"""Folders of checkpoints that cannot be gone on from: one line, the exit code, nothing is lost.

A job of the command line fails behind its checkpoints. Then something is wrong with the folder, or
with what is around it; the job is refused, its checkpoints stay, and no output is visible. Where
the damage can be undone, the job then goes on, and its output is complete.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whale_ray.cli.main import main

ROWS = 4_000
"""More than are read before the second checkpoint."""
SCRIPT = """
import os, time
import whale_ray as whale

def slow(row):
    if os.path.exists("fail"):
        time.sleep(0.001)
        if os.path.isdir("st/manifests") and len(os.listdir("st/manifests")) > 1:
            raise ValueError("it fails here")
    return {"k": row.n % 7, "large": f"{row.n % 7:2000}", "n": row.n}

TOPOLOGY = whale.Topology("NAME")
rows = TOPOLOGY.source(whale.sources.parquet("in"), id="rows").map(slow, id="slow")
count = whale.functions.count().alias("rows")
counted = rows.group_by("k", "large").agg(count, id="ID", output_mode="update")
counted.sink(whale.sinks.parquet("out"), id="out")
"""
RUN = ["run", "job.py", "--on", "inline", "--checkpoints", "st"]
RUN += ["--checkpoint-interval", "10 milliseconds"]
RUN += ["--set", "runtime.source_batch_rows=10", "--set", "checkpoints.keep=2"]
LATEST = [*RUN, "--restore", "latest"]
TO_ITS_END = [*LATEST, "--set", "runtime.source_batch_rows=1000"]
"""In few batches: the many are for the job that fails."""

Damage: TypeAlias = Callable[[], object]


def write_script(name: str = "job", operator: str = "counts") -> None:
    Path("job.py").write_text(SCRIPT.replace("NAME", name).replace("ID", operator))


def write_rows(first: int = 0) -> None:
    os.makedirs("in", exist_ok=True)
    table = pa.table({"n": list(range(first, first + ROWS))})
    pq.write_table(table, "in/rows.parquet", row_group_size=50)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a job that has failed behind some checkpoints."""
    folder = tmp_path_factory.mktemp("failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_script()
        write_rows()
        Path("fail").touch()
        assert main(RUN) == 1
        Path("fail").unlink()
    assert len(os.listdir(folder / "st" / "manifests")) > 1
    return folder


@pytest.fixture
def here(failed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Path:
    """Return a copy of that folder, in which the test works."""
    shutil.copytree(failed, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    capsys.readouterr()
    return tmp_path / "here"


def manifests() -> list[Path]:
    return sorted(Path("st/manifests").iterdir())


def head_changed(path: Path, **more: Any) -> None:
    line, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(line), **more}).encode() + b"\n" + body)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def remove_chunks() -> None:
    shutil.rmtree("st/chunks")


def remove_the_newest() -> None:
    manifests()[-1].unlink()


def remove_all_manifests() -> None:
    shutil.rmtree("st/manifests")


def damage_the_job() -> None:
    os.makedirs("st/jobs", exist_ok=True)
    job = manifests()[-1].name.split("-", 2)[2]
    Path("st/jobs", job).write_bytes(pickle.dumps("a job")[:-3])


def change_the_input() -> None:
    write_rows(first=1_000)


CASES: dict[str, tuple[Damage, Sequence[str], int, str]] = {
    "of another job": (
        lambda: write_script("other"),
        RUN,
        2,
        r"the checkpoint folder '.*/st' holds epoch \d+ of job job-\w+, topology 'job', not of"
        r" topology 'other'; name another folder",
    ),
    "another operator goes on from it": (
        lambda: write_script(operator="others"),
        LATEST,
        2,
        r"the checkpoint has process 'counts', which the topology lacks: give the operator that id"
        r" again, or give up what it kept with restore_without=\['counts'\]; new in the topology:"
        r" 'others'",
    ),
    "another job with the same operators goes on from it": (
        lambda: write_script("other"),
        LATEST,
        2,
        r"the checkpoint folder '.*/st' holds epoch \d+ of job job-\w+, topology 'job', not of"
        r" topology 'other': name another folder; or, if it was renamed, name the checkpoint,"
        r" restore='/.*/st/manifests/.*'",
    ),
    "not asked to go on": (
        lambda: None,
        RUN,
        2,
        r"the checkpoint folder '.*' holds epoch \d+ of job .*; go on from it \(restore='latest'\),"
        r" or name another folder to begin anew",
    ),
    "of a newer version": (
        lambda: head_changed(manifests()[-1], version=99),
        LATEST,
        2,
        r"manifests/.* in the checkpoint folder '.*' was written by a newer whale-ray \(its version"
        r" of a manifest is 99, this program knows \d+\); read it with that one, or a later one",
    ),
    "a manifest cut short": (
        lambda: cut_short(manifests()[-1]),
        LATEST,
        2,
        r"manifests/.* was cut short: .*; it was whole once, and results behind it may be out"
        r" already: to go on from an earlier epoch all the same, name its manifest .*",
    ),
    "a manifest that is gone": (
        remove_the_newest,
        LATEST,
        2,
        r"the checkpoint folder '.*' lacks manifests/.*; it was whole once, .*name its manifest.*",
    ),
    "a manifest that was never there": (
        lambda: None,
        [*RUN, "--restore", "st/manifests/none"],
        2,
        r"the checkpoint folder '.*/st' lacks manifests/none; name another checkpoint \(`whale-ray"
        r" state` lists them\)",
    ),
    "half deleted": (
        remove_chunks,
        LATEST,
        2,
        r"operator 'counts': the checkpoint folder '.*' lacks chunks/.*; restore from another epoch"
        r" or savepoint \(`whale-ray state` lists them\)",
    ),
    "half deleted, by the command of state": (
        remove_chunks,
        ["state", "st", "show", "counts"],
        2,
        r"the checkpoint folder '.*' lacks chunks/.*; restore from another epoch or savepoint.*",
    ),
    "half deleted, by the list of checkpoints": (
        remove_chunks,
        ["state", "st"],
        2,
        r"1 of 2 checkpoints in .*/st is damaged, as listed: look at the operators of another one"
        r" \(list --epoch …\): if it is whole, name its manifest \(restore='.*/st/manifests/…'\)",
    ),
    "a manifest cut short, by the list of checkpoints": (
        lambda: cut_short(manifests()[0]),
        ["state", "st", "--json"],
        2,
        r"1 of 2 checkpoints in .*/st is damaged, as listed: .*",
    ),
    "files that changed since": (change_the_input, LATEST, 2, r".*in/rows.parquet.*chang.*"),
    "files that are gone": (
        lambda: shutil.rmtree("in"),
        LATEST,
        2,
        r"no file or folder '.*/in'; correct the path",
    ),
    "no manifest is left": (
        remove_all_manifests,
        ["state", "st"],
        2,
        r"the checkpoint folder '.*' lacks manifests/.*; it was whole once, .*there is no other:.*",
    ),
    "a job that was not stored whole": (
        damage_the_job,
        ["resume", "st"],
        2,
        r"what job '(job-\w+)' was submitted as, jobs/\1 in .*/st, is damaged \(.*\): submit its"
        r" topology again, with restore='st'",
    ),
    "a job of the calling process": (
        lambda: None,
        ["resume", "st", "--on", "processes"],
        2,
        r".*/st lacks what job 'job-\w+' was submitted as \(of a job in the calling process it is"
        r" not kept\): run or submit its topology again, with restore='st'",
    ),
    "a folder that cannot be": (
        lambda: Path("file").touch(),
        [word.replace("st", "file/st") if word == "st" else word for word in RUN],
        1,
        r"the checkpoint folder '.*/file/st' cannot be written to: Not a directory .*name a folder",
    ),
    "a folder that cannot be made": (
        lambda: None,
        [word.replace("st", "/proc/st") if word == "st" else word for word in RUN],
        1,
        r"the checkpoint folder '/proc/st' cannot be written to: .*; nothing can be created"
        " there: name another folder",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_gone_on_from_is_one_line_and_loses_nothing(
    case: str, failed: Path, here: Path, capsys: Any
) -> None:
    damage, words, code, said = CASES[case]
    whole = contents(here / "st")
    damage()
    before = contents(here / "st")
    assert main([*words]) == code
    told = capsys.readouterr().err
    assert re.fullmatch(rf"whale-ray: {said}\n", told), told
    assert "Traceback" not in told
    assert visible() == []
    after = contents(here / "st")
    kept = {name for name in before if name.split("/")[0] in ("manifests", "chunks", "jobs")}
    assert {name: after.get(name) for name in kept} == {name: before[name] for name in kept}
    mend(here, failed / "in", whole)
    assert main(TO_ITS_END) == 0
    assert last_counts() == sorted((k, len(range(k, ROWS, 7))) for k in range(7))


@pytest.mark.parametrize("more", [[], ["--set", "checkpoints.take_over=true"]])
def test_a_job_that_begins_anew_is_not_told_to_remove_the_output_of_the_last_one(
    more: list[str], here: Path, capsys: Any
) -> None:
    Path("out").mkdir()
    Path("out", "part").touch()
    assert main([*RUN, *more]) == 2
    assert "go on from it (restore='latest')" in capsys.readouterr().err
    Path("st").rename("kept")
    assert main([*RUN, *more]) == 1
    assert re.search(r"the output '.*/out' exists; name another", capsys.readouterr().err)
    assert not Path("st").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def mend(here: Path, kept_input: Path, whole: dict[str, bytes]) -> None:
    """Bring back what was there: the files of checkpoints, the script, the input."""
    for name, data in whole.items():
        path = here / "st" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parts[-2] not in ("claims", "newest"):
            path.write_bytes(data)
    write_script()
    shutil.rmtree("in", ignore_errors=True)
    shutil.copytree(kept_input, "in")


def visible() -> list[Path]:
    return list(Path("out").glob("*.parquet"))


def last_counts() -> list[tuple[int, int]]:
    """Return how many rows each key has in the end: each update counts one more."""
    assert visible()
    rows = duckdb.sql("SELECT k, max(rows), count(*), min(rows) FROM 'out/*.parquet' GROUP BY k")
    return sorted((k, most) for k, most, *_ in rows.fetchall())


@pytest.mark.parametrize("damage", [remove_the_newest, lambda: cut_short(manifests()[-1])])
def test_the_others_are_listed_where_the_newest_manifest_is_missing_or_damaged(
    damage: Damage, here: Path, capsys: Any
) -> None:
    number = len(manifests())
    newest = int(manifests()[-1].name.split("-")[1])
    damage()
    epochs = [int(path.name.split("-")[1]) for path in manifests()]
    assert main(["state", "st", "--json"]) == 2
    printed = capsys.readouterr()
    assert [one["epoch"] for one in json.loads(printed.out)["checkpoints"]] == epochs
    assert f"1 of {number} checkpoints in " in printed.err
    assert main(["state", "st"]) == 2
    printed = capsys.readouterr()
    assert all(re.search(rf"^ *{epoch} ", printed.out, re.MULTILINE) for epoch in epochs)
    assert re.search(rf"^  .*\b0*{newest}\b.*", printed.out, re.MULTILINE)
