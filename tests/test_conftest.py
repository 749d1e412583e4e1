"""The rules that tests/conftest.py puts on a run, each tried on a small run of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collection import needed_mark, part
from whale_ray.operators.sinks.held_folders import FolderHold

CONFTEST = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(tmp_path):
    """Return a function that runs pytest on the text of one test module, under our conftest."""

    def run_module(text, *options, **environment):
        (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        (tmp_path / "test_small.py").write_text(text, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "WHALE_RAY_FAIL_ON_SKIP": "0",
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run_module


SKIPS = """
import pytest

def test_verbs():
    pytest.skip("no RDMA device here")

{more}
"""
DATA = "def test_data(data_dir):\n    raise AssertionError\n"


@pytest.mark.long
def test_a_missing_rdma_device_is_the_only_excuse_under_strict_skips(run):
    excused = run(SKIPS.format(more=""), WHALE_RAY_FAIL_ON_SKIP="1")
    assert excused.returncode == 0, excused.stdout
    refused = run(SKIPS.format(more=DATA), WHALE_RAY_FAIL_ON_SKIP="1", WHALE_RAY_DATA="")
    assert refused.returncode == 1
    assert "test_small.py::test_data: Skipped: no real data" in refused.stdout
    assert "test_verbs:" not in refused.stdout


@pytest.mark.long
def test_without_data_the_skip_says_why(run):
    done = run(DATA, WHALE_RAY_DATA="")
    assert done.returncode == 0
    assert "no real data: WHALE_RAY_DATA is not set" in done.stdout
    done = run(DATA, WHALE_RAY_DATA="/nowhere")
    assert "WHALE_RAY_DATA=/nowhere is not a folder" in done.stdout


LEAKY = """
import pathlib, subprocess, sys, pytest, conftest

conftest.END_TIMEOUT_S = 0.1
conftest.SEGMENTS = pathlib.Path(__file__).parent

def test_clean(no_leaks):
    subprocess.run([sys.executable, "-c", "pass"], check=True)

def test_leaves_an_orphan(no_leaks):
    # The child starts a grandchild in a session of its own, and ends.
    program = "import subprocess as s; s.Popen(['sleep', '60'], start_new_session=True, stdout=-3)"
    subprocess.run([sys.executable, "-c", program], check=True)

def test_leaves_a_segment(no_leaks):
    (conftest.SEGMENTS / "whale-ray-job-4194305-ring").touch()
"""


def test_an_orphan_and_a_segment_are_found(run):
    done = run(LEAKY)
    assert "ERROR test_small.py::test_leaves_an_orphan" in done.stdout, done.stdout
    assert "left behind: process" in done.stdout
    assert "sleep 60" in done.stdout
    assert "ERROR test_small.py::test_leaves_a_segment" in done.stdout
    assert "left behind: segment whale-ray-job-4194305-ring" in done.stdout
    assert "::test_clean" not in done.stdout


TELL = """
import pathlib, subprocess, tempfile, threading, conftest

HERE = pathlib.Path(__file__).parent
conftest.END_TIMEOUT_S = 0.1

def tell(name):
    (HERE / ("new " + name)).write_text(tempfile.gettempdir())
    (HERE / ("new " + name)).rename(HERE / name)

def await_told(name):
    while not (HERE / name).exists():
        threading.Event().wait(0.02)
    return (HERE / name).read_text()
"""
RUNS_A_PROCESS = """
def test_runs_a_process():
    await_told("looked")
    with subprocess.Popen(["sleep", "1000"]) as process:
        tell("started")
        await_told("looked again")
        process.kill()
"""
IS_NOT_BLAMED = """
def test_is_not_blamed_for_it(no_leaks):
    tell("looked")
    assert await_told("started") != tempfile.gettempdir()

def test_that_follows():
    tell("looked again")
"""


@pytest.mark.long
def test_workers_of_one_run_are_not_blamed_for_each_other_and_have_folders_of_their_own(
    run, tmp_path
):
    (tmp_path / "test_other.py").write_text(TELL + RUNS_A_PROCESS, encoding="utf-8")
    done = run(TELL + IS_NOT_BLAMED, "-n", "2", "--dist", "loadfile", "--timeout", "60")
    assert "3 passed" in done.stdout, done.stdout
    assert done.returncode == 0


def test_each_module_is_in_the_part_of_one_worker():
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    parts = [part(files, worker, 3) for worker in range(3)]
    assert sorted(file for one in parts for file in one) == files
    sizes = [sum(file.stat().st_size for file in one) for one in parts]
    assert max(sizes) < 1.1 * min(sizes)


KILLED = """
import os, pathlib, signal, tempfile

def test_killed():
    pathlib.Path(__file__).with_name("left").write_text(tempfile.gettempdir())
    os.kill(os.getpid(), signal.SIGKILL)
"""
PASSES = "def test_passes():\n    pass\n"


@pytest.mark.long
def test_the_next_run_removes_the_folder_of_a_killed_one_and_no_other(run, tmp_path):
    held = tmp_path / "whale-test-held"
    hold = FolderHold.make(str(held))
    foreign = tmp_path / "whale-ray-compiled-0"
    foreign.mkdir()
    killed = run(KILLED, TMPDIR=str(tmp_path))
    assert killed.returncode == -signal.SIGKILL
    left = Path((tmp_path / "left").read_text())
    assert left.is_dir()
    assert left.parent == tmp_path
    assert run(PASSES, TMPDIR=str(tmp_path)).returncode == 0
    assert sorted(tmp_path.glob("whale-*")) == [foreign, held]
    hold.close()


MARKED = """
import pytest

@pytest.mark.long
def test_long():
    pass

def test_quick():
    pass
"""
MARKS_FROM_AFAR = "from marks import LONG\n\n@LONG\ndef test_far():\n    pass\n"


@pytest.mark.long
def test_files_without_the_mark_that_is_asked_for_are_passed_over(run, tmp_path):
    (tmp_path / "test_quick.py").write_text("raise AssertionError\n", encoding="utf-8")
    done = run(MARKED, "-m", "long and not rdma", "-W", "ignore")
    assert "1 passed, 1 deselected" in done.stdout, done.stdout
    below = tmp_path / "marked"
    below.mkdir()
    (below / "conftest.py").write_text("# pytest.mark.long, by a hook\n", encoding="utf-8")
    (below / "test_marked.py").write_text("def test_there():\n    pass\n", encoding="utf-8")
    done = run(MARKED, "-m", "long", "-W", "ignore")
    assert "1 passed, 2 deselected" in done.stdout, done.stdout


def test_a_mark_that_is_not_written_in_the_file_is_refused(run, tmp_path):
    (tmp_path / "marks.py").write_text("import pytest\nLONG = pytest.mark.long\n", encoding="utf-8")
    done = run(MARKS_FROM_AFAR, "-W", "ignore")
    assert "test_far is marked long: write mark.long in its file" in done.stderr, done.stdout


@pytest.mark.parametrize(
    ("expression", "mark"),
    [
        ("long and not rdma and not exhaustive", "long"),
        ("rdma and long", "rdma"),
        ("not long and not rdma", None),
        ("long or smoke", None),
        ("long and (lab or ray)", None),
        ("smoke", None),
        ("", None),
    ],
)
def test_the_mark_that_all_selected_tests_have(expression, mark):
    assert needed_mark(expression) == mark
