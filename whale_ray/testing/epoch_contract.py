"""Whether a sink keeps what it promises to jobs with checkpoints; `check_sink` runs this.

A job of numbered rows is played: it writes, sets rows apart and stages them, commits epochs or
publishes at its end. Meanwhile it fails: an epoch is forgotten, a call ends before it begins, at
one of its lines or after it has succeeded, the job resumes from its newest epoch, as itself or as
another job. The same failures come in the same order each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..configs.errors import OutputError
from ..operators.sinks.base import Sink
from .conformance import difference, require
from .played_job import (
    AFTERWARDS,
    COMMIT,
    EPOCHS,
    NOTED,
    PUBLISH,
    STAGING,
    PlayedJob,
    RowsWithIds,
)

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = ["check_epochs"]

Read = Callable[[Any], Iterable[Mapping[str, Any]]]

_LINES_MAX = 40
_LINES_OF_PUBLICATIONS = 8
_FEW_IDS = 60
"""Many jobs write so few rows each."""

_INVISIBLE = "what is staged must stay invisible until publish() or commit()"
_KEPT = (
    "what is staged must survive abort() and recover(), and publish() and commit() must add all of"
    " it, in one step with what they note"
)
_PUBLISHED = "publish() adds only what `staged` lists, and once however often it is called"
_LINEAGE = "commit() must know a commit by its lineage and epoch, since another job repeats epochs"


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
    _play_publications(lambda: _PlayedOutput(make_sink(), read, rows, min(ids, _FEW_IDS)))
    for bounded in (True, False) if _commits(make_sink()) else (True,):
        _play_lines_of_staging(_PlayedOutput(make_sink(), read, rows, ids), bounded=bounded)


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
            check.expect(wanted, f"after commit() {when}", too_many=NOTED)
    job.end()
    wanted = check.rows.expected(0, check.ids)
    check.expect(wanted, f"after the last commit() {when}", too_many=NOTED)


def _play_older_epoch(check: _PlayedOutput) -> None:
    """Go back to before committed epochs: a new job has the same epochs again, with other rows."""
    job = PlayedJob(check.sink, check.rows, check.ids, bounded=False, rate=0)
    try:
        job.begin()
    except OutputError:
        return
    for _ in range(EPOCHS // 2):
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
    for line in _lines_of(job, COMMIT):
        job.ends_at[COMMIT] = line
        job.run_epoch()
    while job.written < check.ids:
        job.run_epoch()
    job.end()
    when = "after commits that ended at one of their lines and were repeated"
    check.expect(check.rows.expected(0, check.ids), when, missing=NOTED, too_many=NOTED)


def _play_lines_of_staging(check: _PlayedOutput, *, bounded: bool) -> None:
    """End what `cut_epoch` returned at one line after the other, and repeat each with an epoch."""
    epochs = 2 * _LINES_MAX + 2
    job = PlayedJob(check.sink, check.rows, check.ids, bounded=bounded, rate=0, epochs=epochs)
    try:
        job.begin()
    except OutputError:
        return
    job.run_epoch()
    for line in _lines_of(job, STAGING):
        job.ends_at[STAGING] = line
        job.run_epoch()  # is forgotten
        job.run_epoch()  # stages it, too
    while job.written < check.ids:
        job.run_epoch()
    if bounded:
        job.finish()
    else:
        job.end()
    when = "after stagings of epochs that ended at one of their lines and were repeated"
    check.expect(check.rows.expected(0, check.ids), when, missing=_KEPT, too_many=_PUBLISHED)


def _play_publications(fresh: Callable[[], _PlayedOutput]) -> None:
    """End publications behind all that they do, and at some of their lines."""
    done = "after it was done"
    _play_publication(replace(fresh(), ids=0), AFTERWARDS, done)
    job = _play_publication(fresh(), AFTERWARDS, done)
    for line in _lines_of(job, PUBLISH, _LINES_OF_PUBLICATIONS):
        _play_publication(fresh(), line, f"at its line {line}")


def _play_publication(check: _PlayedOutput, end: int, at: str) -> PlayedJob:
    """End the publication of a job, and repeat it by one that is restored from the last epoch."""
    job = PlayedJob(check.sink, check.rows, check.ids, bounded=True, rate=0, epochs=3)
    job.takes_last_epoch = True
    job.begin()
    job.run_epoch()
    job.ends_at[PUBLISH] = end
    job.finish()
    when = f"after a publish() that ended {at}, and was repeated by a job that was restored,"
    check.expect(check.rows.expected(0, check.ids), when, too_many=_PUBLISHED)
    return job


def _lines_of(job: PlayedJob, call: str, most: int = _LINES_MAX) -> Iterable[int]:
    """Return at which lines a call ends, in turn: at each, or at so many of them."""
    lines = job.most_lines.get(call, 0)
    return range(1, lines + 1, max(1, -(-lines // most)))
