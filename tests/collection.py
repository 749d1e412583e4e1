"""Saves what collecting the tests takes: each worker of a run (pytest-xdist) collects them all.

A run of the tests with some mark, such as `-m "long and not rdma"`, passes over the files that
cannot hold any: a mark is written in the file, or in a conftest.py above it.

The first import of a module takes most of the time: pytest rewrites its assertions, and keeps what
it has made. So each worker begins with a part of the modules, and finds the others rewritten.
"""

from __future__ import annotations

import gc
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

MARKS = ("long", "exhaustive", "lab", "rdma")
"""Those by which a run may pass over files."""


def passes_over(file: Path, config: pytest.Config) -> bool:
    """Return whether a run cannot select any test of a file, by the marks that are written."""
    mark = needed_mark(config.option.markexpr)
    is_test = file.name.startswith("test_") and file.suffix == ".py"
    return mark is not None and is_test and not names_mark(file, mark, config.rootpath)


def needed_mark(expression: str) -> str | None:
    """Return the mark that all tests have which `-m EXPRESSION` selects, if that is plain."""
    found = re.match(rf"({'|'.join(MARKS)})( and (not )?\w+)*$", expression)
    return found[1] if found else None


@cache
def names_mark(file: Path, mark: str, root: Path) -> bool:
    """Return whether a file, or a conftest.py above it and below the root, names a mark."""
    above = [folder for folder in file.parents if folder.is_relative_to(root)]
    files = [file, *(folder / "conftest.py" for folder in above)]
    pattern = re.compile(rf"\bmark\.{mark}\b")
    return any(one.is_file() and pattern.search(one.read_text("utf-8")) for one in files)


def check_marks(items: Iterable[pytest.Item], root: Path) -> None:
    """Raise UsageError for a test whose mark no run would look for in its file."""
    for item in items:
        for mark in {one.name for one in item.iter_markers()}.intersection(MARKS):
            if not names_mark(item.path, mark, root):
                msg = f"{item.nodeid} is marked {mark}: write mark.{mark} in its file"
                raise pytest.UsageError(msg)


def import_part(config: pytest.Config) -> None:
    """Import this worker's part of the modules below the folders that the run is given."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    folders = [Path(config.invocation_params.dir, argument) for argument in config.args]
    found = {file for folder in folders for file in folder.rglob("test_*.py")}
    files = {file for file in found if not passes_over(file, config)}
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
