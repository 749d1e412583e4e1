"""No incomplete output is ever visible, and writers that abort or are killed leave nothing."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.operators.sinks.dying import DiedError, Mortal, parts_in
from whale_ray.configs.errors import OutputError
from whale_ray.operators import sinks
from whale_ray.operators.sinks import staging
from whale_ray.operators.sinks.files import FileSink
from whale_ray.testing import instance_context, write_all
from whale_ray.transport.wire.batch import Batch

BATCH = Batch.from_pydict({"id": np.arange(3)})


CHILD = """
import sys, numpy as np
from whale_ray.operators import sinks
from whale_ray.operators.sinks import staging
from whale_ray.operators.sinks.files import FileSink
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
path, mode, names = sys.argv[1:]
if names == "named":
    staging._nameless = lambda folder: None
writer = sinks.csv(path).open(instance_context(), "dead")
writer.write(Batch.from_pydict({"id": np.arange(100_000)}))
if mode == "staged":
    writer.stage()
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@contextmanager
def child(out: Path, mode: str, names: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that writes or stages an output, then waits."""
    command = [sys.executable, "-c", CHILD, str(out), mode, names]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    with child(tmp_path / "out", "writing", "nameless") as process:
        assert os.listdir(tmp_path) == []
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("mode", "names"), [("staged", "nameless"), ("writing", "named")])
def test_the_next_job_removes_what_a_killed_writer_staged(
    tmp_path: Path, mode: str, names: str
) -> None:
    sink = sinks.csv(tmp_path / "out")
    with child(tmp_path / "out", mode, names):
        sink.prepare("next", bounded=True)
        assert os.listdir(tmp_path) == [".out.whale-dead"]  # its owner lives
    sink.prepare("next", bounded=True)
    assert os.listdir(tmp_path) == []


def test_the_next_job_removes_what_was_staged_for_partial_outputs(tmp_path: Path) -> None:
    """Stopped jobs died while they published partial outputs of various numbers."""
    sink = sinks.csv(tmp_path / "out")
    hidden = [f".out.partial{number}.whale-dead" for number in ("", "-2", "-10")]
    others = [".out.partial-x.whale-dead", ".out2.partial-2.whale-dead", ".out.partial-2"]
    for name in (*hidden, *others):
        (tmp_path / name).mkdir()
    with child(tmp_path / "out.partial-3", "staged", "nameless"):
        sink.prepare("next", bounded=True)
        living = ".out.partial-3.whale-dead"  # its owner lives
        assert sorted(os.listdir(tmp_path)) == sorted([*others, living])
    sink.prepare("next", bounded=True)
    assert sorted(os.listdir(tmp_path)) == sorted(others)


@pytest.mark.parametrize("nameless", [True, False])
def test_the_states_of_an_output(
    tmp_path: Path, nameless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not nameless:
        monkeypatch.setattr(staging, "_nameless", lambda folder: None)
    sink = sinks.csv(tmp_path / "out")
    writer = sink.open(instance_context(3, 4), "t")
    hidden = tmp_path / ".out.whale-t"
    assert os.listdir(tmp_path) == []
    writer.write(BATCH)
    if nameless:
        assert os.listdir(tmp_path) == []
    else:
        assert os.listdir(hidden) == ["part-00003.csv.open"]
    staged = writer.stage()
    assert os.listdir(tmp_path) == [".out.whale-t"]
    assert os.listdir(hidden) == ["part-00003.csv"]
    assert sink.publish("t", [staged]).rows == 3
    writer.abort()
    writer.abort()
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out/part-00003.csv").read_text() == '"id"\n0\n1\n2\n'
    assert (tmp_path / "out/part-00003.csv").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("stage", [False, True])
def test_an_aborted_writer_leaves_nothing(
    tmp_path: Path, nameless: bool, stage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not nameless:
        monkeypatch.setattr(staging, "_nameless", lambda folder: None)
    writer = sinks.parquet(tmp_path / "out").open(instance_context(), "t")
    writer.write(BATCH)
    if stage:
        writer.stage()
    writer.abort()
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_discard_removes_what_other_instances_staged(tmp_path: Path) -> None:
    sink = sinks.parquet(tmp_path / "out")
    for instance in range(3):
        writer = sink.open(instance_context(instance, 3), "t")
        writer.write(BATCH)
        writer.stage()
    sink.discard("t")
    sink.discard("t")
    assert os.listdir(tmp_path) == []


def test_attempts_are_isolated(tmp_path: Path) -> None:
    sink = sinks.csv(tmp_path / "out")
    first, second = (sink.open(instance_context(), token) for token in ("1", "2"))
    first.write(BATCH)
    first.stage()
    second.write(BATCH)
    result = sink.publish("2", [second.stage()])
    assert result.rows == 3
    first.abort()
    assert os.listdir(tmp_path) == ["out"]
    assert parts_in(tmp_path / "out") == ["part-00000.csv"]


def put_old(out: Path) -> None:
    write_all(
        sinks.parquet(out), [Batch.from_pydict({"old": [1]})], [Batch.from_pydict({"old": [2]})]
    )


def test_an_existing_output_is_refused_early_and_late(tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = (
        f"the output '{out}' exists; name another, remove it, or have it overwritten: "
        "overwrite=True of its sink, or --overwrite where a command has that option"
    )
    sink = sinks.csv(out)
    writer = sink.open(instance_context(), "t")
    writer.write(BATCH)
    staged = writer.stage()
    put_old(out)
    for call in (
        sink.check,
        lambda: sink.prepare("t", bounded=True),
        lambda: sink.publish("t", [staged]),
    ):
        with pytest.raises(OutputError) as error:
            call()
        assert str(error.value) == message
    writer.abort()
    sink.discard("t")
    assert os.listdir(tmp_path) == ["out"]
    assert parts_in(out) == ["part-00000.parquet", "part-00001.parquet"]


@pytest.mark.parametrize("exchange", [True, False])
def test_overwriting_swaps_the_folders(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    put_old(out)
    if not exchange:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    write_all(sinks.csv(out, overwrite=True), [BATCH])
    assert os.listdir(tmp_path) == ["out"]
    assert parts_in(out) == ["part-00000.csv"]


CHANGES = ((os, "rename"), (staging, "_exchange"), (shutil, "rmtree"))


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize("how", ["new", "exchange", "aside"])
@pytest.mark.parametrize("name", ["out", "out.partial"])
def test_a_publication_that_died_anywhere_is_carried_out_by_the_next_coordinator(
    tmp_path: Path, rows: int, how: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "aside":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    expected = BATCH.slice(0, rows)
    dies_at, first = 1, None
    while first is None:
        out = tmp_path / str(dies_at) / name
        sink = sinks.csv(out.with_name("out"), overwrite=how != "new")
        publish = sink.publish if name == "out" else sink.publish_partial
        if how != "new":  # parts of the same names, sizes and schema as the new ones
            write_all(sinks.csv(out), [Batch.from_pydict({"id": np.arange(3)[::-1].copy()})])
        writer = sink.open(instance_context(), "t")
        writer.write(expected)
        staged = [writer.stage()]
        with monkeypatch.context() as dying:
            mortal = Mortal(dying, CHANGES, dies_at)
            with suppress(DiedError):
                first = publish("t", staged)
        again = publish("t", staged)
        assert first in (None, again)
        assert again.to_arrow()["id"].to_pylist() == list(range(rows))
        assert (again.rows, again.nbytes) == (rows, (out / "part-00000.csv").stat().st_size)
        writer.abort()
        sink.discard("t")
        assert os.listdir(out.parent) == [name]
        assert parts_in(out) == ["part-00000.csv"]
        dies_at += 1
    assert mortal.steps > 4


def test_an_old_output_is_restored_if_the_new_one_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    out = tmp_path / "out"
    put_old(out)
    sink = sinks.csv(out, overwrite=True)
    writer = sink.open(instance_context(), "t")
    writer.write(BATCH)
    staged = writer.stage()
    with monkeypatch.context() as dying:
        Mortal(dying, CHANGES, dies_at=3)  # between the two renames
        with pytest.raises(DiedError):
            sink.publish("t", [staged])
    assert not out.exists()
    writer.abort()
    sink.discard("t")
    assert os.listdir(tmp_path) == ["out"]
    assert len(parts_in(out)) == 2


def test_another_output_with_the_same_parts_is_not_mistaken_for_this_one(tmp_path: Path) -> None:
    sink = sinks.csv(tmp_path / "out")
    writer = sink.open(instance_context(), "t")
    writer.write(BATCH)
    staged = writer.stage()
    write_all(sinks.csv(tmp_path / "out"), [BATCH], token="another")
    with pytest.raises(OutputError, match="exists; name another"):
        sink.publish("t", [staged])
    writer.abort()


def test_a_failing_job_leaves_the_old_output(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_old(out)
    sink = sinks.parquet(out, overwrite=True)
    writer = sink.open(instance_context(), "t")
    writer.write(BATCH)
    writer.stage()
    writer.abort()
    sink.discard("t")
    assert os.listdir(tmp_path) == ["out"]
    assert len(parts_in(out)) == 2


def test_an_empty_folder_is_not_an_output(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_all(sinks.csv(tmp_path / "out"), [BATCH])
    assert parts_in(tmp_path / "out") == ["part-00000.csv"]


def test_parent_folders_are_created_when_staging(tmp_path: Path) -> None:
    sink = sinks.csv(tmp_path / "a" / "b" / "out")
    writer = sink.open(instance_context(), "t")
    writer.write(BATCH)
    assert os.listdir(tmp_path) == []
    sink.publish("t", [writer.stage()])
    writer.abort()
    assert os.listdir(tmp_path / "a" / "b") == ["out"]


def test_foreign_files_among_the_parts_are_noticed(tmp_path: Path) -> None:
    sink = sinks.csv(tmp_path / "out")
    writer = sink.open(instance_context(), "t")
    writer.write(BATCH)
    staged = writer.stage()
    (tmp_path / ".out.whale-t" / "x").touch()
    with pytest.raises(OutputError) as error:
        sink.publish("t", [staged])
    assert str(error.value) == (
        f"the staged parts of '{tmp_path}/out' are ['part-00000.csv', 'x'] instead of "
        "['part-00000.csv']; did something else write there?"
    )
    sink.discard("t")


def test_a_cleanup_between_creating_and_locking_a_folder_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job for the same output cleans up right before the folder is locked, three times."""
    sink = cast("FileSink", sinks.csv(tmp_path / "out"))
    sweeps = []
    lock = fcntl.flock

    def sweep_first(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH and len(sweeps) < 3:
            sweeps.append(operation)
            sink.folder.sweep()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    for nameless in (True, False):
        sweeps.clear()
        with monkeypatch.context() as patched:
            if not nameless:
                patched.setattr(staging, "_nameless", lambda folder: None)
            again = sinks.csv(tmp_path / "out", overwrite=not nameless)
            assert write_all(again, [BATCH]).rows == 3
            assert len(sweeps) == 3 if nameless else sweeps
    assert os.listdir(tmp_path) == ["out"]
