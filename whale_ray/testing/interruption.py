"""Ends a call at one of its lines, as the death of its process would."""

from __future__ import annotations

import dis
import sys
import traceback
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")


class InjectedError(Exception):
    """Ends a call for a test; nobody but the test may handle it."""


class Interruption:
    """Counts the lines that a call runs, and can end it at one of them.

    Only lines of some packages count: an exception in the middle of an import, or while a library
    holds a lock, does damage that a death does not, since that ends the whole process. For the same
    reason it never comes where a `with` ends: its lock would be held for good.

    Args:
        packages: the first parts of module names.
    """

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = frozenset(packages)
        self._at = 0
        self.lines = 0
        """How many lines the last call ran."""

    def run(self, call: Callable[[], _T], at: int = 0) -> _T:
        """Return what a call returns.

        Args:
            call: the call.
            at: the line, counted from 1, before which it ends, or before the next one at which it
                may; 0: none.

        Raises:
            InjectedError: it was ended.
        """
        self._at, self.lines = at, 0
        # In a thread of its own: CPython keeps for good what a thread was handling when its trace
        # function raised at the end of a `with`, and adds it to every later traceback there.
        with warnings.catch_warnings(), ThreadPoolExecutor(1, "interrupted") as thread:
            warnings.simplefilter("ignore", ResourceWarning)
            return thread.submit(self._traced, call).result()

    def _traced(self, call: Callable[[], _T]) -> _T:
        sys.settrace(self._enter)
        try:
            return call()
        except InjectedError as error:
            # What the call had open is closed as its frames go, as a death would have done, too.
            traceback.clear_frames(error.__traceback__)
        finally:
            sys.settrace(None)
        raise InjectedError

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        module = frame.f_globals.get("__name__", "")
        return self._step if module.split(".")[0] in self._packages else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
            if 0 < self._at <= self.lines and not _ends_a_with(frame):
                self._at = 0
                raise InjectedError
        return self._step


def _ends_a_with(frame: FrameType) -> bool:
    """Return whether the next instruction calls `__exit__`, or leads to where that is done.

    A `with` ends with a call with three times None, or, behind an exception, as a handler does.
    """
    code = frame.f_code.co_code[frame.f_lasti :]
    if dis.opname[code[0]] == "SWAP":  # behind a return, whose value waits beside the `__exit__`
        code = code[2:]
    names = [dis.opname[one] for one in code[:6:2]]
    return names[0] in _OF_HANDLERS or (names == ["LOAD_CONST"] * 3 and len({*code[1:6:2]}) == 1)


_OF_HANDLERS = ("PUSH_EXC_INFO", "WITH_EXCEPT_START")
