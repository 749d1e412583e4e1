"""Whether a sink keeps what it promises to jobs with checkpoints; `check_sink` runs this.

A job of numbered rows is played: it writes, stages epochs, commits them or publishes at its end.
Meanwhile it fails: an epoch is forgotten, a call ends before it begins, at one of its lines or
after it has succeeded, the job resumes from its newest epoch, as itself or as another job. The same
failures come in the same order each time.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..configs.errors import OutputError
from ..operators.sinks.base import CommitId, Sink, SinkWriter, Staged
from ..operators.sinks.staged_json import staged_from_json, staged_to_json
from .conformance import ContractError, difference, pickled_copy, require
from .driving import instance_context
from .interruption import InjectedError, Interruption

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

Read = Callable[[Any], Iterable[Mapping[str, Any]]]
_T = TypeVar("_T")

_INSTANCES = 2
_EPOCHS = 12
_LINES_AT_FIRST = 20
_LINES_MAX = 40
_PHASES = ("before", "in the middle", "afterwards")

_INVISIBLE = "what is staged must stay invisible until publish() or commit()"
_KEPT = (
    "what is staged must survive abort() and recover(), and publish() and commit() must add all of"
    " it, in one step with what they note"
)

_PUBLISHED = "publish() adds only what `staged` lists, and once however often it is called"
_NOTED = (
    "commit() must note the commit's lineage and epoch in the transaction that adds the rows, and"
    " do nothing if they are noted"
)
_LINEAGE = "commit() must know a commit by its lineage and epoch, since another job repeats epochs"


class RowsWithIds:
    """Rows like those of a batch, as many as wanted, each with a number of its own if possible.

    The numbers are in the first column of integers; without one, equal rows are counted.
    """

    def __init__(self, like: Batch) -> None:
        import pyarrow as pa

        self._like = like.to_arrow()
        wide = (pa.int64(), pa.uint64(), pa.int32(), pa.uint32())
        names = [field.name for field in self._like.schema if field.type in wide]
        self._column = names[0] if names else None

    def batch(self, start: int, stop: int) -> Batch:
        """Return the rows with these numbers."""
        import pyarrow as pa

        from ..transport.wire.batch import Batch

        numbers = np.arange(start, stop)
        rows = self._like.take(pa.array(numbers % self._like.num_rows))
        if self._column is not None:
            place = rows.schema.get_field_index(self._column)
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, pa.array(numbers).cast(field.type))
        return Batch.from_arrow(rows)

    def expected(self, start: int, stop: int) -> Counter[str]:
        """Return how often each row must be there."""
        if self._column is not None:
            return Counter(map(str, range(start, stop)))
        return self.counted(self.batch(start, stop).to_pylist())

    def counted(self, rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
        """Return how often each row is there."""
        if self._column is not None:
            return Counter(map(str, map(itemgetter(self._column), rows)))
        return Counter(repr(sorted(dict(row).items())) for row in rows)


@dataclass(frozen=True)
class _Epoch:
    """An epoch that counts: how many rows belong to it, and what its manifest lists."""

    job: str
    number: int
    rows: int
    staged: tuple[Staged, ...]


class PlayedJob:
    """A job that fails at a rate, and the epochs that it can resume from.

    Args:
        sink: with an empty output.
        rows: what it writes.
        total: how many of them.
        bounded: whether it publishes at its end, instead of committing epochs.
        rate: how likely each failure is where it is possible, from 0 to 1.
        epochs: into how many epochs the rows are divided if none fails.
    """

    def __init__(
        self,
        sink: Sink,
        rows: RowsWithIds,
        total: int,
        *,
        bounded: bool,
        rate: float,
        epochs: int = _EPOCHS,
    ) -> None:
        self.name = type(sink).__name__
        self.lines: dict[str, int] = {}
        """How many lines the last call of each method ran."""
        self.commit_ends_at = 0
        """At which of its lines the next commit ends; 0: at none."""
        # What the output notes about jobs may outlive this one.
        self._name = f"check-{uuid.uuid4().hex[:8]}"
        self.epochs: list[_Epoch] = [_Epoch(f"{self._name}-0", 0, 0, ())]
        self._sink, self._rows, self._total = sink, rows, total
        self._bounded, self._rate, self._divisor = bounded, rate, epochs
        self._random = Random(f"{bounded} {rate}")  # the same failures each time
        packages = {one.__module__.split(".")[0] for one in type(sink).__mro__}
        self._interruption = Interruption(packages - {"builtins", "abc"})
        self._jobs = 0
        self._number = 0
        self._position = 0
        self._waiting: list[Staged] = []
        self._writers: list[SinkWriter] = []
        self._committed: CommitId | None = None

    def begin(self) -> None:
        """Prepare the output.

        Raises:
            OutputError: the sink does not take such a job.
        """
        self._sink.prepare(self._job, bounded=self._bounded)
        self._open()

    def run_epoch(self) -> None:
        """Write rows and stage them; then the epoch counts, or is forgotten, or all is lost."""
        stop = min(self._position - (-self._total // self._divisor), self._total)
        self._write(stop)
        self._number += 1
        try:
            self._stage()
        except InjectedError:
            self.restart()
            return
        self._position = stop
        if self._happens():
            return  # forgotten: what was staged belongs to the next epoch that counts
        if self._happens():
            self.restart()
            return
        before = self.epochs[-1].staged if self._bounded else ()
        staged = (*before, *self._waiting)
        self.epochs.append(_Epoch(self._job, self._number, self._position, staged))
        self._waiting = []
        if self._bounded:
            return
        self._commit_newest()
        while self._happens():
            self._commit_newest()

    def restart(self, back_to: int = -1) -> None:
        """Resume from an epoch that counts, as the same job or as a new one."""
        self.close()
        epoch = self.epochs[back_to]
        if back_to != -1 or self._happens():
            self._jobs, self._number = self._jobs + 1, epoch.number
        del self.epochs[len(self.epochs) + back_to + 1 :]
        while True:
            self._sink = pickled_copy(self._sink)
            with suppress(InjectedError):
                self._call("recover", self._recover)
                break
        self._position, self._waiting = epoch.rows, []
        if not self._bounded and epoch.number:
            self._commit_newest()
        self._open()

    def skip_to(self, position: int) -> None:
        """Leave out the rows before this one."""
        self._position = position

    def finish(self) -> None:
        """Publish a bounded job, with rows behind its last epoch; repeat what fails."""
        while True:
            self._write(self._total)
            tail = [pickled_copy(writer.stage()) for writer in self._writers]
            staged = [*self.epochs[-1].staged, *tail]
            try:
                result = self._call("publish", partial(self._sink.publish, self._job, staged))
            except InjectedError:
                self.restart()
                continue
            require(
                result.rows == self._total,
                f"{self.name}: publish() returned {result.rows} rows of {self._total}: add up those"
                " staged for all epochs",
            )
            break
        self.end()

    def close(self) -> None:
        """Abort the writers: what they have staged for epochs must survive that."""
        for writer in self._writers:
            writer.abort()
        self._writers = []

    def end(self) -> None:
        """End the job, and discard what it and those before it have staged and nobody needs."""
        self.close()
        for number in range(self._jobs + 1):
            self._sink.discard(f"{self._name}-{number}")

    @property
    def written(self) -> int:
        """How many rows belong to the newest epoch that counts."""
        return self.epochs[-1].rows

    @property
    def _job(self) -> str:
        return f"{self._name}-{self._jobs}"

    def _open(self) -> None:
        self._writers = [
            pickled_copy(self._sink).open(
                instance_context(number, _INSTANCES, attempt=self._jobs), self._job
            )
            for number in range(_INSTANCES)
        ]

    def _write(self, stop: int) -> None:
        """Write the rows up to this number, each instance its half."""
        start, cut = self._position, (self._position + stop) // 2
        for writer, first, last in zip(self._writers, (start, cut), (cut, stop), strict=True):
            if first < last:
                writer.write(self._rows.batch(first, last))

    def _stage(self) -> None:
        for number, writer in enumerate(self._writers):
            staged = self._call("stage_epoch", partial(writer.stage_epoch, self._number))
            again = writer.stage_epoch(self._number + 1)
            require(again is None, f"{self.name}: stage_epoch() without rows must return None")
            if staged is None:
                continue
            require(
                isinstance(staged, Staged) and staged.instance == number,
                f"{self.name}: stage_epoch() of instance {number} must return Staged({number}, …), "
                f"not {staged!r}",
            )
            as_json = json.dumps(staged_to_json(replace(staged, epoch=self._number)))
            self._waiting.append(staged_from_json(json.loads(as_json)))

    def _recover(self) -> None:
        self._sink.recover(self._job, list(self.epochs[-1].staged), bounded=self._bounded)

    def _commit_newest(self) -> None:
        """Commit until it is known that it succeeded; a new process may continue with it."""
        epoch = self.epochs[-1]
        commit, staged = CommitId(epoch.job, epoch.number), list(epoch.staged)
        while True:
            try:
                self._call("commit", partial(self._sink.commit, commit, staged))
                self._committed = commit
                return
            except InjectedError:
                self._sink = pickled_copy(self._sink)
            except Exception as error:
                if commit != self._committed:
                    raise
                msg = f"{self.name}: commit() raised {error!r} when it was repeated: {_NOTED}"
                raise ContractError(msg) from error

    def _happens(self) -> bool:
        return self._random.random() < self._rate

    def _call(self, name: str, call: Callable[[], _T]) -> _T:
        """Call a method; it may fail before, in the middle, or afterwards, so that nobody knows.

        Raises:
            InjectedError: it failed.
        """
        phase = self._random.choice(_PHASES) if self._happens() else ""
        if phase == "before":
            raise InjectedError
        lines = self.lines.get(name, _LINES_AT_FIRST)
        at = self._random.randint(1, lines) if phase == "in the middle" else 0
        if name == "commit" and self.commit_ends_at:
            at, self.commit_ends_at = self.commit_ends_at, 0
        result = self._interruption.run(call, at)
        self.lines[name] = max(1, self._interruption.lines)
        if phase == "afterwards":
            raise InjectedError
        return result


def check_epochs(
    make_sink: Callable[[], Sink],
    read: Read | None,
    like: Batch,
    *,
    ids: int,
    rates: Sequence[float],
) -> None:
    """Play jobs with failures at each rate, bounded and unbounded, and compare the output.

    Raises:
        ContractError: rows are missing, or there more than once.
    """
    rows = RowsWithIds(like)
    for rate in rates:
        _play_bounded(_PlayedOutput(make_sink(), read, rows, ids), rate)
        if _commits(make_sink()):
            _play_unbounded(_PlayedOutput(make_sink(), read, rows, ids), rate)
    if _commits(make_sink()):
        _play_older_epoch(_PlayedOutput(make_sink(), read, rows, ids))
        _play_lines_of_commits(_PlayedOutput(make_sink(), read, rows, ids))


def _commits(sink: Sink) -> bool:
    """Return whether a sink can be that of an unbounded job."""
    return type(sink).commit is not Sink.commit


@dataclass
class _PlayedOutput:
    """A sink with an empty output, and what is compared."""

    sink: Sink
    read: Read | None
    rows: RowsWithIds
    ids: int

    def expect(
        self, wanted: Counter[str], when: str, *, missing: str = _KEPT, too_many: str
    ) -> None:
        """Require that the output has these rows.

        Args:
            wanted: how often each must be there.
            when: in words.
            missing: the rule that is broken if some are missing.
            too_many: likewise, if some are there too often.

        Raises:
            ContractError: it has others.
        """
        if self.read is None:
            return
        found = self.rows.counted(self.read(self.sink))
        if self.sink.delivery == "at least once":
            found = Counter({row: min(n, wanted[row] or n) for row, n in found.items()})
        wrong = difference(wanted, found)
        rule = missing if wrong and wanted - found else too_many
        name = type(self.sink).__name__
        require(not wrong, f"{name}: {when} its output is wrong: {wrong}; {rule}")


def _play_bounded(check: _PlayedOutput, rate: float) -> None:
    job = PlayedJob(check.sink, check.rows, check.ids, bounded=True, rate=rate)
    job.begin()
    goes_back_at = [8, 4] if rate else []
    # Without failures, the last rows belong to no epoch: `stage` takes them.
    while job.written < (check.ids if rate else check.ids // 2):
        job.run_epoch()
        if goes_back_at and len(job.epochs) == goes_back_at[-1]:
            goes_back_at.pop()
            job.restart(back_to=-2)
    if check.sink.delivery == "exactly once":
        when = "before publish() of a job with checkpoints"
        check.expect(Counter(), when, too_many=_INVISIBLE)
    job.finish()
    when = f"after publish() of a job whose calls fail at a rate of {rate}"
    check.expect(check.rows.expected(0, check.ids), when, too_many=_PUBLISHED)


def _play_unbounded(check: _PlayedOutput, rate: float) -> None:
    job = PlayedJob(check.sink, check.rows, check.ids, bounded=False, rate=rate)
    try:
        job.begin()
    except OutputError:
        return  # it is for bounded jobs only
    when = f"of a job whose calls fail at a rate of {rate}"
    looks = {check.ids // 4, check.ids // 2}
    while job.written < check.ids:
        job.run_epoch()
        passed = {look for look in looks if look <= job.written}
        if passed:
            looks -= passed
            wanted = check.rows.expected(0, job.written)
            check.expect(wanted, f"after commit() {when}", too_many=_NOTED)
    job.end()
    wanted = check.rows.expected(0, check.ids)
    check.expect(wanted, f"after the last commit() {when}", too_many=_NOTED)


def _play_older_epoch(check: _PlayedOutput) -> None:
    """Go back to before committed epochs: a new job has the same epochs again, with other rows."""
    job = PlayedJob(check.sink, check.rows, check.ids, bounded=False, rate=0)
    try:
        job.begin()
    except OutputError:
        return
    for _ in range(_EPOCHS // 2):
        job.run_epoch()
    committed = job.written
    job.restart(back_to=2 - len(job.epochs))
    job.skip_to(committed)
    while job.written < check.ids:
        job.run_epoch()
    job.end()
    when = "after a job that was restored from an older epoch has gone on with other rows,"
    wanted = check.rows.expected(0, check.ids)
    check.expect(wanted, when, missing=_LINEAGE, too_many=_LINEAGE)


def _play_lines_of_commits(check: _PlayedOutput) -> None:
    """End commits at one line after the other, up to `_LINES_MAX` of them, and repeat each."""
    epochs = _LINES_MAX + 2
    job = PlayedJob(check.sink, check.rows, check.ids, bounded=False, rate=0, epochs=epochs)
    try:
        job.begin()
    except OutputError:
        return
    job.run_epoch()
    lines = job.lines["commit"]
    for line in range(1, lines + 1, -(-lines // _LINES_MAX)):
        job.commit_ends_at = line
        job.run_epoch()
    while job.written < check.ids:
        job.run_epoch()
    job.end()
    when = "after commits that ended at one of their lines and were repeated"
    check.expect(check.rows.expected(0, check.ids), when, missing=_NOTED, too_many=_NOTED)
