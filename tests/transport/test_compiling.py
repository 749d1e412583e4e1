"""Compiled functions are kept where nobody else can put others in their place, else nowhere.

The users of these tests may write neither beside the sources nor at home, as in a container that
runs as any user.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import textwrap
from pathlib import Path

import pytest

from whale_ray.configs.errors import SettingsError
from whale_ray.transport import compiled_folder
from whale_ray.transport.compiling import njit, njit_inner

from .read_only import make_read_only, place_for_all, run_as_stranger

PARTS = ("transport", "state", "operators", "whale_ray")

KERNELS = """
from whale_ray.transport.compiling import njit

@njit("int64(int64)", cache=True)
def following(number):
    return number + 1

@njit(cache=True)
def doubled(number):
    return number * 2
"""

USE = """
import subprocess, sys
from kernels import following, doubled
assert (following(1), doubled(2)) == (2, 4)
hits = sum(kernel.stats.cache_hits.total() for kernel in (following, doubled))
print(hits, following.stats.cache_path, flush=True)
if "again" in sys.argv:
    subprocess.run([sys.executable, "use.py"], check=True)
"""


@pytest.fixture
def installed(tmp_path):
    """Return a folder that cannot be written to, with compiled functions and what uses them."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "kernels.py").write_text(KERNELS)
    make_read_only(folder)
    yield folder
    folder.chmod(0o755)


def use(installed, temporary, *arguments, before="", **environment):
    (temporary / "use.py").write_text(textwrap.dedent(before) + USE)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run_as_stranger(
        "use.py", *arguments, temporary=temporary, PYTHONPATH=path, **environment
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
def test_without_a_home_they_are_kept_in_a_private_folder_which_is_said_once(installed, tmp_path):
    temporary = place_for_all(tmp_path / "tmp")
    done = use(installed, temporary, "again")
    first, second = (line.split() for line in done.stdout.splitlines())
    assert (first[0], second[0]) == ("0", "2")  # the second process compiled nothing
    (folder,) = temporary.glob("whale-ray-compiled-*")
    assert first[1].startswith(f"{folder}/") and first[1] == second[1]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert done.stderr.count(str(folder)) == done.stderr.count("whale-ray:") == 1


def test_numba_may_not_be_told_to_interpret(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(SettingsError, match="run only compiled: unset it"):
        importlib.reload(compiled_folder)


@pytest.mark.long
def test_without_any_place_every_process_compiles_which_is_said_once(installed, tmp_path):
    temporary = place_for_all(tmp_path / "tmp")
    nowhere = """
        from whale_ray.transport import compiled_folder
        compiled_folder.folder_of_own = lambda parent: None
    """
    done = use(installed, temporary, "again", before=nowhere)
    assert done.stdout == "0 None\n0 None\n"
    assert done.stderr.count("NUMBA_CACHE_DIR") == done.stderr.count("whale-ray:") == 1


def test_without_any_home_no_folder_called_tilde_appears(installed, tmp_path):
    temporary = place_for_all(tmp_path / "tmp")
    done = use(installed, temporary, before="import os; del os.environ['HOME']\n")
    assert "whale-ray-compiled-" in done.stdout
    assert not (temporary / "~").exists()


def test_a_folder_that_the_user_names_is_used_in_silence(installed, tmp_path):
    temporary = place_for_all(tmp_path / "tmp")
    chosen = place_for_all(tmp_path / "chosen")
    done = use(installed, temporary, NUMBA_CACHE_DIR=str(chosen))
    assert str(chosen) in done.stdout and done.stderr == ""


def test_a_folder_of_ones_own_is_private_and_found_again(tmp_path):
    folder = compiled_folder.folder_of_own(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert compiled_folder.folder_of_own(tmp_path) == folder


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o750])
def test_a_folder_that_others_can_enter_is_refused(tmp_path, mode):
    compiled_folder.folder_of_own(tmp_path).chmod(mode)
    assert compiled_folder.folder_of_own(tmp_path) is None


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path):
    folder = compiled_folder.folder_of_own(tmp_path)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert compiled_folder.folder_of_own(tmp_path) is None
    folder.unlink()
    folder.touch(mode=0o600)
    assert compiled_folder.folder_of_own(tmp_path) is None


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    planted = compiled_folder.folder_of_own(tmp_path)
    other = os.geteuid() + 1
    planted.rename(tmp_path / f"whale-ray-compiled-{other}")
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert compiled_folder.folder_of_own(tmp_path) is None


def test_a_parent_in_which_others_could_put_another_folder_is_refused(tmp_path):
    inner = tmp_path / "open" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o777)
    assert compiled_folder.folder_of_own(inner) is None
    inner.parent.chmod(0o1777)  # sticky, as /tmp: only the owner can rename a folder
    assert compiled_folder.folder_of_own(inner) is not None


def test_a_parent_that_is_missing_or_read_only_is_no_place(tmp_path):
    assert compiled_folder.folder_of_own(tmp_path / "missing") is None
    assert compiled_folder.folder_of_own("/proc") is None


def test_every_compiled_function_of_ours_is_kept_this_way():
    """Numba's own decorator would refuse to compile in a read-only installation."""
    root = Path(__file__).parents[2]
    sources = [path for part in PARTS for path in (root / part).rglob("*.py")]
    offenders = [
        str(path.relative_to(root))
        for path in sources
        if path.name != "compiling.py" and names_decorator_of_numba(path.read_text())
    ]
    assert len(sources) > 100 and not offenders
    assert names_decorator_of_numba("@numba.njit(cache=True)\ndef f(): ...")
    assert names_decorator_of_numba("from numba import njit as compiled")
    assert not names_decorator_of_numba('"""Takes functions of `numba.njit`."""')


def names_decorator_of_numba(text):
    """Return whether code, not its texts and comments, names `numba.njit` or `numba.jit`."""
    if not re.search(r"\bn?jit\b", text):
        return False
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name("numba"), attr="njit" | "jit"):
                return True
            case ast.ImportFrom(module="numba", names=names):
                if {"njit", "jit"} & {one.name for one in names}:
                    return True
    return False


def test_an_inner_function_is_called_by_compiled_functions_alone():
    """Numba would jump to no address if Python called one that is compiled."""

    @njit_inner
    def doubled(value: int) -> int:
        return 2 * value

    @njit("int64(int64)")
    def following(value: int) -> int:
        return int(doubled(value)) + 1

    for _ in range(2):  # before it is compiled, and then
        with pytest.raises(TypeError, match="doubled is called by compiled functions only"):
            doubled(3)
        assert following(3) == 7
    assert len(doubled.signatures) == 1
