"""Drivers in processes of their own, for tests that signal or kill them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "user_code" / "endless_job.py"


@contextmanager
def endless_driver(output: Path, hosts: int = 1) -> Iterator[Any]:
    """Yield the process of a driver whose rows flow to `output`; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(output), str(hosts)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "flowing\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
