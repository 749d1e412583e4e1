"""Hosts one worker behind a fleet's wrapper: carries out calls by name, returns events."""

from __future__ import annotations

import traceback
from typing import Any

from ..configs.errors import JobError, ResourceError, WhaleError
from ..transport.clock import Clock, SystemClock
from .controller import Raised, Returned
from .fleet import Assignment
from .metrics import WorkerSnapshot
from .worker import Worker

COMMANDS = frozenset({"drain", "abort"})
"""Calls that take effect while another call runs; they return nothing."""


class WorkerHost:
    """Worker `index` of a job; `execute` runs in one thread, `command` and `snapshot` in any."""

    def __init__(self, index: int, assignment: Assignment, clock: Clock | None = None) -> None:
        self._index = index
        self.worker = Worker(index, assignment, clock or SystemClock())

    def execute(self, attempt: int, method: str, arguments: tuple[Any, ...]) -> Returned | Raised:
        """Carry out one step of an attempt's life; an error becomes an event, too."""
        try:
            result = getattr(self.worker, method)(attempt, *arguments)
        except WhaleError as error:
            return Raised(self._index, attempt, method, error)
        except MemoryError as error:
            text = f"worker {self._index} ran out of memory in {method}: {error}"
            return Raised(self._index, attempt, method, ResourceError(text))
        except Exception as error:  # noqa: BLE001  # whatever it is, the driver must learn of it
            return Raised(self._index, attempt, method, _internal(self._index, method, error))
        return Returned(self._index, attempt, method, result)

    def command(self, attempt: int, name: str) -> None:
        """Tell the running worker something, from another thread."""
        if name not in COMMANDS:
            msg = f"{name!r} is no command of a worker"
            raise ValueError(msg)
        getattr(self.worker, name)(attempt)

    def snapshot(self) -> WorkerSnapshot:
        """Return the worker's counters."""
        return self.worker.snapshot()

    def close(self) -> None:
        """Give back everything that the worker holds."""
        self.worker.close()


def _internal(worker: int, method: str, error: Exception) -> JobError:
    """Wrap an error that is not ours, with its traceback, in one that can travel."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return JobError(f"{text}\nin worker {worker}, while it was to {method}")
