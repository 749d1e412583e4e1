"""`TextCodes`: the texts of a key that a compiled loop aggregates by, numbered as they come.

A loop finds the code of a row's text, or adds the text, and groups by codes, which have a fixed
width: a group is told from others without its text. Texts leave with the groups. They are kept
beyond that, since the same ones mostly come again, unless they fill much of their memory.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...transport import generated
from ...transport.wire.column import Column
from ..expressions.emitters.code import HELPERS, OF_TEXT_KEYS

if TYPE_CHECKING:
    from ...transport.wire.coded_column import Dictionary
    from ...transport.wire.types import DataType
    from ..process import InstanceContext

__all__ = ["TextCodes"]

_TEXTS_AT_FIRST = 1 << 8
_BYTES_PER_TEXT = 16
"""Room for each text at first."""
_GROWTH = 4
_COUNT, _LACKING = range(2)

_ENTER = """
def enter(pool, offsets, slots, count):
    for code in range(count):
        begin, end = np.uint64(offsets[code]), np.uint64(offsets[code + 1])
        slots[-1 - row_of_text(pool, begin, end - begin, slots, pool, offsets)] = code
"""


class TextCodes:
    """The texts of one key.

    Args:
        type: of the key.
        bytes_max: how much memory they may take; a text that is larger is taken alone.
        context: whose memory for state it takes.
    """

    def __init__(self, type: DataType, bytes_max: int, context: InstanceContext) -> None:
        self._type, self._bytes_max, self._context = type, bytes_max, context
        self._taken_bytes = 0
        self._sizes = np.array([1, -1], np.int64)
        self._pool, self._offsets = np.empty(0, np.uint8), np.zeros(2, np.int32)
        self._dictionary: Dictionary | None = None
        self._of_entries = np.empty(0, np.int32)
        self._resize(_TEXTS_AT_FIRST, _BYTES_PER_TEXT * _TEXTS_AT_FIRST)

    def __len__(self) -> int:
        """Return the number of texts."""
        return int(self._sizes[_COUNT])

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The arguments of a loop; those of its helper `code_of_text`.

        Slots, int32 (2^k,): codes by open addressing, at most half full, −1 where there is none.
        Texts, uint8 (capacity,), and where each begins, int32 (codes + 1,). Sizes, int64 (2,): how
        many texts there are, and the bytes of one for which there was no room, or −1.
        """
        return self._slots, self._pool, self._offsets, self._sizes

    def arrays_for(self, dictionary: Dictionary | None) -> tuple[npt.NDArray[Any], ...]:
        """Return `arrays`, and if rows have codes of a dictionary, what those are here.

        That is int32 (codes of the dictionary,), −1 for texts that have not come yet.
        """
        if dictionary is None:
            return self.arrays
        if self._dictionary is not dictionary:
            self._dictionary = dictionary
            self._of_entries = np.full(len(dictionary), -1, np.int32)
        return *self.arrays, self._of_entries

    def grow(self) -> bool:
        """Make room for the text that was refused, if one was; return whether there is room.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        lacking = int(self._sizes[_LACKING])
        if lacking < 0:
            return True
        texts, nbytes = len(self._offsets) - 1, len(self._pool)
        if len(self) == texts:
            texts *= _GROWTH
        if self._used + lacking > nbytes:
            nbytes = max(_GROWTH * nbytes, self._used + lacking)
        if len(self) > 1 and _nbytes(texts, nbytes) > self._bytes_max:
            return False
        self._resize(texts, nbytes)
        self._sizes[_LACKING] = -1
        return True

    @property
    def texts(self) -> Column:
        """The text of each code, a view."""
        return Column(self._type, self._pool[: self._used], self._offsets[: len(self) + 1])

    def forget_if_many(self) -> None:
        """Forget all texts if one was refused, or if they fill half of their memory.

        No group may be left that has one of them.
        """
        has_refused = self._sizes[_LACKING] >= 0
        if has_refused or 2 * self._taken_bytes > self._bytes_max:
            self._sizes[_COUNT] = 1
            self._dictionary = None
            self._resize(_TEXTS_AT_FIRST, _BYTES_PER_TEXT * _TEXTS_AT_FIRST)

    def close(self) -> None:
        """Give the memory back."""
        self._context.state_budget.give_back(self._context.operator_id, self._taken_bytes)
        self._taken_bytes = 0

    @property
    def _used(self) -> int:
        return int(self._offsets[len(self)])

    def _resize(self, texts: int, nbytes: int) -> None:
        budget, operator = self._context.state_budget, self._context.operator_id
        needed = _nbytes(texts, nbytes)
        budget.take(operator, needed, len(self))
        budget.give_back(operator, self._taken_bytes)
        self._taken_bytes = needed
        count, used = len(self), self._used
        pool, offsets = np.empty(nbytes, np.uint8), np.zeros(texts + 1, np.int32)
        pool[:used], offsets[: count + 1] = self._pool[:used], self._offsets[: count + 1]
        self._pool, self._offsets = pool, offsets
        self._slots = np.full(_slots(texts), -1, np.int32)
        _enter()(pool, offsets, self._slots, count)


def _slots(texts: int) -> int:
    return 1 << (2 * texts - 1).bit_length()


def _nbytes(texts: int, nbytes: int) -> int:
    return 4 * (_slots(texts) + texts + 1) + nbytes


@functools.cache
def _enter() -> Any:
    import numba

    text = "".join(HELPERS[name] for name in OF_TEXT_KEYS) + _ENTER
    signature = (numba.uint8[::1], numba.int32[::1], numba.int32[::1], numba.int64)
    return generated.compile_text(text, "enter", signature, {"np": np}, OF_TEXT_KEYS)
