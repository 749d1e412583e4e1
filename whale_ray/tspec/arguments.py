"""Import paths, and arguments as YAML has them: plain values, and what can be imported, both ways.

`{import: module:name}` stands for what has that name, with `arguments` for what it returns when it
is called with them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, Final

from ..api.topology.functions import ColumnFunction
from ..configs.errors import InputError, UsageError, WhaleError
from ..transport.wire.types import Schema

__all__ = [
    "called",
    "check_arguments",
    "constructed",
    "import_path",
    "imported",
    "is_marked",
    "named_arguments",
    "plain",
    "resolved",
    "schema_types",
]

_IMPORT, _ARGUMENTS = "import", "arguments"
_PLAIN: Final = (type(None), bool, int, float, str, bytes, date, datetime)
_INLINE_BYTES_MAX: Final = 1 << 20


def import_path(made: Any) -> str:
    """Return the import path of a class or function, having imported it.

    Raises:
        UsageError: it stands nowhere, as a lambda, or what is defined in a function or a program.
    """
    module, name = getattr(made, "__module__", ""), getattr(made, "__qualname__", "")
    if not (_named(made) is made or is_marked(made)) or str(module).startswith("__"):
        msg = f"{name or repr(made)[:60]} cannot be imported; put it into a module of your own"
        raise UsageError(msg)
    return f"{module}:{name}"


def is_marked(function: Any) -> bool:
    """Tell whether the name of a function stands for it marked with `whale_ray.columns`."""
    found = _named(function)
    return isinstance(found, ColumnFunction) and found.function is function


def _named(made: Any) -> Any:
    """Return what stands under the name of a class or function in its module, else None."""
    try:
        module = importlib.import_module(getattr(made, "__module__", ""))
    except (ImportError, ValueError, TypeError, AttributeError):
        return None
    return getattr(module, getattr(made, "__qualname__", ""), None)


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as YAML has them.

    Raises:
        UsageError: one is neither a plain value nor can be imported.
    """
    try:
        return {name: _plain(name, value) for name, value in given.items()}
    except RecursionError as error:
        msg = "an argument is nested too deeply, or contains itself"
        raise UsageError(msg) from error


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if _is_import(value):
        msg = f"its argument {name} is {value!r:.60}, which such files have for what is imported"
        raise UsageError(msg)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(name, one) for key, one in value.items()}
    if isinstance(value, bytes) and len(value) > _INLINE_BYTES_MAX:
        msg = f"its argument {name} has {len(value):,} bytes; such files have {_INLINE_BYTES_MAX:,}"
        raise UsageError(msg)
    if isinstance(value, datetime) and not _has_text(value):
        msg = (
            f"its argument {name} has the time {value}, whose zone such files cannot have; give it"
            " in UTC"
        )
        raise UsageError(msg)
    if type(value) in _PLAIN:
        return value
    if inspect.isroutine(value) or isinstance(value, type):
        return {_IMPORT: import_path(value)}
    if isinstance(value, Schema):
        return {_IMPORT: "whale_ray:Schema.of", _ARGUMENTS: schema_types(value)}
    if is_dataclass(value):
        path, given = constructed(value)
        return {_IMPORT: path, _ARGUMENTS: given}
    msg = f"its argument {name} is {value!r:.60}, and no plain value"
    raise UsageError(msg)


def _has_text(time: datetime) -> bool:
    """Whether YAML has a time: with no zone, or an offset in minutes; not with a zone's name."""
    if time.tzinfo is None:
        return True
    offset_s = (time.utcoffset() or timedelta()).total_seconds()
    return time.tzname() == "UTC" or (isinstance(time.tzinfo, timezone) and offset_s % 60 == 0)


def _is_import(value: Any) -> bool:
    return isinstance(value, dict) and _IMPORT in value and value.keys() <= {_IMPORT, _ARGUMENTS}


def named_arguments(made: functools.partial[Any]) -> dict[str, Any]:
    """Return the arguments of a partial call, all by their names.

    Raises:
        UsageError: one of them has none.
    """
    parameters = inspect.signature(made.func).parameters.values()
    given = zip(parameters, made.args, strict=False)
    named = {one.name: value for one, value in given if one.kind is one.POSITIONAL_OR_KEYWORD}
    if len(named) < len(made.args):
        msg = f"{made.func!r:.60} gets arguments that have no names"
        raise UsageError(msg)
    return {**named, **made.keywords}


