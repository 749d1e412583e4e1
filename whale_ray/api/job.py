"""The handle of a submitted job: status, metrics, wait, results, stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any, TextIO

from ..configs.errors import JobCancelledError, UsageError
from ..control.outcome import JobOutcome, output_of_cancelled, warn_if_incomplete
from ..deployment.signals import draining_signals
from ..metrics.job_metrics import JobMetrics
from ..metrics.tables import metrics_html
from ..operators.arguments import check_bool, check_seconds, check_type
from ..optimizer.decisions import DecisionLog, OptimizerDecision
from ..transport.clock import SystemClock
from .watch import Watch, check_watch

if TYPE_CHECKING:
    from ..configs.settings import RecordSettings
    from ..multicast.tree_messages import Addressing
    from ..multicast.tree_state import (
        ReconfigurationRequest,
    )
    from ..multicast.trees import (
        Route,
    )
    from ..operators.sinks.base import SinkResult
    from ..ui.serving import UiLink

_POLL_S = 0.2
_SAVEPOINT_POLL_NS = 20_000_000

_NO_SAVEPOINTS = "this kind of job takes no checkpoints, and so no savepoints"
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
    **dict.fromkeys(("checkpoint", "trigger_savepoint"), "job.savepoint()"),
}
"""What to write instead of an attribute that a job does not have, by its name."""


class JobRunner(ABC):
    """Runs a job, in this process or elsewhere, and reports about it.

    Attributes:
        outlives_process: whether the job goes on when this process is told to stop.
    """

    outlives_process = False

    @abstractmethod
    def state(self) -> str:
        """Return the job's state: one of `supervisor.ALIVE`, or how it ended."""

    @abstractmethod
    def metrics(self) -> JobMetrics:
        """Return the newest counters."""

    @abstractmethod
    def stop(self, drain: bool) -> None:
        """Request the end of the job; with `drain`, after all rows read so far are processed."""

    @abstractmethod
    def reconfigure(self, request: ReconfigurationRequest) -> None:
        """Request other multicast trees or another addressing, if the job still runs."""

    def stop_with_savepoint(self) -> bool:
        """Request the end of the job after a savepoint; UsageError without checkpoints.

        False if there is no answer yet, since the job is just starting: ask again.
        """
        raise UsageError(_NO_SAVEPOINTS)

    def request_savepoint(self) -> int | None:
        """Request a savepoint, and return its number; UsageError without checkpoints.

        None if there is no answer yet, since the job is just starting: ask again.
        """
        raise UsageError(_NO_SAVEPOINTS)

    def savepoint_of(self, number: int) -> str | None:
        """Return where the savepoint of a number is; None as long as there is none.

        "" if the number is not known, since another controller leads the job now.
        """
        return None

    @abstractmethod
    def join(self, timeout_s: float) -> JobOutcome | None:
        """Wait for the end and return the outcome, or None if the job runs after `timeout_s`."""


