"""The entry point of the command: it imports the command and handles Ctrl-C during the import.

Importing the command takes a tenth of a second, importing this module almost no time. A Ctrl-C
before that, while Python itself starts, still prints Python's traceback.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress

_EXIT_INTERRUPTED = 130
"""The same as in `configs.errors`, whose import may have been interrupted."""
_SIGNALLED = 128
"""Exit codes above are those of commands that a signal has ended."""


def main() -> int:
    """Run the command line of this process and return its exit code."""
    atexit.register(gc.freeze)  # skips the garbage collection of all objects when Python exits
    try:
        from .main import main as command

        code = command()
    except KeyboardInterrupt:
        sys.stderr.write("whale-ray: interrupted\n")
        return _EXIT_INTERRUPTED
    if code > _SIGNALLED and "ray" in sys.modules:
        _leave_at_once(code)
    return code


def _leave_at_once(code: int) -> None:
    """End the process once its exit functions have run, but before Python frees what it holds.

    Where a signal came while Ray connected, its C++ library may crash then: the exit code would be
    that of the crash.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # its reader has gone, or it is closed
            stream.flush()
    os._exit(code)
