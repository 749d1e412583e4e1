"""What operators of users keep in `self`, pickled: for state that is not declared nor dumped."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle

from ..configs.errors import UsageError
from .instance_context import InstanceContext

__all__ = ["pickled_attributes", "saves_itself", "take_attributes"]


def saves_itself(operator: object) -> bool:
    """Whether a class says by `__getstate__` what is kept of it: Python's own is not asked."""
    return type(operator).__getstate__ is not object.__getstate__


def pickled_attributes(
    operator: object, attributes: Mapping[str, Any], context: InstanceContext
) -> bytes:
    """Return attributes of an operator, pickled; what belongs to the worker is only named.

    Or what its own `__getstate__` returns, without those of its attributes that are not among them.

    Raises:
        UsageError: one cannot be pickled.
    """
    kept = io.BytesIO()
    try:
        state: Any = dict(attributes)
        if saves_itself(operator):
            state = operator.__getstate__()
            if isinstance(state, Mapping):
                kept_elsewhere = vars(operator).keys() - attributes.keys()
                state = {name: one for name, one in state.items() if name not in kept_elsewhere}
        _Pickler(kept, context).dump(state)
    except Exception as error:
        names = ", ".join(attributes)
        msg = (
            f"operator {context.operator_id!r}: cannot save what it keeps in self, {names}: {error}"
            f": leave that out by a __getstate__ of {type(operator).__name__}"
        )
        raise UsageError(msg) from error
    return kept.getvalue()


def take_attributes(operator: object, kept: bytes, context: InstanceContext) -> None:
    """Give an operator what `pickled_attributes` has kept: to its own `__setstate__` if it has one.

    What belongs to the worker is that of now.

    Raises:
        UsageError: what its `__getstate__` has returned is not for attributes.
    """
    state: Any = _Unpickler(kept, context).load()
    take = getattr(operator, "__setstate__", None)
    if take is not None:
        take(state)
    elif isinstance(state, dict):
        vars(operator).update(state)
    else:
        name = type(operator).__name__
        msg = (
            f"operator {context.operator_id!r}: {name}.__getstate__ returned no dict, but a value"
            f" of type {type(state).__name__}: define {name}.__setstate__, which takes it"
        )
        raise UsageError(msg)


def _of_worker(context: InstanceContext) -> dict[str, object]:
    """Return what is no state, though objects may refer to it."""
    return {"context": context, "clock": context.clock, "budget": context.state_budget}


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, file: io.BytesIO, context: InstanceContext) -> None:
        super().__init__(file)
        self._names = {id(one): name for name, one in _of_worker(context).items()}

    def persistent_id(self, one: object) -> str | None:
        return self._names.get(id(one))


class _Unpickler(pickle.Unpickler):
    def __init__(self, kept: bytes, context: InstanceContext) -> None:
        super().__init__(io.BytesIO(kept))
        self._of_worker = _of_worker(context)

    def persistent_load(self, name: str) -> object:
        return self._of_worker[name]
