"""Where no folder for temporary files can be written, messages say so, and what to set."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from whale_ray.configs.errors import ResourceError
from whale_ray.configs.temporary_folder import NONE_IS_WRITABLE, temporary_folder
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
