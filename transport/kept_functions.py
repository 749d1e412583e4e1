"""Makes numba treat kept functions that it cannot read as missing, so that they are compiled anew.

What it cannot write, as on a full disk, is compiled again by other processes; numba would fail.

numba keeps an index of a function's compiled versions by the types of its arguments, and unpickles
it before it compares it with the source. An index of an earlier version of whale-ray may refer to
classes that have been renamed since. Numba has no public way to intervene: `Dispatcher._cache`, its
method `save_overload`, `Cache._cache_file` and its two methods are the same in numba 0.61 to 0.68.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_METHODS: dict[str, Callable[[], object]] = {"_load_index": dict, "load": lambda: None}
"""What reads kept functions, with what it returns if there are none."""

_log = logging.getLogger(__name__)
_told: set[str] = set()


def treat_unreadable_as_missing(dispatcher: object) -> None:
    """Let the cache of a compiled function forget what it cannot read, instead of raising."""
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
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
