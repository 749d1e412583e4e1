"""Where the command begins: it loads the rest, and answers a Ctrl-C that comes meanwhile.

Importing the command takes a tenth of a second, this module next to nothing. A Ctrl-C before it,
while Python itself starts, still ends in Python's own traceback.
"""

from __future__ import annotations

import atexit
import gc
import sys

_EXIT_INTERRUPTED = 130
"""That of `configs.errors`, which may just have been interrupted itself."""


def main() -> int:
    """Run the command line of this process and return its exit code."""
    atexit.register(gc.freeze)  # else Python looks through all objects once more before it ends
    try:
        from .main import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("whale-ray: interrupted\n")
        return _EXIT_INTERRUPTED
