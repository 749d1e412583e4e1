"""Errors of Java: in one line, and readable after Java has ended.

The errors of py4j and pyspark request their text from Java each time they are printed. An error
that leaves the `with` block of a session is printed after Java has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_of_java", "kept_readable", "reason_of"]

_RAISED = re.compile(r"(?:\w+\.)+\w*(?:Exception|Error): ")
_FILE = re.compile(r"\bfile:/+([^\s,;]+?)[.:]?(?=[\s,;]|$)")


def is_of_java(error: BaseException) -> bool:
    """Return whether an error is py4j's or pyspark's."""
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark")


def reason_of(error: BaseException) -> str:
    """Return one line with the first cause of an error in any process of Spark, and its file.

    Java must still run, unless the error passed through `kept_readable`.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    cause = causes[-1] if causes else " ".join(lines[:2])  # py4j's own line comes first
    raised = list(_RAISED.finditer(cause))
    reason = cause[raised[-1].start() :] if raised else cause or repr(error)
    file = _FILE.search(text)
    if file and file[1] not in reason:
        return f"/{file[1]}: {reason}"
    return reason


@contextmanager
def kept_readable() -> Iterator[None]:
    """Store the text of Java's errors that leave the block, which must end before Java does."""
    try:
        yield
    except BaseException as error:
        found: BaseException | None = error
        while found is not None:
            if is_of_java(found):
                _keep_text(found)
            found = found.__cause__ or found.__context__
        raise


def _keep_text(error: BaseException) -> None:
    """Make an error's text independent of Java; it stays an instance of its class."""
    text, kind = str(error), type(error)
    members = {"__str__": lambda _: text, "__module__": kind.__module__, "__doc__": kind.__doc__}
    error.__class__ = type(kind.__name__, (kind,), members)
