"""Completion, as bash does it: its own completion function is called with a line."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whale_ray.cli import completion
from whale_ray.cli.main import build_parser, main
from whale_ray.cli.running import APPLICATIONS
from whale_ray.configs.errors import ResourceError
from whale_ray.configs.settings import DECLARATIONS

COMPLETE = """
whale-ray() { "$PYTHON" -m whale_ray.cli.main "$@"; }
export -f whale-ray
eval "$(whale-ray completion bash)"
function=$(complete -p whale-ray | sed 's/.*-F \\([^ ]*\\).*/\\1/')
while IFS= read -r line; do
  COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9
  read -ra COMP_WORDS <<<"$line"
  [[ $line == *' ' ]] && COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  "$function" whale-ray
  (IFS=,; echo "$line|${COMPREPLY[*]}")
done
"""
PATHS = [f"{path}=" for path in DECLARATIONS]

LINES = {
    "whale-ray ru": ["run "],
    "whale-ray s": ["simulate", "stop", "settings", "savepoint", "state"],
    "whale-ray run ri": ["ride-hailing "],
    "whale-ray run ": [*APPLICATIONS, "mine.py", "folder/"],
    "whale-ray explain mi": ["mine.py "],
    "whale-ray run ride-hailing --veh": ["--vehicles "],
    "whale-ray run mine.py --veh": [],
    "whale-ray run mine.py --wo": ["--workers "],
    "whale-ray run mine.py:t --on p": ["processes "],
    "whale-ray run mine.py --on ": ["ray", "processes", "inline"],
    "whale-ray run stock-exchange --set transport.wtl": ["transport.wtl_ms="],
    "whale-ray run mine.py --set transport.m": [p for p in PATHS if p.startswith("transport.m")],
    "whale-ray run mine.py --settings o": ["own.yaml "],
    "whale-ray run ride-hailing --data ": ["folder/"],
    "whale-ray bench tr": ["transport "],
    "whale-ray completion z": ["zsh "],
}


@pytest.mark.long
def test_bash_completes_commands_applications_files_options_and_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "own.yaml").touch()
    (tmp_path / "folder").mkdir()
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE],
        input="".join(f"{line}\n" for line in LINES),
        cwd=tmp_path,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = dict(line.split("|") for line in done.stdout.splitlines())
    told = {line: sorted(words.split(",")) if words else [] for line, words in found.items()}
    assert told == {line: sorted(words) for line, words in LINES.items()}


def test_values_of_settings_are_completed_where_they_are_few() -> None:
    routes = ["non-blocking", "star", "chain", "binomial"]
    found = completion.settings("runtime.route=")
    assert found == [f"runtime.route={route}" for route in routes]
    assert completion.settings("transport.checksum=t") == [
        "transport.checksum=true",
        "transport.checksum=false",
    ]
    assert completion.settings("runtime.workers=") == completion.settings("no.such=") == []


def test_jobs_are_completed_by_name_and_id(monkeypatch: Any) -> None:
    running = [SimpleNamespace(id="fares-1", name="fares"), SimpleNamespace(id="x-2", name="x")]
    monkeypatch.setattr("whale_ray.deployment.on_ray.ray_jobs.list_jobs", lambda _address: running)
    parser = build_parser()
    completion.prepare(parser, ["stop"])
    (commands,) = (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    job: Any = next(action for action in commands["stop"]._actions if action.dest == "job")
    given = argparse.Namespace(address=None)
    assert job.completer("", parsed_args=given) == ["fares", "fares-1", "x", "x-2"]

    def nowhere(_address: object) -> None:
        raise ResourceError("no Ray runs here")

    monkeypatch.setattr("whale_ray.deployment.on_ray.ray_jobs.list_jobs", nowhere)
    assert job.completer("", parsed_args=given) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, capsys: Any) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "whale-ray" in script
    assert "_ARGCOMPLETE" in script
