"""The first moments of the command, before its own modules are loaded."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from whale_ray.configs.errors import EXIT_INTERRUPTED

INTERRUPTED = """
import importlib.metadata, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

class CtrlC:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

main = importlib.metadata.EntryPoint("whale-ray", {entry!r}, "console_scripts").load()
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, CtrlC)
sys.argv = ["whale-ray", "settings"]
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module",
    ["whale_ray.cli.main", "argparse", "whale_ray.configs.errors", "whale_ray.configs.describing"],
)
def test_ctrl_c_while_the_command_is_loaded_is_one_line(module):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    entry = project["project"]["scripts"]["whale-ray"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module, entry=entry)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("whale-ray: interrupted\n", EXIT_INTERRUPTED)
