"""Kept functions that cannot be read, or are of something else, are compiled anew."""

from __future__ import annotations

import ctypes
import errno
import importlib
import itertools
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba.core import config
from numba.core.caching import IndexDataCacheFile

from whale_ray.transport.compiling import njit
from whale_ray.transport.kept_functions import load_kept_versions

ARGUMENTS = """
from typing import NamedTuple

class {name}(NamedTuple):
    number: int
"""

KERNELS = """
from whale_ray.transport.compiling import njit

@njit(cache=True)
def following(one):
    return one.number + 1

@njit("int64(int64)", cache=True, no_cfunc_wrapper=False)
def doubled(number):
    return 2 * number
"""

CALLED = """
from whale_ray.transport.compiling import njit

TWO = {two}

@njit()
def more(number):
    return number + {more}
"""

CALLS = """
from whale_ray.transport.compiling import njit
from {called} import TWO, more

@njit("int64(int64)", cache=True)
def following(number):
    return TWO * more(number)
"""

_numbers = itertools.count()


class Package:
    """Two modules with names of their own: kernels, and the class that one of them takes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        number = next(_numbers)
        self._names = (f"kept_arguments_{number}", f"kept_kernels_{number}")
        self._folder = folder
        self._write(1, KERNELS)
        monkeypatch.syspath_prepend(str(folder))

    def rename_class(self, name: str) -> None:
        """Give the class of the argument another name."""
        self._write(0, ARGUMENTS.format(name=name))

    def change_kernels(self, factor: int = 2) -> None:
        """Change the source of the kernels, and by what `doubled` multiplies."""
        self._write(1, f"{KERNELS}\nCHANGED = True\n".replace("2 *", f"{factor} *"))

    def files(self, ending: str) -> list[Path]:
        """Return the files that numba keeps, by the end of their names."""
        return sorted(self._folder.rglob(f"*.{ending}"))

    def load(self, name: str) -> tuple[ModuleType, Any]:
        """Import both modules as a new process does; return the kernels, and an argument of 1."""
        for module in self._names:
            sys.modules.pop(module, None)
        importlib.invalidate_caches()
        arguments, kernels = map(importlib.import_module, self._names)
        return kernels, getattr(arguments, name)(1)

    def _write(self, module: int, source: str) -> None:
        (self._folder / f"{self._names[module]}.py").write_text(source)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Return the package with both kernels compiled and kept."""
    monkeypatch.setattr(config, "CACHE_DIR", "")  # kept beside the kernels, wherever others are
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # changes follow each other too quickly
    package = Package(tmp_path, monkeypatch)
    package.rename_class("Before")
    check(*package.load("Before"), hits=(0, 0))
    check(*package.load("Before"), hits=(1, 1))
    return package


def check(kernels: ModuleType, argument: Any, hits: tuple[int, int]) -> None:
    """Call both kernels, and compare how many were read."""
    assert (kernels.following(argument), kernels.doubled(4)) == (2, 8)
    found = (kernels.following, kernels.doubled)
    assert tuple(kernel.stats.cache_hits.total() for kernel in found) == hits


def test_a_class_that_was_renamed_in_another_file(package: Package) -> None:
    package.rename_class("After")
    check(*package.load("After"), hits=(0, 1))
    check(*package.load("After"), hits=(1, 1))


def test_a_class_that_was_renamed_with_the_kernels_changed(package: Package) -> None:
    package.rename_class("After")
    package.change_kernels()
    check(*package.load("After"), hits=(0, 0))
    check(*package.load("After"), hits=(1, 1))


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", None])
def test_damaged_files(package: Package, ending: str, content: bytes | None) -> None:
    files = package.files(ending)
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:-20] if content is None else content)
    check(*package.load("Before"), hits=(0, 0))
    check(*package.load("Before"), hits=(1, 1))


@pytest.mark.parametrize(("two", "more", "hits"), [(2, 1, 1), (2, 5, 0), (3, 1, 0)])
def test_what_is_called_or_named_has_changed_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: int, more: int, hits: int
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    number = next(_numbers)
    called, calls = (f"kept_called_{number}", f"kept_calls_{number}")
    (tmp_path / f"{calls}.py").write_text(CALLS.format(called=called))
    for now_two, now_more, now_hits in ((2, 1, 0), (two, more, hits)):
        (tmp_path / f"{called}.py").write_text(CALLED.format(two=now_two, more=now_more))
        for module in (called, calls):
            sys.modules.pop(module, None)
        importlib.invalidate_caches()
        following = importlib.import_module(calls).following
        assert following(10) == now_two * (10 + now_more)
        assert following.stats.cache_hits.total() == now_hits


def test_a_file_that_changes_between_its_loading_and_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled is what was loaded, not what the file holds by then."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    number = next(_numbers)
    called, calls = (f"kept_called_{number}", f"kept_calls_{number}")
    (tmp_path / f"{called}.py").write_text(CALLED.format(two=2, more=1))
    (tmp_path / f"{calls}.py").write_text(CALLS.format(called=called))
    loaded_before = importlib.import_module(calls).following
    (tmp_path / f"{called}.py").write_text(CALLED.format(two=2, more=55))
    assert loaded_before(10) == 22
    for module in (called, calls):
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    assert importlib.import_module(calls).following(10) == 130


