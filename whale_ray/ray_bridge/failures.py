"""One-line messages for failures of Ray, each with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"InvalidAuthToken|AuthenticationError|[Aa]uthentication token|no token was found"
)
_VERSION = re.compile(
    r"Version mismatch.*?Ray: (\S+)\s+Python: (\S+).*?Ray: (\S+)\s+Python: (\S+)", re.DOTALL
)
_PORT = re.compile(r"[Aa]ddress already in use|port \S+ is (?:already )?(?:in use|not available)")
_SOCKET_PATH = re.compile(r"AF_UNIX path (?:length cannot exceed|too long)")


_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): .+$", re.MULTILINE)


def root_of(error: BaseException) -> str:
    """Return the line of an error that names its first cause, in any process.

    The text of a remote function's error contains several tracebacks, the first cause on top.
    """
    match = _RAISED.search(str(error))
    return match[0] if match else _first_line(error)


def explain_failure(what: str, error: BaseException) -> str:
    """Return a one-line message for an exception of `ray.init`.

    Args:
        what: names the cluster, such as "the Ray at 10.0.0.1:6379" or "a new Ray".
        error: the exception.
    """
    text = "\n".join(f"{type(link).__name__}: {link}" for link in _chain(error))
    if _TOKEN.search(text):
        return (
            f"{what} refuses this process: it wants a token; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the cluster's before Python starts"
        )
    if match := _VERSION.search(text):
        theirs, their_python, ours, our_python = match.groups()
        return (
            f"{what} is Ray {theirs} on Python {their_python}, this process is Ray {ours} on "
            f"Python {our_python}; use the cluster's versions, or start the cluster with these"
        )
    if _PORT.search(text):
        return (
            f"{what} cannot start, a port is in use: {_first_line(error)}; "
            "end what listens there, or join the running Ray with address='auto'"
        )
    if _SOCKET_PATH.search(text):
        return (
            f"{what} cannot start, the path of its sockets is too long: {_first_line(error)}; "
            "name a folder with a short path in the environment variable TMPDIR"
        )
    if isinstance(error, SystemExit):
        return f"{what} does not answer as a Ray does; correct the address, or restart that Ray"
    verb = "did not start" if what.startswith("a new") else "cannot be joined"
    return f"{what} {verb}: {_first_line(error)}; `whale-ray doctor` tells what this machine offers"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _first_line(error: BaseException) -> str:
    lines = (line.strip().rstrip(".:") for line in str(error).splitlines())
    return next((line for line in lines if line), repr(error)).strip("'\"")
