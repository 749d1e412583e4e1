"""Feed lines as a source: instance i reads line i, on which messages arrive at their own times.

Vega's feed senders are separate processes that multicast recorded packets. Here the reader of a
line simulates its sender: at each read, all messages that are due by then are put into a buffer of
limited size, or lost if it is full, as they would have been at their own times. So the reader can
be late, but the sender never waits for it.

Messages do not depend on when they are read. So a line resumes from a position, after the last
message that was read, by making all messages again; it stood still in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
    from ...operators.snapshots import Position
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
        return self._reader(context, None)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open a line after the last message that was read; it continues at once.

        Raises:
            InputError: there are other lines than there were.
        """
        ours = _facts(self.book, self.settings)
        for one in positions:
            if {name: one[name] for name in ours} != ours or len(positions) != self.settings.feeds:
                msg = (
                    f"{self.describe()}: the lines carried other messages before the checkpoint; "
                    "pass the same settings, or start without restoring"
                )
                raise InputError(msg)
        return self._reader(context, positions)

    def resumption(self) -> str:
        """Return that messages are made again."""
        return "makes the messages again and skips those read"

    def _reader(
        self, context: InstanceContext, positions: Sequence[Position] | None
    ) -> SourceReader:
        if context.parallelism != self.settings.feeds:
            msg = (
                f"{self.settings.feeds} feed lines are read by as many instances,"
                f" not by {context.parallelism}"
            )
            raise InputError(msg)
        messages.warm_up()
        engines.warm_up()  # if fused, no operator opens the engines
        reader = _LineReader(self.book, self.settings, context.instance, context.clock)
        if positions is not None:
            reader.go_on(positions[context.instance])
        return reader

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
        self._facts = _facts(book, settings)
        self._read_to = 0
        self._read_to_ns = -1
        self._received = 0
        self._counted_before = 0
        self._look_ns = settings.look_us * 1_000
        self._look_at_ns = 0
        self._warm_up()

    def go_on(self, position: Position) -> None:
        """Continue after the messages up to a number."""
        from .line_kernels import begin_line, make_messages, take_messages

        self._ended = position["ended"]
        self._read_to, self._read_to_ns = position["read_to"], position["read_to_ns"]
        self._counted_before = position["missed_behind"]
        if self._ended or self._read_to == 0:
            return
        self._begun = True
        start_ns = self._clock.monotonic_ns() - self._read_to_ns
        begin_line(self._line, start_ns)
        all_made = (self._line, self._parameters, self._strayed)
        # Messages before find no room, since nobody reads; others may be due in the same ns.
        make_messages(*all_made, self._buffer[:0], start_ns + self._read_to_ns - 1)
        self._line["missed"] = 0
        again = self._read_to - int(self._line[0]["offered"])
        make_messages(*all_made, self._buffer, start_ns + self._read_to_ns)
        take_messages(self._line, self._buffer, np.empty(again * _WORDS, np.int64), False)
        self._received = self._read_to

    def position(self) -> Position:
        """Return the number and the time of the last message read."""
        missed_before = self._read_to - self._received
        behind = int(self._line[0]["missed"]) - missed_before  # they will be sent again
        return {
            **self._facts,
            "read_to": self._read_to,
            "read_to_ns": self._read_to_ns,
            "missed_behind": 0 if self._ended else behind,
            "ended": self._ended,
        }

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
        self._note(taken, count - self._ended)
        data = taken.view(f"V{MESSAGE_BYTES}")
        return Batch(MESSAGES, [Column(MESSAGES.field("message").type, data)], count)

    def _note(self, taken: npt.NDArray[np.int64], trades: int) -> None:
        """Note the last of the trades that were read."""
        if trades:
            last = (trades - 1) * _WORDS
            self._read_to = int(taken[last + 1])
            self._read_to_ns = int(taken[last + 2]) - int(self._line[0]["start_ns"])
            self._received += trades

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
        return {"missed": int(self._line["missed"][0]) - self._counted_before}


def _facts(book: ContractBook, settings: OptionsMarketSettings) -> dict[str, Any]:
    """Return what messages depend on."""
    return {
        "contracts": len(book),
        "feeds": settings.feeds,
        "rate": settings.rate,
        "seed": settings.seed,
    }


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
