"""The messages on a feed line: 48 bytes each, little-endian.

::

     0       2       3       4       6       8              16
     ├───────┼───────┼───────┼───────┼───────┼───────────────┤
     │ magic │version│ kind  │ line  │ sum   │ sequence      │
     ├───────┴───────┴───────┼───────┴───────┼───────────────┤
     │ due_ns                │ contract      │ quantity      │   16, 24, 28
     ├───────────────────────┼───────────────┴───────────────┤
     │ price_milli           │ underlying_milli              │   32, 40
     └───────────────────────┴───────────────────────────────┘

`sequence` counts the messages of a line from 1: a gap shows how many were missed. A trade (kind T)
has a contract's number, a quantity in lots, its price and that of the underlying, in thousandths of
the currency. The end (kind E) follows the last trade, with the sequence number after it. `sum` is
the sum, modulo 2¹⁶, of the message's other 16-bit words. `due_ns` is when the message arrived on
the line, on the monotonic clock of the machine.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit
from ...transport.wire.types import Schema
from .schemas import TRADE as RECORD

__all__ = [
    "COUNTERS",
    "DAMAGED",
    "ENDED",
    "GAPS",
    "LAST",
    "MESSAGE",
    "MESSAGES",
    "MESSAGE_BYTES",
    "MISSED",
    "TAKEN",
    "count_messages",
    "parse_messages",
    "warm_up",
]

MESSAGE_BYTES = 48
MAGIC, VERSION = 0x4D4F, 1
TRADE, END = ord("T"), ord("E")
QUANTITY_MAX = 1_000
PRICE_MILLI_MAX = 10**8

#: Counters of a line: trades read, messages missed, gaps in the sequence, damaged messages
#: (each leaves a gap as well), the last sequence number, and whether the end was received.
TAKEN, MISSED, GAPS, DAMAGED, LAST, ENDED = range(6)
COUNTERS = 6

MESSAGE = np.dtype(
    [
        ("magic", "<u2"),
        ("version", "u1"),
        ("kind", "u1"),
        ("line", "<u2"),
        ("sum", "<u2"),
        ("sequence", "<i8"),
        ("due_ns", "<i8"),
        ("contract", "<u4"),
        ("quantity", "<u4"),
        ("price_milli", "<i8"),
        ("underlying_milli", "<i8"),
    ]
)
assert MESSAGE.itemsize == MESSAGE_BYTES

#: What a source of lines emits.
MESSAGES = Schema.of(message=f"fixed_size_binary({MESSAGE_BYTES})")

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
#: Shape (n,), a structured dtype.
Records: TypeAlias = npt.NDArray[Any]
_HALVES = MESSAGE_BYTES // 2
_WORDS = MESSAGE_BYTES // 8


@njit(cache=True, nogil=True, inline="always")
def _kind_of(
    halves: npt.NDArray[np.uint16], words: Int64s, row: int, lines: int, contracts: int
) -> int:
    """Return the kind of message `row`; 0 if it is damaged.

    A message is damaged if magic, version, line or sum are wrong, or a value is out of range.
    """
    half, word = row * _HALVES, row * _WORDS
    total = np.int64(0)
    for place in range(half, half + _HALVES):
        total += np.int64(halves[place])
    sent = np.int64(halves[half + 3])
    kind = np.int64(halves[half + 1]) >> 8
    if halves[half] != MAGIC or halves[half + 1] & 255 != VERSION or halves[half + 2] >= lines:
        return 0
    if (total - sent) & 0xFFFF != sent or words[word + 1] < 1:
        return 0
    if kind == END:
        return END
    contract, quantity = words[word + 3] & 0xFFFFFFFF, (words[word + 3] >> 32) & 0xFFFFFFFF
    price, underlying = words[word + 4], words[word + 5]
    in_range = (
        contract < contracts
        and 1 <= quantity <= QUANTITY_MAX
        and 1 <= price <= PRICE_MILLI_MAX
        and 1 <= underlying <= PRICE_MILLI_MAX
    )
    return TRADE if kind == TRADE and in_range else 0


@njit(cache=True, nogil=True)
def parse_messages(
    data: Bytes, lines: int, contracts: int, in_ns: int, numbers: Int32s, trades: Records
) -> int:
    """Parse the trades among messages; return the number of trades.

    Args:
        data: concatenated messages, shape (messages × 48,), aligned to 8 bytes.
        lines, contracts: numbers of lines and contracts.
        in_ns: when the messages arrived.
        numbers: receives the contracts traded; as long as there are messages.
        trades: receives the trades, dtype `schemas.TRADE`; as long as there are messages.
    """
    halves, words = data.view(np.uint16), data.view(np.int64)
    filled = 0
    for row in range(len(words) // _WORDS):
        if _kind_of(halves, words, row, lines, contracts) != TRADE:
            continue
        word = row * _WORDS
        trade = trades[filled]
        numbers[filled] = words[word + 3] & 0xFFFFFFFF
        trade.quantity = words[word + 3] >> 32
        trade.line = halves[row * _HALVES + 2]
        trade.sequence, trade.due_ns = words[word + 1], words[word + 2]
        trade.price_milli, trade.underlying_milli = words[word + 4], words[word + 5]
        trade.handler_in_ns = in_ns
        filled += 1
    return filled


@njit(cache=True, nogil=True)
def count_messages(data: Bytes, contracts: int, counters: Int64s) -> int:
    """Count the messages received and, by sequence numbers, the messages missed.

    Args:
        data: concatenated messages, shape (messages × 48,), aligned to 8 bytes.
        contracts: number of contracts.
        counters: shape (lines, COUNTERS); changed in place. A damaged message counts for the line
            in its header, modulo the number of lines.

    Returns:
        The number of lines that have ended with these messages.
    """
    halves, words = data.view(np.uint16), data.view(np.int64)
    lines = len(counters)
    ended = 0
    for row in range(len(words) // _WORDS):
        line = np.int64(halves[row * _HALVES + 2]) % lines
        kind = _kind_of(halves, words, row, lines, contracts)
        if kind == 0:
            counters[line, DAMAGED] += 1
            continue
        sequence = words[row * _WORDS + 1]
        missed = sequence - counters[line, LAST] - 1
        if missed > 0:
            counters[line, MISSED] += missed
            counters[line, GAPS] += 1
        counters[line, LAST] = sequence
        if kind == TRADE:
            counters[line, TAKEN] += 1
        else:
            counters[line, ENDED] = 1
            ended += 1
    return ended


def warm_up() -> None:
    """Load the compiled functions before the first message arrives."""
    nothing = np.zeros(0, np.uint64).view(np.uint8)
    nothing.flags.writeable = False
    parse_messages(nothing, 1, 1, 0, np.zeros(0, np.int32), np.zeros(0, RECORD))
    count_messages(nothing, 1, np.zeros((1, COUNTERS), np.int64))
