"""`check_sink`: check that a sink fulfils the contract of `whale.sinks.Sink`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..operators.sinks.base import Sink, SinkResult, SinkWriter, Staged
from .conformance import (
    call_twice,
    check_description,
    counted,
    difference,
    pickled_copy,
    require,
    until_nothing_left_open,
)
from .driving import instance_context
from .epoch_contract import check_epochs

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

Read = Callable[[Any], Iterable[Mapping[str, Any]]]

_ROWS = [{"id": number, "text": None if number == 2 else f"text {number}"} for number in range(7)]
_INSTANCES = 2


def check_sink(
    make_sink: Callable[[], Sink],
    read: Read | None = None,
    *,
    batch: Batch | None = None,
    ids: int = 1_000,
    failure_rates: Sequence[float] = (0.0, 0.1, 0.3),
) -> None:
    """Drive a sink through all courses of a job, and check its output at every step.

    The checks are:

    - the sink can be pickled, and `check` changes nothing;
    - `write` copies the rows before it returns, since their memory is reused;
    - no row is visible before `publish`, and all are after it;
    - a second `publish` of the same parts only returns the result again;
    - `abort` and `discard` remove everything, at any time, and may be called twice;
    - two attempts do not affect each other;
    - an output may have no rows;
    - no file or socket stays open;
    - if the sink has `publishes_parts`: the parts of an unbounded job are published correctly;
    - if it has a `delivery`: jobs with checkpoints lose no row, and repeat none if that is "exactly
      once". Calls of `cut_epoch` (or `stage_epoch`) and of what it returns, of `stage`, `commit`,
      `recover` and `publish` fail at each rate, before they begin, at one of their lines, and after
      they have succeeded; rows come between a cut and its staging; that is tried again if it
      failed, and may come behind `abort`; commits are repeated; jobs resume from their newest
      epoch, as new jobs, too, and from an older one. At whatever rates, commits and what
      `cut_epoch` returned also end at up to 40 of their lines, one after the other, and
      publications at up to 8 and behind their end, to be repeated by jobs that are restored.

    Args:
        make_sink: returns a sink; called several times, each result must have its own empty output.
        read: returns the rows that are visible in the output of such a sink, each a mapping; none
            if there is no output. Without it only the calls are checked, which suits a sink that
            passes rows on at once and publishes nothing.
        batch: the rows to write, at least four; by default with an integer and a text column.
        ids: how many rows a job with checkpoints writes: like those of `batch`, with other numbers
            in the first column of integers.
        failure_rates: how likely each failure is, from 0 to below 1.

    Raises:
        ContractError: the sink violates the contract; the message says how.
    """
    from ..transport.wire.batch import Batch

    rows = Batch.from_rows(_ROWS) if batch is None else batch
    remedy = "abort() must close files and connections; publish() and discard() keep none open"
    sink = make_sink()
    require(isinstance(sink, Sink), f"{sink!r} does not derive from whale.sinks.Sink")
    for check in (_publication, _no_rows, _endings, _two_attempts, _parts):
        for fresh in until_nothing_left_open(make_sink, type(sink).__name__, remedy):
            check(_Trial(fresh, read, rows))
    require(
        sink.delivery is not None or type(sink).recover is Sink.recover,
        f"{type(sink).__name__} has recover() but no delivery, so that jobs with checkpoints "
        'refuse it: set delivery = "exactly once", or "at least once"',
    )
    if sink.delivery is not None:
        check_epochs(make_sink, read, rows, ids=ids, rates=failure_rates)


@dataclass
class _Trial:
    """One sink with an empty output, and the rows to write to it."""

    sink: Sink
    read: Read | None
    rows: Batch

    @property
    def name(self) -> str:
        return type(self.sink).__name__

    def expect(self, wanted: Sequence[Batch], when: str) -> None:
        """Require that the output has exactly these rows."""
        if self.read is None:
            return
        rows = [row for batch in wanted for row in batch.to_pylist()]
        found = counted(self.read(self.sink))
        wrong = difference(counted(rows), found)
        if not found.keys() <= counted(self.rows.to_pylist()).keys():
            wrong += (
                "; some were never written: if they are what write() kept, note that write() must"
                " copy the rows that it keeps, since their memory is reused after it"
            )
        require(not wrong, f"{self.name}: {when} its output has not the rows it should: {wrong}")

    def prepare(self, token: str, *, bounded: bool = True) -> None:
        self.sink.check()
        self.sink.prepare(token, bounded=bounded)

    def open(self, token: str) -> list[SinkWriter]:
        """Open a writer per instance, each from a pickled copy of the sink."""
        writers = []
        for instance in range(_INSTANCES):
            writer = pickled_copy(self.sink).open(instance_context(instance, _INSTANCES), token)
            require(
                isinstance(writer, SinkWriter),
                f"{self.name}.open() must return a SinkWriter, not {writer!r}",
            )
            writers.append(writer)
        return writers

    def write(self, writer: SinkWriter, rows: Batch) -> None:
        """Write rows as views of memory that is overwritten right afterwards."""
        memory, view = _as_view(rows)
        writer.write(view)
        del view
        memory[:] = 0xEE

    def stage(self, writers: Sequence[SinkWriter]) -> list[Staged]:
        staged = [pickled_copy(writer.stage()) for writer in writers]
        for instance, part in enumerate(staged):
            require(
                isinstance(part, Staged) and part.instance == instance,
                f"{self.name}: stage() of instance {instance} must return Staged({instance}, …), "
                f"not {part!r}",
            )
        return staged

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        result = self.sink.publish(token, staged)
        require(
            isinstance(result, SinkResult),
            f"{self.name}.publish() must return a SinkResult, not {result!r}",
        )
        return result

    def end(self, writers: Sequence[SinkWriter], token: str) -> None:
        for writer in writers:
            call_twice(writer.abort, f"{self.name}: abort()")
        call_twice(lambda: self.sink.discard(token), f"{self.name}: discard()")


def _as_view(rows: Batch) -> tuple[np.ndarray[Any, Any], Batch]:
    """Return rows as views of an encoded message, as in a ring, and the memory after them."""
    from ..transport.wire.codec import decode, encode_into, message_size
    from ..transport.wire.messages import WorkerMessage

    with_times = rows.times is not None
    memory = np.empty(message_size(rows, 0, with_times), np.uint8)
    encode_into(memory, rows, stream=0, source=0, attempt=0, sequence=0, with_times=with_times)
    message = decode(memory, {rows.schema.schema_id: rows.schema})
    assert isinstance(message, WorkerMessage)
    return memory, message.batch


def _publication(trial: _Trial) -> None:
    check_description(trial.sink)
    trial.prepare("t-0")
    trial.expect((), "after check() and prepare()")
    writers = trial.open("t-0")
    cuts = (0, 1, 2, 3, trial.rows.num_rows)
    for number, (start, stop) in enumerate(pairwise(cuts)):
        trial.write(writers[number % _INSTANCES], trial.rows.slice(start, stop))
    trial.expect((), "before publish()")
    staged = trial.stage(writers)
    trial.expect((), "after stage(), before publish()")
    result = trial.publish("t-0", staged)
    trial.expect([trial.rows], "after publish()")
    _check_result(trial, result)
    again = trial.publish("t-0", staged)
    trial.expect([trial.rows], "after a second publish() of the same")
    require(
        again.rows == result.rows,
        f"{trial.name}: publish() of the same returned {again.rows} rows, then {result.rows}: a "
        "coordinator that takes over calls it again, and needs the same result",
    )
    trial.end(writers, "t-0")
    trial.expect([trial.rows], "after publish(), abort() and discard()")


def _check_result(trial: _Trial, result: SinkResult) -> None:
    written = trial.rows.num_rows
    require(
        result.rows == written,
        f"{trial.name}: publish() returned {result.rows} rows of {written}: add up those staged",
    )


def _no_rows(trial: _Trial) -> None:
    trial.prepare("t-0")
    writers = trial.open("t-0")
    trial.write(writers[0], trial.rows.slice(0, 0))
    result = trial.publish("t-0", trial.stage(writers))
    require(result.rows == 0, f"{trial.name}: publish() of no rows returned {result.rows}")
    trial.expect((), "after a job without rows")
    trial.end(writers, "t-0")


def _endings(trial: _Trial) -> None:
    """End attempts at every point before their publication."""
    trial.prepare("t-0")
    for attempt, steps in enumerate(("open", "write", "stage")):
        token = f"t-{attempt}"
        writers = trial.open(token)
        for writer in writers:
            if steps != "open":
                trial.write(writer, trial.rows)
        if steps == "stage":
            trial.stage(writers[:1])
        trial.end(writers, token)
        trial.expect((), f"after {steps}(), abort() and discard()")


def _two_attempts(trial: _Trial) -> None:
    """Publish an attempt while an earlier one hangs, then end the earlier one."""
    trial.prepare("t-0")
    lost, good = trial.open("t-0"), trial.open("t-1")
    half = trial.rows.num_rows // 2
    trial.write(lost[0], trial.rows)
    trial.stage(lost)
    trial.write(good[0], trial.rows.slice(0, half))
    trial.write(good[1], trial.rows.slice(half, trial.rows.num_rows))
    trial.publish("t-1", trial.stage(good))
    trial.expect([trial.rows], "after an attempt was published beside a lost one")
    trial.end(lost, "t-0")
    trial.end(good, "t-1")
    trial.expect([trial.rows], "after the end of a lost attempt")


def _parts(trial: _Trial) -> None:
    """Publish several parts, as an unbounded job does, if the sink has `publishes_parts`."""
    if not trial.sink.publishes_parts:
        return
    trial.prepare("t-0", bounded=False)
    writers = trial.open("t-0")
    for writer in writers:
        require(
            type(writer).publish_part is not SinkWriter.publish_part,
            f"{trial.name} says publishes_parts = True, but {type(writer).__name__} has no "
            "publish_part()",
        )
    require(
        writers[0].publish_part() is None,
        f"{trial.name}: publish_part() without rows must return None",
    )
    seen: list[Batch] = []
    for number in range(3):
        trial.write(writers[number % _INSTANCES], trial.rows)
        trial.expect(seen, "before publish_part()")
        part = writers[number % _INSTANCES].publish_part()
        require(
            isinstance(part, Staged) and part.rows == trial.rows.num_rows,
            f"{trial.name}: publish_part() must return what it published, "
            f"{trial.rows.num_rows} rows, not {part!r}",
        )
        seen.append(trial.rows)
        trial.expect(seen, "after publish_part()")
    trial.write(writers[0], trial.rows)
    trial.end(writers, "t-0")
    trial.expect(seen, "after abort() of an unbounded job")
