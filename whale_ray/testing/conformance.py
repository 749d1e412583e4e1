"""Shared parts of `check_source` and `check_sink`: the error, comparisons of rows, leaked files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import cloudpickle

_T = TypeVar("_T")

_RUNS_THAT_LEAK = 3


class ContractError(AssertionError):
    """A source or a sink violates the contract of its base class; the message says how."""


def require(fulfilled: bool, message: str) -> None:
    """Raise `ContractError` unless a condition is fulfilled."""
    if not fulfilled:
        raise ContractError(message)


def pickled_copy(description: _T) -> _T:
    """Return the copy of a source or sink that a worker would get, by pickling."""
    try:
        copy: _T = cloudpickle.loads(cloudpickle.dumps(description))
    except Exception as error:
        name = type(description).__name__
        msg = (
            f"{name} cannot be pickled ({error!r}): it is sent to the workers; keep paths and "
            "settings in it, and open files and connections in open()"
        )
        raise ContractError(msg) from error
    return copy


def check_description(description: Any) -> None:
    """Require `describe()` to return one line."""
    text = description.describe()
    require(
        isinstance(text, str) and text != "" and "\n" not in text,
        f"{type(description).__name__}.describe() must return one line of text, not {text!r}",
    )


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of each row; rows with equal columns and values are one, also with NaN."""
    return Counter(repr(sorted(dict(row).items())) for row in rows)


def difference(wanted: Counter[str], found: Counter[str]) -> str:
    """Return in words which rows are missing and which are too many; empty if none are."""
    if dict(wanted) == dict(found):  # in a fraction of the time of what follows
        return ""
    parts = []
    for what, rows in (("missing", wanted - found), ("too many", found - wanted)):
        if rows:
            parts.append(f"{rows.total():,} {what}, such as {next(iter(rows))}")
    return "; ".join(parts)


def until_nothing_left_open(make: Callable[[], _T], what: str, remedy: str) -> Iterator[_T]:
    """Let the body of a `for` loop run, and require that it closes the files and sockets it opens.

    Other threads of the process open some, too (Ray, Kafka's client): the body runs again if any
    are left, and it is an error if each of several runs leaves some.

    Args:
        make: returns what a run needs; what this opens may stay open.
        what: is tried, for the message.
        remedy: for the message.

    Raises:
        ContractError: each run left some.
    """
    for _ in range(_RUNS_THAT_LEAK):
        made = make()
        before = _open_descriptors()
        yield made
        left = {fd: path for fd, path in _open_descriptors().items() if before.get(fd) != path}
        if not left:
            return
    msg = f"{what} left {', '.join(sorted(left.values()))} open: {remedy}"
    raise ContractError(msg)


def call_twice(function: Callable[[], object], what: str) -> None:
    """Require that a second call raises no error."""
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
            continue  # the descriptor of the listing itself
        # Pipes and devices are excluded: libraries keep some open after their first use.
        if path.startswith(("/", "socket:")) and not path.startswith(("/dev/", "/proc/")):
            found[fd] = path
    return found
