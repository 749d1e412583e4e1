"""Kept functions are read without loading modules of numba's compiler."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.environment import Environment

from whale_ray.transport.bare_environments import unpickle_kept

KERNELS = """
import numpy as np
from whale_ray.transport.compiling import njit

@njit("int64(int64[:])", cache=True)
def total(numbers):
    added = np.zeros(len(numbers), np.int64)
    added += numbers
    return added.sum()
"""
PROGRAM = """
import json, sys
import numpy as np
from kernels import total
answer = int(total(np.arange(5)))
hits = sum(total.stats.cache_hits.values())
print(json.dumps([answer, hits, "numba.np.arrayobj" in sys.modules]))
"""


def kept(module: str, name: str) -> bytes:
    """Return an environment as numba keeps it; the process knows it no more."""
    environment = Environment({"__name__": module})
    environment.env_name = name
    environment.consts.append(("too long", 3))
    return pickle.dumps(environment)


def test_an_environment_of_numba_is_rebuilt_without_its_module() -> None:
    code = kept("numba.there_is_no_such_module", "_ZN08NumbaEnv_of_numba")
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(code)
    found = unpickle_kept(code)
    assert found.consts == [("too long", 3)]
    assert found.can_cache()
    assert unpickle_kept(code) is found
    assert unpickle_kept(pickle.dumps(found)) is found


def test_environments_of_other_modules_have_their_globals() -> None:
    found = unpickle_kept(kept(__name__, "_ZN08NumbaEnv_of_this_test"))
    assert found.globals is globals()
    loaded = unpickle_kept(kept("numba.core.environment", "_ZN08NumbaEnv_of_a_loaded_module"))
    assert loaded.globals is vars(sys.modules["numba.core.environment"])
    with pytest.raises(ModuleNotFoundError):
        unpickle_kept(kept("there_is_no_such_module", "_ZN08NumbaEnv_of_nothing"))


@pytest.mark.long
def test_a_process_that_only_loads_functions_does_not_load_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("kernels.py").write_text(KERNELS)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))

    def run() -> object:
        command = [sys.executable, "-c", PROGRAM]
        return json.loads(subprocess.check_output(command, cwd=tmp_path, timeout=120))

    assert run() == [10, 0, True]
    assert run() == [10, 1, False]
