"""Sinks that call a function for every row or batch, or print rows.

The effects of a function cannot be undone. It gets rows as they arrive, before it is known whether
the job succeeds, and gets them again after a restart: delivery is at least once. With checkpoints
it gets those again that came after the last epoch that counts. A function that writes each row
under a key of its own (an upsert) has the effect of exactly once; else a sink of the user's own is
needed, which stages rows and commits them.
"""

from __future__ import annotations

import errno
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TextIO, runtime_checkable

from ...configs.errors import OutputError, UsageError, system_reason
from ..rows import Row, results_of
from ..transform_bases import name_of
from .base import CommitId, Delivery, Sink, SinkResult, SinkWriter, Staged

if TYPE_CHECKING:
    import pyarrow

    from ...transport.wire.batch import Batch
    from ..process import InstanceContext

RowFunction = Callable[[Row], object]
BatchFunction = Callable[["Batch"], object]


@runtime_checkable
class RowStream(Protocol):
    """A worker's `sys.stdout`, which limits the output of functions, but not of print sinks."""

    def write_rows(self, text: str) -> None:
        """Print whole lines; block while too many are in flight to the driver."""

    def await_rows(self) -> None:
        """Block until all lines of `write_rows` have been printed."""


@dataclass(frozen=True)
class HandedOver(SinkResult):
    """The result of a sink that passed its rows to a function and kept none."""

    @property
    def whereabouts(self) -> str:
        """Where the rows are, in words."""
        return "passed on, none of them kept"

    def preview(self, rows: int = 5) -> list[dict[str, Any]]:
        """Return no rows."""
        return []

    def to_arrow(self) -> pyarrow.Table:
        """Raise `UsageError`: no row is kept."""
        msg = (
            "this sink passed its rows to a function and kept none; to have them afterwards, add a "
            "sink such as whale.sinks.collect() to the same stream"
        )
        raise UsageError(msg)


class _HandingOver(Sink):
    """A sink with nothing to publish, since rows take effect when they are written."""

    publishes_parts: ClassVar[bool] = True
    delivery: ClassVar[Delivery | None] = "at least once"
    staged_as = "each"

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Count the rows."""
        return HandedOver(rows=sum(part.rows for part in staged))

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Count the rows."""
        return self.publish(token, staged)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        """Do nothing: the rows took effect when they were written."""

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Do nothing: what was passed on since the epoch cannot be taken back, and comes again."""


class _HandingWriter(SinkWriter):
    """Counts the rows passed to the function."""

    def __init__(self, context: InstanceContext) -> None:
        self._instance = context.instance
        self._rows = 0

    def write(self, batch: Batch) -> None:
        """Pass the rows to the function."""
        self.hand_over(batch)
        self._rows += batch.num_rows

    @abstractmethod
    def hand_over(self, batch: Batch) -> None:
        """Pass the rows to the function; raise `RowFailure` if it raises for a row."""

    def stage(self) -> Staged:
        """Return the number of rows."""
        return Staged(self._instance, self._rows)

    def publish_part(self) -> Staged | None:
        """Return the number of rows since the last call."""
        staged = self.stage() if self._rows else None
        self._rows = 0
        return staged

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Return the number of rows since the last call, all of which have taken effect."""
        if not self._rows:
            return None
        staged, self._rows = self.stage(), 0
        return staged

    def abort(self) -> None:
        """Do nothing: nothing is held."""


@dataclass(frozen=True)
class EachRow(_HandingOver):
    """Calls a function with every row."""

    function: RowFunction

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's share."""
        return _RowWriter(context, self.function)

    def describe(self) -> str:
        """Return the function's name."""
        return f"each row to {name_of(self.function)}"


class _RowWriter(_HandingWriter):
    def __init__(self, context: InstanceContext, function: RowFunction) -> None:
        super().__init__(context)
        self._function = function

    def hand_over(self, batch: Batch) -> None:
        results_of(self._function, batch)


@dataclass(frozen=True)
class EachBatch(_HandingOver):
    """Calls a function with every batch."""

    function: BatchFunction

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's share."""
        return _BatchWriter(context, self.function)

    def describe(self) -> str:
        """Return the function's name."""
        return f"each batch to {name_of(self.function)}"


class _BatchWriter(_HandingWriter):
    def __init__(self, context: InstanceContext, function: BatchFunction) -> None:
        super().__init__(context)
        self._function = function

    def hand_over(self, batch: Batch) -> None:
        self._function(batch)


@dataclass(frozen=True)
class PrintSink(_HandingOver):
    """Writes a line per row to standard output."""

    format: Callable[[Row], object] | None = None

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's share."""
        return _PrintWriter(context, self.format or dict)

    def describe(self) -> str:
        """Return the name of the function that formats the lines."""
        return "print" if self.format is None else f"print by {name_of(self.format)}"


class _PrintWriter(_HandingWriter):
    def __init__(self, context: InstanceContext, format: Callable[[Row], object]) -> None:
        super().__init__(context)
        self._operator_id = context.operator_id
        self._format = format

    def hand_over(self, batch: Batch) -> None:
        lines: list[str] = []
        results_of(lambda row: lines.append(f"{self._format(row)}\n"), batch)
        with self._errors():
            # One write, so that lines of several processes do not mix.
            text = "".join(lines)
            if isinstance(sys.stdout, RowStream):
                sys.stdout.write_rows(text)
            else:
                stdout = _standard_output()
                stdout.write(text)
                stdout.flush()

    def stage(self) -> Staged:
        """Wait until all rows have been printed; return their number."""
        with self._errors():
            if isinstance(sys.stdout, RowStream):
                sys.stdout.await_rows()
        return super().stage()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            msg = f"sink {self._operator_id!r} cannot print: {system_reason(error)}"
            raise OutputError(msg) from None


def _standard_output() -> TextIO:
    """Return `sys.stdout`; raise OSError if it is closed, as a daemon's may be."""
    stdout: TextIO | None = sys.stdout
    if stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return stdout


def print(format: Callable[[Row], object] | None = None) -> Sink:
    """Print every row as a line on standard output, for development.

    Worker processes and Ray actors send the lines to the driver, which prints them with the sink's
    id and instance. Plain processes print all rows, so printing may slow the job down. On Ray,
    lines beyond `runtime.output_lines_per_s` are only in the workers' logs, and are counted.

    Args:
        format: `format(row)` returns the line; if left out, a line is `{'cab': 'a', 'km': 3.0}`.

    Raises:
        UsageError: `format` is not a function.
    """
    if format is not None and not callable(format):
        msg = f"print(format={format!r}) must be a function of a row, such as lambda row: row.cab"
        raise UsageError(msg)
    return PrintSink(format)
