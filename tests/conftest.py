"""Shared by all tests: the real data, leak checks, Hypothesis profiles, strict skips.

Several processes may run tests at the same time: two runs on one machine, or the workers of one run
(pytest-xdist; each counts as a run here). So every run has a number, which all processes inherit
that it starts, and a temporary folder of its own; and what is the machine's is locked by whoever
sweeps it (`segments_alone`).

Three environment variables steer a run:

- `WHALE_RAY_DATA`: the folder of real data; without it the tests that need it are skipped.
- `WHALE_RAY_FAIL_ON_SKIP=1`: a skip fails the run, unless only an RDMA device is missing.
- `HYPOTHESIS_PROFILE=explore`: new random examples, and more of them, instead of the fixed ones.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest

from tests.collection import check_marks, import_part, nothing_is_garbage, passes_over
from tests.runs import (
    alone_in,
    await_ends,
    begin_run,
    has_ended,
    is_of_this_run,
    options_of_sparks,
    remove_folders_of_dead_runs,
    rest,
    temporary_folder,
)

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.scheduling import SlowFilesFirst

DATA_VARIABLE = "WHALE_RAY_DATA"
STRICT_VARIABLE = "WHALE_RAY_FAIL_ON_SKIP"
EXCUSED_SKIP = "RDMA device"
END_TIMEOUT_S = 60
"""More than an emulated processor takes that has other work, too."""
SEGMENTS = Path("/dev/shm")

begin_run()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts its background jobs so, and what tests start inherits it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PROFILE = {
    # Time limits per example would fail on a busy machine, and speed is no property.
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
# The usual profile draws the same examples in every run: a failure is there again in the next.
hypothesis.settings.register_profile(
    "repeat", derandomize=True, database=None, max_examples=60, **_PROFILE
)
hypothesis.settings.register_profile(
    "explore", derandomize=False, max_examples=1000, print_blob=True, **_PROFILE
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of real data; skip the test where there is none."""
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        pytest.skip(f"no real data: {DATA_VARIABLE} is not set (generated data is tested instead)")
    folder = Path(named)
    if not folder.is_dir():
        pytest.skip(f"no real data: {DATA_VARIABLE}={named} is not a folder")
    return folder


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a process or a named shared-memory segment behind."""
    processes_before, segments_before = set(_started_processes()), _segments()
    yield
    _assert_no_leaks(processes_before, segments_before)


@pytest.fixture(scope="session", autouse=True)
def _no_leaks_of_the_run() -> Iterator[None]:
    """Do the same for the whole run."""
    segments_before = _segments()
    yield
    _assert_no_leaks(set(), segments_before)


@pytest.fixture
def segments_alone(no_leaks: None) -> Iterator[None]:
    """For a test of the sweep, and for one that sweeps: no other run's does meanwhile."""
    with alone_in(SEGMENTS):
        yield


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder_of_the_run(
    _no_leaks_of_the_run: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keep to this run what is found by its place in the temporary folder, as a running Ray is."""
    tmp_path_factory.getbasetemp()  # stays in the usual place, to be looked at after a failure
    remove_folders_of_dead_runs()
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv("XDG_STATE_HOME", f"{folder}/state")  # where runs are recorded
        patch.setenv(*options_of_sparks(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage_of_this_module_alone() -> None:
    """Exempt what is there already from garbage collection: it takes the leak checks a second each.

    All test modules and what they import are a million objects.
    """
    gc.collect()
    gc.freeze()


def _assert_no_leaks(processes_before: set[psutil.Process], segments_before: set[str]) -> None:
    _end_waiting_server()
    gc.collect()
    started = [found for found in _started_processes() if found not in processes_before]
    left = []
    for process in await_ends(started, END_TIMEOUT_S):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended
            left.append(f"process {process.pid} {_command(process)}")
            process.kill()  # so that the next test is not blamed for it
    left += [f"segment {name}" for name in sorted(_segments_left(segments_before))]
    assert not left, f"left behind: {'; '.join(left)}"


def _end_waiting_server() -> None:
    """End the fork server that waits for another job; a process of tests ends too late for that."""
    module = sys.modules.get("whale_ray.deployment.processes.waiting_server")
    if module is not None:
        module.end_waiting_server()


def _segments_left(before: set[str]) -> set[str]:
    """Return the segments that stay; another run's test may leave some to a sweep of its own."""
    until_s = time.monotonic() + END_TIMEOUT_S
    while (left := _segments() - before) and time.monotonic() < until_s:
        rest()
    return left


def _segments() -> set[str]:
    """Return the named segments whose owner is of this run, or dead."""
    found = set()
    for path in SEGMENTS.glob("whale-ray-*"):
        owners = [int(part) for part in path.name.split("-") if part.isdigit()]
        if not any(psutil.pid_exists(pid) and not is_of_this_run(pid) for pid in owners):
            found.add(path.name)
    return found


def _started_processes() -> Iterator[psutil.Process]:
    """Find the processes that this run started, children and orphans alike, and that should end."""
    for process in psutil.process_iter():
        if process.pid == os.getpid() or not is_of_this_run(process.pid):
            continue
        if not has_ended(process) and not _ends_with_us(process):
            yield process


def _ends_with_us(process: psutil.Process) -> bool:
    """Tell helpers that are kept until the interpreter ends, by Python, pyspark and our tests."""
    command = _command(process)
    if "tests/loaded_servers.py" in command:
        return process.ppid() == os.getpid()  # what was forked from it ends with its job
    helpers = (
        "multiprocessing.resource_tracker",
        "multiprocessing.forkserver",
        "PySparkShell",
        "whale_ray.deployment.compiling_beside",
    )
    is_gateway = "org.apache.spark.deploy.SparkSubmit" in command
    return is_gateway or any(helper in command for helper in helpers)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class StrictSkips:
    """Turn every skip into a failure of the run, unless only an RDMA device is missing."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skipped test (an expected failure is none)."""
        self._note(report, hasattr(report, "wasxfail"))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a skipped module."""
        self._note(report, False)

    def _note(self, report: pytest.TestReport | pytest.CollectReport, expected: bool) -> None:
        if report.skipped and not expected and EXCUSED_SKIP not in str(report.longrepr):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.refused.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run."""
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which skips failed the run."""
        if self.refused:
            terminalreporter.section(f"skips not allowed under {STRICT_VARIABLE}")
            for line in self.refused:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    """Be strict about skips where asked to."""
    if os.environ.get(STRICT_VARIABLE) == "1":
        config.pluginmanager.register(StrictSkips(), "whale-ray-strict-skips")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over the files that hold no test with the mark that is asked for."""
    return passes_over(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Find a mark that the files passed over would hide."""
    check_marks(items, config.rootpath)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests in less time."""
    with nothing_is_garbage():
        import_part(session.config)
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SlowFilesFirst | None:
    """Give the slow files to xdist's workers first, where it gives them whole files."""
    from tests.scheduling import SlowFilesFirst  # xdist is not there wherever tests run

    return SlowFilesFirst(config, log) if config.getoption("dist") == "loadfile" else None
