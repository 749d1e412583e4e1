"""A submitted job, as its user holds it: status, metrics, wait, results, stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from html import escape
from typing import TYPE_CHECKING, Any, TextIO

from ..configs.errors import JobCancelledError, UsageError
from ..deployment.signals import draining_signals
from ..metrics.job_metrics import JobMetrics
from ..metrics.tables import metrics_html
from .watch import Watch

if TYPE_CHECKING:
    from ..control.supervisor import JobOutcome
    from ..multicast.tree_messages import Addressing
    from ..multicast.tree_state import (
        ReconfigurationRequest,
    )
    from ..multicast.trees import (
        Route,
    )
    from ..operators.sinks.base import SinkResult

_POLL_S = 0.2


_INSTEAD = {
    **{
        name: f"job.results('out').{ours}, with the id of a sink"
        for name, ours in {
            "to_pandas": "to_pandas()",
            "toPandas": "to_pandas()",
            "to_arrow": "to_arrow()",
            "to_spark": "to_spark()",
            "to_ray_dataset": "to_ray_dataset()",
            "collect": "to_arrow().to_pylist()",
            "show": "preview()",
            "head": "preview()",
            "take": "preview()",
            "preview": "preview()",
        }.items()
    },
    **dict.fromkeys(("result", "output", "get"), "job.results('out'), with the id of a sink"),
    **dict.fromkeys(("join", "awaitTermination", "await_termination"), "job.wait()"),
    **dict.fromkeys(("cancel", "kill", "terminate"), "job.stop(drain=False)"),
    **dict.fromkeys(("isActive", "is_running", "done"), "job.state"),
    "lastProgress": "job.metrics()",
}
"""What to write for what a job has not."""


class JobRunner(ABC):
    """What carries a job out somewhere else, and answers questions about it."""

    @abstractmethod
    def state(self) -> str:
        """Return what it does (`supervisor.ALIVE`), or how it ended."""

    @abstractmethod
    def metrics(self) -> JobMetrics:
        """Return the newest counters."""

    @abstractmethod
    def stop(self, drain: bool) -> None:
        """Ask for the end."""

    @abstractmethod
    def wish(self, wish: ReconfigurationRequest) -> None:
        """Ask for other multicast trees or another addressing, if the job still runs."""

    @abstractmethod
    def join(self, timeout_s: float) -> JobOutcome | None:
        """Wait for the end; return how it ended, or None if it has not within `timeout_s`."""


class Job:
    """A job that runs, or has run. Made by `submit` and `run`.

    Attributes:
        id: its unique id.
        name: its topology's name.
        logs: one line that tells where the output of its workers is kept; "" without Ray.
        dashboard_url: that of Ray's dashboard, "" if there is none.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        runner: JobRunner,
        release: Callable[[], None] | None = None,
        logs: str = "",
        dashboard_url: str = "",
    ) -> None:
        self.id = job_id
        self.logs = logs
        self.dashboard_url = dashboard_url
        self.name = name
        self._runner = runner
        self._release = release
        self._outcome: JobOutcome | None = None
        self._lock = threading.Lock()

    @property
    def state(self) -> str:
        """What the job does, then how it ended.

        queued (it waits for room on Ray), starting, running, draining, finishing, restarting or
        failing; then finished, drained, cancelled or failed.
        """
        return self._runner.state() if self._outcome is None else self._outcome.state

    def status(self) -> str:
        """Return the state and one line on what every operator does."""
        return self._told(self.metrics())

    def _told(self, metrics: JobMetrics, line: Callable[[JobMetrics], str] | None = None) -> str:
        text = metrics.watch_line() if line is None else line(metrics)
        took = "" if self._outcome is None else f" in {self._outcome.seconds:,.1f} s"
        return " | ".join(part for part in (f"{self.name}: {self.state}{took}", text) if part)

    def metrics(self) -> JobMetrics:
        """Return rate, lag, busiest instance and back-pressure, per operator."""
        return self._runner.metrics() if self._outcome is None else self._outcome.metrics

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        watch: TextIO | None = None,
        line: Callable[[JobMetrics], str] | None = None,
        interval_s: float = 1.0,
    ) -> Job:
        """Wait for the end and return the job itself.

        Ctrl-C (and SIGTERM) drain the job: its sources end, what was read comes out. A second
        one cancels it. With `watch` (a stream such as `sys.stderr`), print a line every
        `interval_s` and one at the end: the state, and what `line` makes of the metrics, by default
        rate, lag and back-pressure of every operator; on a stream that is no terminal only what has
        changed. Lines of their own tell when the job drains or begins anew.

        Raises:
            WhaleError: what the job failed with.
            TimeoutError: it has not ended within `timeout_s`; it goes on.
        """
        waited_s = 0.0
        lines = Watch(self.name, watch, interval_s)
        with draining_signals(self.stop_from_signal), closing(lines):
            while (outcome := self._join(_POLL_S)) is None:
                waited_s += _POLL_S
                if lines.due(waited_s):
                    self.look(lines, line)
                if timeout_s is not None and waited_s >= timeout_s:
                    msg = f"job {self.name!r} has not ended within {timeout_s:g} s; it goes on"
                    raise TimeoutError(msg)
            if outcome.error is None:
                self.look(lines, line)
            else:
                lines.tell_restarts(outcome.restarts)
        if outcome.error is not None:
            # How it travelled through the runtime says nothing to whoever waits for the job.
            raise outcome.error.with_traceback(None)
        return self

    def look(self, watch: Watch, line: Callable[[JobMetrics], str] | None = None) -> None:
        """Let a watch tell how far the job is; `line` as in `wait`."""
        from ..control.supervisor import ALIVE

        state, metrics = self.state, self.metrics()
        if state not in ALIVE and self._outcome is None:
            return  # it has ended this moment; the last line will tell how
        watch.tell_restarts(metrics.attempt)
        watch.show(state, self._told(metrics, line))

    def results(self, sink_id: str | None = None) -> SinkResult:
        """Wait, and return what a sink published; the id may be left out if there is one sink.

        Raises:
            UsageError: there is no such sink, or several to choose from.
            WhaleError: what the job failed with, or that it was cancelled.
        """
        published = self.outcome().results
        if not self.outcome().bounded:
            msg = (
                f"job {self.name!r} keeps no result: it is unbounded, and published parts while it "
                "ran; read them where its sinks wrote them"
            )
            raise UsageError(msg)
        if sink_id is None:
            if len(published) == 1:
                return next(iter(published.values()))
            known = ", ".join(map(repr, published)) or "none"
            msg = f"job {self.name!r} has several sinks; name one of: {known}"
            raise UsageError(msg)
        if sink_id not in published:
            known = ", ".join(map(repr, published)) or "none"
            msg = f"job {self.name!r} published nothing through {sink_id!r}; it has: {known}"
            raise UsageError(msg)
        return published[sink_id]

    def outcome(self) -> JobOutcome:
        """Wait, and return how the job ended; raises what it failed with."""
        self.wait()
        assert self._outcome is not None
        if self._outcome.state == "cancelled":
            left = "it published nothing" if self._outcome.bounded else "published parts stay"
            msg = f"job {self.name!r} was cancelled; {left}"
            raise JobCancelledError(msg)
        return self._outcome

    def stop(self, drain: bool = True, timeout_s: float | None = None) -> Job:
        """End the job and wait for it; with `drain`, after everything that was read has come out.

        Raises WhaleError if the job fails meanwhile; TimeoutError as `wait`.
        """
        if self._outcome is None:
            self._runner.stop(drain)
        return self.wait(timeout_s)

    def set_route(self, route: Route, out_degree: int = 0) -> None:
        """Have all streams for several hosts travel along other trees, while the job runs.

        Every tree is switched at a position in its stream, so nothing is lost or doubled. Returns
        at once; `metrics().switches` tells what has become of it.

        Args:
            route: non-blocking, star, chain or binomial.
            out_degree: most children of a host in a non-blocking tree; 0 computes it from the load.

        Raises:
            UsageError: there is no such route, or it has no such out-degree.
        """
        from ..multicast.tree_state import (
            Goal,
            check_goal,
        )

        self._wish(check_goal(Goal(route, out_degree)))

    def set_addressing(self, addressing: Addressing) -> None:
        """Serialize all-grouped rows once ("worker-oriented"), or once per instance, from now on.

        Only a job that began with `runtime.addressing=instance-oriented` has what the latter needs.
        Raises UsageError for one that did not, and for any other name.
        """
        from ..multicast.tree_messages import SetAddressing, check_addressing

        self._wish(SetAddressing(check_addressing(addressing)))

    def _wish(self, wish: ReconfigurationRequest) -> None:
        if self._outcome is None:
            self._runner.wish(wish)

    def stop_from_signal(self, drain: bool) -> None:
        """Ask for the end without waiting; fit for a signal handler."""
        self._runner.stop(drain)

    def abandon(self, timeout_s: float = 10.0) -> None:
        """Cancel the job and wait a moment for its end, whatever it is."""
        self._runner.stop(False)
        self._join(timeout_s)

    def _join(self, timeout_s: float) -> JobOutcome | None:
        if self._outcome is None:
            outcome = self._runner.join(timeout_s)
            with self._lock:
                if outcome is not None and self._outcome is None:
                    self._outcome = outcome
                    if self._release is not None:
                        self._release()
        return self._outcome

    def __repr__(self) -> str:
        """Return name, id and state."""
        return f"<Job {self.name!r} {self.id} {self.state}>"

    def _repr_html_(self) -> str:
        """Return tables of the operators, what joins them, and relays' links, for notebooks."""
        title = f"<b>{escape(self.name)}</b> <code>{escape(self.id)}</code>: {self.state}"
        metrics = self.metrics()
        tables = metrics_html(metrics.operators, metrics.edges, metrics.relays)
        return f"<div>{title}{tables}</div>"

    def _ipython_display_(self) -> None:
        """Show the tables, anew every second while the job runs."""
        from .notebook import show_while_it_runs

        if not show_while_it_runs(self):
            raise NotImplementedError  # IPython then takes the representations above

    if not TYPE_CHECKING:  # a type checker knows what is missing; everybody else is told the fix

        def __getattr__(self, name: str) -> Any:
            hint = f": write {_INSTEAD[name]}" if name in _INSTEAD else ""
            msg = f"'Job' object has no attribute {name!r}{hint}"
            raise AttributeError(msg)


