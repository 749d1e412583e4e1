"""Builds what is distributed: setuptools' wheel, with the page and compiled functions.

A wheel cannot be built without the page. Its functions are compiled for the Python and the numba at
hand, so that the first job where it is installed need not: with another Python or numba that job
compiles, as it does on processors other than `transport/common_processor.py` tells. Where they
cannot be compiled, as on an older processor, the wheel carries none, and works as well.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import page
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

COMPILED_ON = "x86_64"
BUILDS_WHEELS = """\
include .ci/build_backend.py .ci/page.py
graft whale_ray/ui/frontend
prune whale_ray/ui/frontend/node_modules
"""
"""What a source distribution holds beside the package, in setuptools' words."""
UNUSED_TO_COMPILE = ("aiohttp", "argcomplete", "ray")
"""Dependencies of whale-ray that are loaded by none of the jobs which compile."""


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what building a wheel needs: what jobs do, and Node if the page is not built yet."""
    return [
        *build_meta.get_requires_for_build_wheel(config_settings),
        *([] if page.is_built() else [page.NODE]),
        *(_needed_to_compile() if platform.machine() == COMPILED_ON else []),
    ]


def build_sdist(directory: str, config_settings: Any = None) -> str:
    """Build a source distribution, of which a wheel can be built; return its name."""
    manifest = page.ROOT / "MANIFEST.in"  # the only place where setuptools looks
    manifest.write_text(BUILDS_WHEELS)
    try:
        return build_meta.build_sdist(directory, config_settings)
    finally:
        manifest.unlink()


def build_wheel(directory: str, config_settings: Any = None, metadata: str | None = None) -> str:
    """Build the page if need be, then the wheel; compile its functions; return its name."""
    if not page.is_built():
        page.build_page()
    name = build_meta.build_wheel(directory, config_settings, metadata)
    if platform.machine() == COMPILED_ON:
        try:
            _compile_functions_of(Path(directory, name))
        except subprocess.CalledProcessError as error:
            reason = f"{' '.join(error.cmd[1:])} failed, see above"
            sys.stderr.write(f"the wheel carries no compiled functions: {reason}\n")
    return name


def _needed_to_compile() -> list[str]:
    project = tomllib.loads((page.ROOT / "pyproject.toml").read_text())["project"]
    needed = [one for one in project["dependencies"] if not one.startswith(UNUSED_TO_COMPILE)]
    return ["wheel", *needed]


def _compile_functions_of(wheel: Path) -> None:
    """Put compiled functions into a wheel, each beside its source.

    Raises:
        CalledProcessError: they cannot be compiled; the wheel is as it was.
    """
    with tempfile.TemporaryDirectory() as folder:
        _run("-m", "wheel", "unpack", "--dest", f"{folder}/wheel", str(wheel))
        (unpacked,) = Path(folder, "wheel").iterdir()
        environment = {name: os.environ[name] for name in os.environ if "NUMBA_" not in name}
        path = [str(unpacked), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",  # pip makes that for each Python
            "XDG_CACHE_HOME": f"{folder}/cache",
            "XDG_STATE_HOME": f"{folder}/state",
        }
        compiling = ("-m", "whale_ray.cli.main", "compile", "--common-processor")
        _run(*compiling, env=environment, cwd=folder)
        for lock in unpacked.rglob("whale-ray-compiling.lock"):
            lock.unlink()
        packed = Path(folder, "packed")
        packed.mkdir()
        _run("-m", "wheel", "pack", "--dest-dir", str(packed), str(unpacked))
        shutil.copy(packed / wheel.name, wheel)


def _run(*words: str, **options: Any) -> None:
    subprocess.run([sys.executable, *words], stdout=sys.stderr, check=True, **options)
