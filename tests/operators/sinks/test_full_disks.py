"""A full disk (a real one): one line that names the place, and no files left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from whale_ray.configs.errors import OutputError, ResourceError
from whale_ray.operators import sinks
from whale_ray.operators.sinks.base import CommitId, Staged
from whale_ray.ray_bridge import folders
from whale_ray.ray_bridge.dataset import ray_dataset_sink
from whale_ray.spark.sink import _write
from whale_ray.state.spill import SpillFile
from whale_ray.testing import instance_context, write_all
from whale_ray.transport.wire.batch import Batch

ROOM_BYTES = 256 << 10
NO_ROOM = "No space left on device"
RANDOM = np.random.default_rng(7)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 256 KiB, if this process may."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(folder)]
    try:
        tried = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no `mount` to make a small disk with")
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def noise(rows: int) -> Batch:
    """Return rows of 64 bytes that cannot be compressed."""
    return Batch.from_pydict({"text": [RANDOM.bytes(32).hex() for _ in range(rows)]})


MAKERS = {"parquet": sinks.parquet, "csv": sinks.csv, "json_lines": sinks.json_lines}


@pytest.mark.parametrize("rows", [20_000, 150_000], ids=["at the end", "early"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_an_output_without_room_is_reported_in_one_line(
    small_disk: Path, name: str, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_disk / "out"
    with pytest.raises(OutputError) as error:
        write_all(MAKERS[name](out), [noise(rows // 4)] * 4, [noise(4_000)])
    assert str(error.value) == (
        f"cannot write the output '{out}': {NO_ROOM}; "
        "make room or mend the folder, or name another output"
    )
    assert error.value.__suppress_context__
    assert os.listdir(small_disk) == []
    assert capsys.readouterr().err == ""


def test_an_unbounded_jobs_parts_stay_when_there_is_no_more_room(small_disk: Path) -> None:
    writer = sinks.csv(small_disk / "out").open(instance_context(), "t")

    def fill() -> None:
        for _ in range(10):
            writer.write(noise(1_000))
            writer.publish_part()

    with pytest.raises(OutputError, match=NO_ROOM):
        fill()
    writer.abort()
    names = sorted(os.listdir(small_disk / "out"))
    assert names[0] == "_whale-parts-00000"
    assert len(names) > 1
    assert {len((small_disk / "out" / name).read_text().splitlines()) for name in names[1:]} == {
        1_001
    }


def test_epochs_without_room_are_not_half_visible(small_disk: Path) -> None:
    sink = sinks.csv(small_disk / "out")
    writer = sink.open(instance_context(), "job")
    staged: list[Staged] = []

    def fill() -> None:
        for epoch in range(1, 10):
            writer.write(noise(1_000))
            part = writer.stage_epoch(epoch)
            assert part is not None
            staged.append(part)

    with pytest.raises(OutputError, match=NO_ROOM):
        fill()
    writer.abort()
    assert os.listdir(small_disk) == [".out.whale-job"]
    sink.recover("job", staged, bounded=False)
    sink.commit(CommitId("job", len(staged)), staged)
    lines = [len(path.read_text().splitlines()) for path in (small_disk / "out").glob("part-*")]
    assert lines == [1_001] * len(staged) != []


def test_a_job_that_fills_a_disk_reports_one_line(small_disk: Path) -> None:
    """The output of a script is its own traceback, and no other before it."""
    script = f"""
import whale_ray as whale
topology = whale.Topology("full")
rows = topology.source(whale.sources.iterable([{{"x": i}} for i in range(100_000)]), id="rows")
rows.sink(whale.sinks.json_lines({str(small_disk / "out")!r}), id="out")
whale.run(topology)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    lines = ran.stderr.splitlines()
    assert ran.stderr.count("Traceback") == 1
    assert lines[-1].startswith("whale_ray.configs.errors.OutputError: cannot write the output")
    assert len(lines) <= 8, ran.stderr
    assert os.listdir(small_disk) == []


def test_a_spill_file_without_room_is_reported_in_one_line(small_disk: Path) -> None:
    spill = SpillFile("match", 1 << 30, str(small_disk))

    def fill() -> None:
        for _ in range(10):
            spill.append(noise(1_000))

    with pytest.raises(ResourceError) as error:
        fill()
    assert str(error.value) == (
        f"operator 'match' cannot spill to {small_disk}: {NO_ROOM}; make room or correct that, or "
        "name another folder in runtime.spill_directory"
    )
    assert error.value.__suppress_context__
    spill.close()
    assert os.statvfs(small_disk).f_bfree == os.statvfs(small_disk).f_blocks


def test_hand_over_folders_without_room_are_reported_in_one_line(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    monkeypatch.setattr(folders, "_folder", folders._ProcessFolder())
    remedy = "make room there, or name another folder in the environment variable TMPDIR"
    table = pa.table({"text": noise(10_000)["text"].to_pylist()})
    with pytest.raises(ResourceError) as error:
        _write(table)
    assert str(error.value) == f"cannot hand rows over in {small_disk}: {NO_ROOM}; {remedy}"
    sink = ray_dataset_sink().configured(whale.load_settings())
    with pytest.raises(OutputError) as refused:
        write_all(sink, [noise(10_000)])
    assert str(refused.value).endswith(f"/rows': {NO_ROOM}; {remedy}")
