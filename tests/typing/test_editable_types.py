"""Pyright, and so VS Code, finds whale-ray's types in the environment that `make` sets up.

An environment of its own, made as the Makefile makes it, with a user's file in another folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import whale_ray as whale

topology = whale.Topology("t")
rows = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
reveal_type(rows)
reveal_type(rows.union(rows).key_by("v"))
reveal_type(whale.run(topology))
reveal_type(whale.load_settings().transport.mms_bytes)
reveal_type(whale.col("v") > 1)
rows.keyby("v")
"""
TYPES = ["Stream", "GroupedStream", "Job", "int", "Expression"]


def snippet() -> str:
    """Return the Python of the Makefile that shows the sources to type checkers."""
    found = re.search(r"^SHOW_SOURCES := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert found is not None
    return found[1].replace("\\\n", "")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout with its `.venv`; return the environment's Python."""
    checkout = tmp_path_factory.mktemp("checkout")
    (checkout / "whale_ray").symlink_to(ROOT / "whale_ray")
    made = [sys.executable, "-m", "venv", "--without-pip", str(checkout / ".venv")]
    subprocess.run(made, check=True)
    python = checkout / ".venv" / "bin" / "python"
    for _ in range(2):  # as when requirements have changed
        subprocess.run([python, "-c", snippet(), ".venv/src"], cwd=checkout, check=True)
    return python


@pytest.mark.long
def test_pyright_finds_the_types_from_a_folder_of_the_users(
    environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", str(environment)]
    done = subprocess.run(
        [*command, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)["generalDiagnostics"]
    told = [one["message"] for one in found if one["severity"] == "information"]
    assert [re.findall(r'is "(\w+)"', text)[-1] for text in told] == TYPES
    (mistake,) = (one for one in found if one["severity"] == "error")
    assert mistake["message"].startswith('Cannot access attribute "keyby" for class "Stream"')


def test_nothing_but_the_package_can_be_imported(environment: Path, tmp_path: Path) -> None:
    program = "import whale_ray, importlib.util as u; print(u.find_spec('operators'))"
    done = subprocess.run(
        [environment, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"
