"""What happens where the command's output cannot be printed: a full disk, a closed stream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import whale_ray as whale
numbers = whale.Topology("numbers")
numbers.source(whale.sources.iterable([dict(a=1)])).sink(whale.sinks.csv({out!r}))
"""


def command(redirected: str, *words: str) -> subprocess.CompletedProcess[str]:
    run = f'"$0" -m whale_ray.cli.main "$@" {redirected}'
    call = ["sh", "-c", run, sys.executable, *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)


def test_a_full_stdout_gives_one_line() -> None:
    done = command("> /dev/full", "settings")
    assert done.stderr == (
        "whale-ray: cannot print the result: No space left on device; what a finished job has"
        " published is complete: make room, or send the output elsewhere\n"
    )
    assert done.returncode == 1


@pytest.mark.long
def test_a_job_is_published_though_nothing_can_be_printed(tmp_path: Path) -> None:
    for redirected, code in (("> /dev/full", 1), (">&-", 0), (">&- 2>&-", 0)):
        out = tmp_path / f"out-{len(redirected)}"
        file = tmp_path / "numbers.py"
        file.write_text(JOB.format(out=str(out)))
        done = command(redirected, "run", str(file), "--on", "inline")
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert out.is_dir()
