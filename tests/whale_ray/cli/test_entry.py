"""The command's exit code is that of its process, whatever Ray's library does as that ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import atexit, os, sys, types
from whale_ray.cli import entry, main

class Crash:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, 11)

if sys.argv[2] == "with ray":
    sys.modules["ray"] = types.ModuleType("ray")
    sys.modules["ray"].kept = Crash()  # freed as Python ends
main.main = lambda: int(sys.argv[1])
atexit.register(print, "exit functions have run")
sys.exit(entry.main())
"""


@pytest.mark.parametrize(
    ("code", "which", "ends_with"),
    [
        (130, "with ray", 130),
        (143, "with ray", 143),
        (130, "without ray", 130),
        (0, "with ray", -11),  # a crash that no signal explains stays one
        (2, "without ray", 2),
    ],
)
def test_a_command_that_a_signal_ended_is_not_followed_by_a_crash(
    code: int, which: str, ends_with: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(code), which],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (ends_with, "exit functions have run\n"), done.stderr
