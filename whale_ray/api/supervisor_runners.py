"""Runs a job that is led by this process: in a thread of its own, or in the calling one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..control.outcome import JobOutcome
from ..metrics.job_metrics import JobMetrics
from .job import JobRunner

if TYPE_CHECKING:
    from ..control.supervisor import Supervisor
    from ..multicast.tree_state import ReconfigurationRequest


class SupervisorRunner(JobRunner):
    """Hands what is asked of a job to a supervisor in this process."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def metrics(self) -> JobMetrics:
        """See `JobRunner.metrics`."""
        return self._supervisor.metrics()

    def stop(self, drain: bool) -> None:
        """See `JobRunner.stop`."""
        self._supervisor.stop(drain)

    def reconfigure(self, request: ReconfigurationRequest) -> None:
        """See `JobRunner.reconfigure`."""
        self._supervisor.reconfigure(request)

    def stop_with_savepoint(self) -> bool:
        """See `JobRunner.stop_with_savepoint`."""
        self._supervisor.stop_with_savepoint()
        return True

    def request_savepoint(self) -> int:
        """See `JobRunner.request_savepoint`."""
        return self._supervisor.request_savepoint()

    def savepoint_of(self, number: int) -> str | None:
        """See `JobRunner.savepoint_of`."""
        return self._supervisor.savepoint_of(number)


class ThreadRunner(SupervisorRunner):
    """Runs a job's supervisor in a thread of this process, once it was started."""

    def __init__(self, name: str, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._outcome: JobOutcome | None = None
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=f"job {name}", daemon=True)

    def start(self) -> None:
        """Begin; a KeyboardInterrupt may come out although it has begun."""
        self._thread.start()

    def _main(self) -> None:
        try:
            self._outcome = self._supervisor.run()
        except BaseException as error:  # noqa: BLE001  # raised again by join, in the user's thread
            self._crash = error

    def state(self) -> str:
        """See `JobRunner.state`."""
        return self._supervisor.state if self._crash is None else "failed"

    def join(self, timeout_s: float) -> JobOutcome | None:
        """See `JobRunner.join`."""
        if self._thread.ident is None:
            return None  # it has not begun
        self._thread.join(timeout_s)
        if self._crash is not None:
            raise self._crash
        return self._outcome


class CallingThreadRunner(SupervisorRunner):
    """Runs a job's supervisor in the calling thread; other threads may call its other methods."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor)
        self._outcome: JobOutcome | None = None

    def run(self) -> None:
        """Run the job to its end."""
        self._outcome = self._supervisor.run()

    def state(self) -> str:
        """See `JobRunner.state`."""
        return self._supervisor.state

    def join(self, timeout_s: float) -> JobOutcome | None:
        """Return the outcome at once; None while `run` has not returned."""
        return self._outcome
