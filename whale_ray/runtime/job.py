"""A submitted job, as its user holds it: status, metrics, wait, results, stop."""

from __future__ import annotations

import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from html import escape
from typing import TYPE_CHECKING, TextIO

from ..configs.errors import JobCancelledError, UsageError
from .metrics import JobMetrics
from .signals import draining_signals

if TYPE_CHECKING:
    from ..operators.sinks.base import SinkResult
    from ..plan.hosts import Route
    from .supervisor import JobOutcome
    from .tree_keeper import Wish
    from .tree_messages import Addressing

_POLL_S = 0.2


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
    def wish(self, wish: Wish) -> None:
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
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        runner: JobRunner,
        release: Callable[[], None] | None = None,
        logs: str = "",
    ) -> None:
        self.id = job_id
        self.logs = logs
        self.name = name
        self._runner = runner
        self._release = release
        self._outcome: JobOutcome | None = None
        self._lock = threading.Lock()

    @property
    def state(self) -> str:
        """What the job does, then how it ended.

        starting, running, draining, finishing, restarting or failing; then finished, drained,
        cancelled or failed.
        """
        return self._runner.state() if self._outcome is None else self._outcome.state

    def status(self) -> str:
        """Return the state and one line on what every operator does."""
        return self._told(self.metrics())

    def _told(self, metrics: JobMetrics) -> str:
        parts = [f"{self.name}: {self.state}", metrics.watch_line()]
        return " | ".join(part for part in parts if part)

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
        `interval_s`: what `line` makes of the metrics, by default rate, lag and back-pressure of
        every operator; nothing where that is empty. A line of its own tells when the job begins
        anew.

        Raises:
            WhaleError: what the job failed with.
            TimeoutError: it has not ended within `timeout_s`; it goes on.
        """
        waited_s = 0.0
        with draining_signals(self.stop_from_signal), closing(_Watch(watch, interval_s)) as lines:
            while (outcome := self._join(_POLL_S)) is None:
                waited_s += _POLL_S
                if lines.due(waited_s):
                    metrics = self.metrics()
                    lines.tell_restarts(self.name, metrics.attempt)
                    lines.show(self._told(metrics) if line is None else line(metrics))
                if timeout_s is not None and waited_s >= timeout_s:
                    msg = f"job {self.name!r} has not ended within {timeout_s:g} s; it goes on"
                    raise TimeoutError(msg)
            lines.tell_restarts(self.name, outcome.restarts)
        if outcome.error is not None:
            # How it travelled through the runtime says nothing to whoever waits for the job.
            raise outcome.error.with_traceback(None)
        return self

    def results(self, sink_id: str | None = None) -> SinkResult:
        """Wait, and return what a sink published; the id may be left out if there is one sink.

        Raises:
            UsageError: there is no such sink, or several to choose from.
            WhaleError: what the job failed with, or that it was cancelled.
        """
        published = self.outcome().results
        if sink_id is None:
            if len(published) == 1:
                return next(iter(published.values()))
            known = ", ".join(map(repr, published)) or "none"
            msg = f"job {self.name!r} has several sinks; name one of: {known}"
            raise UsageError(msg)
        if sink_id not in published:
            known = ", ".join(map(repr, published)) or "none (an unbounded job publishes parts)"
            msg = f"job {self.name!r} published nothing through {sink_id!r}; it has: {known}"
            raise UsageError(msg)
        return published[sink_id]

    def outcome(self) -> JobOutcome:
        """Wait, and return how the job ended; raises what it failed with."""
        self.wait()
        assert self._outcome is not None
        if self._outcome.state == "cancelled":
            msg = f"job {self.name!r} was cancelled; it published nothing"
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
        from .tree_keeper import Goal, check_goal

        self._wish(check_goal(Goal(route, out_degree)))

    def set_addressing(self, addressing: Addressing) -> None:
        """Serialize all-grouped rows once ("worker-oriented"), or once per instance, from now on.

        Only a job that began with `runtime.addressing=instance-oriented` has what the latter needs.
        Raises UsageError for one that did not, and for any other name.
        """
        from .tree_messages import SetAddressing, check_addressing

        self._wish(SetAddressing(check_addressing(addressing)))

    def _wish(self, wish: Wish) -> None:
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
        metrics = self.metrics()
        title = f"<b>{escape(self.name)}</b> <code>{escape(self.id)}</code>: {self.state}"
        edges = _table(_EDGE_HEAD, _edge_rows(metrics)) if metrics.edges else ""
        links = _table(_LINK_HEAD, _link_rows(metrics)) if metrics.relays else ""
        operators = _table(_OPERATOR_HEAD, _operator_rows(metrics))
        return f"<div>{title}{operators}{edges}{links}</div>"


_OPERATOR_HEAD = (
    "operator",
    "instances",
    "rows in",
    "rows out",
    "rows/s",
    "lag ms",
    "busy",
    "blocked",
)
_EDGE_HEAD = ("from", "to", "carried by")
_LINK_HEAD = (
    "host",
    "peer",
    "link",
    "MB sent",
    "MB received",
    "broken",
    "waited",
    "not by verbs because",
)


def _operator_rows(metrics: JobMetrics) -> list[tuple[str, ...]]:
    return [
        (
            m.operator_id,
            str(m.instances),
            f"{m.rows_in:,}",
            f"{m.rows_out:,}",
            f"{m.rate_per_s:,.0f}",
            "" if m.lag_ms is None else f"{m.lag_ms:,.0f}",
            f"{m.busy:.0%}",
            f"{m.back_pressured:.0%}",
        )
        for m in metrics.operators
    ]


def _edge_rows(metrics: JobMetrics) -> list[tuple[str, ...]]:
    return [(edge.source, edge.target, edge.carried_by) for edge in metrics.edges]


def _link_rows(metrics: JobMetrics) -> list[tuple[str, ...]]:
    return [
        (
            relay.host,
            link.host,
            link.way if link.up else "down",
            f"{link.bytes_sent / 1e6:,.1f}",
            f"{link.bytes_received / 1e6:,.1f}",
            f"{sum(link.failures.values()):,}",
            f"{link.back_pressured:,}",
            link.without_verbs,
        )
        for relay in metrics.relays
        for link in relay.links
    ]


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    header = "".join(f"<th>{name}</th>" for name in head)
    return f"<table><tr>{header}</tr>{cells}</table>"


class ThreadRunner(JobRunner):
    """Runs a job's supervisor in a thread of this process."""

    def __init__(
        self,
        name: str,
        run: Callable[[], JobOutcome],
        state: Callable[[], str],
        metrics: Callable[[], JobMetrics],
        stop: Callable[[bool], None],
        wish: Callable[[Wish], None],
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

    def wish(self, wish: Wish) -> None:
        """See `JobRunner.wish`."""
        self._wish(wish)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """See `JobRunner.join`."""
        self._thread.join(timeout_s)
        if self._crash is not None:
            raise self._crash
        return self._outcome


class _Watch:
    """Prints lines that tell how far the job is; on a terminal, each over the one before."""

    def __init__(self, stream: TextIO | None, interval_s: float) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._next_s = interval_s
        self._unfinished = False
        self._restarts = 0

    def due(self, waited_s: float) -> bool:
        """Tell whether it is time for the next line."""
        if self._stream is None or waited_s < self._next_s:
            return False
        self._next_s += self._interval_s
        return True

    def tell_restarts(self, name: str, restarts: int) -> None:
        """Print a line that stays if the job began anew since the last call."""
        if self._stream is None or restarts <= self._restarts:
            return
        self._restarts = restarts
        self.close()
        self._stream.write(
            f"{name}: restart {restarts}: a worker or host was lost; "
            "the sources are read again from their start\n"
        )
        self._stream.flush()

    def show(self, line: str) -> None:
        """Print a line, unless it is empty."""
        assert self._stream is not None
        if not line:
            return
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\033[K{line[:width]}")
            self._unfinished = True
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the last line standing."""
        if self._unfinished and self._stream is not None:
            self._stream.write("\n")
            self._stream.flush()
            self._unfinished = False
