"""A process whose memory the kernel limits: it works within the limit, and ends beyond it."""

from __future__ import annotations

import os
from multiprocessing import Process
from pathlib import Path

import pytest

from whale_ray.lab.bench import memory_limit
from whale_ray.lab.bench.memory_limit import NoLimitError, run_within

MIB = 1 << 20


def test_groups_of_processes_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Process(target=int)
    gone.start()
    gone.join()
    left, used = (tmp_path / f"whale-ray-{pid}" for pid in (gone.pid, os.getppid()))
    for one in (left, used, tmp_path / "another"):
        one.mkdir()
    monkeypatch.setattr(memory_limit, "_own_group", lambda: (tmp_path, "no/limit"))
    with pytest.raises(NoLimitError):
        run_within(64 * MIB, int)
    assert sorted(tmp_path.iterdir()) == sorted([used, tmp_path / "another"])


def test_work_within_its_memory_returns_and_more_ends_it() -> None:
    try:
        assert run_within(64 * MIB, lambda: len(b"x" * (16 * MIB))) == 16 * MIB
    except NoLimitError as error:
        pytest.skip(f"memory cannot be limited here: {error}")
    with pytest.raises(RuntimeError, match="64 MiB of memory ended without a result"):
        run_within(64 * MIB, lambda: len(b"x" * (128 * MIB)))
