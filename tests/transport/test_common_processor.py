"""What was compiled for a common processor is used by those that can do as much."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llvmlite.binding import FeatureMap
from numba.core.registry import cpu_target

from whale_ray.cli import compiling
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_USAGE
from whale_ray.transport import common_processor
from whale_ray.transport.common_processor import (
    COMPILING_FOR_IT,
    OWN_PROCESSOR_VARIABLE,
    has_common_processor,
    machines_for,
)

LINUX = "x86_64-unknown-linux-gnu"
COMMON = (LINUX, "x86-64-v3", "")
ABLE = (
    "+64bit,+avx,+avx2,-avx512f,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sahf,+sse,+sse2,"
    "+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
)
FEATURES = [each[1:] for each in ABLE.split(",")]
KERNELS = """
from whale_ray.transport.compiling import njit

@njit("int64(int64)", cache=True)
def doubled(number):
    return 2 * number
"""
USE = """
import kernels
from whale_ray.transport.kept_functions import load_kept_versions, versions_are_kept

kept = versions_are_kept(kernels.doubled)
load_kept_versions(kernels)
print(kernels.doubled(4), kept, kernels.doubled.stats.cache_misses.total())
"""


@pytest.mark.parametrize(
    ("own", "usable"),
    [
        ((LINUX, "haswell", ABLE), True),
        ((LINUX, "znver4", ABLE.replace("-avx512f", "+avx512f")), True),
        ((LINUX, "nehalem", ABLE.replace("+avx2", "-avx2")), False),
        ((LINUX, "haswell", ABLE.replace("+fma,", "")), False),
        ((LINUX, "generic", ""), False),
        (("aarch64-unknown-linux-gnu", "neoverse-n1", ABLE), False),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
def test_who_can_do_as_much(own: tuple[str, str, str], usable: bool) -> None:
    assert machines_for(own) == ((own, COMMON) if usable else (own,))


def test_nothing_is_compiled_for_it_where_that_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is compiled is also run: an older processor would end the process."""
    monkeypatch.setattr(common_processor.platform, "machine", lambda: "x86_64")
    older = FeatureMap({name: name not in ("avx2", "fma") for name in FEATURES})
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: older)
    monkeypatch.setattr(compiling, "run_ordinary_jobs", lambda: pytest.fail("it compiles"))
    assert main(["compile", "--common-processor"]) == EXIT_USAGE
    assert "this one lacks avx2, fma: compile without it" in capsys.readouterr().err
    assert not has_common_processor()


def test_it_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machines_for(COMMON) == (COMMON,)
    monkeypatch.setenv(OWN_PROCESSOR_VARIABLE, "1")
    assert machines_for((LINUX, "haswell", ABLE)) == ((LINUX, "haswell", ABLE),)


@pytest.mark.long
def test_what_is_compiled_for_it_is_loaded_until_there_is_better(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    own: Any = cpu_target.target_context.codegen().magic_tuple()
    is_one = len(machines_for(own)) == 2
    assert not is_one or has_common_processor()

    def use(**variables: str) -> str:
        environment = {name: os.environ[name] for name in os.environ if "NUMBA_" not in name}
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.getcwd()])
        return subprocess.run(
            [sys.executable, "-c", USE],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    elsewhere = {"NUMBA_CACHE_DIR": str(tmp_path / "elsewhere")}
    compiled, read = "8 False 1", "8 True 0"
    assert use(**COMPILING_FOR_IT) == compiled
    assert use(**COMPILING_FOR_IT) == read
    for where in ({}, elsewhere):
        assert use(**where) == (read if is_one else compiled)
    own_alone = {OWN_PROCESSOR_VARIABLE: "1"}
    assert use(**own_alone) == (compiled if is_one else read)
    assert use(**own_alone) == read
