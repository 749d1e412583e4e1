"""Print the traceback of an error that ends the program while a thread disconnects from Ray.

Importing Ray replaces `sys.excepthook` by a function that first reports the error to the cluster.
If the connection is being closed just then, that report ends the process without a word.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import TracebackType

__all__ = ["report_errors_under"]


def report_errors_under(lock: AbstractContextManager[object]) -> None:
    """Let Ray's excepthook run under the lock that whoever disconnects holds.

    A hook that is not Ray's, such as a debugger's, stays as it is.
    """
    import ray

    report = ray._private.worker.custom_excepthook
    if sys.excepthook is not report:
        return

    def report_under_lock(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        with lock:
            report(kind, error, traceback)

    sys.excepthook = report_under_lock
