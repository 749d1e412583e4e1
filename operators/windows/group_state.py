"""`GroupState`: the groups of a windowed aggregation, per slice and key, and their accumulators.

Open slices have indexes of their own over one log of records (`SliceStores`), so that a closed
slice is freed at once and leaves nothing behind. `GroupLookup` finds them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import column_name, field_columns
from ...state.records import RecordField, RecordLayout, copy_of_records
from ...state.store import KeyedStore
from ...transport.wire.column import Column
from ...transport.wire.types import DataType
from ..aggregates.accumulator import Accumulator, SlottedRows, State
from ..sealing import Epochs
from .dumped_groups import DumpedGroups, numbered
from .group_lookup import GroupLookup
from .group_records import GroupRecords
from .kept_fields import KeptFields, states_of_dump, write_dumped
from .sealed_groups import SealedGroups, value_columns
from .slice_stores import SliceStores, keys_in_slices
from .slot_objects import SlotObjects
from .slot_texts import SlotTexts, text_columns
from .value_sets import ValueLists, ValueSets

if TYPE_CHECKING:
    from ...state.field_updates import FieldUpdate
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext

__all__ = ["CHANGED", "GroupState"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Inputs: TypeAlias = "Sequence[Sequence[Column]]"

CHANGED = "changed"
_BINARY = DataType.parse("binary")


class GroupState:
    """The groups of one operator on one worker.

    Args:
        keys: the key columns; none for one group per slice.
        accumulators: what is computed for each group.
        context: whose memory for state it takes, and which name messages have.
        more: fields for the caller to use.
        moved: fields for the caller to use that move with a group.
        notes_changes: whether there is a field `changed`.
        shares_stores: whether small slices share stores, as is better if there are many.
    """

    def __init__(
        self,
        keys: Schema,
        accumulators: Sequence[Accumulator],
        context: InstanceContext,
        more: Sequence[RecordField] = (),
        *,
        moved: Sequence[RecordField] = (),
        notes_changes: bool = False,
        shares_stores: bool = False,
    ) -> None:
        self._keys = keys
        self._moved = list(moved)
        if notes_changes:
            self._moved.append(RecordField(CHANGED, np.dtype(np.uint8)))
        pointers = list(more)
        self._text_kinds: dict[str, DataType] = {}
        self._budget, self._operator = context.state_budget, context.operator_id
        self._kept: list[KeptFields] = []
        for number, accumulator in enumerate(accumulators):
            kept = KeptFields(accumulator, {}, {}, {}, {})
            for field in accumulator.fields:
                if field.dtype == object:
                    kept.objects[field.name] = SlotObjects()
                    continue
                kept.names[field.name] = f"{number}.{field.name}"
                at = kept.names[field.name]
                self._moved.append(RecordField(at, field.dtype, field.initial))
            for text in accumulator.texts:
                self._text_kinds[f"{number}.{text.name}"] = text.kind
            for values in accumulator.sets:
                pointers += ValueSets.fields(f"{number}.{values.name}")
            self._kept.append(kept)
        pointers += [RecordField.of_bytes(name) for name in self._text_kinds]
        stored = keys_in_slices(keys) if shares_stores else keys
        self._spare = KeyedStore(
            RecordLayout(stored, [*self._moved, *pointers]),
            context.state_budget,
            context.operator_id,
            virtual_nodes=context.virtual_nodes,
        )
        for number, kept in enumerate(self._kept):
            for values in kept.accumulator.sets:
                name = f"{number}.{values.name}"
                make = ValueLists if values.is_list else ValueSets
                kept.sets[values.name] = make(values.types, self._spare, name)
        self._stores = SliceStores(self._spare, context.virtual_nodes, shares=shares_stores)
        for number, kept in enumerate(self._kept):
            for text in kept.accumulator.texts:
                at = f"{number}.{text.name}"
                kept.texts[text.name] = SlotTexts(at, text.kind, self._stores, self._spare)
        self._charged: Epochs[int] = Epochs()
        self._charged_bytes = 0  # for objects
        self._lookup = GroupLookup(keys, self._stores)
        self.slices_changed = False
        self.traffic = self._spare.traffic
        """What rows that change groups on the disk move there."""

    # -- groups -------------------------------------------------------------------------------

    @property
    def slices(self) -> tuple[int, ...]:
        """The open slices, in the order in which they were opened."""
        return self._stores.slices

    def __len__(self) -> int:
        """Return the number of groups."""
        return self._stores.groups

    @property
    def record_bytes(self) -> int:
        """The width of the record of a group."""
        return self._spare.layout.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of memory for records, keys, indexes, objects and sets."""
        total = sum(store.nbytes for store in self._stores)
        for number, kept in enumerate(self._kept):
            total += sum(sets.nbytes for sets in kept.sets.values())
            if kept.objects:
                for slice_ in self.slices:
                    total += self._object_bytes(number, self.scan(slice_))
        return total

    @property
    def spills(self) -> bool:
        """Whether groups are on the disk."""
        return self._spare.spills

    @property
    def is_in_records(self) -> bool:
        """Whether all that is kept for a group is in its record: numbers and texts."""
        return not any(kept.objects or kept.sets for kept in self._kept)

    def set_aside(self, nbytes: int) -> bool:
        """Take memory for another use until `give_back`, for which groups are moved to the disk.

        Returns: whether there is so much.
        """
        return self._spare.set_aside(nbytes)

    def give_back(self, nbytes: int) -> None:
        """Take memory back that was set aside."""
        self._spare.give_back(nbytes)

    @property
    def texts(self) -> int:
        """How many text or binary values a group may have beside its key."""
        return len(self._text_kinds)

    @property
    def has_room_for_keys(self) -> bool:
        """Whether each of the indexes may grow in memory."""
        return all(store.has_room_for_keys for store in self._stores)

    def slots(self, slices: Int64s, hashes: Hashes, keys: Batch) -> Int64s:
        """Return the slot of each row's group; a new one where there is none.

        Args:
            slices: the slice of each row, int64 (n,).
            hashes: of the keys, by `hash_keys`, uint64 (n,).
            keys: a batch with the key columns, n rows.

        Returns:
            int64 (n,), indices into the fields of `state`.
        """
        open_slices = len(self._stores)
        slots = self._lookup.slots(slices, hashes, keys)
        self.slices_changed |= len(self._stores) > open_slices
        return slots

    def find(self, slice_: int, hashes: Hashes, keys: Batch) -> Int64s:
        """Return the slots of groups of one slice, −1 where there is none."""
        return self._stores.find(slice_, hashes, keys)

    def scan(self, slice_: int, nodes: Int64s | None = None) -> Int64s:
        """Return the slots of all groups of a slice, which may not be open; or of some nodes."""
        return self._stores.scan(slice_, nodes)

    def by_place(self, slots: Int64s) -> Iterator[Int64s]:
        """Yield groups in pieces, in the order in which they lie if that saves reading the disk."""
        for rows in self._spare.in_order(slots.copy()):
            yield slots[rows]

    def records_of_rows(self) -> GroupRecords:
        """Return the records, as rows that wait for a pass over them meet them."""
        return GroupRecords(self, self._stores, self._spare, self._keys.names)

    def keys_of(self, slots: Int64s) -> Batch:
        """Return the key columns of groups."""
        return self._spare.keys_of(slots).select(self._keys.names)

    def delete(self, slots: Int64s) -> None:
        """Drop single groups, all of one slice; their keys must not come back."""
        self._drop_values(slots)
        self._stores.delete(slots)

    def free(self, slice_: int) -> None:
        """Drop all groups of a slice and give their memory back."""
        if slice_ not in self._stores:
            return
        if not self.is_in_records:
            self._drop_values(self.scan(slice_))
        self._stores.free(slice_)
        self.slices_changed = True

    def clear(self, before: int | None = None) -> None:
        """Drop all groups, or those of slices before one; slices that were freed may come back."""
        for slice_ in [one for one in self.slices if before is None or one < before]:
            self.free(slice_)
        self._lookup.forget()

    # -- accumulators -------------------------------------------------------------------------

    def state(self, number: int) -> State:
        """Return the fields of the accumulator of that number."""
        records: Any = self._spare.records
        kept = self._kept[number]
        fields: Any = {name: records[at] for name, at in kept.names.items()}
        return {**fields, **kept.objects, **kept.sets, **kept.texts}

    def update(self, slots: Int64s, inputs: Inputs, times: Int64s | None) -> None:
        """Add rows to their groups: for each accumulator the columns that it reads.

        Raises:
            OutOfRange: a group holds more than it may.
            StateFullError: the worker's memory for state is used up.
        """
        for number, columns in enumerate(inputs):
            accumulator = self._kept[number].accumulator
            with numbered(number), self._charging(number, slots):
                accumulator.update(self.state(number), SlottedRows(slots, columns, times))

    def add(
        self, slices: Int64s, hashes: Hashes, keys: Batch, inputs: Inputs, times: Int64s | None
    ) -> Int64s:
        """Do what `slots` and `update` do, and raise as they; return the slots."""
        updates = self._field_updates(inputs) if self._lookup.may_update else None
        if updates is not None:
            open_slices = len(self._stores)
            slots = self._lookup.update(slices, hashes, keys, updates)
            self.slices_changed |= len(self._stores) > open_slices
            if slots is not None:
                return slots
        slots = self.slots(slices, hashes, keys)
        self.update(slots, inputs, times)
        return slots

    def _field_updates(self, inputs: Inputs) -> list[FieldUpdate] | None:
        """Return what is done for each row; None if it is done for all rows of a batch at once."""
        updates = []
        for kept, columns in zip(self._kept, inputs, strict=True):
            update = kept.accumulator.field_update(columns)
            if update is None:
                return None
            names = tuple(kept.names[one] for one in update.fields)
            updates.append(update._replace(fields=names))
        return updates

    def merge(self, slots: Int64s, other: GroupState, other_slots: Int64s) -> None:
        """Add groups of another state with the same accumulators; raise as `update`."""
        for number, kept in enumerate(self._kept):
            with numbered(number), self._charging(number, slots):
                kept.accumulator.merge(self.state(number), slots, other.state(number), other_slots)

    @contextmanager
    def _charging(self, number: int, slots: Int64s) -> Iterator[None]:
        """Charge the budget for what the objects of these groups grow by in the block."""
        if not self._kept[number].objects:
            yield
            return
        touched = np.unique(slots)
        for objects in self._kept[number].objects.values():
            objects.note(touched)
        before = self._object_bytes(number, touched)
        yield
        self._charge(self._object_bytes(number, touched) - before)

    def _object_bytes(self, number: int, slots: Int64s) -> int:
        return self._kept[number].accumulator.object_bytes(self.state(number), slots)

    def _charge(self, nbytes: int) -> None:
        if nbytes > 0:
            self._budget.take(self._operator, nbytes, len(self))
        elif nbytes:
            self._budget.give_back(self._operator, -nbytes)
        self._charged_bytes += nbytes

    def _drop_values(self, slots: Int64s) -> None:
        for number, kept in enumerate(self._kept):
            if kept.objects:
                self._charge(-self._object_bytes(number, slots))
            for objects in kept.objects.values():
                objects.drop(slots)
            for sets in kept.sets.values():
                sets.drop(slots)

    def finish(self, number: int, slots: Int64s) -> Column:
        """Return the results of one accumulator for these groups; raise as `Accumulator.finish`."""
        with numbered(number):
            return self._kept[number].accumulator.finish(self.state(number), slots)

    # -- saving and moving --------------------------------------------------------------------

    def dump(self, slots: Int64s, *, sets: bool = True) -> dict[str, Column]:
        """Return what is kept for groups as columns: numbers as they are, the rest pickled.

        Without `sets`, these are left to `dump_sets`.
        """
        records = copy_of_records(self._spare.records, slots)
        columns = field_columns(records, self._moved)
        stored = self._spare.layout, self._spare.memory
        columns |= text_columns(records, self._text_kinds, *stored)
        for name, objects in self._objects():
            columns[name] = Column.of([pickle.dumps(one) for one in objects[slots]], _BINARY)
        if sets:
            for name, values in self._sets():
                columns[name] = Column.of(values.dump(slots), _BINARY)
        return columns

    def dump_sets(self, slots: Int64s) -> Iterator[tuple[Int64s, dict[str, Column]]]:
        """Yield the values of each field of sets as columns, and the row of each one's group."""
        for name, values in self._sets():
            rows, columns = values.listed(slots)
            yield rows, value_columns(name, columns)

    def load(self, slots: Int64s, batch: Batch) -> None:
        """Write what `dump` returned into the groups of other slots, or add values of sets.

        Raises:
            StateFullError, InputError: memory for state is used up; or as `write_dumped`.
        """
        for name, values in self._sets():
            if name in batch.schema:
                values.load(slots, batch.column(name).to_pylist())
            found = [batch.column(f.name) for f in batch.schema if f.name.startswith(f"{name}.")]
            if found:
                values.add(slots, found)
                return
        write_dumped(self._spare.records, slots, self._kept, self._moved, batch)
        rows = np.arange(batch.num_rows)
        for number, kept in enumerate(self._kept):
            for texts in kept.texts.values():
                texts.write(slots, batch.column(column_name(texts.name)), rows)
            with self._charging(number, slots):
                for name, objects in kept.objects.items():
                    pickled = batch.column(column_name(f"{number}.{name}")).to_pylist()
                    loaded = [pickle.loads(one) for one in pickled]  # noqa: S301  # from a dump
                    objects[slots] = loaded

    def merge_dumped(self, slots: Int64s, batch: Batch) -> None:
        """Add what `dump` returned to the groups of these slots; raise as `update`."""
        rows, states = np.arange(batch.num_rows), states_of_dump(self._kept, self._moved, batch)
        for number, (kept, other) in enumerate(zip(self._kept, states, strict=True)):
            for name in kept.objects:
                pickled = batch.column(column_name(f"{number}.{name}")).to_pylist()
                other[name] = np.empty(len(pickled), object)
                other[name][:] = [pickle.loads(one) for one in pickled]  # noqa: S301  # from a dump
            with numbered(number), self._charging(number, slots):
                for name, sets in kept.sets.items():
                    sets.load(slots, batch.column(column_name(f"{number}.{name}")).to_pylist())
                if other:
                    kept.accumulator.merge(self.state(number), slots, other, rows)

    def dumped(self, batch: Batch) -> DumpedGroups:
        """Return the groups of a dump as they are; they must be of numbers and texts alone."""
        return DumpedGroups(
            [kept.accumulator for kept in self._kept],
            states_of_dump(self._kept, self._moved, batch),
        )

    def _objects(self) -> Iterator[tuple[str, SlotObjects]]:
        """Yield the fields of objects, with the names of their columns."""
        for number, kept in enumerate(self._kept):
            for name, one in kept.objects.items():
                yield column_name(f"{number}.{name}"), one

    def _sets(self) -> Iterator[tuple[str, ValueSets]]:
        """Yield the fields of sets, with the names of their columns."""
        for number, kept in enumerate(self._kept):
            for name, one in kept.sets.items():
                yield column_name(f"{number}.{name}"), one

    # -- epochs -------------------------------------------------------------------------------

    @property
    def is_sealed(self) -> bool:
        """Whether there is a seal, so that groups leave images when they change."""
        return bool(self._charged)

    def has_seal(self, epoch: int) -> bool:
        """Return whether there is a seal of an epoch."""
        return self._stores.has_seal(epoch)

    def seal(self, epoch: int) -> None:
        """Let the groups as they are now be some to go back to: O(slices); raise ValueError."""
        self._lookup.forget()
        self._charged.add(epoch, self._charged_bytes)
        for one in self._sealed_together():
            one.seal(epoch)

    def sealed(self, epoch: int) -> SealedGroups:
        """Return what another thread may read of the last seal, which is of this epoch."""
        return SealedGroups(
            self._keys,
            self._stores.sealed(epoch),
            {name: values.values.sealed(epoch) for name, values in self._sets()},
            {name: objects.sealed(epoch) for name, objects in self._objects()},
            self._moved,
            self._text_kinds,
        )

    def roll_back(self, epoch: int) -> None:
        """Go back to the groups of a seal; raise ValueError if there is none."""
        self._charge(self._charged.back_to(epoch) - self._charged_bytes)
        self._lookup.forget()
        self.slices_changed = True
        for one in self._sealed_together():
            one.roll_back(epoch)

    def release(self, epoch: int) -> None:
        """Give up going back before a seal; raise ValueError if there is none."""
        self._charged.release(epoch)
        for one in self._sealed_together():
            one.release(epoch)

    def note(self, slices: Int64s, slots: Int64s) -> None:
        """Note that these groups are about to be written to, which `slots` has not returned now."""
        self._stores.note(slices, slots)

    def drop(self) -> None:
        """Drop all groups and all seals, and give their memory back."""
        self.clear()
        self._charged = Epochs()
        self._stores.drop()
        for _, values in self._sets():
            values.values.drop()
        for _, objects in self._objects():
            objects.forget_seals()

    def _sealed_together(self) -> list[SliceStores | KeyedStore | SlotObjects]:
        sets = [values.values for _, values in self._sets()]
        return [self._stores, *sets, *(objects for _, objects in self._objects())]

    def field(self, name: str) -> npt.NDArray[Any]:
        """Return one of the fields for the caller's use, by slot."""
        return self._spare.records[name]

    @property
    def changed(self) -> npt.NDArray[np.uint8]:
        """A flag per slot for the caller to use; 0 in a new group."""
        return self.field(CHANGED)
