"""Feed lines as a source: instance i reads line i, on which messages arrive at their own times.

Vega's feed senders are separate processes that multicast recorded packets. Here the reader of a
line simulates its sender: at each read, all messages that are due by then are put into a buffer of
limited size, or lost if it is full, as they would have been at their own times. So the reader can
be late, but the sender never waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError
from ...operators.sources.base import Source, SourceReader
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from . import engines, messages
from .contracts import ContractBook, check_lines, deal_out
from .messages import MESSAGE_BYTES, MESSAGES
from .settings import OptionsMarketSettings

if TYPE_CHECKING:
    from ...operators.process import InstanceContext
    from ...transport.clock import Clock
    from ...transport.wire.types import Schema
    from .line_kernels import LineContracts

__all__ = ["FeedLines"]

_WORDS: Final = MESSAGE_BYTES // 8


@dataclass(frozen=True)
class FeedLines(Source):
    """Encoded trades of a book's contracts; each message is buffered or lost when it is due."""

    book: ContractBook
    settings: OptionsMarketSettings

    replayable = False

    def schema(self) -> Schema:
        """Return the schema: one column with encoded messages."""
        return MESSAGES

    def check(self) -> None:
        """Refuse more lines than contracts; raises InputError."""
        check_lines(len(self.book), self.settings.feeds)

    def open(self, context: InstanceContext) -> SourceReader:
        """Open a line; its time begins with the first read.

        Raises:
            InputError: there are not as many instances as lines.
        """
        if context.parallelism != self.settings.feeds:
            msg = (
                f"{self.settings.feeds} feed lines are read by as many instances,"
                f" not by {context.parallelism}"
            )
            raise InputError(msg)
        messages.warm_up()
        engines.warm_up()  # if fused, no operator opens the engines
        return _LineReader(self.book, self.settings, context.instance, context.clock)

    def describe(self) -> str:
        """Return the numbers of lines and contracts, the rate, the duration and the seed."""
        of = self.settings
        return (
            f"{of.feeds} feed lines, {of.rate:,.0f} messages/s for {of.seconds:g} s,"
            f" {len(self.book):,} contracts ({self.book.origin}), seed {of.seed}"
        )


class _LineReader(SourceReader):
    """Simulates the sender of one line, and reads the line."""

    def __init__(
        self, book: ContractBook, settings: OptionsMarketSettings, line: int, clock: Clock
    ) -> None:
        from .line_kernels import LINE

        mine = deal_out(book.listed["trades"], settings.feeds)[line]
        trades = book.listed["trades"]
        share = trades[mine].sum() / trades.sum()
        self._clock = clock
        self._parameters = _parameters(book, mine)
        self._strayed = np.zeros(len(mine), np.float64)
        self._buffer = np.zeros(settings.line_messages * _WORDS, np.int64)
        self._line = np.zeros(1, LINE)
        self._line["random"] = np.random.default_rng([settings.seed, 1, line]).integers(2**63)
        self._line["line"] = line
        self._line["gap_ns"] = 1e9 / (settings.rate * share)
        self._line["end_ns"] = round(settings.seconds * 1e9)
        self._begun = self._ended = False
        self._look_ns = settings.look_us * 1_000
        self._look_at_ns = 0
        self._warm_up()

    def _warm_up(self) -> None:
        from .line_kernels import begin_line, make_messages, take_messages

        line = self._line.copy()
        begin_line(line, 0)
        make_messages(line, self._parameters, self._strayed, self._buffer, -1)
        take_messages(line, self._buffer, np.empty(0, np.int64), False)

    def read(self, max_rows: int) -> Batch | None:
        """Return the waiting messages; the last one is the line's end."""
        from .line_kernels import begin_line, make_messages, take_messages

        now_ns = self._clock.monotonic_ns()
        if self._ended or now_ns < self._look_at_ns:
            return None
        self._look_at_ns = now_ns + self._look_ns
        if not self._begun:
            self._begun = True
            begin_line(self._line, now_ns)
        make_messages(self._line, self._parameters, self._strayed, self._buffer, now_ns)
        of = self._line[0]
        over = now_ns >= of["start_ns"] + of["end_ns"]
        wanted = min(int(of["held"]) + over, max_rows)
        if wanted == 0:
            return None
        taken = np.empty(wanted * _WORDS, np.int64)
        count = take_messages(self._line, self._buffer, taken, over)
        self._ended = bool(over and of["held"] == 0 and count == wanted and _ends(taken))
        data = taken.view(f"V{MESSAGE_BYTES}")
        return Batch(MESSAGES, [Column(MESSAGES.field("message").type, data)], count)

    @property
    def finished(self) -> bool:
        """Whether the end has been read."""
        return self._ended

    def next_ready_ns(self) -> int:
        """Return when the next message is due, but not before the next poll."""
        of = self._line[0]
        due_ns = int(of["start_ns"]) + min(int(of["due_ns"]), int(of["end_ns"]))
        return max(due_ns, self._look_at_ns)

    @property
    def rejected(self) -> Mapping[str, int]:
        """The messages that found no room on the line."""
        return {"missed": int(self._line["missed"][0])}


def _ends(taken: npt.NDArray[np.int64]) -> bool:
    """Return whether the last message is the line's end."""
    return bool(taken[-_WORDS] >> 24 & 255 == messages.END)


def _parameters(book: ContractBook, mine: npt.NDArray[np.int64]) -> LineContracts:
    from .line_kernels import LineContracts

    listed = book.listed[mine]
    cumulated = np.cumsum(listed["trades"])
    return LineContracts(
        shares=cumulated / cumulated[-1],
        numbers=mine,
        right=listed["right"].copy(),
        strike_milli=listed["strike_milli"].copy(),
        tick_milli=listed["tick_milli"].copy(),
        underlying=listed["underlying"].copy(),
        underlying_milli=listed["underlying_milli"].copy(),
        time_value_milli=listed["time_value_milli"].copy(),
    )
