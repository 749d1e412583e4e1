"""What Java raised: in one line, and readable after Java has ended.

The errors of py4j and pyspark ask Java for their text each time they are shown. Where a session
ends with its block, an error that leaves the block is shown after that, when Java has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_of_java", "kept_readable", "reason_of"]

_RAISED = re.compile(r"(?:\w+\.)+\w*(?:Exception|Error): ")
_FILE = re.compile(r"\bfile:/+([^\s,;]+?)[.:]?(?=[\s,;]|$)")


def is_of_java(error: BaseException) -> bool:
    """Tell whether an error is py4j's or pyspark's."""
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark")


def reason_of(error: BaseException) -> str:
    """Return one line with what was raised first, in whichever of Spark's processes, and the file.

    Java must still run, unless the error was `kept_readable`.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    told = causes[-1] if causes else " ".join(lines[:2])  # py4j's own line comes first
    raised = list(_RAISED.finditer(told))
    reason = told[raised[-1].start() :] if raised else told or repr(error)
    file = _FILE.search(text)
    if file and file[1] not in reason:
        return f"/{file[1]}: {reason}"
    return reason


@contextmanager
def kept_readable() -> Iterator[None]:
    """Give errors of Java that pass a text of their own: to stand right around the use of Java."""
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
