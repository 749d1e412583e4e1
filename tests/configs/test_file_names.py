"""Paths that the file system's encoding lacks characters of: one line, which names the path."""

import os
import subprocess
import sys

import pytest

from whale_ray import sinks, sources
from whale_ray.configs.errors import UsageError
from whale_ray.configs.settings import RecordSettings
from whale_ray.configs.temporary_folder import check_spill_directory
from whale_ray.records.folders import RunFolders
from whale_ray.state.epochs.store_files import files_at

ALONE = "a/\ud800"
"""No encoding has half of a pair of surrogates."""


CASES = {
    "parquet sink": ("the output path", lambda: sinks.parquet(ALONE)),
    "csv sink": ("the output path", lambda: sinks.csv(ALONE)),
    "json_lines sink": ("the output path", lambda: sinks.json_lines(ALONE)),
    "delta sink": ("the table", lambda: sinks.delta(ALONE)),
    "parquet source": ("the path of a Parquet source", lambda: sources.parquet(ALONE)),
    "csv source": ("the path of a CSV source", lambda: sources.csv(["b", ALONE])),
    "growing_folder": (
        "the path of a Parquet source",
        lambda: sources.growing_folder(ALONE, "parquet"),
    ),
    "checkpoints": ("the checkpoint folder", lambda: files_at(ALONE)),
    "records": ("records.folder", lambda: RunFolders(RecordSettings(folder=ALONE))),
    "spilled state": ("runtime.spill_directory", lambda: check_spill_directory(ALONE)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_path_that_cannot_be_encoded_is_named(case):
    what, call = CASES[case]
    with pytest.raises(UsageError) as caught:
        call()
    assert str(caught.value) == (
        f"{what} 'a/\\ud800': file names are in utf-8 here, which has no '\\ud800': set"
        " LC_ALL=C.UTF-8, or name another path"
    )


def test_in_the_locale_c_the_command_says_so_in_one_line(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import whale_ray as whale\n"
        "topology = whale.Topology('job')\n"
        "rows = topology.source(whale.sources.iterable([{'n': 1}]))\n"
        "rows.sink(whale.sinks.parquet('\\u20ac'), id='out')\n"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "whale_ray.cli.main", "run", str(script), "--on", "inline"]
    done = subprocess.run(
        command,
        env={**os.environ, **locale},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "whale-ray: the output path '\\u20ac': file names are in ascii here, which has no"
        " '\\u20ac': set LC_ALL=C.UTF-8, or name another path\n"
    )