class Job:
    """The handle of a running or ended job. `submit`, `run` and `attach` return it.

    Attributes:
        id: the unique id of the job.
        name: the name of its topology.
        logs: one line that says where the output of its workers is stored; "" without Ray.
        dashboard_url: the URL of Ray's dashboard; "" if there is none.
        decided: what the optimizer decided before it began, with `optimize=True`.
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        runner: JobRunner,
        release: Callable[[], None] | None = None,
        logs: str = "",
        dashboard_url: str = "",
        records: RecordSettings | None = None,
        *,
        bounded: bool = True,
    ) -> None:
        self.id = job_id
        self.logs = logs
        self.dashboard_url = dashboard_url
        self.name = name
        self._runner = runner
        self._release = release
        self._records = records
        self._is_bounded = bounded  # also if that is not known
        self._outcome: JobOutcome | None = None
        self._lock = threading.Lock()
        self._asked_to_stop = False
        self.decided: tuple[OptimizerDecision, ...] = ()

    @property
    def decisions(self) -> DecisionLog:
        """All that was decided on the job, each step with its formula and its numbers.

        What the optimizer decided before it began (`optimize=True`), and since then: limits of
        slices and proposals of parallelism (`runtime.adapt`), out-degrees of multicast trees, late
        merge where it is `auto`. `job.decisions.to_yaml()` is a log for `whale-ray optimize
        --replay`.
        """
        found = self.metrics().decisions
        return DecisionLog(self.name, self.decided) if found is None else found

    @property
    def state(self) -> str:
        """The state of the job.

        While it is alive: queued (it waits for resources of the Ray cluster), starting, running,
        draining, stopping, finishing, restarting or failing. After its end: finished, drained,
        stopped, cancelled or failed.
        """
        return self._runner.state() if self._outcome is None else self._outcome.state

    def status(self) -> str:
        """Return one line: the state, and the rate, lag and back-pressure of every operator."""
        return self._status_line(self.metrics())

    def _status_line(
        self, metrics: JobMetrics, line: Callable[[JobMetrics], str] | None = None
    ) -> str:
        text = metrics.watch_line() if line is None else line(metrics)
        took = "" if self._outcome is None else f" in {self._outcome.seconds:,.1f} s"
        return " | ".join(part for part in (f"{self.name}: {self.state}{took}", text) if part)

    def metrics(self) -> JobMetrics:
        """Return rate, lag, busiest instance and back-pressure of every operator."""
        return self._runner.metrics() if self._outcome is None else self._outcome.metrics

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        watch: TextIO | None = None,
        line: Callable[[JobMetrics], str] | None = None,
        interval_s: float = 1.0,
    ) -> Job:
        """Wait for the end of the job and return the job itself.

        Ctrl-C (and SIGTERM) drain the job: its sources end, and all rows read so far are processed.
        A second Ctrl-C cancels it. A warning is logged if a bounded job was drained or any job
        cancelled, and not by `stop` of this handle: its output lacks rows. A job that outlives this
        process (`detach=True`, `attach`) is left as it is by Ctrl-C, which only ends the waiting.

        Args:
            timeout_s: how long to wait, in seconds; None: without limit.
            watch: a stream such as `sys.stderr`, on which to print progress lines: one every
                `interval_s`, one at the end, and one when the job drains or restarts. On a stream
                that is not a terminal, lines that repeat the last one are left out.
            line: returns the text of a progress line for the metrics; by default rate, lag and
                back-pressure of every operator.
            interval_s: the time between two lines, in seconds.

        Raises:
            WhaleError: the error with which the job failed.
            TimeoutError: the job has not ended within `timeout_s`; it continues to run.
            UsageError: a job that outlives this process had ended before.
        """
        check_seconds("Job.wait", "timeout_s", timeout_s, or_none=True)
        check_seconds("Job.wait", "interval_s", interval_s)
        check_watch("Job.wait", watch, line)
        clock = SystemClock()
        begun_ns = clock.monotonic_ns()
        lines = Watch(self.name, watch, interval_s)
        left_alone = self._runner.outlives_process
        with (
            nullcontext() if left_alone else draining_signals(self.stop_from_signal),
            closing(lines),
        ):
            poll_s = _POLL_S if timeout_s is None else max(0.0, min(_POLL_S, timeout_s))
            while (outcome := self._join(poll_s)) is None:
                waited_s = (clock.monotonic_ns() - begun_ns) / 1e9
                if lines.due(waited_s):
                    self.report_progress(lines, line)
                if timeout_s is not None and waited_s >= timeout_s:
                    msg = f"job {self.name!r} has not ended within {timeout_s:g} s; it goes on"
                    raise TimeoutError(msg)
            if outcome.error is None:
                self.report_progress(lines, line)
            else:
                last = outcome.metrics
                lines.report_restarts(outcome.restarts, _restored(last), last.lost)
        if outcome.error is not None:
            # The traceback shows only the inside of the runtime, which does not help the user.
            raise outcome.error.with_traceback(None)
        return self

    def report_progress(self, watch: Watch, line: Callable[[JobMetrics], str] | None) -> None:
        """Print the current progress on a watch; `line` as in `wait`."""
        from ..control.job_states import ALIVE

        state, metrics = self.state, self.metrics()
        if state not in ALIVE and self._outcome is None:
            return  # it has just ended; the last line reports the outcome
        watch.report_restarts(metrics.attempt, _restored(metrics), metrics.lost)
        watch.show(state, self._status_line(metrics, line))

    def results(self, sink_id: str | None = None) -> SinkResult:
        """Wait for the end of a bounded job and return what a sink published.

        Args:
            sink_id: the id of the sink; may be left out if there is only one sink.

        Raises:
            UsageError: there is no such sink, there are several and none is named, or the job is
                unbounded.
            WhaleError: the error with which the job failed, or that it was cancelled.
        """
        from ..control.job_states import ALIVE

        check_type("Job.results", "sink_id", sink_id, (str, type(None)), "the id of a sink")
        is_endless = not self._is_bounded and self.state in ALIVE  # waiting would have no end
        if is_endless or not self.outcome().bounded:
            msg = (
                f"job {self.name!r} keeps no result: it is unbounded, and published parts while it "
                "ran; read them where its sinks wrote them"
            )
            raise UsageError(msg)
        published = self.outcome().results
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
        """Wait for the end of the job and return its outcome.

        Raises:
            WhaleError: the error with which the job failed, or that it was cancelled.
        """
        self.wait()
        assert self._outcome is not None
        if self._outcome.state == "cancelled":
            msg = f"job {self.name!r} was cancelled; {output_of_cancelled(self._outcome)}"
            raise JobCancelledError(msg)
        return self._outcome

    def stop(
        self, drain: bool = True, timeout_s: float | None = None, *, savepoint: bool = False
    ) -> Job:
        """End the job, wait for its end and return the job itself.

        A job that is still starting drains as soon as its workers run, within
        `runtime.start_timeout_ms`. One that waits for resources, or begins anew since a worker
        died, is cancelled: nothing that it read is left.

        Args:
            drain: whether to process and publish all rows read so far; else the job is cancelled.
            timeout_s: how long to wait, in seconds; None: without limit.
            savepoint: whether to keep all that the job knows in a savepoint instead, so that it can
                resume from there: no input ends, and no window closes early. `outcome().checkpoint`
                says where it is.

        Raises:
            UsageError: a savepoint is asked for, and the job takes no checkpoints.
            WhaleError: the job failed before it ended.
            TimeoutError: the job has not ended within `timeout_s`.
        """
        for name, given in (("drain", drain), ("savepoint", savepoint)):
            check_bool("Job.stop", name, given)
        check_seconds("Job.stop", "timeout_s", timeout_s, or_none=True)
        if self._outcome is None:
            self._asked_to_stop = True
            if savepoint:
                timeout_s = self._stop_with_savepoint(timeout_s)
            else:
                self._runner.stop(drain)
        return self.wait(timeout_s)

    def _stop_with_savepoint(self, timeout_s: float | None) -> float | None:
        """Request it until there is an answer; return how much of the time to wait is left."""
        clock = SystemClock()
        begin_ns = clock.monotonic_ns()
        left_s = timeout_s
        while not self._runner.stop_with_savepoint():
            if left_s == 0:
                msg = (
                    f"job {self.name!r} is still starting after {timeout_s:g} s; it stops, with a"
                    " savepoint, once it runs"
                )
                raise TimeoutError(msg)
            if timeout_s is not None:
                left_s = max(0.0, timeout_s - (clock.monotonic_ns() - begin_ns) / 1e9)
        return left_s

    def savepoint(self, timeout_s: float | None = None) -> str:
        """Take a savepoint while the job runs on; return its path, for `restore=`.

        It stays until you remove it (`whale-ray state`).

        Args:
            timeout_s: how long to wait, in seconds; None: without limit. A savepoint that fails is
                tried again, with a warning.

        Raises:
            UsageError: the job takes no checkpoints, or has ended.
            WhaleError: the error with which the job failed before there was one.
            TimeoutError: there is none within `timeout_s`; it may still come.
        """
        from ..control.job_states import ALIVE

        check_seconds("Job.savepoint", "timeout_s", timeout_s, or_none=True)
        clock = SystemClock()
        begin_ns = clock.monotonic_ns()
        number: int | None = None
        while True:
            has_ended = self.state not in ALIVE
            number = self._runner.request_savepoint() if number is None else number
            place = None if number is None else self._runner.savepoint_of(number)
            if place:
                return place
            if place is not None:
                number = None  # another controller leads the job now
            if has_ended:
                if self.state == "failed":
                    self.wait()  # which raises why
                msg = f"job {self.name!r} has ended ({self.state}): it takes no savepoint any more"
                raise UsageError(msg)
            if timeout_s is not None and clock.monotonic_ns() - begin_ns >= timeout_s * 1e9:
                msg = f"job {self.name!r} has taken no savepoint within {timeout_s:g} s"
                raise TimeoutError(msg)
            clock.sleep_ns(_SAVEPOINT_POLL_NS)

    def set_route(self, route: Route, out_degree: int = 0) -> None:
        """Change the multicast trees of all streams for several hosts, while the job runs.

        Every tree is switched at a position in its stream, so no row is lost or duplicated. The
        method returns at once; `metrics().switches` has the progress of the switches.

        Args:
            route: "non-blocking", "star", "chain" or "binomial".
            out_degree: the largest number of children of a host in a non-blocking tree; 0: computed
                from the load.

        Raises:
            UsageError: the route is not known, or does not take this out-degree.
        """
        from ..multicast.tree_state import (
            Goal,
            check_goal,
        )

        self._reconfigure(check_goal(Goal(route, out_degree)))

    def set_addressing(self, addressing: Addressing) -> None:
        """Change how rows of the all grouping are serialized, while the job runs.

        Args:
            addressing: "worker-oriented": once; "instance-oriented": once per instance, which is
                possible only if the job was started with
                `runtime.addressing=instance-oriented`.

        Raises:
            UsageError: the name is not known, or the job was not started for this addressing.
        """
        from ..multicast.tree_messages import SetAddressing, check_addressing

        self._reconfigure(SetAddressing(check_addressing(addressing)))

    def _reconfigure(self, request: ReconfigurationRequest) -> None:
        if self._outcome is None:
            self._runner.reconfigure(request)

    def stop_from_signal(self, drain: bool) -> None:
        """Request the end without waiting; safe in a signal handler."""
        self._runner.stop(drain)

    def abandon(self, timeout_s: float = 10.0) -> None:
        """Cancel the job and wait up to `timeout_s` seconds for its end; ignores its outcome."""
        self._asked_to_stop = True
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
                    if not self._asked_to_stop:
                        warn_if_incomplete(self.name, outcome)
        return self._outcome

    def ui(self) -> UiLink:
        """Return the page that shows this job and others; a notebook shows it in the cell.

        It is served by this process, as long as it lives, to browsers of this machine alone.
        `whale-ray ui` serves the same without a job.

        Raises:
            UsageError: the job is not recorded (`records.interval_ms` is 0).
            ResourceError: whale-ray was installed without the page.
        """
        from ..ui.serving import serve_in_background

        if self._records is None or not self._records.interval_ms:
            msg = f"job {self.id} is not recorded: set records.interval_ms, 1000 by default"
            raise UsageError(msg)
        return serve_in_background(self._records).of_job(self.id)

    def __repr__(self) -> str:
        """Return name, id and state."""
        return f"<Job {self.name!r} {self.id} {self.state}>"

    def _repr_html_(self) -> str:
        """Return HTML tables of the operators, edges and relays' links, for notebooks."""
        title = f"<b>{escape(self.name)}</b> <code>{escape(self.id)}</code>: {self.state}"
        metrics = self.metrics()
        tables = metrics_html(metrics.operators, metrics.edges, metrics.relays)
        return f"<div>{title}{tables}</div>"

    def _ipython_display_(self) -> None:
        """Show the tables and update them every second while the job runs."""
        from .notebook import show_live

        if not show_live(self):
            raise NotImplementedError  # IPython then uses the representations above

    if not TYPE_CHECKING:  # hidden from type checkers, which then report a missing attribute

        def __getattr__(self, name: str) -> Any:
            hint = f": write {_INSTEAD[name]}" if name in _INSTEAD else ""
            msg = f"'Job' object has no attribute {name!r}{hint}"
            raise AttributeError(msg)


def _restored(metrics: JobMetrics) -> int:
    return 0 if metrics.checkpoints is None else metrics.checkpoints.restored
