"""A job that is played for a sink: it writes numbered rows, takes checkpoints, fails and resumes.

It calls the sink as the runtime does::

    loop       write … write ── cut_epoch(1) ── write … write ── cut_epoch(2) ── …      abort
    thread                           └─ stage, again if it raised    └─ …           stage ┘
    driver                                        manifest(1) commit(1)        …   recover commit

Only one of them is at work at a time, so that the same failures come in the same order each time.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..configs.errors import AttemptLostError, OutputError
from ..operators.sinks.base import CommitId, Sink, SinkWriter, Staged
from ..operators.sinks.cut_rows import CutRows
from ..operators.sinks.staged_json import staged_from_json, staged_to_json
from .conformance import ContractError, pickled_copy, require
from .driving import instance_context
from .interruption import InjectedError, Interruption

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = [
    "AFTERWARDS",
    "COMMIT",
    "EPOCHS",
    "NOTED",
    "PUBLISH",
    "STAGING",
    "PlayedJob",
    "RowsWithIds",
]

_T = TypeVar("_T")

_INSTANCES = 2
EPOCHS = 12
COMMIT, PUBLISH, STAGING = "commit", "publish", "stage what was cut"
"""Names of calls, for `PlayedJob.most_lines` and `PlayedJob.ends_at`."""
AFTERWARDS = -1
"""In the place of a line in `PlayedJob.ends_at`: the call succeeds, and nobody learns of it."""
_LINES_AT_FIRST = 20
_BEFORE, _IN_THE_MIDDLE, _AFTERWARDS = "before", "in the middle", "afterwards"
_PHASES = (_BEFORE, _IN_THE_MIDDLE, _AFTERWARDS)

NOTED = (
    "commit() must note the commit's lineage and epoch in the transaction that adds the rows, and"
    " do nothing if they are noted"
)
_MAYBE_PUBLISHED = (
    "what is staged may have been published under the token already, which publish() finds out"
)
_CUT = (
    "it must stage those that were written before the cut, all of them and no others, whatever was"
    " written since, and again if it raised"
)


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
        epochs: int = EPOCHS,
    ) -> None:
        self.name = type(sink).__name__
        self.most_lines: dict[str, int] = {}
        """How many lines the longest call of each method ran."""
        self.ends_at: dict[str, int] = {}
        """At which of its lines the next call of a method ends, once; or `AFTERWARDS`."""
        self.takes_last_epoch = False
        """Whether an epoch counts at its end, whatever the rate."""
        # What the output notes about jobs may outlive this one.
        self._name = f"check-{uuid.uuid4().hex[:8]}"
        self.epochs: list[_Epoch] = [_Epoch(f"{self._name}-0", 0, 0, ())]
        self._sink, self._rows, self._total = sink, rows, total
        self._bounded, self._rate, self._divisor = bounded, rate, epochs
        self._random = Random(f"{bounded} {rate}")  # the same failures each time
        packages = {one.__module__.split(".")[0] for one in type(sink).__mro__}
        self._interruption = Interruption(packages - {"builtins", "abc"})
        self._lines: dict[str, int] = {}  # of the last call of each method
        self._jobs = 0
        self._number = 0
        self._position = 0  # how many rows are written
        self._marker = 0  # how many of them an epoch has set apart
        self._cut: list[CutRows] = []  # set apart, and not staged yet
        self._waiting: list[Staged] = []  # staged, for the next epoch that counts
        self._writers: list[SinkWriter] = []
        self._uncut = [0] * _INSTANCES  # how many rows each writer got since it set some apart
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
        chunk = -(-self._total // self._divisor)
        stop = min(self._marker + chunk, self._total)
        self._write(stop)
        try:
            self._set_apart()
            # Rows of the next epoch come before those of this one are staged.
            self._write(min(stop + chunk // 4, self._total))
        except (InjectedError, AttemptLostError):
            self.restart()
            return
        try:
            self._stage_what_is_cut()
        except AttemptLostError:
            self.restart()
            return
        except InjectedError:
            if self._rate and self._random.random() < 1 / 2:
                self.restart()
            return  # else forgotten: the next epoch stages it
        if self._happens():
            return  # forgotten: what was staged belongs to the next epoch that counts
        if self._happens():
            self.restart()
            return
        before = self.epochs[-1].staged if self._bounded else ()
        staged = (*before, *self._waiting)
        self.epochs.append(_Epoch(self._job, self._number, self._marker, staged))
        self._waiting = []
        if self._bounded:
            return
        self._commit_newest()
        while self._happens():
            self._commit_newest()

    def restart(self, back_to: int = -1) -> None:
        """Resume from an epoch that counts, as the same job or as a new one."""
        self.close()
        for cut in self._cut:
            if self._happens():  # the thread comes to it before it learns that the attempt is over
                with suppress(Exception):
                    cut.staged()
        epoch = self.epochs[back_to]
        if back_to != -1 or self._happens():
            self._jobs, self._number = self._jobs + 1, epoch.number
        del self.epochs[len(self.epochs) + back_to + 1 :]
        while True:
            self._sink = pickled_copy(self._sink)
            with suppress(InjectedError):
                self._call("recover", self._recover)
                break
        self._position = self._marker = epoch.rows
        self._cut, self._waiting = [], []
        if not self._bounded and epoch.number:
            self._commit_newest()
        self._open()

    def skip_to(self, position: int) -> None:
        """Leave out the rows before this one."""
        self._position = self._marker = position

    def finish(self) -> None:
        """Publish a bounded job; what fails is repeated.

        If its last epoch counts, which names all output, another job may be restored from that and
        publish in its name. Else only a coordinator that takes over publishes again.
        """
        while True:
            self._write(self._total)
            try:
                has_last = self._happens() or self.takes_last_epoch
                if has_last:
                    self._set_apart()
                    self._stage_what_is_cut()
                staged = [*self.epochs[-1].staged, *self._waiting, *self._staged_at_end()]
            except (InjectedError, AttemptLostError):
                self.restart()
                continue
            break
        self._publish(staged, restorable=has_last)
        self.end()

    def _staged_at_end(self) -> list[Staged]:
        return [pickled_copy(self._call("stage", one.stage)) for one in self._writers]

    def _publish(self, staged: Sequence[Staged], *, restorable: bool) -> None:
        publisher, last = self._job, staged[: len(staged) - len(self._writers)]
        while True:
            try:
                result = self._call(PUBLISH, partial(self._sink.publish, publisher, staged))
                break
            except InjectedError:
                self._sink = pickled_copy(self._sink)
            while restorable:
                with suppress(InjectedError, AttemptLostError):
                    staged = [*last, *self._restored_to_publish(publisher, last)]
                    break
        require(
            result.rows == self._total,
            f"{self.name}: publish() returned {result.rows} rows of {self._total}: add up those"
            " staged for all epochs",
        )

    def _restored_to_publish(self, publisher: str, last: Sequence[Staged]) -> list[Staged]:
        """Begin as a job that is restored from the last epoch; return what its writers stage."""
        self.close()
        self._sink = pickled_copy(self._sink)
        self._jobs += 1
        recover = partial(self._sink.recover, publisher, list(last), bounded=True)
        try:
            self._call("recover", recover)
        except OutputError as error:
            msg = (
                f"{self.name}: recover() raised {error!r} in a job that died as it published, and"
                f" was restored: {_MAYBE_PUBLISHED}"
            )
            raise ContractError(msg) from error
        self._open()
        return self._staged_at_end()

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
        self._uncut = [0] * _INSTANCES

    def _write(self, stop: int) -> None:
        """Write the rows up to this number, each instance its half."""
        start, middle = self._position, (self._position + stop) // 2
        for number, (first, last) in enumerate(((start, middle), (middle, stop))):
            if first < last:
                self._writers[number].write(self._rows.batch(first, last))
                self._uncut[number] += last - first
        self._position = max(start, stop)

    def _set_apart(self) -> None:
        """Let each writer set its rows apart, at the marker of the next epoch."""
        self._number += 1
        for number, writer in enumerate(self._writers):
            has_cut = type(writer).cut_epoch is not SinkWriter.cut_epoch
            name = "cut_epoch" if has_cut else "stage_epoch"
            stage = self._call(name, partial(writer.cut_epoch, self._number))
            again = writer.cut_epoch(self._number + 1)
            require(again is None, f"{self.name}: {name}() without rows must return None")
            if stage is None:
                continue
            require(
                callable(stage),
                f"{self.name}: {name}() must return a function that stages the rows, not {stage!r}",
            )
            self._cut.append(self._cut_rows(number, name, stage))
            self._uncut[number] = 0
        self._marker = self._position

    def _cut_rows(self, number: int, name: str, stage: Callable[[], Staged]) -> CutRows:
        """Return what an instance has set apart; to stage it may fail, and is then done again."""
        told = name if name == "stage_epoch" else f"what {name}() returned"
        rows = self._uncut[number]
        failed = False

        def staged_beside() -> Staged:
            nonlocal failed
            try:
                staged = self._call(STAGING, stage, (_BEFORE, _IN_THE_MIDDLE))
            except (InjectedError, AttemptLostError):
                failed = True
                raise
            except Exception as error:
                if not failed:
                    raise
                msg = (
                    f"{self.name}: {told} raised {error!r} when it was called again, which it is if"
                    " it raised: it must stage the same rows then"
                )
                raise ContractError(msg) from error
            require(
                isinstance(staged, Staged) and staged.instance == number,
                f"{self.name}: {told} of instance {number} must return Staged({number}, …), not "
                f"{staged!r}",
            )
            require(
                staged.rows == rows,
                f"{self.name}: {told} has staged {staged.rows} rows of {rows}: {_CUT}",
            )
            return staged

        return CutRows(self._number, staged_beside)

    def _stage_what_is_cut(self) -> None:
        """Stage the rows that were set apart, those of epochs that were forgotten first."""
        while self._cut:
            as_json = json.dumps(staged_to_json(self._cut[0].staged()))
            self._waiting.append(staged_from_json(json.loads(as_json)))
            del self._cut[0]

    def _recover(self) -> None:
        self._sink.recover(self._job, list(self.epochs[-1].staged), bounded=self._bounded)

    def _commit_newest(self) -> None:
        """Commit until it is known that it succeeded; a new process may continue with it."""
        epoch = self.epochs[-1]
        commit, staged = CommitId(epoch.job, epoch.number), list(epoch.staged)
        while True:
            try:
                self._call(COMMIT, partial(self._sink.commit, commit, staged))
                self._committed = commit
                return
            except InjectedError:
                self._sink = pickled_copy(self._sink)
            except Exception as error:
                if commit != self._committed:
                    raise
                msg = f"{self.name}: commit() raised {error!r} when it was repeated: {NOTED}"
                raise ContractError(msg) from error

    def _happens(self) -> bool:
        return self._random.random() < self._rate

    def _call(self, name: str, call: Callable[[], _T], phases: Sequence[str] = _PHASES) -> _T:
        """Call a method; it may fail before, in the middle, or afterwards, so that nobody knows.

        Raises:
            InjectedError: it failed.
        """
        phase = self._random.choice(phases) if self._happens() else ""
        if phase == _BEFORE:
            raise InjectedError
        lines = self._lines.get(name, _LINES_AT_FIRST)
        at = self._random.randint(1, lines) if phase == _IN_THE_MIDDLE else 0
        at = self.ends_at.pop(name, at)
        if at == AFTERWARDS:
            phase, at = _AFTERWARDS, 0
        result = self._interruption.run(call, at)
        lines = self._lines[name] = max(1, self._interruption.lines)
        self.most_lines[name] = max(lines, self.most_lines.get(name, 0))
        if phase == _AFTERWARDS:
            raise InjectedError
        return result
