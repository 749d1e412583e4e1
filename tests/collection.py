"""Shares among the workers of a run (pytest-xdist) what collecting the tests takes.

Each worker collects all tests, so it imports all their modules. The first import of one takes most
of that time: pytest rewrites its assertions, and keeps what it has made. So each worker begins with
a part of the modules, and finds the others rewritten.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def import_part(config: pytest.Config) -> None:
    """Import this worker's part of the modules below the folders that the run is given."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    folders = [Path(config.invocation_params.dir, argument) for argument in config.args]
    files = {file for folder in folders for file in folder.rglob("test_*.py")}
    number = int(worker["workerid"].removeprefix("gw"))
    for file in part(sorted(files), number, worker["workercount"]):
        # Whatever is wrong with a module is said where the worker collects its tests.
        with suppress(Exception, pytest.skip.Exception):
            names = file.relative_to(config.rootpath).with_suffix("").parts
            importlib.import_module(".".join(names))


def part(files: Sequence[Path], number: int, count: int) -> Sequence[Path]:
    """Return the files that a worker begins with: about as many bytes as each of the others."""
    return sorted(files, key=lambda file: file.stat().st_size)[number::count]


@contextmanager
def nothing_is_garbage() -> Iterator[None]:
    """Do not look for garbage: what is made in the block, a million objects, is none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
