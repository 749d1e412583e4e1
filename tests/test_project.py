"""The project's own files: links, pins, licence, reasons, and the Makefile's set-up.

The set-up runs with a fake Python, so that its steps are checked without installing anything.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from whale_ray.configs.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PYPROJECT_TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads(PYPROJECT_TEXT)
PROJECT = PYPROJECT["project"]


def pins():
    """Return the constraints as name to version."""
    lines = (ROOT / "configs" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "every constraint is an exact version"
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("part", ["configs", "transport", "state", "operators"])
def test_the_parts_are_linked_relatively(part):
    link = ROOT / "whale_ray" / part
    assert link.is_symlink()
    assert link.readlink() == Path("..", part)


@pytest.mark.parametrize("script", ["Makefile", ".ci/lowest", ".ci/test-rdma"])
def test_the_tests_that_a_script_names_are_there(script):
    named = re.findall(r"\btests/[\w/]+(?:\.py)?", (ROOT / script).read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


EXTRAS_OF_PROJECT = PROJECT["optional-dependencies"]
BOUNDED = [
    text
    for requirements in (PROJECT["dependencies"], *EXTRAS_OF_PROJECT.values())
    for text in requirements
    # Those without a bound here have theirs elsewhere: ray's stands among the dependencies.
    if text not in ("ray[data]", "ray[default]", "pyverbs", *EXTRAS_OF_PROJECT["all"])
]


@pytest.mark.parametrize("text", BOUNDED)
def test_the_constraints_pin_every_requirement_within_its_bounds(text):
    wanted = Requirement(text)
    if wanted.marker and not wanted.marker.evaluate():
        return
    assert wanted.specifier.contains(pins()[canonicalize_name(wanted.name)])
    assert wanted.specifier, f"{wanted.name} needs a bound that was tried"


def test_all_names_every_extra_that_is_explained():
    """`rdma` is not among them: see pyproject.toml."""
    assert EXTRAS_OF_PROJECT["all"] == [f"whale-ray[{','.join(EXTRAS)}]"]
    assert EXTRAS.keys() | {"all", "dev", "rdma"} <= EXTRAS_OF_PROJECT.keys()


def test_pyverbs_is_an_extra_and_not_among_the_constraints():
    assert PROJECT["optional-dependencies"]["rdma"] == ["pyverbs"]
    assert "pyverbs" not in pins()
    assert "whale-ray" not in pins()


def test_what_is_installed_is_what_is_pinned():
    """Results with other versions would not apply to these."""
    installed = {
        canonicalize_name(one.name): one.version for one in importlib.metadata.distributions()
    }
    different = {
        name: (installed[name], version)
        for name, version in pins().items()
        if name in installed and installed[name] != version
    }
    assert not different


def test_licence_and_changelog():
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert PROJECT["license"] == "Apache-2.0"
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] in {
        "Unreleased",
        PROJECT["version"],
    }


@pytest.mark.parametrize("table", ["ignore = [", '"tests/**" = [', '"whale_ray/cli/**" = ['])
def test_every_rule_that_is_ignored_gives_its_reason(table):
    block = PYPROJECT_TEXT.split(table)[1].split("\n]\n")[0].split("\n\n")[0]
    rules = re.findall(r'"([A-Z]+\d+)",?\]?(.*)', block)
    assert rules
    group_has_reason = False
    for rule, rest in rules:
        group_has_reason = "#" in rest or group_has_reason
        assert group_has_reason, rule


def test_every_warning_that_is_ignored_gives_its_reason():
    block = PYPROJECT_TEXT.split("filterwarnings = [")[1].split("\n]\n")[0]
    reason = ""
    for line in map(str.strip, block.splitlines()):
        if line.startswith("#"):
            reason = line
        elif line.startswith('"ignore'):
            assert reason, line


def test_ci_scripts_are_executable_and_stop_at_the_first_failure():
    for name in ("run", "wheel", "lowest"):
        script = ROOT / ".ci" / name
        assert script.stat().st_mode & stat.S_IXUSR
        assert "set -euo pipefail" in script.read_text(encoding="utf-8")


TOOLS = ("make", "sh", "sed", "awk", "touch", "mv", "rm", "find", "mkdir", "chmod", "cat")

PRETENDED_PYTHON = """#!/bin/sh
case "$*" in
  "-c import sys; sys.exit("*) exit {too_old} ;;
  "-m venv "*)
    mkdir -p .venv/bin
    cat "$0" > .venv/bin/python
    echo '#!/bin/sh' > .venv/bin/whale-ray
    echo 'echo "whale-ray $*"' >> .venv/bin/whale-ray
    chmod +x .venv/bin/python .venv/bin/whale-ray ;;
  *install*) echo "$@" >> .venv/pip.log ;;
