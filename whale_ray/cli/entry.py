"""The entry point of the command: it imports the command and handles Ctrl-C during the import.

Importing the command takes a tenth of a second, importing this module almost no time. A Ctrl-C
before that, while Python itself starts, still prints Python's traceback.
"""

from __future__ import annotations

import atexit
import gc
import sys

_EXIT_INTERRUPTED = 130
"""The same as in `configs.errors`, whose import may have been interrupted."""


def main() -> int:
    """Run the command line of this process and return its exit code."""
    atexit.register(gc.freeze)  # skips the garbage collection of all objects when Python exits
    try:
        from .main import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("whale-ray: interrupted\n")
        return _EXIT_INTERRUPTED
