"""What a keyed process keeps for each key, as its class declares it.

::

    class Streak(whale.KeyedProcess):
        bids = state.count()
        spent = state.sum("double")
        last = state.value("timestamp[us]")
        quiet = state.timer()

Each returns a declaration, in whose place an object of the class has a *handle*: the value of the
key whose row or timer is at hand. Types are named as in `whale.Schema.of`.

With a `ttl`, such as "1 day", a value that is not written for that long is gone: it is the initial
one again, and its memory is free. Time is that of the rows, where they have event times: the row or
timer at hand tells what is gone for it, and the watermark what is freed; else it is the clock's. A
map loses single entries, a list all its values, that long after the last `append`. A batch of the
column form reads at its earliest time and writes at its latest.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from ..configs.errors import InputError, TopologyError, UsageError
from ..transport.wire.types import DataType, as_type

__all__ = ["StateDeclaration", "count", "list", "map", "max", "min", "sum", "timer", "value"]

Kind = Literal["count", "sum", "min", "max", "value", "timer", "list", "map"]
TypeLike = str | type | DataType
Duration = str | datetime.timedelta | int | float
Class = type[Any]

_NUMBERS = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float32", "float64"}
)
_ORDERED = _NUMBERS | {"date32", "timestamp", "duration"}
_TEXTS = frozenset({"string", "large_string", "binary", "large_binary"})
_MAP_KEYS = _ORDERED - {"uint64", "float32", "float64"} | _TEXTS
_KEPT = _ORDERED | {"bool"} | _TEXTS


@dataclass(eq=False)
class StateDeclaration:
    """One declared value per key.

    Attributes:
        kind: which function declared it.
        type: of the value.
        clock: of a timer: the time by which it fires.
        key_type: of a map: the type of its keys.
        ttl: after how long without a write a value is gone, as the user wrote it; None: never.
        name: the attribute of the class.
    """

    kind: Kind
    type: DataType
    clock: Literal["event", "processing"] = "event"
    key_type: DataType | None = None
    ttl: Duration | None = None
    name: str = ""

    def __set_name__(self, owner: Class, name: str) -> None:
        if self.name not in ("", name):
            msg = f"{owner.__name__}.{name} is the declaration of {self.name!r}: declare it anew"
            raise TopologyError(msg)
        if name.startswith("_"):
            msg = f"{owner.__name__}.{name}: names of declared state do not begin with '_'"
            raise TopologyError(msg)
        self.name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        msg = f"{self.name!r} is the state of a key: use it in on_row, on_batch or on_timer"
        raise UsageError(msg)

    def __getitem__(self, key: object) -> NoReturn:
        self.__getattr__("get")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        self.__getattr__("set")

    def describe(self) -> str:
        """Return the declaration in words: "spent: sum of float64"."""
        if self.kind == "timer":
            return f"{self.name}: timer ({self.clock} time)"
        unit = " ms" if isinstance(self.ttl, (int, float)) else ""
        ttl = "" if self.ttl is None else f", ttl {self.ttl}{unit}"
        if self.key_type is not None:
            return f"{self.name}: map of {self.key_type} to {self.type}{ttl}"
        kept = "" if self.kind == "count" else f" of {self.type}"
        return f"{self.name}: {self.kind}{kept}{ttl}"


def count(*, ttl: Duration | None = None) -> Any:
    """Declare a number that begins with 0: `add(n)`, `get()`."""
    return StateDeclaration("count", DataType.parse("int64"), ttl=ttl)


def sum(type: TypeLike, *, ttl: Duration | None = None) -> Any:
    """Declare a sum, of a number type, that begins with 0: `add(x)`, `get()`.

    An integer sum that leaves its type fails the job.

    Raises:
        InputError: it is not the type of numbers.
    """
    return StateDeclaration("sum", _checked("sum", type, _NUMBERS), ttl=ttl)


def min(type: TypeLike, *, ttl: Duration | None = None) -> Any:
    """Declare the least of the values: `add(x)`, `get()`, which is None before the first.

    Raises:
        InputError: it is not a type of numbers, dates, timestamps or durations.
    """
    return StateDeclaration("min", _checked("min", type, _ORDERED), ttl=ttl)


def max(type: TypeLike, *, ttl: Duration | None = None) -> Any:
    """Declare the greatest of the values: `add(x)`, `get()`, which is None before the first.

    Raises:
        InputError: it is not a type of numbers, dates, timestamps or durations.
    """
    return StateDeclaration("max", _checked("max", type, _ORDERED), ttl=ttl)


def value(type: TypeLike, *, ttl: Duration | None = None) -> Any:
    """Declare one value: `set(x)`, `get()`, which is None before the first `set`, `clear()`.

    Raises:
        InputError: values of this type cannot be kept.
    """
    return StateDeclaration("value", _checked("value", type, _KEPT), ttl=ttl)


def list(type: TypeLike, *, ttl: Duration | None = None) -> Any:
    """Declare a list: `append(x)`, `len`, `[n]`, iteration, `get()`, `clear()`.

    Raises:
        InputError: values of this type cannot be kept.
    """
    return StateDeclaration("list", _checked("list", type, _KEPT), ttl=ttl)


def map(key: TypeLike, value: TypeLike, *, ttl: Duration | None = None) -> Any:
    """Declare a mapping, used like a dict: `[k] = x`, `[k]`, `get(k)`, `in`, `del`, `items()`.

    Raises:
        InputError: keys are not of integers, dates, timestamps, durations, text or bytes, or
            values of a type that cannot be kept.
    """
    key_type = _checked("map", key, _MAP_KEYS)
    return StateDeclaration("map", _checked("map", value, _KEPT), key_type=key_type, ttl=ttl)


def timer(clock: Literal["event", "processing"] = "event") -> Any:
    """Declare a timer: `set(when)`, `get()`, `clear()`; it calls `on_timer` once.

    Args:
        clock: "event": it fires when the watermark reaches its time; "processing": when
            the clock does. At the end of the input, all that are set fire.

    Raises:
        InputError: `clock` is neither.
    """
    if clock not in ("event", "processing"):
        msg = f"state.timer takes 'event' or 'processing', not {clock!r}"
        raise InputError(msg)
    return StateDeclaration("timer", DataType.parse("timestamp[ns]"), clock)


def _checked(kind: str, given: TypeLike, allowed: frozenset[str]) -> DataType:
    found = as_type(given)
    if found.family not in allowed:
        msg = f"state.{kind} does not keep {found}; it keeps {', '.join(sorted(allowed))}"
        raise InputError(msg)
    return found
