"""Prepares, publishes and discards the output of a job's sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ..configs.errors import OutputError, WhaleError
from ..operators.sinks.base import CommitId, Sink, SinkResult, Staged
from ..plan.assignment import Assignment, job_is_bounded, output_token
from ..plan.logical import OperatorKind
from ..transport.clock import Clock
from ..worker.staged_output import StagedOutput
from .background import carry_out_within
from .controller_events import Published, StepResult
from .failures import as_whale_error, attributed_to, logged
from .outputs import staged_of, warn_without_columns

StagedParts = Mapping[str, Sequence[Staged]]
"""What sinks have staged, by their ids."""

_log = logging.getLogger(__name__)

_DROP_TIMEOUT_S = 30.0
"""How long the end of a job waits for sinks to remove what no checkpoint names."""

_NOTHING: StagedParts = MappingProxyType({})


class SinkPublisher:
    """Publishes each sink once, even if the controller fails in between and another one resumes.

    Sinks of a job with an endless source publish parts as they run; here is nothing to publish.
    """

    def __init__(self, assignment: Assignment, write_down: Callable[[], None]) -> None:
        """`write_down` writes `results` to the journal; it is called after each sink."""
        self._assignment = assignment
        self._write_down = write_down
        self._sinks = {
            node.id: node.payload
            for node in assignment.plan.logical.of_kind(OperatorKind.SINK)
            if isinstance(node.payload, Sink)
        }
        self.is_bounded = job_is_bounded(assignment)
        """Whether all sources of the job end by themselves."""
        self.results: dict[str, SinkResult] = {}
        """What was published, by sink."""
        self._entered: set[str] = set()  # sinks of which something may be staged, or set aside
        self._with_output: set[str] = set()  # sinks whose output was seen, or committed to
        self._published_as = ""  # the id of the job for which it publishes; "": its own
        self._has_begun = False
        self._unprepared: str | None = None  # the sink with which the job could not begin

    @property
    def durable_results(self) -> Mapping[str, SinkResult]:
        """The results for the journal, without collected rows, which may be many.

        A successor collects them again from what was staged.
        """
        return {name: result for name, result in self.results.items() if result.table is None}

    def inherit(self, results: Mapping[str, SinkResult], published_as: str = "") -> None:
        """Go on for a controller that failed: it has prepared the sinks, and published these.

        `published_as` as for `recover`.
        """
        self.results = dict(results)
        self._entered.update(self._sinks)
        self._published_as = published_as

    def prepare(self) -> None:
        """Prepare all sinks for the job; raises OutputError or UserFunctionError."""
        for name, sink in self._sinks.items():
            with self._preparing(name), attributed_to(name, "none yet"):
                sink.prepare(self._assignment.job_id, bounded=self.is_bounded)

    def recover(
        self,
        staged: StagedParts,
        epoch: CommitId | None = None,
        operators: Collection[str] = (),
        published_as: str = "",
    ) -> None:
        """Prepare all sinks to resume from an epoch that names what they have staged.

        Args:
            staged: what it names, by sink.
            epoch: which one it is; None: there is none, the job begins at the start.
            operators: the ids of its operators; a sink that is not among them is a new one.
            published_as: see `Manifest.publisher`.

        Raises:
            OutputError, UserFunctionError: a sink cannot continue.
        """
        self._published_as = published_as or self._published_as
        for name, sink in self._sinks.items():
            with self._preparing(name), attributed_to(name, "what its instances staged"):
                self._check_output(name, sink)
                sink.recover(self._token(0), staged.get(name, ()), bounded=self.is_bounded)
                is_missing = name in operators and name not in self._with_output
                if epoch is not None and not self._has_begun and is_missing:
                    self._warn_if_output_is_missing(name, sink, epoch)
        self._has_begun = True

    def _check_output(self, name: str, sink: Sink) -> None:
        """Raise OutputError if an output is gone that this job has seen: it is not begun anew."""
        if self.is_bounded:
            return
        if not sink.lacks_output():
            self._with_output.add(name)
        elif name in self._with_output:
            msg = (
                f"the output of sink {name!r} ({sink.describe()}) is gone while the job runs: put"
                " it back (is a disk no longer mounted?), and resume the job"
            )
            raise OutputError(msg)

    def _warn_if_output_is_missing(self, name: str, sink: Sink, epoch: CommitId) -> None:
        """Log a warning if a job goes on from one whose committed rows would be missing."""
        if self._assignment.restored and not self.is_bounded:
            _log.warning(
                "sink %r (%s) has no output yet, and the job goes on from checkpoint %d of job %r:"
                " it begins with the rows after that. If rows were committed before, the output was"
                " moved, or its disk is not mounted: stop the job, put it back, and resume",
                name,
                sink.describe(),
                epoch.epoch,
                epoch.lineage,
            )

    def keep_only(self, staged: StagedParts) -> None:
        """Remove what a job that has ended staged, but for this; errors as `recover`.

        A job that could not begin has staged nothing.
        """
        if self._unprepared is None:
            self._has_begun = True
            self.recover(staged)

    def drop(self, attempt: int, staged: StagedParts | None, clock: Clock) -> None:
        """Remove what a job that has ended staged, but for what its newest epoch names, if any.

        Raises:
            OutputError: a disk or a server does not answer, which must not keep the job from its
                end: what was staged stays there, until the job is resumed.
        """
        drop = partial(self.discard, attempt) if staged is None else partial(self.keep_only, staged)
        carry_out_within(drop, "a sink", _DROP_TIMEOUT_S, clock)

    @contextmanager
    def _preparing(self, name: str) -> Iterator[None]:
        self._entered.add(name)
        self._unprepared = name
        yield
        self._unprepared = None

    def commit(self, commit: CommitId, staged: StagedParts) -> None:
        """Let sinks make visible what they have staged for an epoch; the job is unbounded.

        Raises:
            OutputError, UserFunctionError: it cannot be done at present, or it is unknown whether
                it was.
        """
        for name, parts in staged.items():
            if name in self._sinks:  # else the restored job does without that sink
                has_rows = any(part.rows for part in parts)
                if has_rows and name in self._with_output:
                    self._check_output(name, self._sinks[name])
                with attributed_to(name, "what its instances staged"):
                    self._sinks[name].commit(commit, parts)
                if has_rows:
                    self._with_output.add(name)

    def publish(
        self, attempt: int, staged: tuple[StepResult, ...], before: StagedParts = _NOTHING
    ) -> Published:
        """Publish what the members staged, relays nothing; an error becomes part of the event.

        `before` has what sinks staged for the epochs of a job with checkpoints.
        """
        outputs = [one for one in staged if isinstance(one, StagedOutput)]
        outputs.insert(0, StagedOutput(before, cut_short=False))
        cut_short = any(one.cut_short for one in outputs)
        try:
            if self.is_bounded:
                self._publish_all(attempt, outputs, cut_short)
        except Exception as error:  # noqa: BLE001  # the job ends in order all the same
            return Published(as_whale_error(error))
        return Published(cut_short=cut_short)

    def _publish_all(self, attempt: int, outputs: list[StagedOutput], cut_short: bool) -> None:
        for name, sink in self._sinks.items():
            if name in self.results:
                continue  # published by a controller that failed then
            with attributed_to(name, "what its instances staged"):
                parts = staged_of(name, outputs, self._assignment.plan.logical)
                result = self._publish_through(sink, attempt, parts, cut_short)
            self.results[name] = result
            warn_without_columns(name, result)
            self._write_down()

    def _publish_through(
        self, sink: Sink, attempt: int, staged: list[Staged], cut_short: bool
    ) -> SinkResult:
        token = self._token(attempt)
        if not cut_short:
            return sink.publish(token, staged)
        replaces = self._assignment.settings.runtime.partial_output == "replace"
        publish = sink.publish if replaces else sink.publish_partial
        return replace(publish(token, staged), partial=True)

    def discard(self, attempt: int) -> None:
        """Remove what an attempt staged; errors are logged.

        Not those of a sink that could not be prepared: it has told the job why.
        """
        for name in sorted(self._entered):
            said = suppress(WhaleError) if name == self._unprepared else nullcontext()
            with logged(f"discard what sink {name!r} has not published"), said:
                self._sinks[name].discard(self._token(attempt))

    def _token(self, attempt: int) -> str:
        return self._published_as or output_token(self._assignment, attempt)