class ThreadRunner(JobRunner):
    """Runs a job's supervisor in a thread of this process."""

    def __init__(
        self,
        name: str,
        run: Callable[[], JobOutcome],
        state: Callable[[], str],
        metrics: Callable[[], JobMetrics],
        stop: Callable[[bool], None],
        wish: Callable[[ReconfigurationRequest], None],
    ) -> None:
        self._wish = wish
        self._run = run
        self._state = state
        self._metrics = metrics
        self._stop = stop
        self._outcome: JobOutcome | None = None
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name=f"job {name}", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self._outcome = self._run()
        except BaseException as error:  # noqa: BLE001  # raised again by join, in the user's thread
            self._crash = error

    def state(self) -> str:
        """See `JobRunner.state`."""
        return self._state() if self._crash is None else "failed"

    def metrics(self) -> JobMetrics:
        """See `JobRunner.metrics`."""
        return self._metrics()

    def stop(self, drain: bool) -> None:
        """See `JobRunner.stop`."""
        self._stop(drain)

    def wish(self, wish: ReconfigurationRequest) -> None:
        """See `JobRunner.wish`."""
        self._wish(wish)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """See `JobRunner.join`."""
        self._thread.join(timeout_s)
        if self._crash is not None:
            raise self._crash
        return self._outcome