esac
"""


@pytest.fixture
def fresh_clone(tmp_path):
    """Return a function that runs make in a new folder, where PATH leads to no Java and no Python.

    `too_old` None means no Python at all, otherwise a pretended one that is too old (1) or not (0).
    """
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool))
    clone = tmp_path / "clone"
    (clone / "configs").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "configs/constraints.txt"):
        shutil.copy(ROOT / name, clone / name)

    def run_make(*arguments, too_old=0):
        if too_old is not None:
            python = tools / "python3.11"
            python.write_text(PRETENDED_PYTHON.format(too_old=too_old))
            python.chmod(0o755)
        return subprocess.run(
            ["make", *arguments],
            cwd=clone,
            env={"PATH": str(tools), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    run_make.clone = clone
    return run_make


def test_the_first_run_sets_up_in_numbered_steps_and_the_second_skips_them(fresh_clone):
    first = fresh_clone("run", "ARGS=--limit 5")
    assert first.returncode == 0, first.stderr
    *steps, compiled, work = first.stdout.splitlines()
    assert [step[:5] for step in steps] == ["[1/2]", "[2/2]"]
    assert all("MB" in step for step in steps)
    assert compiled == "whale-ray compile"
    assert work == "whale-ray run ride-hailing --limit 5"
    assert fresh_clone("run").stdout.splitlines() == ["whale-ray run ride-hailing"]


def test_the_tests_tools_are_a_step_of_their_own(fresh_clone):
    fresh_clone("run")
    log = fresh_clone.clone / ".venv" / "pip.log"
    assert log.read_text().split()[-1] == ".[all]"
    added = fresh_clone("test")
    assert [line[:5] for line in added.stdout.splitlines()] == ["[3/3]"]
    assert log.read_text().split()[-1] == ".[all,dev]"


@pytest.mark.parametrize("name", ["pyproject.toml", "configs/constraints.txt"])
def test_new_requirements_are_installed_at_the_next_run(fresh_clone, name):
    fresh_clone("run")
    stamp = fresh_clone.clone / ".venv" / ".runtime-installed"
    later = stamp.stat().st_mtime + 10
    os.utime(fresh_clone.clone / name, (later, later))
    again = fresh_clone("run")
    step, *work = again.stdout.splitlines()
    assert step.startswith("[2/2]")
    assert work == ["whale-ray compile", "whale-ray run ride-hailing"]


@pytest.mark.parametrize("too_old", [None, 1])
def test_without_a_python_the_message_says_what_to_do(fresh_clone, too_old):
    done = fresh_clone("run", too_old=too_old)
    assert done.returncode == 2
    assert (
        "whale-ray: needs Python 3.11 or later, found none as python3.11 or python3; "
        "name one: make PYTHON=/path/to/python3"
    ) in done.stderr


def test_help_names_every_target(fresh_clone):
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = [line.split()[1] for line in fresh_clone().stdout.splitlines()]
    assert listed == phony
    assert fresh_clone("help").stdout == fresh_clone().stdout