def schema_types(schema: Schema) -> dict[str, str]:
    """Return a schema as `whale_ray.Schema.of` takes it.

    Raises:
        UsageError: a column has no nulls, which such a mapping does not say.
    """
    if fixed := [one.name for one in schema.fields if not one.nullable]:
        msg = f"column {fixed[0]!r} of its schema is declared without nulls"
        raise UsageError(msg)
    return {one.name: one.type.name for one in schema.fields}


def constructed(made: Any) -> tuple[str, dict[str, Any]]:
    """Return the import path of an object's class, and with which arguments it makes an equal one.

    Raises:
        UsageError: it keeps no arguments, or some that cannot be written.
    """
    kind = type(made)
    if is_dataclass(made):
        names = [one.name for one in fields(made) if one.init]
    else:
        names = list(inspect.signature(kind).parameters)
        if lacking := [name for name in names if name not in vars(made)]:
            msg = f"{kind.__name__} keeps no attribute {lacking[0]!r}, which its class takes"
            raise UsageError(msg)
    given = plain({name: getattr(made, name) for name in names})
    if not is_dataclass(made) and vars(kind(**resolved(given))) != vars(made):
        msg = f"{kind.__name__} made of {given!r:.60} is another object"
        raise UsageError(msg)
    return import_path(kind), given


def called(path: str, arguments: Mapping[str, Any], made: dict[int, Any] | None = None) -> Any:
    """Return what a function or class returns that an import path names.

    Args:
        path: the import path.
        arguments: with which it is called, see `resolved`.
        made: what is resolved already, by the ids of values.

    Raises:
        InputError: there is none, it takes other arguments, or it raises an error.
    """
    function = imported(path)
    check_arguments(path, function, arguments)
    given = resolved(arguments, made)
    try:
        return function(**given)
    except WhaleError:
        raise
    except Exception as error:  # whatever the user's function does
        msg = f"{path!r} raised {type(error).__name__}: {error}"
        raise InputError(msg) from error


def check_arguments(path: str, made: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a function or class does not take.

    Raises:
        InputError: it cannot be called, or not with these.
    """
    if not callable(made):
        msg = f"{path!r} is {made!r:.60}, which cannot be called; name a class or a function"
        raise InputError(msg)
    try:
        signature = inspect.signature(made)
    except ValueError:  # some of the classes in C tell none
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        msg = f"{path!r} does not take these arguments: {error}; it takes {signature}"
        raise InputError(msg) from error


def resolved(arguments: Mapping[str, Any], made: dict[int, Any] | None = None) -> dict[str, Any]:
    """Return arguments with what `import` names in place of it, also in lists and mappings.

    Each value is resolved once: with aliases, a short file has more than one could go through.

    Raises:
        InputError: something cannot be imported, or called.
    """
    known = {} if made is None else made
    return {name: _resolved_value(value, known) for name, value in arguments.items()}


def _resolved_value(value: Any, made: dict[int, Any]) -> Any:
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, list):
        of_list: list[Any] = made.setdefault(id(value), [])
        of_list += (_resolved_value(one, made) for one in value)
        return of_list
    if not isinstance(value, dict):
        return value
    if _is_import(value):
        path = str(value[_IMPORT])
        if _ARGUMENTS not in value:
            return imported(path)
        if not isinstance(value[_ARGUMENTS], dict):
            msg = f"the arguments of {path!r} are no mapping of names to values"
            raise InputError(msg)
        made[id(value)] = called(path, value[_ARGUMENTS], made)
        return made[id(value)]
    of_dict: dict[Any, Any] = made.setdefault(id(value), {})
    of_dict.update((key, _resolved_value(one, made)) for key, one in value.items())
    return of_dict


def imported(path: str) -> Any:
    """Return what an import path "module:name" names.

    Raises:
        InputError: there is no such module, or it has no such name.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        msg = f"{path!r} is no import path; write module:name"
        raise InputError(msg)
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the user's module does
        why = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        msg = f"{path!r} cannot be imported: {why}"
        raise InputError(msg) from error
    try:
        return functools.reduce(getattr, name.split("."), found)
    except AttributeError as error:
        msg = f"module {module!r} has no {name!r}"
        raise InputError(msg) from error
