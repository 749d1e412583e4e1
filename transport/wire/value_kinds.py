"""The kind of a Python value, and whether a column of some type holds it unchanged.

A value fits if it is of the kind that its column's type stands for, or a number that the type holds
exactly; so the result does not depend on which values are converted together.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import numpy as np

from ...configs.errors import InputError
from .types import DataType

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "bool"),
    (np.datetime64, "datetime64"),  # before int: timedelta64 is an integer to numpy
    (np.timedelta64, "timedelta64"),
    ((int, np.integer), "int"),
    ((float, np.floating), "float"),
    (str, "text"),
    ((bytes, bytearray, memoryview), "bytes"),
    (decimal.Decimal, "decimal"),
    (datetime.datetime, "datetime"),
    (datetime.date, "date"),
    (datetime.time, "time"),
    (datetime.timedelta, "timedelta"),
)
_FAMILY_KINDS: Final = {
    **dict.fromkeys(("string", "large_string"), "text"),
    **dict.fromkeys(("binary", "large_binary", "fixed_size_binary"), "bytes"),
    **dict.fromkeys(("date32", "date64"), "date"),
    **dict.fromkeys(("time32", "time64"), "time"),
    "bool": "bool",
    "decimal128": "decimal",
    "timestamp": "datetime",
    "duration": "timedelta",
}
_EXACT_CLASSES: Final[dict[str, frozenset[type]]] = {
    "bool": frozenset({bool}),
    "int": frozenset({int}),
    "float": frozenset({float, int}),
    "text": frozenset({str}),
    "bytes": frozenset({bytes}),
    "decimal": frozenset({decimal.Decimal, int}),
    "date": frozenset({datetime.date}),
    "timedelta": frozenset({datetime.timedelta}),
}
"""Values of these classes fit, or Arrow refuses them; others are checked one by one."""


_class: Callable[[Any], Any] = type  # by another name, since columns have a `type`, too
_NONE = type(None)


class _MisfitError(Exception):
    """A value is of another kind than its column, or would change in it."""


def is_null(value: object) -> bool:
    """Whether a value is a null: None, pandas' NA and NaT, numpy's NaT."""
    if value is None:
        return True
    kind = kind_of(_class(value))
    if kind in ("datetime64", "timedelta64"):
        return bool(np.isnat(cast("np.datetime64", value)))
    return kind == "null"


def fitted(values: Sequence[Any], type: DataType, what: str = "a column") -> Sequence[Any]:
    """Return the values in a form that Arrow converts to the type without changing any.

    Raises:
        InputError: one is of another kind than the type, or does not fit into it; the message
            names it.
    """
    target = kind_of_type(type)
    classes = classes_of(values)
    classes.discard(_NONE)
    if classes <= _EXACT_CLASSES.get(target, frozenset()):
        return values
    if target == "datetime" and classes == {datetime.datetime}:
        zones = map(operator.attrgetter("tzinfo"), filter(None, values))
        if {zone is None for zone in zones} == {type.timezone is None}:
            return values
    fit: dict[Any, Callable[[Any, DataType], Any]] = {_NONE: _as_it_is}
    try:
        for one in classes:
            fit[one] = _fits(kind_of(one), target)
        return [fit[_class(value)](value, type) for value in values]
    except _MisfitError:
        pass
    return [_checked(value, type, target, what) for value in values]


def classes_of(values: Iterable[Any]) -> set[type]:
    """Return the classes of the values.

    They are counted first, which takes half as long as a set of them if all are of one class.
    """
    classes = list(map(_class, values))
    if classes and classes.count(classes[0]) == len(classes):
        return {classes[0]}
    return set(classes)


def kind_of_type(type: DataType) -> str:
    """Return the kind of Python values that a type holds."""
    if (kind := _FAMILY_KINDS.get(type.family)) is not None:
        return kind
    return "float" if type.storage.kind == "f" else "int"


@functools.lru_cache(maxsize=1024)
def kind_of(cls: Any) -> str | None:
    """Return the kind of a class's values: "null" for pandas' NA and NaT, None if unsupported."""
    if cls.__name__ in ("NAType", "NaTType") and cls.__module__.startswith("pandas"):
        return "null"
    return next((kind for classes, kind in _KINDS if issubclass(cls, classes)), None)


def _checked(value: Any, type: DataType, target: str, what: str) -> Any:
    try:
        return _fits(kind_of(_class(value)) if value is not None else "null", target)(value, type)
    except _MisfitError:
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:79]}…"
        msg = (
            f"{what}, {type}: Could not convert {shown} with type {_class(value).__name__}: tried"
            f" to convert to {type}; declare the type that its values have"
        )
        raise InputError(msg) from None


def _fits(kind: str | None, target: str) -> Callable[[Any, DataType], Any]:
    """Return the function that makes a value of one kind one of another for Arrow.

    Raises _MisfitError where there is none.
    """
    if kind == "null":
        return _none
    fit = _FITS.get((kind, target))
    if fit is None:
        raise _MisfitError
    return fit


def _none(value: Any, type: DataType) -> None:
    return None


def _as_it_is(value: Any, type: DataType) -> Any:
    return value


def _whole(value: Any, type: DataType) -> int:
    try:
        whole = int(value)
    except (ValueError, OverflowError):  # NaN and infinity
        raise _MisfitError from None
    if whole != value:
        raise _MisfitError
    return whole


def _datetime(value: Any, type: DataType) -> Any:
    if (value.tzinfo is None) != (type.timezone is None):
        raise _MisfitError
    if type.unit != "ns" and getattr(value, "nanosecond", None):
        raise _MisfitError
    return value


def _timedelta(value: Any, type: DataType) -> Any:
    if type.unit != "ns" and getattr(value, "nanoseconds", None):
        raise _MisfitError
    return value


def _time(value: Any, type: DataType) -> Any:
    if value.tzinfo is not None:
        raise _MisfitError
    return value


def _numpy_day(value: Any, type: DataType) -> Any:
    return None if np.isnat(value) else _exactly(value, "M8[D]").item()


def _numpy_time(value: Any, type: DataType) -> Any:
    """Return the number of units, or for coarse ones Python's own value if it holds that.

    Arrow takes numbers and Python's values in one list, unless it may have to round the latter.
    Instants fit only a column without a zone.
    """
    if np.isnat(value):
        return None
    if type.timezone is not None:
        raise _MisfitError
    code = "M8" if isinstance(value, np.datetime64) else "m8"
    exact = _exactly(value, f"{code}[{type.unit}]")
    if type.unit in ("s", "ms") and not isinstance(made := exact.item(), int):
        return made
    return int(exact.astype(np.int64))


def _exactly(value: Any, dtype: str) -> Any:
    try:
        made = value.astype(dtype)
        same = made == value and made.astype(value.dtype) == value
    except (TypeError, ValueError, OverflowError):  # a timedelta64 in months, for one
        raise _MisfitError from None
    if not same:
        raise _MisfitError
    return made


_FITS: dict[tuple[str | None, str], Callable[[Any, DataType], Any]] = {
    ("bool", "bool"): lambda value, type: bool(value),
    ("int", "int"): lambda value, type: int(value),
    ("float", "int"): _whole,
    ("decimal", "int"): _whole,
    ("int", "float"): lambda value, type: int(value),
    ("float", "float"): lambda value, type: float(value),
    ("decimal", "decimal"): _as_it_is,
    ("int", "decimal"): lambda value, type: int(value),
    ("text", "text"): lambda value, type: str(value),
    ("bytes", "bytes"): lambda value, type: bytes(value),
    ("date", "date"): _as_it_is,
    ("time", "time"): _time,
    ("datetime", "datetime"): _datetime,
    ("timedelta", "timedelta"): _timedelta,
    ("datetime64", "date"): _numpy_day,
    ("datetime64", "datetime"): _numpy_time,
    ("timedelta64", "timedelta"): _numpy_time,
}
