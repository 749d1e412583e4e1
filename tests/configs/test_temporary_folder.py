"""Where no folder for temporary files can be written, messages say so, and what to set."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

import whale_ray as whale
from whale_ray.configs.errors import ResourceError
from whale_ray.configs.temporary_folder import (
    NONE_IS_WRITABLE,
    check_spill_directory,
    temporary_folder,
)
from whale_ray.machine import gather
from whale_ray.state.page_file import PageFile
from whale_ray.state.spill import SpillFile
from whale_ray.transport.retention import Retention
from whale_ray.transport.wire.batch import Batch


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", gone)


def test_a_folder_that_there_is(tmp_path: Path) -> None:
    assert temporary_folder(str(tmp_path)) == str(tmp_path)
    assert temporary_folder() == tempfile.gettempdir()


@pytest.mark.usefixtures("nowhere")
def test_state_that_can_be_spilled_nowhere() -> None:
    with pytest.raises(ResourceError) as refused:
        PageFile("trips").array(9, np.int64)
    assert f"{NONE_IS_WRITABLE}: No such file or directory" in str(refused.value)
    with pytest.raises(ResourceError) as refused:
        SpillFile("trips", 1 << 20).append(Batch.from_rows([{"a": 1}]))
    assert f"{NONE_IS_WRITABLE}: No such file or directory" in str(refused.value)


@pytest.mark.usefixtures("nowhere")
def test_a_stream_is_retained_in_memory_though_there_is_no_folder() -> None:
    Retention(1 << 16, 1 << 20, 1 << 20)


@pytest.mark.usefixtures("nowhere")
def test_the_doctor_finds_no_folder() -> None:
    facts = gather()
    assert (facts.spill_directory, facts.spill_free_bytes) == ("", 0)


def test_a_folder_below_the_home_is_where_a_setting_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "spilled").mkdir()
    pages = PageFile("trips", "~/spilled")
    pages.array(9, np.int64)[:] = 7
    pages.close()
    with pytest.raises(ResourceError, match=f"in {tmp_path}/none"):
        check_spill_directory("~/none")
    check_spill_directory("~/spilled")
    check_spill_directory("")


def test_a_job_whose_folder_for_spilled_rows_takes_none_does_not_begin() -> None:
    topology = whale.Topology("spills")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.sink(whale.sinks.each(lambda row: pytest.fail("a row was read")), id="out")
    with pytest.raises(ResourceError, match="no file can be made in /nowhere: No such file"):
        whale.run(topology, settings={"runtime.spill_directory": "/nowhere"})
