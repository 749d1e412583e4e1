"""Whether this process can name a file: in the locale C, it names none beyond ASCII."""

from __future__ import annotations

import os
import sys

from .errors import UsageError

__all__ = ["check_encodable"]


def check_encodable(what: str, path: str) -> None:
    """Refuse a path that the encoding of file names lacks characters of.

    Args:
        what: the path is, in words.
        path: as the user wrote it.

    Raises:
        UsageError: it lacks one; no call of the system could take the path.
    """
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        encoding = sys.getfilesystemencoding()
        msg = (
            f"{what} {path!r}: file names are in {encoding} here, which has no"
            f" {path[error.start]!r}: set LC_ALL=C.UTF-8, or name another path"
        )
        raise UsageError(msg) from None
