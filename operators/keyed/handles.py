"""Handles: declared state as a process uses it.

In the row form a handle means the value of the key at hand, and takes Python values; in the column
form `handle[slots]` means the values of many keys, as arrays of raw values (numbers; timestamps,
dates and durations as integers of their unit; event times of timers in ns).
"""

from __future__ import annotations

import datetime
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ...configs.errors import UsageError
from ...state.declarations import StateDeclaration
from ...state.store import KeyedStore
from ...state.timers import NO_TIME
from ...transport.wire.types import DataType

__all__ = [
    "FLOAT32_END",
    "Cursor",
    "Handle",
    "TimerHandle",
    "class_of",
    "codec_of",
    "queued_field",
    "zone_to_declare",
]

Slots = npt.NDArray[np.int64]
Cursor = list[int | None]
"""The record of the key at hand, shared by all handles of an object; None between keys."""

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - columns without a zone
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
_PER_UNIT = {"s": (1, 1_000_000), "ms": (1, 1_000), "us": (1, 1), "ns": (1_000, 1)}
"""Microseconds times the first, divided by the second, are a number of units."""

FLOAT32_END = float.fromhex("0x1.ffffffp+127")
"""From here on, numbers are rounded to infinity."""


def queued_field(name: str) -> str:
    """Return the field in which a timer's entry in its queue is noted."""
    return f"{name} queued"