def test_files_whose_times_have_changed(package: Package) -> None:
    """As in an image for containers, whose files have times in whole seconds."""
    for source in package.files("py"):
        os.utime(source, ns=(0, source.stat().st_mtime_ns // 10**9 * 10**9 - 10**9))
    check(*package.load("Before"), hits=(1, 1))


def test_what_is_kept_beside_the_source_is_read_though_another_folder_is_written(
    package: Package, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path_factory.mktemp("chosen")
    monkeypatch.setattr(config, "CACHE_DIR", str(chosen))
    check(*package.load("Before"), hits=(1, 1))
    assert not list(chosen.rglob("*.nb?"))
    package.change_kernels()
    check(*package.load("Before"), hits=(0, 0))
    check(*package.load("Before"), hits=(1, 1))
    assert len(list(chosen.rglob("*.nbi"))) == 2


def test_machine_code_that_cannot_be_read_is_compiled_anew(package: Package) -> None:
    for path in package.files("nbc"):
        damaged = path.read_bytes().replace(b"BC\xc0\xde", b"BC\x00\x00")  # LLVM's signature
        assert damaged != path.read_bytes()
        path.write_bytes(damaged)
    kernels, argument = package.load("Before")
    load_kept_versions(kernels)
    assert not kernels.following.overloads
    check(kernels, argument, hits=(0, 0))
    check(*package.load("Before"), hits=(1, 1))


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
def test_machine_code_with_a_flipped_bit_is_never_loaded(package: Package, part: float) -> None:
    """LLVM may end the process of it, or run what is there."""
    for path in package.files("nbc"):
        code = bytearray(path.read_bytes())
        code[int(part * len(code))] ^= 4
        path.write_bytes(code)
    check(*package.load("Before"), hits=(0, 0))


def test_a_source_whose_machine_code_could_not_be_written(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process had been killed, or on a full disk: the earlier code is not used."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    package.change_kernels(factor=3)
    with monkeypatch.context() as full:
        full.setattr(IndexDataCacheFile, "_save_data", fail)
        assert package.load("Before")[0].doubled(4) == 12
    for hits in (0, 1):
        kernels, _ = package.load("Before")
        assert (kernels.doubled(4), kernels.doubled.stats.cache_hits.total()) == (12, hits)
    assert len(package.files("nbc")) == 2  # in place of those of the earlier source


def test_two_processes_that_keep_versions_at_once(package: Package) -> None:
    """The second one has read the index before; the first one writes its code last."""
    package.change_kernels()
    one, two, later = (package.load("Before")[0].following._cache._cache_file for _ in range(3))
    save_data, index = one._save_data, two._load_index()

    def after_the_other(*arguments: object) -> None:
        two._load_index = lambda: dict(index)
        two.save("key of two", "version of two")
        save_data(*arguments)

    one._save_data = after_the_other
    one.save("key of one", "version of one")
    assert [later.load("key of one"), later.load("key of two")] == [None, None]
    two._load_index = later._load_index
    for file, name in ((two, "two"), (later, "one")):
        file.save(f"key of {name}", f"version of {name}")
    for name in ("one", "two"):
        assert one.load(f"key of {name}") == f"version of {name}"


def test_kept_versions_of_a_module_are_loaded_and_nothing_is_compiled(package: Package) -> None:
    kernels, argument = package.load("Before")
    load_kept_versions(kernels)
    for function in (kernels.following, kernels.doubled):
        assert len(function.overloads) == 1
        assert not function.stats.cache_misses
    assert (kernels.following(argument), kernels.doubled(np.int32(4))) == (2, 8)
    with pytest.raises(TypeError):
        kernels.doubled("four")
    package.change_kernels(factor=3)
    kernels, argument = package.load("Before")
    load_kept_versions(kernels)
    assert not kernels.following.overloads
    assert not kernels.doubled.overloads
    assert (kernels.following(argument), kernels.doubled(4)) == (2, 12)


def test_bitcode_is_parsed_once_a_caller_is_compiled(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, argument = package.load("Before")
    parsed = note_parsed(monkeypatch)
    check(kernels, argument, hits=(1, 1))
    assert not any(b"doubled" in one or b"following" in one for one in parsed)

    @njit("int64(int64)")
    def quadrupled(number: int) -> int:
        twice: int = kernels.doubled(number)
        return int(kernels.doubled(twice))

    assert quadrupled(5) == 20
    assert sum(b"doubled" in one for one in parsed) == 1
    assert not any(b"following" in one for one in parsed)


def test_a_loaded_function_has_an_address_for_c(package: Package) -> None:
    """What only its bitcode tells is looked up there."""
    kernels, _ = package.load("Before")
    assert kernels.doubled(4) == 8
    (loaded,) = kernels.doubled.overloads.values()
    assert kernels.doubled.stats.cache_hits
    assert loaded.library.get_pointer_to_function("nobody's") == 0
    address = loaded.library.get_pointer_to_function(loaded.fndesc.llvm_cfunc_wrapper_name)
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(21) == 42


def note_parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list to which all bitcode is added that is parsed from now on."""
    parsed: list[bytes] = []
    parse = llvm.parse_bitcode

    def parses(bitcode: bytes, *arguments: Any) -> Any:
        parsed.append(bitcode)
        return parse(bitcode, *arguments)

    monkeypatch.setattr(llvm, "parse_bitcode", parses)
    return parsed
