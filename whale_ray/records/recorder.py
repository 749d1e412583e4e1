"""Writes what is kept of one run while the job runs.

Whatever fails here, the job continues: a record that cannot be written is given up, with a warning.
Times are those since the job began, on the monotonic clock, so a wall clock that jumps bends no
chart.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..configs.errors import WhaleError
from ..metrics.counters import MemberCounters
from ..optimizer.decisions import DecisionLog
from ..plan.assignment import Assignment
from ..transport.clock import Clock, SystemClock
from .describing import describe_job, running_operators
from .folders import (
    DECISIONS,
    DESCRIPTION,
    HISTORY,
    NOW,
    REQUEST,
    RunFolders,
    replace_json,
    replace_text,
)
from .sampling import JobEnd, JobView, Sampler, describe_end

__all__ = ["NoRecorder", "RunRecorder", "recorder_of"]

_log = logging.getLogger(__name__)


class NoRecorder:
    """Keeps nothing."""

    next_due_ns: int | None = None
    seen: Mapping[int, MemberCounters] = MappingProxyType({})
    """The counters of the last sample, by member: the next one's rates are those since then."""

    def begin(self) -> None:
        """Do nothing."""

    def record(self, view: JobView) -> str:
        """Return that nothing is asked for."""
        return ""

    def end(self, view: JobView, end: JobEnd) -> None:
        """Do nothing."""


class RunRecorder(NoRecorder):
    """Keeps a run in a folder of its own."""

    def __init__(
        self,
        assignment: Assignment,
        clock: Clock,
        ray_dashboard_url: str = "",
        *,
        detached: bool = False,
    ) -> None:
        self._assignment = assignment
        self._detached = detached
        self._ray_dashboard_url = ray_dashboard_url
        self._settings = assignment.settings.records
        self._clock = clock
        runtime = assignment.settings.runtime
        self._sampler = Sampler(
            (node.id for node in running_operators(assignment.plan)),
            assignment.plan.workers,
            max(self._settings.interval_ms, runtime.poll_interval_ms) / 1000,
        )
        self._folder: Path | None = None
        self._began_ns = 0
        self._lines = 0
        self._stride = 1
        self._taken = 0
        self._decided = 0
        self.next_due_ns = None

    def begin(self) -> None:
        """Describe the job; one that continues, led by another process, continues here too."""
        self._guard(self._begin)

    def record(self, view: JobView) -> str:
        """Keep a sample; return what another process asks for ("drain", "cancel", …), or ""."""
        now_ns = self._clock.monotonic_ns()
        self.next_due_ns = now_ns + self._settings.interval_ms * 1_000_000
        asked: str | None = self._guard(lambda: self._record(view, now_ns))
        return asked or ""

    def end(self, view: JobView, end: JobEnd) -> None:
        """Keep the last counters, and how the job ended."""
        self.next_due_ns = None
        self._guard(lambda: self._write_now(view, self._clock.monotonic_ns(), end))

    def _guard(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (OSError, WhaleError) as error:
            remedy = "" if isinstance(error, WhaleError) else "; name a folder with records.folder"
            job_id = self._assignment.job_id
            _log.warning("job %s is not recorded any more: %s%s", job_id, error, remedy)
            self._folder, self.next_due_ns = None, None
            return None

    def _begin(self) -> None:
        wall_ns, self._began_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
        self._folder = RunFolders(self._settings).make(self._assignment.job_id)
        described = describe_job(
            self._assignment, wall_ns, self._ray_dashboard_url, detached=self._detached
        )
        before = self._folder / DESCRIPTION
        if before.is_file():
            began_s = json.loads(before.read_bytes())["began_s"]
            self._began_ns -= max(0, wall_ns - int(began_s * 1e9))
            described["began_s"] = began_s
            self._lines = self._history.read_bytes().count(b"\n") if self._history.is_file() else 0
        replace_json(self._folder / DESCRIPTION, described)
        self.next_due_ns = self._clock.monotonic_ns()

    @property
    def _history(self) -> Path:
        assert self._folder is not None
        return self._folder / HISTORY

    def _record(self, view: JobView, now_ns: int) -> str:
        if self._folder is None:
            return ""
        self._write_now(view, now_ns, None)
        self.seen = view.newest
        return self._take_request(self._folder / REQUEST)

    def _write_now(self, view: JobView, now_ns: int, end: JobEnd | None) -> None:
        if self._folder is None:
            return
        at_s = (now_ns - self._began_ns) / 1e9
        detail = self._sampler.detail(view, at_s, self._clock.wall_ns() / 1e9)
        if end is not None:
            detail["end"] = describe_end(end)
        self._taken += 1
        if end is not None or self._taken % self._stride == 0:  # a short job has no other one
            self._append(json.dumps(self._sampler.line(view, at_s), separators=(",", ":")))
        replace_json(self._folder / NOW, detail)  # readers of an end read no further
        self._keep_decisions(view.metrics.decisions)

    def _keep_decisions(self, log: DecisionLog | None) -> None:
        """Write the whole log if there is a new decision in it."""
        made = 0 if log is None else len(log.steps) + log.left_out
        if log is not None and made != self._decided:
            self._decided = made
            assert self._folder is not None
            replace_text(self._folder / DECISIONS, log.to_yaml())

    def _append(self, line: str) -> None:
        with self._history.open("a", encoding="utf-8") as history:
            history.write(line + "\n")
        self._lines += 1
        if self._lines >= self._settings.samples_max:
            self._thin()

    def _thin(self) -> None:
        """Leave out every second sample, and from now on take half as many."""
        kept = self._history.read_text(encoding="utf-8").splitlines(keepends=True)[1::2]
        beside = self._history.with_name(f".{HISTORY}")
        beside.write_text("".join(kept), encoding="utf-8")
        beside.replace(self._history)
        self._lines = len(kept)
        self._stride *= 2

    @staticmethod
    def _take_request(path: Path) -> str:
        if not path.is_file():
            return ""
        try:
            return str(json.loads(path.read_bytes())["end"])
        except (ValueError, KeyError, TypeError):
            _log.warning("%s: not a request, and removed", path)
            return ""
        finally:
            path.unlink()


def recorder_of(
    assignment: Assignment, clock: Clock, ray_dashboard_url: str = "", *, detached: bool = False
) -> NoRecorder:
    """Return what records a job; nothing does in virtual time, or if the settings say so.

    Args:
        assignment: the job.
        clock: tells the time of each sample.
        ray_dashboard_url: where Ray's dashboard shows the job's actors; "" without one.
        detached: whether its driver does not wait for its end.
    """
    if not isinstance(clock, SystemClock) or not assignment.settings.records.interval_ms:
        return NoRecorder()
    return RunRecorder(assignment, clock, ray_dashboard_url, detached=detached)