class Handle(ABC):
    """What all handles have in common: where the values of their keys are."""

    __slots__ = ("_bits", "_cursor", "_mask", "_values", "declaration", "keyed")

    def __init__(self, declaration: StateDeclaration, keyed: KeyedStore, cursor: Cursor) -> None:
        self.declaration = declaration
        self.keyed = keyed
        self._cursor: Any = cursor
        self._values: Any = keyed.records[declaration.name].data
        bit = keyed.layout.bits.get(declaration.name)
        self._mask = 0 if bit is None else 1 << bit
        self._bits: Any = None if bit is None else keyed.records["#set"].data

    @property
    def name(self) -> str:
        """The name under which it is declared."""
        return self.declaration.name

    def __repr__(self) -> str:
        return f"<{self.declaration.describe()}>"

    @abstractmethod
    def clear(self) -> None:
        """Give the key's value its initial one."""

    def __getitem__(self, slots: Slots) -> npt.NDArray[Any]:
        """Return the raw values of keys: `slots` as `self.slots(batch)` returns them."""
        return np.asarray(self.keyed.records[self.declaration.name][slots])

    def __setitem__(self, slots: Slots, values: Any) -> None:
        """Set the raw values of keys; of a key that occurs twice, the last one counts."""
        self.keyed.records[self.declaration.name][slots] = values
        if self._mask:
            self.keyed.records["#set"][slots] |= np.uint64(self._mask)

    def is_set(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of the keys have a value: bool, the shape of `slots`."""
        if not self._mask:
            return np.ones(np.shape(slots), np.bool_)
        return np.asarray(self.keyed.records["#set"][slots] & np.uint64(self._mask) != 0)

    def _refused(self, error: Exception, value: object = None) -> NoReturn:
        """Say in one line what was wrong with a call."""
        declared = self.declaration
        if self._cursor[0] is None:
            msg = f"{declared.name!r} belongs to a key, and there is none here: the rows of a"
            msg += " broadcast stream belong to all keys"
        elif isinstance(error, (ValueError, OverflowError)):
            msg = f"{declared.name!r} leaves its type {declared.type} with {value!r}"
            msg += ": declare a wider one"
        else:
            msg = f"{declared.name!r} keeps values of {declared.type}, not {value!r}"
            msg += zone_to_declare(declared.type, value)
        raise UsageError(msg) from error


class SumHandle(Handle):
    """A count or sum: it begins with 0."""

    __slots__ = ()

    def add(self, amount: Any = 1) -> None:
        """Add to the key's value.

        Raises:
            UsageError: an integer sum leaves its type, or the amount is not a number.
        """
        values, slot = self._values, self._cursor[0]
        try:
            values[slot] += amount
        except (TypeError, ValueError) as error:
            self._refused(error, amount)

    def get(self) -> Any:
        """Return the key's value."""
        try:
            return self._values[self._cursor[0]]
        except TypeError as error:
            self._refused(error)

    def set(self, value: Any) -> None:
        """Replace the key's value; raise UsageError as `add`."""
        try:
            self._values[self._cursor[0]] = value
        except (TypeError, ValueError) as error:
            self._refused(error, value)

    def clear(self) -> None:
        """Begin with 0 again."""
        self.set(0)


class Float32Sum(SumHandle):
    """A sum in float32, in which no finite number becomes infinite."""

    __slots__ = ()

    def add(self, amount: Any = 1) -> None:
        """Add to the key's value; raise UsageError if it leaves float32."""
        try:
            self.set(self._values[self._cursor[0]] + amount)
        except TypeError as error:
            self._refused(error, amount)

    def set(self, value: Any) -> None:
        """Replace the key's value; raise UsageError if float32 does not hold it."""
        try:
            self._values[self._cursor[0]] = _as_float32(value)
        except (TypeError, ValueError, OverflowError) as error:
            self._refused(error, value)


class _MaybeAbsent(Handle):
    """What handles have in common whose keys may have no value."""

    __slots__ = ()

    @property
    def exists(self) -> bool:
        """Whether the key has a value."""
        try:
            return bool(self._bits[self._cursor[0]] & self._mask)
        except TypeError as error:
            self._refused(error)


class ValueHandle(_MaybeAbsent):
    """A value of fixed width, or none."""

    __slots__ = ("_decode", "_encode")

    def __init__(self, declaration: StateDeclaration, keyed: KeyedStore, cursor: Cursor) -> None:
        super().__init__(declaration, keyed, cursor)
        self._encode, self._decode = codec_of(declaration.type)

    def get(self, default: Any = None) -> Any:
        """Return the key's value, or `default` if it has none."""
        slot = self._cursor[0]
        try:
            if not self._bits[slot] & self._mask:
                return default
            raw = self._values[slot]
        except TypeError as error:
            self._refused(error)
        return raw if self._decode is None else self._decode(raw)

    def set(self, value: Any) -> None:
        """Set the key's value; None takes it away.

        Raises:
            UsageError: it is not of the declared type, or does not fit into it.
        """
        if value is None:
            self.clear()
            return
        slot = self._cursor[0]
        try:
            self._values[slot] = value if self._encode is None else self._encode(value)
            self._bits[slot] |= self._mask
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            self._refused(error, value)

    def clear(self) -> None:
        """Take the key's value away."""
        slot = self._cursor[0]
        try:
            self._values[slot] = type(self._values[slot])(0)
            self._bits[slot] &= ~self._mask
        except TypeError as error:
            self._refused(error)


class Extreme(ValueHandle):
    """The least or greatest value so far. NaN is greater than all numbers, as in Spark."""

    __slots__ = ("_is_least",)

    def __init__(self, declaration: StateDeclaration, keyed: KeyedStore, cursor: Cursor) -> None:
        super().__init__(declaration, keyed, cursor)
        self._is_least = declaration.kind == "min"

    def add(self, value: Any) -> None:
        """Take a value into account; None is ignored, as in SQL.

        Raises:
            UsageError: as `set`.
        """
        if value is None:
            return
        known = self.get()
        if known is not None:
            try:
                is_less = value < known or (_is_nan(known) and not _is_nan(value))
                is_more = value > known or (_is_nan(value) and not _is_nan(known))
            except TypeError as error:
                self._refused(error, value)
            if not (is_less if self._is_least else is_more):
                return
        self.set(value)


class BytesHandle(_MaybeAbsent):
    """A text or binary value, or none."""

    __slots__ = ("_decode", "_encode", "_heap")

    def __init__(self, declaration: StateDeclaration, keyed: KeyedStore, cursor: Cursor) -> None:
        super().__init__(declaration, keyed, cursor)
        self._heap = keyed.heap
        encode, self._decode = codec_of(declaration.type)
        assert encode is not None
        self._encode = encode

    def get(self, default: Any = None) -> Any:
        """Return the key's value, or `default` if it has none."""
        if not self.exists:
            return default
        raw = self._heap.get(self._values[self._cursor[0]])
        return raw if self._decode is None else self._decode(raw)

    def set(self, value: Any) -> None:
        """Set the key's value; None takes it away.

        Raises:
            UsageError: it is not a str, or not bytes, as declared.
            StateFullError: the worker's memory for state is used up.
        """
        if value is None:
            self.clear()
            return
        slot = self._cursor[0]
        try:
            raw = self._encode(value)
        except TypeError as error:
            self._refused(error, value)
        if slot is None:
            self._refused(TypeError(), value)
        self._values[slot] = self.keyed.replace_value(self._values[slot], raw)
        self._bits[slot] |= self._mask

    def clear(self) -> None:
        """Take the key's value away."""
        slot = self._cursor[0]
        if slot is None:
            self._refused(TypeError())
        self._heap.discard(self._values[slot])
        self._values[slot] = 0
        self._bits[slot] &= ~self._mask

    def __getitem__(self, slots: Slots) -> Any:
        """Return the values of keys as a `BytesView`, null where there is none."""
        return self.keyed.values(self.declaration.name, slots, self.declaration.type).to_numpy()

    def __setitem__(self, slots: Slots, values: Any) -> None:
        """Set the values of keys: anything that `Column.of` takes."""
        from ...transport.wire.column import Column

        column = Column.of(values, self.declaration.type)
        self.keyed.write_values(self.declaration.name, np.asarray(slots), column)


class TimerHandle(Handle):
    """A timer of the key: one time or none. It calls `on_timer` once, and is then not set."""

    __slots__ = ()

    def set(self, when: datetime.datetime | int) -> None:
        """Set the timer, or move it.

        Args:
            when: a datetime (without a zone in UTC), or ns since 1970. A time that has passed
                already fires at the next watermark, or the next turn of the worker.

        Raises:
            UsageError: it is neither, or out of the range of ns (the years 1678 to 2261).
        """
        try:
            self._values[self._cursor[0]] = when if isinstance(when, int) else _to_ns(when)
        except (ValueError, OverflowError) as error:
            msg = f"{self.name!r} is set to {when!r}: a timer tells the years 1678 to 2261"
            raise UsageError(msg) from error
        except (TypeError, AttributeError) as error:
            self._refused(error, when)

    def get_ns(self) -> int | None:
        """Return the time for which the timer is set, in ns since 1970; None if it is not."""
        try:
            time_ns = self._values[self._cursor[0]]
        except TypeError as error:
            self._refused(error)
        return None if time_ns == NO_TIME else time_ns

    def get(self) -> datetime.datetime | None:
        """Return the time for which the timer is set, without a zone in UTC; None if it is not."""
        time_ns = self.get_ns()
        return (
            None if time_ns is None else _EPOCH + datetime.timedelta(microseconds=time_ns // 1000)
        )

    @property
    def exists(self) -> bool:
        """Whether the timer is set."""
        return self.get_ns() is not None

    def clear(self) -> None:
        """Unset the timer."""
        self.set(NO_TIME)


def class_of(declaration: StateDeclaration) -> type[Handle]:
    """Return the class of the handle of a declared value."""
    match declaration.kind:
        case "sum" if declaration.type.family == "float32":
            return Float32Sum
        case "count" | "sum":
            return SumHandle
        case "min" | "max":
            return Extreme
        case "timer":
            return TimerHandle
        case _ if declaration.type.kind == "bytes":
            return BytesHandle
        case _:
            return ValueHandle


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _to_ns(when: datetime.datetime) -> int:
    epoch = _EPOCH if when.tzinfo is None else _EPOCH_UTC
    return (when - epoch) // _MICROSECOND * 1000


def _as_bool(value: Any) -> Any:
    """Return True or False; memory for it would take any other object as one of them."""
    if isinstance(value, (bool, np.bool_)):
        return value
    raise TypeError


def _as_utf8(value: Any) -> bytes:
    """Return a text as it is stored."""
    if isinstance(value, str):
        with suppress(UnicodeEncodeError):  # half of a pair of surrogates is no text
            return value.encode()
    raise TypeError


def _as_bytes(value: Any) -> bytes:
    """Return bytes as they are stored."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise TypeError


def _as_float32(value: Any) -> Any:
    """Return a number that fits into float32, in which one that does not would be infinite."""
    if not math.isfinite(value) or abs(float(value)) < FLOAT32_END:
        return value
    raise OverflowError


def zone_to_declare(kind: DataType, value: object) -> str:
    """Return the remedy if a time has a zone and the type none, or the other way round; else ""."""
    if kind.family != "timestamp" or not isinstance(value, datetime.datetime):
        return ""
    if value.tzinfo is not None and kind.timezone is None:
        return f": declare timestamp[{kind.unit}, tz=UTC] for times with a zone"
    if value.tzinfo is None and kind.timezone is not None:
        return f": declare timestamp[{kind.unit}] for times without a zone"
    return ""


def codec_of(
    kind: DataType,
) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    """Return how a value of Python is stored, and back; None if it is kept as it is.

    Dates, times and durations are stored as integers, text as UTF-8. The first raises an error of
    Python's for a value that cannot be stored.
    """
    if kind.is_text:
        return _as_utf8, bytes.decode
    if kind.kind == "bytes":
        return _as_bytes, None
    if kind.family == "bool":
        return _as_bool, None
    if kind.family == "float32":
        return _as_float32, None
    if kind.family == "date32":
        return (
            lambda value: value.toordinal() - _EPOCH_DAY,
            lambda raw: datetime.date.fromordinal(raw + _EPOCH_DAY),
        )
    if kind.unit is None:
        return None, None
    times, divisor = _PER_UNIT[kind.unit]
    if kind.family == "duration":
        return (
            lambda value: value // _MICROSECOND * times // divisor,
            lambda raw: datetime.timedelta(microseconds=raw * divisor // times),
        )
    epoch = _EPOCH if kind.timezone is None else _EPOCH_UTC
    return (
        lambda value: (value - epoch) // _MICROSECOND * times // divisor,
        lambda raw: epoch + datetime.timedelta(microseconds=raw * divisor // times),
    )
