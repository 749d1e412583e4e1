"""The compiled simulation of a feed line's sender: writes encoded trades into the line's buffer.

A message enters the line's buffer when it is due, or is lost if the buffer is full: as with
datagrams, the sender never waits for the reader. Only `take_messages` empties the buffer.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = ["LINE", "LineContracts", "begin_line", "make_messages", "take_messages"]

MESSAGE_BYTES = 48
_WORDS = MESSAGE_BYTES // 8
#: Magic, version 1 and kind T in the first 32 bits of a trade; E in the end's.
_TRADE_HEAD = 0x4D4F | 1 << 16 | ord("T") << 24
_END_HEAD = 0x4D4F | 1 << 16 | ord("E") << 24

PRICE_MILLI_MAX = 10**8
QUANTITY_MAX = 1_000

#: Amplitude, relative to the price, and period of the wave that an underlying's price follows.
_WAVE, _WAVE_NS = 0.004, 20e9
#: Phase shift from one underlying to the next, in periods; irrational, so no two are in phase.
_PHASE = 0.381966
#: Mean reversion of the logarithm of a contract's time value per trade, and the standard deviation
#: of its random steps.
_RETURN, _STRAY = 0.02, 0.012

#: Shape (1,): a line as time continues.
LINE = np.dtype(
    [
        ("random", np.uint64),
        ("line", np.int64),
        ("start_ns", np.int64),
        ("due_ns", np.float64),  # of the next message, since the start
        ("gap_ns", np.float64),  # between two messages, on average
        ("end_ns", np.int64),  # since the start
        ("offered", np.int64),  # messages that have been due; the last one's sequence number
        ("missed", np.int64),  # of these, for want of room
        ("first", np.int64),  # place of the oldest message in the buffer
        ("held", np.int64),  # messages in the buffer
    ],
    align=True,
)

Int64s: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
#: Shape (1,), dtype `LINE`.
Record: TypeAlias = npt.NDArray[Any]


class LineContracts(NamedTuple):
    """The contracts of one line; every array has an entry per contract."""

    shares: Floats
    """Cumulated over the contracts, from the busiest on; the last one is 1."""
    numbers: Int64s
    """In the book."""
    right: Int64s
    """1: a call, −1: a put."""
    strike_milli: Int64s
    tick_milli: Int64s
    underlying: Int64s
    """Number of the underlying, which sets the phase of its price."""
    underlying_milli: Int64s
    time_value_milli: Floats


@njit(cache=True, nogil=True, inline="always")
def _mixed(state: np.uint64) -> np.uint64:
    """Return a random number for a state that counts up by a fixed step (SplitMix64)."""
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def _fraction(line: Record) -> float:
    """Return a random number from the open interval (0, 1)."""
    state = line[0].random + np.uint64(0x9E3779B97F4A7C15)
    line[0].random = state
    return (np.float64(_mixed(state) >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(cache=True, nogil=True)
def begin_line(line: Record, start_ns: int) -> None:
    """Start a line: its first message is due one random gap after `start_ns`."""
    line[0].start_ns = start_ns
    line[0].due_ns = -math.log(_fraction(line)) * line[0].gap_ns


@njit(cache=True, nogil=True)
def make_messages(
    line: Record, parameters: LineContracts, strayed: Floats, buffer: Int64s, now_ns: int
) -> None:
    """Send all messages that are due by `now_ns`.

    Args:
        line: changed in place.
        habits: of the line.
        strayed: logarithm of each contract's time value against its mean, changed in place.
        buffer: room for some messages, shape (messages × 6,).
        now_ns: on the clock of `start_ns`.
    """
    of = line[0]
    room = len(buffer) // _WORDS
    while of.due_ns < of.end_ns and of.start_ns + np.int64(of.due_ns) <= now_ns:
        due_ns = of.start_ns + np.int64(of.due_ns)
        place = min(np.searchsorted(parameters.shares, _fraction(line)), len(parameters.shares) - 1)
        # Four uniform numbers, with variance 1/12 each, are near enough to a normal one.
        drawn = _fraction(line) + _fraction(line) + _fraction(line) + _fraction(line) - 2.0
        stray = strayed[place] * (1.0 - _RETURN) + _STRAY * math.sqrt(3.0) * drawn
        strayed[place] = stray
        quantity = min(int(1.0 - 2.0 * math.log(_fraction(line))), QUANTITY_MAX)
        of.offered += 1
        if of.held == room:
            of.missed += 1
        else:
            turns = of.due_ns / _WAVE_NS + _PHASE * parameters.underlying[place]
            wave = math.sin(2.0 * math.pi * turns)
            underlying = int(parameters.underlying_milli[place] * (1.0 + _WAVE * wave))
            underlying = min(max(underlying, 1), PRICE_MILLI_MAX)
            worth = max((underlying - parameters.strike_milli[place]) * parameters.right[place], 0)
            worth += int(parameters.time_value_milli[place] * math.exp(stray))
            tick = parameters.tick_milli[place]
            price = min(max((worth + tick // 2) // tick, 1) * tick, PRICE_MILLI_MAX // tick * tick)
            into = (of.first + of.held) % room * _WORDS
            buffer[into] = _TRADE_HEAD | of.line << 32
            buffer[into + 1] = of.offered
            buffer[into + 2] = due_ns
            buffer[into + 3] = parameters.numbers[place] | quantity << 32
            buffer[into + 4] = price
            buffer[into + 5] = underlying
            _seal(buffer, into)
            of.held += 1
        of.due_ns -= math.log(_fraction(line)) * of.gap_ns


@njit(cache=True, nogil=True)
def take_messages(line: Record, buffer: Int64s, taken: Int64s, with_end: bool) -> int:
    """Move the oldest messages out of the buffer; return how many.

    Args:
        line, buffer: changed in place.
        taken: room for messages, shape (messages × 6,).
        with_end: put the end after them if no message is left, nor will be, and there is room.
    """
    of = line[0]
    room, wanted = len(buffer) // _WORDS, len(taken) // _WORDS
    count = min(of.held, wanted)
    before_wrap = min(count, room - of.first)
    first = of.first * _WORDS
    taken[: before_wrap * _WORDS] = buffer[first : first + before_wrap * _WORDS]
    taken[before_wrap * _WORDS : count * _WORDS] = buffer[: (count - before_wrap) * _WORDS]
    of.first = (of.first + count) % room
    of.held -= count
    if with_end and of.held == 0 and of.due_ns >= of.end_ns and count < wanted:
        into = count * _WORDS
        taken[into : into + _WORDS] = 0
        taken[into] = _END_HEAD | of.line << 32
        taken[into + 1] = of.offered + 1
        taken[into + 2] = of.start_ns + of.end_ns
        _seal(taken, into)
        count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def _seal(buffer: Int64s, into: int) -> None:
    """Write a message's sum into its first word, where it is 0."""
    total = np.int64(0)
    for place in range(into, into + _WORDS):
        word = buffer[place]
        total += (word & 65535) + (word >> 16 & 65535) + (word >> 32 & 65535) + (word >> 48 & 65535)
    buffer[into] |= (total & 65535) << 48
