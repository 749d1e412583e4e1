"""Sinks that call a function: for every row, for every batch, or to print rows.

What a function does outside of whale-ray cannot be taken back. Rows are handed over as they come,
before the job is known to end well, and again if it has to begin anew: at least once.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from ...configs.errors import Interrupted, OutputError, UsageError, system_reason
from ..rows import Row, RowFailure, rows_for
from .base import Sink, SinkResult, SinkWriter, Staged

if TYPE_CHECKING:
    import pyarrow

    from ...transport.wire.batch import Batch
    from ..process import InstanceContext

RowFunction = Callable[[Row], object]
BatchFunction = Callable[["Batch"], object]


@runtime_checkable
class RowStream(Protocol):
    """What a worker has as `sys.stdout`: functions' prints are limited there, rows are not."""

    def write_rows(self, text: str) -> None:
        """Print whole lines, all of them, waiting while too many are on their way."""

    def await_rows(self) -> None:
        """Wait until all of them have been printed."""


@dataclass(frozen=True)
class HandedOver(SinkResult):
    """How many rows were handed to a function; it, not whale-ray, has them."""

    def to_arrow(self) -> pyarrow.Table:
        """Raise `UsageError`: no row is kept."""
        msg = (
            "this sink handed its rows to a function and kept none; to have them afterwards, add a "
            "sink such as whale.sinks.collect() to the same stream"
        )
        raise UsageError(msg)


class _HandingOver(Sink):
    """A sink with nothing to publish: its rows are gone when they are written."""

    publishes_parts: ClassVar[bool] = True

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Count the rows."""
        return HandedOver(rows=sum(part.rows for part in staged))

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Count the rows of a job that was stopped."""
        return self.publish(token, staged)


class _HandingWriter(SinkWriter):
    """Counts the rows that were handed over."""

    def __init__(self, context: InstanceContext) -> None:
        self._instance = context.instance
        self._rows = 0

    def write(self, batch: Batch) -> None:
        """Hand the rows over."""
        self.hand_over(batch)
        self._rows += batch.num_rows

    @abstractmethod
    def hand_over(self, batch: Batch) -> None:
        """Hand the rows over; what is raised for a row is a `RowFailure`."""

    def stage(self) -> Staged:
        """Tell how many rows they were."""
        return Staged(self._instance, self._rows)

    def publish_part(self) -> Staged | None:
        """Tell how many rows came since the last call."""
        staged = self.stage() if self._rows else None
        self._rows = 0
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
        return f"each row to {_name(self.function)}"


class _RowWriter(_HandingWriter):
    def __init__(self, context: InstanceContext, function: RowFunction) -> None:
        super().__init__(context)
        self._function = function

    def hand_over(self, batch: Batch) -> None:
        _for_each(self._function, batch)


@dataclass(frozen=True)
class EachBatch(_HandingOver):
    """Calls a function with every batch."""

    function: BatchFunction

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's share."""
        return _BatchWriter(context, self.function)

    def describe(self) -> str:
        """Return the function's name."""
        return f"each batch to {_name(self.function)}"


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
        """Return what makes the lines."""
        return "print" if self.format is None else f"print by {_name(self.format)}"


class _PrintWriter(_HandingWriter):
    def __init__(self, context: InstanceContext, format: Callable[[Row], object]) -> None:
        super().__init__(context)
        self._operator_id = context.operator_id
        self._format = format

    def hand_over(self, batch: Batch) -> None:
        lines: list[str] = []
        _for_each(lambda row: lines.append(f"{self._format(row)}\n"), batch)
        with self._errors():
            # In one piece, so that lines of several processes do not mix.
            text = "".join(lines)
            if isinstance(sys.stdout, RowStream):
                sys.stdout.write_rows(text)
            else:
                sys.stdout.write(text)
                sys.stdout.flush()

    def stage(self) -> Staged:
        """Wait until all rows have been printed; tell how many they were."""
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


def _for_each(function: Callable[[Row], Any], batch: Batch) -> None:
    index = 0
    try:
        for row in rows_for(function, batch):
            function(row)
            index += 1
    except Interrupted:
        raise
    except BaseException as error:
        raise RowFailure(index, batch.preview(index)) from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def print(format: Callable[[Row], object] | None = None) -> Sink:
    """Print every row as a line on standard output, for looking and trying.

    Workers that are processes of their own, and Ray's, pass the lines on to the driver, which shows
    them behind the sink's id and instance. On plain processes all rows are shown: the job goes as
    fast as they are printed. On Ray lines beyond `runtime.output_lines_per_s` are in the workers'
    logs alone, and counted.

    Args:
        format: `format(row)` makes the line; `{'cab': 'a', 'km': 3.0}` if left out.

    Raises:
        UsageError: `format` is no function.
    """
    if format is not None and not callable(format):
        msg = f"print(format={format!r}) must be a function of a row, such as lambda row: row.cab"
        raise UsageError(msg)
    return PrintSink(format)
