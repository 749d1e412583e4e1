"""What checks of sources and sinks of a user's own share: the error, rows to compare, leaks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import cloudpickle

_T = TypeVar("_T")


class ContractError(AssertionError):
    """A source or a sink does not keep what its base class promises; the message says what."""


def require(kept: bool, message: str) -> None:
    """Raise `ContractError` unless a promise was kept."""
    if not kept:
        raise ContractError(message)


def travelled(description: _T) -> _T:
    """Return the copy of a description that a worker would get."""
    try:
        copy: _T = cloudpickle.loads(cloudpickle.dumps(description))
    except Exception as error:
        name = type(description).__name__
        msg = (
            f"{name} cannot be pickled ({error!r}): it travels to the workers; keep paths and "
            "settings in it, and open files and connections in open()"
        )
        raise ContractError(msg) from error
    return copy


def check_description(description: Any) -> None:
    """Require `describe()` to return one line."""
    told = description.describe()
    require(
        isinstance(told, str) and told != "" and "\n" not in told,
        f"{type(description).__name__}.describe() must return one line of text, not {told!r}",
    )


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return rows such that those of the same columns and values are equal, NaN included."""
    return Counter(repr(sorted(dict(row).items())) for row in rows)


def difference(wanted: Counter[str], found: Counter[str]) -> str:
    """Return in words which rows are too few and which too many; empty if none are."""
    told = []
    for what, rows in (("missing", wanted - found), ("too many", found - wanted)):
        if rows:
            told.append(f"{rows.total():,} {what}, such as {next(iter(rows))}")
    return "; ".join(told)


@contextmanager
def nothing_left_open(what: str, remedy: str) -> Iterator[None]:
    """Require the block to leave no file or socket open that was not open before."""
    before = _open_descriptors()
    yield
    left = {fd: path for fd, path in _open_descriptors().items() if before.get(fd) != path}
    require(not left, f"{what} left {', '.join(sorted(left.values()))} open: {remedy}")


def call_twice(function: Callable[[], object], what: str) -> None:
    """Require a call to be harmless when repeated."""
    function()
    try:
        function()
    except Exception as error:
        msg = f"{what} raised {error!r} when called again: it may be called twice"
        raise ContractError(msg) from error


def _open_descriptors() -> dict[str, str]:
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        return {}
    found = {}
    for fd in os.listdir(folder):
        try:
            path = os.readlink(os.path.join(folder, fd))
        except OSError:
            continue  # that of the listing itself
        # Libraries keep pipes and the like for their threads, and devices, when first used.
        if path.startswith(("/", "socket:")) and not path.startswith(("/dev/", "/proc/")):
            found[fd] = path
    return found
