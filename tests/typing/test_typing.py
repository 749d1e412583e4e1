"""The public API as a type checker sees it: `accepted.py` and `refused.py`, checked by mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.long
def test_mypy_finds_what_it_should_and_no_more() -> None:
    """Nothing to compare with: every line that must be refused says so itself."""
    snippets = [str(HERE / name) for name in ("accepted.py", "refused.py")]
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml"]
    done = subprocess.run(
        [*command, "--follow-imports=silent", *snippets],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
