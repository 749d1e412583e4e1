"""Parts of epochs: each appears once, whatever dies, and survives as long as it is needed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tests.operators.sinks.dying import DiedError, Mortal, parts_in
from whale_ray.configs.errors import OutputError
from whale_ray.configs.settings import Settings
from whale_ray.operators import sinks
from whale_ray.operators.sinks import staging
from whale_ray.operators.sinks.base import CommitId, Sink, Staged
from whale_ray.operators.sinks.files import FileSink
from whale_ray.operators.sinks.staged_json import staged_to_json
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.epoch_commands import RestorePoint
from whale_ray.state.epochs.manifest import Lineage, Manifest
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch


def numbers(first: int, rows: int = 3) -> Batch:
    return Batch.from_pydict({"n": np.arange(first, first + rows)})


def stage(sink: Sink, job: str, batch: Batch, epoch: int, instance: int = 0) -> Staged:
    """Stage rows for an epoch by a writer that is dropped without its end, as by a death."""
    writer = sink.open(instance_context(instance, 2), job)
    try:
        writer.write(batch)
        staged = writer.stage_epoch(epoch)
    except OutputError:
        writer.abort()
        raise
    assert staged is not None
    cast(Any, writer)._epochs.close()  # the kernel would
    return staged


def rows_in(folder: Path) -> list[int]:
    """Return the numbers in the CSV files of an output."""
    found: list[int] = []
    for name in parts_in(folder) if folder.exists() else ():
        found += map(int, (folder / name).read_text().split()[1:])
    return sorted(found)


def test_an_epoch_is_on_disk_and_invisible_until_it_is_committed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    sink.prepare("job-1", bounded=False)
    writer = sink.open(instance_context(3, 4), "job-1")
    assert writer.stage_epoch(1) is None
    writer.write(numbers(0))
    staged = writer.stage_epoch(2)
    assert staged is not None
    assert (staged.rows, staged.path) == (
        3,
        str(tmp_path / ".out.whale-job-1/part-00003-00000002-job-1.csv"),
    )
    assert os.listdir(tmp_path) == [".out.whale-job-1"]
    for _ in range(3):
        sink.commit(CommitId("job-1", 2), [staged])
        assert parts_in(out) == ["part-00003-00000002-job-1.csv"]
    writer.write(numbers(3))
    later = writer.stage_epoch(3)
    assert later is not None
    sink.commit(CommitId("job-1", 3), [later])
    assert rows_in(out) == list(range(6))
    writer.write(numbers(6))
    writer.abort()
    assert os.listdir(tmp_path) == ["out"]
    with pytest.raises(OutputError, match="exists"):
        sinks.csv(out).check()
    sinks.csv(out, overwrite=True).check()  # all parts are listed


def test_a_part_that_a_reader_has_taken_away_does_not_come_again(tmp_path: Path) -> None:
    sink = sinks.csv(tmp_path / "out")
    staged = stage(sink, "a", numbers(0), 1)
    sink.commit(CommitId("a", 1), [staged])
    os.unlink(tmp_path / "out" / parts_in(tmp_path / "out")[0])
    sink.recover("b", [staged], bounded=False)
    sink.commit(CommitId("a", 1), [staged])
    assert rows_in(tmp_path / "out") == []


def test_a_job_restored_from_an_older_epoch_adds_its_parts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    old = [stage(sink, "a", numbers(10 * epoch), epoch) for epoch in (1, 2, 3)]
    for epoch, staged in enumerate(old, 1):
        sink.commit(CommitId("a", epoch), [staged])
    sink.recover("b", [old[0]], bounded=False)
    sink.commit(CommitId("a", 1), [old[0]])
    for epoch in (2, 3):
        sink.commit(CommitId("b", epoch), [stage(sink, "b", numbers(100 * epoch), epoch)])
    assert rows_in(out) == [10, 11, 12, 20, 21, 22, 30, 31, 32, 200, 201, 202, 300, 301, 302]
    sinks.csv(out, overwrite=True).check()


def test_what_belongs_to_no_epoch_that_counts_is_removed(tmp_path: Path) -> None:
    sink = sinks.csv(tmp_path / "out")
    kept = stage(sink, "a", numbers(0), 1)
    lost = stage(sink, "a", numbers(3), 2)
    sink.recover("a", [kept], bounded=False)
    assert not Path(str(lost.path)).exists()
    sink.commit(CommitId("a", 1), [kept])
    assert rows_in(tmp_path / "out") == [0, 1, 2]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


@pytest.mark.parametrize("move", [shutil.copytree, os.rename], ids=["copied", "renamed"])
@pytest.mark.parametrize("bounded", [True, False])
def test_what_is_staged_may_be_moved_with_its_output(
    tmp_path: Path, bounded: bool, move: Callable[[Path, Path], object]
) -> None:
    """The receipts in the checkpoint name the old place, whose files stay as they are."""
    (tmp_path / "here").mkdir()
    before = sinks.csv(tmp_path / "here" / "out")
    parts = [
        replace(stage(before, "a", numbers(10 * epoch), epoch), epoch=epoch) for epoch in (1, 2)
    ]
    if not bounded:
        before.commit(CommitId("a", 1), parts[:1])
    move(tmp_path / "here", tmp_path / "there")
    original = files_below(tmp_path / "here")
    sink = sinks.csv(tmp_path / "there" / "out")
    sink.recover("b", parts if bounded else parts[1:], bounded=bounded)
    for _ in range(2):
        if bounded:
            assert sink.publish("b", parts).rows == 6
        else:
            sink.commit(CommitId("a", 2), parts[1:])
        assert rows_in(tmp_path / "there" / "out") == [10, 11, 12, 20, 21, 22]
    assert files_below(tmp_path / "here") == original


@pytest.mark.parametrize("bounded", [True, False])
def test_a_part_that_was_copied_in_part_is_gone(tmp_path: Path, bounded: bool) -> None:
    sink = sinks.csv(tmp_path / "out")
    staged = replace(stage(sink, "a", numbers(0), 1), epoch=1)
    os.truncate(str(staged.path), 3)
    with pytest.raises(OutputError, match="is gone"):
        sink.recover("b", [staged], bounded=bounded)
    assert os.listdir(tmp_path) == [".out.whale-a"]


@pytest.mark.parametrize("bounded", [True, False])
def test_staged_parts_that_are_gone_are_named(tmp_path: Path, bounded: bool) -> None:
    sink = sinks.csv(tmp_path / "out")
    staged = [stage(sink, "a", numbers(0), epoch) for epoch in (1, 2)]
    os.unlink(str(staged[1].path))
    with pytest.raises(OutputError) as error:
        sink.recover("b", staged, bounded=bounded)
    assert str(error.value) == (
        f"'{staged[1].path}', which a checkpoint needs, is gone: it is not in the output "
        f"'{tmp_path}/out' either, nor in a hidden folder beside that; put it back (what is moved "
        "to another place needs the hidden folders beside the output, too; submit the topology "
        "with its new path and restore=), restore an older checkpoint, or start the job anew"
    )
    with pytest.raises(OutputError, match="is gone"):
        sink.commit(CommitId("a", 2), staged)
    assert not (tmp_path / "out").exists()  # nor is the other part visible


def test_the_epochs_of_a_bounded_job_appear_together(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    writers = [sink.open(instance_context(number, 2), "job") for number in range(2)]
    staged = []
    for epoch in (1, 2):
        for number, writer in enumerate(writers):
            writer.write(numbers(10 * epoch + 5 * number))
            staged.append(writer.stage_epoch(epoch))
    writers[0].write(numbers(100))
    whole = [*filter(None, staged), *(writer.stage() for writer in writers)]
    assert os.listdir(tmp_path) == [".out.whale-job"]
    for _ in range(2):
        result = sink.publish("job", whole)
        assert result.rows == 15
        assert sorted(result.to_arrow()["n"].to_pylist()) == rows_in(out)
    for writer in writers:
        writer.abort()
    sink.discard("job")
    assert os.listdir(tmp_path) == ["out"]
    assert len(parts_in(out)) == 5
    assert "_whale-parts-staged" not in os.listdir(out)
    sinks.csv(out, overwrite=True).check()


def test_a_restored_bounded_job_publishes_what_the_one_before_has_staged(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    counted = [stage(sink, "a", numbers(10 * epoch), epoch) for epoch in (1, 2)]
    stage(sink, "a", numbers(999), 3)  # does not count
    for job in ("b", "c"):  # the first one dies as well
        sink.recover(job, counted, bounded=True)
        counted.append(stage(sink, job, numbers(10 * len(counted) + 10), len(counted) + 1))
    shutil.rmtree(tmp_path / ".out.whale-a")  # b has linked its parts
    assert sink.publish("c", counted).rows == 12
    assert rows_in(out) == [10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42]
    assert os.listdir(tmp_path) == ["out"]
    sink.discard("c")
    sink.recover("d", counted, bounded=True)  # c died right after it had published
    assert sink.publish("d", counted).rows == 12


def test_other_columns_are_refused_before_their_epoch_counts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    staged = stage(sink, "a", numbers(0), 1)
    message = (
        f"the output '{out}' has other columns than the rows to be added: column 'n' is string "
        "instead of int64; go on with the code that wrote it, or start the job anew with another "
        "output"
    )
    others = Batch.from_pydict({"n": ["x"]})
    for job, committed in (("a", False), ("b", False), ("c", True)):
        if committed:
            sink.commit(CommitId("a", 1), [staged])
        sink.recover(job, [] if committed else [staged], bounded=False)
        with pytest.raises(OutputError) as error:
            stage(sink, job, others, 2)
        assert str(error.value) == message


def test_an_output_that_is_removed_meanwhile_is_not_begun_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    first, second = (stage(sink, "a", numbers(epoch), epoch) for epoch in (1, 2))
    sink.commit(CommitId("a", 1), [first])
    out.rename(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="was removed, or moved, while its job was running"):
        sink.commit(CommitId("a", 2), [second])
    with pytest.raises(OutputError, match="is gone"):
        sink.recover("b", [first], bounded=False)
    (tmp_path / "elsewhere").rename(out)
    sink.commit(CommitId("a", 2), [second])
    assert rows_in(out) == [1, 2, 2, 3, 3, 4]


def test_an_output_of_somebody_else_is_not_added_to(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    staged = stage(sink, "a", numbers(0), 1)
    out.mkdir()
    (out / "theirs.csv").touch()
    for call in (
        lambda: sink.commit(CommitId("a", 1), [staged]),
        lambda: sink.recover("b", [staged], bounded=False),
    ):
        with pytest.raises(OutputError, match="exists; name another"):
            call()
    assert os.listdir(out) == ["theirs.csv"]


def manifest_of(job: str, epoch: int) -> Manifest:
    return Manifest(epoch, 0, Lineage(job), "t", 0, 16, ())


def test_a_hidden_folder_lives_as_long_as_its_jobs_checkpoints(tmp_path: Path) -> None:
    settings = Settings().with_overrides({"checkpoints.url": str(tmp_path / "checkpoints")})
    sink = sinks.csv(tmp_path / "out").configured(settings)
    stage(sink, "a", numbers(0), 1)
    hidden = tmp_path / ".out.whale-a"
    store = CheckpointStore.at(str(tmp_path / "checkpoints"))
    claim = store.take_claim("a", "t", beats=False)
    name = store.write_manifest(manifest_of("a", 1))
    other = sinks.csv(tmp_path / "out")
    other.prepare("x", bounded=True)
    assert hidden.exists()
    claim.close()
    claim = store.take_claim("b", "t", restore=RestorePoint(store.url, name, 1), beats=False)
    store.write_manifest(manifest_of("b", 2))
    other.prepare("x", bounded=True)
    assert hidden.exists()
    store.remove_unlisted(keep=1)
    claim.close()
    other.prepare("x", bounded=True)
    assert not hidden.exists()
    stage(sink, "a", numbers(0), 1)
    shutil.rmtree(tmp_path / "checkpoints")
    other.prepare("x", bounded=True)
    assert not hidden.exists()


CHANGES = (
    *((os, name) for name in ("rename", "link", "unlink", "makedirs", "fsync")),
    (staging, "_exchange"),
)


def test_a_commit_that_dies_anywhere_is_carried_out_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run of the commit dies one change later, then one that lives on ends it."""
    for dies_at in itertools.count(1):
        out = tmp_path / str(dies_at) / "out"
        out.parent.mkdir()
        sink = sinks.csv(out)
        staged = [stage(sink, "a", numbers(3 * one), one // 2 + 1, one % 2) for one in range(4)]
        with monkeypatch.context() as dying:
            mortal = Mortal(dying, CHANGES, dies_at)
            with suppress(DiedError):
                sink.commit(CommitId("a", 2), staged)
        if dies_at % 2:
            sink.recover("b", staged, bounded=False)
        sink.commit(CommitId("a", 2), staged)
        assert rows_in(out) == list(range(12))
        sinks.csv(out, overwrite=True).check()
        if mortal.steps < dies_at:
            break
    assert dies_at > 12


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_restored_publication_that_dies_anywhere_is_carried_out_by_the_next(
    tmp_path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dies_at in itertools.count(1):
        out = tmp_path / str(dies_at) / "out"
        out.parent.mkdir()
        sink = sinks.csv(out, overwrite=overwrite)
        if overwrite:
            sink.publish("first", [stage(sink, "first", numbers(77), 1)])
        staged = [stage(sink, "a", numbers(3 * one), 1, one) for one in range(2)]
        with monkeypatch.context() as dying:
            mortal = Mortal(dying, CHANGES, dies_at)
            with suppress(DiedError):
                sink.recover("b", staged, bounded=True)
                sink.publish("b", staged)
        sink.recover("c", staged, bounded=True)
        assert rows_in(out) in ([77, 78, 79] if overwrite else [], list(range(6)))
        assert sink.publish("c", staged).rows == 6
        assert rows_in(out) == list(range(6))
        sinks.csv(out, overwrite=True).check()
        if mortal.steps < dies_at:
            break
    assert dies_at > 20


KILLED = """
import os, signal, sys
from whale_ray.operators import sinks
from whale_ray.operators.sinks.base import CommitId
from whale_ray.operators.sinks.staged_json import staged_from_json
import json
out, staged, deaths = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
move = os.rename
def dying(*names):
    global deaths
    deaths -= 1
    if deaths < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    move(*names)
os.rename = dying
sinks.csv(out).commit(CommitId("a", 1), [staged_from_json(one) for one in staged])
"""


@pytest.mark.parametrize("moved", [0, 2])
def test_a_process_that_is_killed_in_a_commit_loses_and_repeats_nothing(
    tmp_path: Path, moved: int
) -> None:
    out = tmp_path / "out"
    sink = sinks.csv(out)
    staged = [stage(sink, "a", numbers(3 * one), 1, one) for one in range(3)]
    as_json = json.dumps([staged_to_json(one) for one in staged])
    command = [sys.executable, "-c", KILLED, str(out), as_json, str(moved)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(rows_in(out)) == 3 * moved
    sink.recover("b", staged, bounded=False)
    sink.commit(CommitId("a", 1), staged)
    assert rows_in(out) == list(range(9))
    sinks.csv(out, overwrite=True).check()


def test_an_attempt_taken_for_dead_does_not_replace_what_the_next_one_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nameless in (True, False):
        if not nameless:
            monkeypatch.setattr(staging, "_nameless", lambda folder: None)
        out = tmp_path / f"out-{nameless}"
        sink = sinks.csv(out)
        lost, good = (sink.open(instance_context(), "job") for _ in range(2))
        lost.write(numbers(100))
        good.write(numbers(0))
        staged = good.stage_epoch(1)
        assert lost.stage_epoch(1) != staged
        assert staged is not None
        tails = good.stage(), lost.stage()
        assert sink.publish("job", [staged, tails[0]]).rows == 3
        assert rows_in(out) == [0, 1, 2]
        for writer in (lost, good):
            writer.abort()


def collected(sink: Sink, token: str, staged: Sequence[Staged]) -> list[int]:
    table = sink.publish(token, staged).to_arrow()
    assert isinstance(table, pa.Table)
    return cast("list[int]", table["n"].to_pylist())


def test_collected_rows_travel_with_the_checkpoint(tmp_path: Path) -> None:
    sink = sinks.collect()
    staged = [stage_in_memory(sink, numbers(10 * epoch), epoch) for epoch in (1, 2)]
    sink.recover("b", staged, bounded=True)
    with pytest.raises(OutputError, match="write to files"):
        sink.recover("b", staged, bounded=False)
    last = stage_in_memory(sink, numbers(30), 3)
    assert collected(sink, "b", [*staged, last]) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    small = sinks.collect(max_bytes=40)
    writer = small.open(instance_context(), "t")
    writer.write(numbers(0))
    writer.stage_epoch(1)
    with pytest.raises(OutputError, match="larger than 40 bytes"):
        writer.write(numbers(3))


def stage_in_memory(sink: Sink, batch: Batch, epoch: int) -> Staged:
    writer = sink.open(instance_context(), "t")
    writer.write(batch)
    staged = writer.stage_epoch(epoch)
    assert staged is not None
    assert writer.stage_epoch(epoch + 1) is None
    writer.abort()
    return replace(staged, epoch=epoch)


def test_the_place_of_checkpoints_is_absolute(tmp_path: Path) -> None:
    for url, known in (("ck", os.path.abspath("ck")), ("s3://b/ck", "s3://b/ck"), ("", "")):
        settings = Settings().with_overrides({"checkpoints.url": url})
        assert cast(FileSink, sinks.csv(tmp_path).configured(settings)).checkpoints == known
