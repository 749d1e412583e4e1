"""What operators of users keep in `self`, pickled: for state that is not declared nor dumped."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle

from ..configs.errors import UsageError
from .instance_context import InstanceContext

__all__ = ["attributes_of", "pickled_attributes"]


def pickled_attributes(attributes: Mapping[str, Any], context: InstanceContext) -> bytes:
    """Return attributes of an operator, pickled; what belongs to the worker is only named.

    Raises:
        UsageError: one cannot be pickled.
    """
    kept = io.BytesIO()
    try:
        _Pickler(kept, context).dump(dict(attributes))
    except Exception as error:
        names = ", ".join(attributes)
        msg = (
            f"operator {context.operator_id!r}: cannot save what it keeps in self, {names}: {error}"
        )
        raise UsageError(msg) from error
    return kept.getvalue()


def attributes_of(kept: bytes, context: InstanceContext) -> dict[str, Any]:
    """Return what `pickled_attributes` was given; what belongs to the worker is that of now."""
    found: dict[str, Any] = _Unpickler(kept, context).load()
    return found


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
