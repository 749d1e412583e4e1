"""Detect a script without an `if __name__ == "__main__":` guard.

Worker processes import the script that started them, to find its functions. Without the guard this
import would start the job again inside the worker, which would start workers of its own, and so on.
"""

from __future__ import annotations

import sys
from types import FrameType

from ..configs.errors import UsageError

_IMPORT_MACHINERY = "importlib._bootstrap"
_WORKER_MAINS = ("default_worker", "pyspark.daemon", "pyspark.worker")
"""Main modules of processes that must not start a job: Ray's workers, Spark's Python workers."""


def refuse_while_importing(what: str) -> None:
    """Raise `UsageError` if a worker process is importing the user's script right now."""
    culprit = _importing_script(sys._getframe(1))
    if culprit is not None:
        msg = (
            f"{culprit}: {what} was asked for while a worker imported this script; put what "
            'starts the job under `if __name__ == "__main__":`'
        )
        raise UsageError(msg)


def _importing_script(frame: FrameType | None) -> str | None:
    """Return `file:line` of the module-level code that leads here, if a worker imports it."""
    in_worker = _is_worker()
    module_level: str | None = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>":
            module_level = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if name == "__mp_main__":  # multiprocessing's name for a parent's script
                return module_level
        if in_worker and module_level and name.startswith(_IMPORT_MACHINERY):
            return module_level
        frame = frame.f_back
    return None


def _is_worker() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    names = f"{getattr(main, '__file__', '')} {getattr(spec, 'name', '')}"
    return any(name in names for name in _WORKER_MAINS)
