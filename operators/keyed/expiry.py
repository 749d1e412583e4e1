"""Values with a `ttl`: handles that forget what was not written for so long.

Each record has the time at which its value is gone, and a `TimerQueue` by these times frees values
that are not read any more. A handle compares the time before it does anything else, so what is read
does not depend on how far the queue was emptied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...configs.errors import TopologyError
from ...state.declarations import StateDeclaration
from ...state.records import RecordField
from ...state.store import KeyedStore
from ...state.timers import NO_TIME, TimerQueue
from ..windows.durations import duration_ns
from .handles import Handle, queued_field
from .map_handle import MapHandle

__all__ = ["Expiry", "Moment", "expiring", "expiry_fields", "ttl_ns_of"]

FREED_PER_TURN = 1 << 16
"""How many entries of a queue are looked at in one turn of the worker, the earliest first."""


class Moment:
    """The time at hand, ns: what reads and writes of values with a `ttl` happen at.

    In the row form both are the same; a batch of the column form reads at its earliest time and
    writes at its latest.
    """

    __slots__ = ("read_ns", "write_ns")

    def __init__(self) -> None:
        self.read_ns = self.write_ns = -NO_TIME

    def set(self, read_ns: int, write_ns: int) -> None:
        """Set both."""
        self.read_ns, self.write_ns = read_ns, write_ns


def ttl_ns_of(owner: str, declaration: StateDeclaration) -> int | None:
    """Return the `ttl` of a declaration in ns, None if it has none.

    Raises:
        InputError: it is no duration.
        TopologyError: it is not greater than 0.
    """
    if declaration.ttl is None:
        return None
    what = f"ttl of {owner}.{declaration.name}"
    ttl_ns = duration_ns(declaration.ttl, what)
    if ttl_ns <= 0:
        msg = f"{what} is {declaration.ttl!r}: it must be greater than 0"
        raise TopologyError(msg)
    return ttl_ns


def expiry_fields(name: str) -> tuple[RecordField, RecordField]:
    """Return the fields of a record for the time at which its value `name` is gone."""
    time = np.dtype(np.int64)
    ends = f"{name} ends"
    return RecordField(ends, time, initial=NO_TIME), RecordField(
        queued_field(ends), time, initial=NO_TIME
    )


class Expiry:
    """When the values of one field are gone.

    Args:
        keyed: the store, whose records have `expiry_fields(name)`.
        name: of the field.
        ttl_ns: how long a value stays after it was written.
        moment: the time at hand.
    """

    def __init__(self, keyed: KeyedStore, name: str, ttl_ns: int, moment: Moment) -> None:
        ends = expiry_fields(name)[0].name
        self._keyed = keyed
        self._times: Any = keyed.records[ends].data
        self._array = keyed.records[ends]
        self._queue = TimerQueue(keyed, ends, queued_field(ends))
        self._ttl_ns, self._moment = ttl_ns, moment
        self._written: list[int] = []

    def is_expired(self, slot: int) -> bool:
        """Return whether the value of a record is gone at the time at hand."""
        return bool(self._times[slot] <= self._moment.read_ns)

    def gone(self, slots: Any) -> list[int]:
        """Return those of the records whose values are gone."""
        found: list[int] = np.unique(slots[self._array[slots] <= self._moment.read_ns]).tolist()
        return found

    def note_write(self, slot: int) -> None:
        """Let the value of a record stay from now on; rows out of order never shorten this."""
        end_ns = min(self._moment.write_ns + self._ttl_ns, NO_TIME - 1)
        known_ns = self._times[slot]
        if known_ns == NO_TIME or known_ns < end_ns:
            self._times[slot] = end_ns
        self._written.append(slot)

    def forget(self, slot: int) -> None:
        """Note that a record has no value any more."""
        self._times[slot] = NO_TIME

    @property
    def earliest_ns(self) -> int | None:
        """When the next value may be gone."""
        return self._queue.earliest_ns

    def enter(self, slots: Any) -> None:
        """Enter records that came from elsewhere into the queue."""
        self._queue.enter(slots)

    def settle(self) -> None:
        """Enter what was written into the queue."""
        written, self._written = self._written, []
        if written:
            self._queue.schedule(np.unique(np.array(written, np.int64)))

    def take_due(self, until_ns: int) -> tuple[Any, Any]:
        """Return records as `TimerQueue.take_due`, out of at most `FREED_PER_TURN` entries.

        They may be written to.
        """
        slots, unset = self._queue.take_due(until_ns, FREED_PER_TURN)
        self._keyed.note(slots)
        self._keyed.note(unset)
        return slots, unset

    def drop_written(self) -> None:
        """Forget what was written since `settle`, as the state goes back before it."""
        self._written = []


_VALUE_READS = ("get", "__len__", "__iter__")
_VALUE_WRITES = ("add", "set", "append")


class ExpiringMap(MapHandle):
    """A map whose entries are gone one by one."""

    __slots__ = ("_holders", "_keyed", "expiry")

    ENTRY_FIELDS = (*expiry_fields("value"), RecordField("holder", np.dtype(np.int64)))

    def start(self, keyed: KeyedStore, ttl_ns: int, moment: Moment) -> None:
        """Begin to count; called once."""
        self.expiry = Expiry(self._entries.store, "value", ttl_ns, moment)
        self._keyed = keyed
        self._holders: Any = self._entries.store.records["holder"].data

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the value of an entry, which stays from now on."""
        self._find(key)
        entry = self._set(key, value)
        self._holders[entry] = self._slot()
        self.expiry.note_write(entry)

    @property
    def _kept_fields(self) -> tuple[str, ...]:
        return ("value", expiry_fields("value")[0].name)

    def _enter(self, slots: Any, ids: Any, places: Any, entries: Any) -> None:
        super()._enter(slots, ids, places, entries)
        np.asarray(self._holders)[entries] = slots
        self.expiry.enter(entries)

    def roll_back(self, epoch: int) -> Any:
        """Go back to a seal, and enter the entries that come back."""
        entries = super().roll_back(epoch)
        self.expiry.enter(entries)
        return entries

    def __len__(self) -> int:
        return len(self._own())

    def free_due(self, until_ns: int) -> Any:
        """Remove what is gone at a time; return the records whose entries they were."""
        entries, _ = self.expiry.take_due(until_ns)
        holders = self._entries.store.records["holder"][entries]
        self._keyed.note(np.unique(holders))
        for entry, slot in zip(entries.tolist(), holders.tolist(), strict=True):
            self._remove(slot, entry)
        return np.unique(holders)

    def _find(self, key: object) -> int:
        entry = super()._find(key)
        if entry >= 0 and self.expiry.is_expired(entry):
            self._remove(self._slot(), entry)
            return -1
        return entry

    def _own(self) -> Any:
        slot = self._slot()
        for entry in super()._own().tolist():
            if self.expiry.is_expired(entry):
                self._remove(slot, entry)
        return super()._own()


