"""An error that ends a program is printed, also while a thread disconnects it from Ray."""

from __future__ import annotations

import subprocess
import sys
from threading import Lock

import pytest
import ray

from whale_ray.ray_bridge.excepthook import report_errors_under

FAILS_WHILE_RAY_ENDS = """
import sys, threading, time
import ray
from whale_ray.ray_bridge import connect_ray

session = connect_ray("local", num_cpus=1)
worker = ray._private.worker.global_worker
main, ended = threading.main_thread(), threading.Event()

def runs_the_program():  # not the hook that an error calls after it has left the program
    frame = sys._current_frames()[main.ident]
    while frame.f_back:
        frame = frame.f_back
    return frame.f_code.co_name == "<module>"

class Core:  # Ray's, but its end takes until the program has failed
    def __init__(self, core):
        self.core = core
    def __getattr__(self, name):
        return getattr(self.core, name)
    def shutdown_driver(self):
        self.core.shutdown_driver()
        ended.set()
        until = time.monotonic() + 60
        while runs_the_program() and time.monotonic() < until:
            time.sleep(0.01)

worker.core_worker = Core(worker.core_worker)
threading.Thread(target=session.close).start()
ended.wait()
raise LookupError("no such ride")
"""


@pytest.mark.ray
@pytest.mark.long
def test_the_traceback_is_printed_while_ray_ends() -> None:
    command = [sys.executable, "-c", FAILS_WHILE_RAY_ENDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("LookupError: no such ride\n")


def test_the_report_to_ray_waits_for_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, told = Lock(), []

    def report(*error: object) -> None:
        told.append((lock.locked(), error[1:]))

    monkeypatch.setattr(ray._private.worker, "custom_excepthook", report)
    monkeypatch.setattr(sys, "excepthook", report)
    report_errors_under(lock)
    report_errors_under(lock)  # again: not twice
    failed = LookupError("no such ride")
    sys.excepthook(LookupError, failed, None)
    assert told == [(True, (failed, None))]


def test_a_hook_that_is_not_rays_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def debug(*_error: object) -> None:
        """Stand for a debugger's."""

    monkeypatch.setattr(sys, "excepthook", debug)
    report_errors_under(Lock())
    assert sys.excepthook is debug
