"""Makes numba treat kept functions that it cannot read as missing, so that they are compiled anew.

What it cannot write, as on a full disk, is compiled again by other processes; numba would fail.

numba keeps an index of a function's compiled versions by the types of its arguments, and a file for
each. It unpickles the index before it compares it with the source. An index of an earlier version
of whale-ray may refer to classes that have been renamed since.

It writes the index before the file, and two processes may choose the same file. One that ends in
between leaves an index that names the code of an earlier source; two that begin at once leave one
that names code for other types, or another processor. That would be called without a word, and give
wrong results. So a file says what it is of, and is used for nothing else. Its code has a checksum:
damaged code can end the process in LLVM, which raises nothing.

Numba has no public way to intervene: `Dispatcher._cache`, the methods and attributes of a
`FunctionCache` and of an `IndexDataCacheFile` that are used here, and `rtsys.initialize` are the
same in numba 0.61 to 0.68.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from zlib import crc32

from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys
from numba.core.sigutils import normalize_signature

from .bare_environments import unpickle_kept
from .common_processor import machines_for
from .deferred_bitcode import defer_bitcode
from .reached_sources import reached_stamp

_METHODS: dict[str, Callable[[], object]] = {"_load_index": dict, "load": lambda: None}
"""What reads kept functions, with what it returns if there are none."""

_log = logging.getLogger(__name__)
_told: set[str] = set()


def load_quickly(dispatcher: object) -> None:
    """Let a kept function be loaded without numba's compiler, and also from beside its source.

    numba loads the implementations of all that compiled code may call before it looks for a kept
    function, which takes a fifth of a second. Machine code needs no more of it than the runtime
    that allocates memory, and numba's compiler loads the rest itself; so with the bitcode.

    Whoever installed whale-ray may have compiled beside the sources, where it is kept by default;
    a wheel has there what its builder compiled for a common processor. Another user, or one who
    chose another folder, keeps his own elsewhere and reads both.

    Either is compared with all sources that it was made of; numba's own comparison remains only for
    functions of an archive, whose files cannot be read.
    """
    cache: Any = getattr(dispatcher, "_cache", None)
    if not hasattr(cache, "_index_key"):
        return

    file = cache._cache_file
    in_archive = not os.path.exists(inspect.getfile(cache._py_func))
    cache._own_stamp = file._source_stamp if in_archive else None

    def loads(signature: object, target: Any) -> object:
        file._source_stamp = _stamp_of(cache)
        rtsys.initialize(target)
        beside = _file_beside_source(cache)
        for key in _keys_of(cache, signature, target):
            for kept in (file,) if beside is None else (file, beside):
                data = kept.load(key)
                if data is not None:
                    return cache._impl.rebuild(target, data)
        return None

    defer_bitcode(cache)
    cache.load_overload = _reads_or(loads, lambda: None)  # its machine code may be damaged


def _stamp_of(cache: Any) -> tuple[object, object]:
    """Return what tells the sources that a function is made of now."""
    return cache._own_stamp, reached_stamp(cache._py_func)


def load_kept_versions(module: ModuleType) -> None:
    """Load what is kept of a module's functions, and compile nothing."""
    for function in vars(module).values():
        if isinstance(function, Dispatcher) and function.py_func.__module__ == module.__name__:
            _load_kept_versions_of(function)


def _load_kept_versions_of(dispatcher: Any) -> None:
    cache = dispatcher._cache
    if not hasattr(cache, "_cache_file"):
        return
    context = dispatcher.targetctx
    with global_compiler_lock:
        cache._cache_file._source_stamp = _stamp_of(cache)
        for signature, *_ in cache._cache_file._load_index():
            if normalize_signature(signature)[0] in dispatcher.overloads:
                continue
            found = cache.load_overload(signature, context)  # None: it is for another processor
            if found is not None:
                context.insert_user_function(found.entry_point, found.fndesc, [found.library])
                dispatcher.add_overload(found)
        if dispatcher.overloads and hasattr(dispatcher, "compile_now"):
            dispatcher.disable_compile()  # as once it is compiled for its declared types


def may_be_kept(dispatcher: Any) -> bool:
    """Return whether there is a place to keep a function for other processes."""
    return hasattr(dispatcher._cache, "_cache_file")


def versions_are_kept(dispatcher: Any) -> bool:
    """Return whether a version for this processor is kept of a function that may be."""
    cache = dispatcher._cache
    cache._cache_file._source_stamp = _stamp_of(cache)
    machines = machines_for(dispatcher.targetctx.codegen().magic_tuple())
    return any(
        version[1] in machines
        for file in (cache._cache_file, _file_beside_source(cache))
        if file is not None
        for version in file._load_index()
    )


def _keys_of(cache: Any, signature: object, target: Any) -> Iterator[tuple[object, ...]]:
    """Yield what a version is kept by that this process can use, the best one first."""
    types, own, *function = cache._index_key(signature, target.codegen())
    for machine in machines_for(own):
        yield types, machine, *function


def _file_beside_source(cache: Any) -> Any:
    """Return what is kept beside a function's source; None if that is where it is kept anyway."""
    folder = os.path.join(os.path.dirname(inspect.getfile(cache._py_func)), "__pycache__")
    if folder == cache.cache_path:
        return None
    file = IndexDataCacheFile(folder, cache._impl.filename_base, cache._cache_file._source_stamp)
    _tell_versions_apart(file)
    _forget_unreadable(file)
    return file


def treat_unusable_as_missing(dispatcher: object) -> None:
    """Let the cache of a function forget what it cannot read, and what is of something else."""
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    _tell_versions_apart(file)
    _forget_unreadable(file)


def _tell_versions_apart(file: Any) -> None:
    """Write with a compiled version what it is of, and a checksum; compare both when reading it."""
    if not hasattr(file, "_source_stamp"):
        return
    save, load = file.save, file.load

    def saves(key: object, data: object) -> None:
        code = file._dump(data)
        save(key, (file._source_stamp, key, crc32(code), code))

    def loads(key: object) -> Any:
        kept = load(key)
        if kept is None:
            return None
        stamp, of, checksum, code = kept
        is_it = (stamp, of, checksum) == (file._source_stamp, key, crc32(code))
        return unpickle_kept(code) if is_it else None

    file.save, file.load = saves, loads


def _forget_unreadable(file: object) -> None:
    for name, missing in _METHODS.items():
        if hasattr(file, name):
            setattr(file, name, _reads_or(getattr(file, name), missing))


def _reads_or(read: Callable[..., Any], missing: Callable[[], object]) -> Callable[..., Any]:
    def reads(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        except Exception as error:  # noqa: BLE001  # unpickling may raise anything
            _log.info("a kept function cannot be read and is compiled anew: %r", error)
            return missing()

    return reads


def go_on_without_writing(dispatcher: object) -> None:
    """Let a compiled function be used though it cannot be kept, which is logged once a reason."""
    cache: Any = getattr(dispatcher, "_cache", None)
    save = getattr(cache, "save_overload", None)
    if save is None:
        return

    def saves(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:
            reason = f"{cache.cache_path}: {error.strerror}"
            if reason not in _told:
                _told.add(reason)
                _log.warning(
                    "whale-ray: compiled functions cannot be kept (%s), so other processes compile"
                    " them again: make room there",
                    reason,
                )

    cache.save_overload = saves
