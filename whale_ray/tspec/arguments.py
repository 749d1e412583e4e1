"""Import paths, and arguments as YAML has them: plain values, and what can be imported."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from ..api.topology.functions import ColumnFunction
from ..configs.errors import UsageError

if TYPE_CHECKING:
    from ..transport.wire.types import Schema

__all__ = ["constructed", "import_path", "is_marked", "plain", "schema_types"]


def import_path(made: Any) -> str:
    """Return the import path of a class or function, having imported it.

    Raises:
        UsageError: it stands nowhere, as a lambda, or what is defined in a function or a program.
    """
    if isinstance(made, functools.partial):
        name = getattr(made.func, "__qualname__", made.func)
        msg = f"{name} gets arguments without names; give functools.partial their names"
        raise UsageError(msg)
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
    return {name: _plain(name, value) for name, value in given.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if isinstance(value, dict) and value.keys() == {"import"}:
        msg = f"its argument {name} is {value!r:.60}, which such files have for what is imported"
        raise UsageError(msg)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(name, one) for key, one in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if inspect.isroutine(value) or isinstance(value, type):
        return {"import": import_path(value)}
    msg = f"its argument {name} is {value!r:.60}, and no plain value"
    raise UsageError(msg)


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
        UsageError: its class is none of the user's modules, or it keeps no arguments.
    """
    kind = type(made)
    if kind.__module__.startswith("whale_ray."):
        msg = f"{kind.__name__} reads or writes what is in memory, or has no form in such files"
        raise UsageError(msg)
    if is_dataclass(made):
        names = [one.name for one in fields(made) if one.init]
    else:
        names = list(inspect.signature(kind).parameters)
        if lacking := [name for name in names if name not in vars(made)]:
            msg = f"{kind.__name__} keeps no attribute {lacking[0]!r}, which its class takes"
            raise UsageError(msg)
    given = plain({name: getattr(made, name) for name in names})
    if not is_dataclass(made) and vars(kind(**given)) != vars(made):
        msg = f"{kind.__name__} made of {given!r:.60} is another object"
        raise UsageError(msg)
    return import_path(kind), given
