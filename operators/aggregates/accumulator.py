"""`Accumulator`: how an aggregate is computed, over fields of records that hold its state.

The state of one aggregate for one group is a few fields of a fixed-width record (numpy dtypes), so
that compiled loops update it and a store can keep it. A field of dtype `object` holds values of
variable size; it lies beside the records, one Python object per slot. A `SetField` holds sets, a
`TextField` text or binary values, which come as `Texts`.

A group is named by its slot, an int64 index into all fields. `update` and `merge` may get a slot
any number of times in one call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ...state.field_updates import FieldUpdate
    from ...transport.wire.column import Column
    from ...transport.wire.types import DataType

__all__ = [
    "Accumulator",
    "OutOfRange",
    "SetField",
    "SlottedRows",
    "State",
    "StateField",
    "TextField",
    "Texts",
    "merged_objects",
    "numbers_of",
    "validity_of",
]

Slots: TypeAlias = npt.NDArray[np.int64]
State: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The fields of one accumulator by name, each of shape (slots,) or (slots, …); strided views."""

_ALL_VALID = np.empty(0, np.bool_)
_ALL_VALID.flags.writeable = False


@dataclass(frozen=True)
class StateField:
    """A field of an accumulator's state.

    Attributes:
        name: unique within the accumulator.
        dtype: numpy's type, with a shape for several values per slot; `object` for anything.
        initial: the value in a new slot; of `object` fields always None.
    """

    name: str
    dtype: np.dtype[Any]
    initial: Any = 0


@dataclass(frozen=True)
class SetField:
    """A field that holds values for each slot; it comes as a `ValueSets`, or as `ValueLists`.

    Attributes:
        name: unique within the accumulator.
        types: of the columns that make up a value.
        is_list: whether values are kept in their order, equal ones too, and not each once.
    """

    name: str
    types: tuple[DataType, ...]
    is_list: bool = False


@dataclass(frozen=True)
class TextField:
    """A field that holds a text or binary value for each slot, or none; it comes as `Texts`.

    Attributes:
        name: unique within the accumulator.
        kind: the type of the values.
    """

    name: str
    kind: DataType


class Texts(Protocol):
    """The values of a `TextField`, by slot. Those of another state may be read only."""

    def read(self, slots: Slots) -> Column:
        """Return the values of slots, null where there is none."""
        ...

    def write(self, slots: Slots, column: Column, rows: Slots) -> None:
        """Write values into slots; nulls take the value away.

        Args:
            slots: int64 (n,).
            column: of the field's type.
            rows: which of its rows, int64 (n,).
        """
        ...

    def pick(
        self, slots: Slots, column: Column, rows: Slots, *, greatest: bool, later: bool
    ) -> npt.NDArray[np.bool_]:
        """Write those values that exceed what is there, or are less: see `StoreValues`."""
        ...


class SlottedRows(NamedTuple):
    """Rows as an accumulator takes them.

    Attributes:
        slots: the group of each row, int64 (n,).
        columns: the aggregate's inputs, n values each.
        times: event times, int64 ns (n,); None where rows have none.
    """

    slots: Slots
    columns: Sequence[Column]
    times: npt.NDArray[np.int64] | None


class OutOfRange(Exception):  # noqa: N818 - it becomes an error once the group is named
    """A group holds more than it may; the operator turns it into an error that names the group.

    Attributes:
        row: which of the slots that were passed.
        reason: what happened, as the end of a sentence.
        number: which of the operator's aggregates it is of.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason
        self.number = 0


class Accumulator(ABC):
    """Computes one aggregate for many groups.

    Attributes:
        fields: the state.
        sets: those of its fields that hold sets of values.
        texts: those that hold text or binary values.
        output: the type of the result.
        merges_exactly: whether the states of parts of a group, merged in the order of their rows,
            give the result of these rows to the last bit.
    """

    merges_exactly: ClassVar[bool] = False
    fields: tuple[StateField, ...] = ()
    sets: tuple[SetField, ...] = ()
    texts: tuple[TextField, ...] = ()
    output: DataType

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @property
    def has_fixed_width(self) -> bool:
        """Whether all that is kept for a group is numbers."""
        objects = any(field.dtype == object for field in self.fields)
        return not (self.sets or self.texts or objects)

    @property
    def depends_on_order(self) -> bool:
        """Whether the result depends on the order of rows, as far as `merges_exactly` says so."""
        return False

    @abstractmethod
    def update(self, state: State, rows: SlottedRows) -> None:
        """Add rows to their groups.

        Raises:
            OutOfRange: a group holds more than it may.
        """

    def field_update(self, columns: Sequence[Column]) -> FieldUpdate | None:
        """Return what `update` does with these inputs; None if it is no `FieldUpdate`."""
        return None

    @abstractmethod
    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """Add the groups `other_slots` of `other` to the groups `slots`, pair by pair in order.

        Raises:
            OutOfRange: a group holds more than it may.
        """

    @abstractmethod
    def finish(self, state: State, slots: Slots) -> Column:
        """Return the results of these groups, in this order; the state stays as it is.

        Raises:
            OutOfRange: a result does not fit `output`.
        """

    def object_bytes(self, state: State, slots: Slots) -> int:
        """Return the bytes of the objects that these groups hold beside the records."""
        return 0

    def arrays(self, state: State) -> list[npt.NDArray[Any]]:
        """Return the fields of a state in the order of `fields`, as kernels take them."""
        return [state[field.name] for field in self.fields]


def merged_objects(
    objects: npt.NDArray[Any], slots: Slots, other_slots: Slots
) -> Iterator[tuple[int, int, Any]]:
    """Yield pair by pair its number, the slot, and the other group's object, if that has one.

    Args:
        objects: the field of objects of the other state.
        slots, other_slots: the groups, int64 (n,), as for `Accumulator.merge`.
    """
    for pair, (slot, other) in enumerate(zip(slots.tolist(), other_slots.tolist(), strict=True)):
        found = objects[other]
        if found is not None:
            yield pair, slot, found


def numbers_of(column: Column) -> npt.NDArray[Any]:
    """Return a column's numbers as kernels take them: numba has no float16."""
    data = column.data
    return data.astype(np.float32) if data.dtype == np.float16 else data


def validity_of(column: Column) -> npt.NDArray[np.bool_]:
    """Return a column's validity, bool (n,); for kernels shape (0,) says that all are valid."""
    return _ALL_VALID if column.validity is None else column.validity