def expiring(base: type[Any]) -> type[Any]:
    """Return the class of handles that are like `base` and forget what is gone.

    Each method first gives a value that is gone its initial one; each that writes notes the time.
    """
    if base is MapHandle:
        return ExpiringMap
    if base not in _CLASSES:
        members: dict[str, Any] = {
            "__slots__": ("expiry",),
            "start": _start,
            "free_due": _free_due,
            "clear": _clearing(base),
        }
        for name in (*_VALUE_READS, *_VALUE_WRITES):
            if hasattr(base, name):
                members[name] = _fresh(getattr(base, name), writes=name in _VALUE_WRITES)
        if hasattr(base, "exists"):
            members["exists"] = property(_fresh(base.exists.fget, writes=False))
        if issubclass(base, Handle):
            members["is_set"] = _fresh_many(base.is_set, writes=False)
            members["__getitem__"] = _fresh_many(base.__getitem__, writes=False)
            members["__setitem__"] = _fresh_many(base.__setitem__, writes=True)
        else:
            members["__getitem__"] = _fresh(base.__getitem__, writes=False)
            members["__setitem__"] = _fresh(base.__setitem__, writes=True)
        _CLASSES[base] = type(f"Expiring{base.__name__}", (base,), members)
    return _CLASSES[base]


_CLASSES: dict[type[Any], type[Any]] = {}


def _start(self: Any, keyed: KeyedStore, ttl_ns: int, moment: Moment) -> None:
    self.expiry = Expiry(keyed, self.declaration.name, ttl_ns, moment)


def _fresh(method: Callable[..., Any], *, writes: bool) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        slot = self._cursor[0]
        if slot is not None and self.expiry.is_expired(slot):
            self.clear()
        result = method(self, *arguments, **named)
        if writes and None not in (*arguments[-1:], *named.values()):
            self.expiry.note_write(slot)
        return result

    return call


def _fresh_many(method: Callable[..., Any], *, writes: bool) -> Callable[..., Any]:
    def call(self: Any, slots: Any, *arguments: Any) -> Any:
        _clear_each(self, self.expiry.gone(slots))
        result = method(self, slots, *arguments)
        if writes:
            for slot in np.unique(slots).tolist():
                self.expiry.note_write(slot)
        return result

    return call


def _clearing(base: type[Any]) -> Callable[[Any], None]:
    def clear(self: Any) -> None:
        slot = self._cursor[0]
        if slot is not None:  # first, since what follows may look at the time
            self.expiry.forget(slot)
        base.clear(self)
        self.expiry.forget(slot)

    return clear


def _free_due(self: Any, until_ns: int) -> Any:
    slots, unset = self.expiry.take_due(until_ns)
    _clear_each(self, slots.tolist())
    return np.concatenate([slots, unset])


def _clear_each(self: Any, slots: list[int]) -> None:
    known = self._cursor[0]
    for slot in slots:
        self._cursor[0] = slot
        self.clear()
    self._cursor[0] = known
