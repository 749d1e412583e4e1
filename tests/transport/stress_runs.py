"""Running the programs that kill processes at random."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def play(program: str, seed: int, rounds: int) -> dict[str, int]:
    """Run tests/transport/PROGRAM.py; return the sums of what happened."""
    result = subprocess.run(
        [sys.executable, "-m", f"tests.transport.{program}", str(seed), str(rounds)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    totals: dict[str, int] = json.loads(result.stdout)
    return totals
