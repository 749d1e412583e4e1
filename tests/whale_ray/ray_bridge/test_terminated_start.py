"""SIGTERM while Ray comes up, in a program that does not handle it: it ends, with all of Ray's."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.runs import commands_below, rest

LIMIT_S = 150
START = """
from whale_ray.ray_bridge import connect_ray
connect_ray("local", num_cpus=1)
input()
"""


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize("sign", ["gcs/gcs_server", "raylet/raylet"])
def test_a_start_that_is_terminated_leaves_nothing(sign: str, no_leaks: None) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watched, until = psutil.Process(process.pid), time.monotonic() + LIMIT_S
    try:
        while not any(sign in command for command in commands_below(watched)):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until, f"no {sign!r} is seen"
            rest()
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == signal.SIGTERM, errors  # Ray's handler chooses this status
    assert "Traceback" not in errors
