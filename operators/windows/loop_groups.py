"""`LoopGroups`: the groups of a partial aggregate that a compiled loop finds and updates by itself.

Groups are numbered from 1 as they come, and lie in records beside one another; a table of numbers
finds them by open addressing, as the combiner of Slash's chapter 3 in front of its store. It grows
with its groups, so that few groups stay in the nearest cache. Record 0 is like no group, so that
the loop need not tell apart an empty place and one that another group has.
`operators/compiled/aggregating_text` writes the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import field_columns
from ...state.records import RecordField
from ...state.watermarks import EARLIEST_NS, LATEST_NS
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.column_rows import rows_of_columns
from ...transport.wire.types import Schema
from ..aggregates.loop_updates import field_name
from .text_codes import TextCodes

if TYPE_CHECKING:
    from ..aggregates.accumulator import Accumulator
    from ..process import InstanceContext

__all__ = ["GOLDEN", "GROUPS_MAX", "GROUPS_MIN", "Groups", "LoopGroups"]

GOLDEN = 0x9E3779B1
"""2^32 by the golden ratio, odd. Codes are multiplied by it before a loop reads them, so that they
are their own hashes: Fibonacci hashing (Knuth, volume 3, section 6.4)."""
_PER_GOLDEN = np.uint32(pow(GOLDEN, -1, 1 << 32))
_GROUPS_AT_FIRST = 1 << 10
GROUPS_MAX, GROUPS_MIN = 1 << 16, 64
"""How many groups a producer may keep, and may in any case."""
_INDEX_BYTES = 16
"""What a group takes in the index, nearly."""
_NO_SLICE = EARLIEST_NS
"""The slice of record 0: times that early are not taken."""
_USED, _LIMIT, _TIME, _SHIFT = range(4)

Groups: TypeAlias = "npt.NDArray[np.int64] | slice"
"""The numbers of groups."""


class LoopGroups:
    """Groups by slice and key.

    Args:
        before: the columns of the rows that are aggregated.
        keys: the names of the key columns.
        accumulators: what is computed for each group.
        record: numpy's type of a group, as the loop has it.
        values: of each key that is a column of a table, by its number, the value of each code; the
            records have codes times `GOLDEN`.
        context: whose memory for state it takes.
        bytes_max: how much of it, nearly.
        places: how many places of a table tell groups; 0 if none do.
        by_time: whether they are told by event time.

    Attributes:
        records: the groups, `record` (1 + capacity,).
        index: int32 (2^k,): numbers of groups, 0 where there is none; at most half full. A group's
            place is its hash's first k bits, or one behind it.
        marks: int64 (4,): the number of the next group; the first one for which there is no room;
            the earliest event time of their rows if they are told by time, else the latest; 64 − k.
        direct: int32 (2 × places,): the number of the last group of each place, of slices of even
            number, then of odd number; 0 where there is none.
        texts: of each other key of text, by its number, its codes.
    """

    def __init__(
        self,
        before: Schema,
        keys: Sequence[str],
        accumulators: Sequence[Accumulator],
        record: np.dtype[Any],
        values: Mapping[int, Column],
        context: InstanceContext,
        bytes_max: int,
        *,
        places: int,
        by_time: bool,
    ) -> None:
        self.before, self.record, self.values = before, record, dict(values)
        self._keys = before.select(keys)
        self._fields = {
            RecordField(f"{number}.{field.name}", field.dtype): field_name(number, field.name)
            for number, accumulator in enumerate(accumulators)
            for field in accumulator.fields
        }
        self._context = context
        self._no_time_ns = LATEST_NS if by_time else EARLIEST_NS
        self._taken_bytes = 0
        pooled = [
            number
            for number, key in enumerate(self._keys)
            if key.type.kind == "bytes" and number not in values
        ]
        if pooled:
            bytes_max //= 2
        self.texts = {
            number: TextCodes(self._keys.fields[number].type, bytes_max // len(pooled), context)
            for number in pooled
        }
        fitting = max(GROUPS_MIN, bytes_max // (record.itemsize + _INDEX_BYTES))
        self._groups_max = groups_max = min(GROUPS_MAX, fitting)
        self.marks = np.array([1, 0, self._no_time_ns, 0], np.int64)
        self.records, self.index = np.empty(0, record), np.empty(0, np.int32)
        self.direct = np.zeros(2 * places, np.int32)
        self._resize(min(_GROUPS_AT_FIRST, groups_max))
        self.clear()

    def __len__(self) -> int:
        """Return the number of groups."""
        return int(self.marks[_USED]) - 1

    def is_for(
        self, before: Schema, record: np.dtype[Any], values: Mapping[int, Column], places: int
    ) -> bool:
        """Whether it is made for such rows, with the same codes of keys and as many places."""
        return (
            self.before == before
            and self.record == record
            and len(self.direct) == 2 * places
            and self.values.keys() == values.keys()
            and all(self.values[number] is values[number] for number in values)
        )

    @property
    def time_ns(self) -> int | None:
        """What `marks` tells of event times; None if no row had one."""
        time_ns = int(self.marks[_TIME])
        return None if time_ns == self._no_time_ns else time_ns

    def grow(self) -> bool:
        """Make room for more groups; return whether there may be more.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        if not all(texts.grow() for texts in self.texts.values()):
            if len(self):
                return False
            self.clear()  # texts of groups that have left take the room
            return self.grow()
        if len(self) < self._capacity:
            return True
        if len(self) >= self._groups_max:
            return False
        self._resize(min(4 * self._capacity, self._groups_max))
        return True

    def clear(self) -> None:
        """Forget all groups; the memory is kept, and texts that may come again."""
        for texts in self.texts.values():
            texts.forget_if_many()
        self.index.fill(0)
        self.direct.fill(0)
        self.marks[[_USED, _TIME]] = 1, self._no_time_ns

    def numbers(self, before: int | None) -> Groups:
        """Return the numbers of the groups of slices before one, ascending; None: of all groups."""
        everything = slice(1, 1 + len(self))
        if before is None:
            return everything
        return 1 + np.flatnonzero(self.records["slice"][everything] < before)

    def keep_from(self, slice_: int, time_ns: int) -> None:
        """Forget the groups of earlier slices; the others have the event time `time_ns` then."""
        kept = 1 + np.flatnonzero(self.records["slice"][1 : 1 + len(self)] >= slice_)
        if not len(kept):
            self.clear()
            return
        self.marks[_TIME] = time_ns
        if len(kept) == len(self):
            return
        self.records[1 : 1 + len(kept)] = self.records[kept]
        self.marks[_USED] = 1 + len(kept)
        self.direct.fill(0)  # the loop finds their groups in the index, and enters them again
        self.index.fill(0)
        self._enter_all()

    def close(self) -> None:
        """Give the memory back."""
        for texts in self.texts.values():
            texts.close()
        self._context.state_budget.give_back(self._context.operator_id, self._taken_bytes)
        self._taken_bytes = 0

    def slices(self, groups: Groups) -> npt.NDArray[np.int64]:
        """Return the slice of each group, int64 (n,); owned."""
        return self._owned("slice", groups)

    def keys(self, groups: Groups) -> Batch:
        """Return the key columns of groups, owned."""
        nulls = self._owned("nulls", groups)
        any_null = bool(nulls.any())
        columns = []
        for number, field in enumerate(self._keys):
            data = self._owned(f"k{number}", groups)
            if number in self.values:
                codes = data.view(np.uint32) * _PER_GOLDEN
                column = rows_of_columns([self.values[number]], codes.astype(np.int64))[0]
            elif number in self.texts:
                texts = self.texts[number].texts
                column = rows_of_columns([texts], data.astype(np.int64))[0]
            else:
                column = Column(field.type, data)
            if any_null:
                valid = (nulls >> np.uint64(number)) & np.uint64(1) == 0
                if not valid.all():
                    column = Column(field.type, column.data, column.offsets, valid)
            columns.append(column)
        return Batch(self._keys, columns, len(nulls))

    def states(self, groups: Groups) -> dict[str, Column]:
        """Return the state of each accumulator for groups, as `GroupState.dump` does; owned."""
        found: Any = {one.name: self._owned(name, groups) for one, name in self._fields.items()}
        return field_columns(found, self._fields)

    def _owned(self, field: str, groups: Groups) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self.records[field][groups]
        return values.copy() if isinstance(groups, slice) else values

    @property
    def _capacity(self) -> int:
        return int(self.marks[_LIMIT]) - 1

    def _resize(self, capacity: int) -> None:
        bits = (2 * capacity - 1).bit_length()
        nbytes = (1 + capacity) * self.record.itemsize + (self.index.itemsize << bits)
        nbytes += self.direct.nbytes
        budget, operator = self._context.state_budget, self._context.operator_id
        budget.take(operator, nbytes, len(self))
        budget.give_back(operator, self._taken_bytes)
        self._taken_bytes = nbytes
        records = np.zeros(1 + capacity, self.record)
        used = self.records[: 1 + len(self)]
        records[: len(used)] = used
        records["slice"][0] = _NO_SLICE
        self.records, self.index = records, np.zeros(1 << bits, np.int32)
        self.marks[[_LIMIT, _SHIFT]] = 1 + capacity, 64 - bits
        self._enter_all()

    def _enter_all(self) -> None:
        """Enter all groups into the index, which is empty."""
        hashes = self.records["hash"][: 1 + len(self)].copy()
        _enter(self.index, hashes, self.marks[_SHIFT])


@njit(cache=True, nogil=True)
def _enter(index: Any, hashes: Any, shift: Any) -> None:
    """Enter groups 1 …, no two of which are the same, as the loop looks them up."""
    mask = np.uint64(len(index) - 1)
    for group in range(1, len(hashes)):
        place = hashes[group] >> np.uint64(shift)
        while index[place] > 0:
            place = (place + np.uint64(1)) & mask
        index[place] = group
