"""Loops are compiled beside the rows, also while the process waits for its last threads."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import threading
from whale_ray.operators.compiled.loop_function import LoopFunction, begin_beside

def job():
    threading.main_thread().join()
    done = threading.Event()
    loop = LoopFunction(lambda: "compiled", is_kept=lambda: False, begin=lambda work: begin_beside(
        lambda: (work(), done.set())))
    assert loop.get(at_once=False, is_due=True) in (None, "compiled")
    assert done.wait(60)
    print(loop.get(at_once=False, is_due=True))

threading.Thread(target=job).start()
"""


def test_a_job_in_a_thread_that_outlives_the_main_thread_gets_its_loop() -> None:
    command = [sys.executable, "-c", _SCRIPT]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["compiled"], ran.stderr
