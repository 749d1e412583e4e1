"""What sinks have staged as JSON, for the manifests of checkpoints, and back."""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from .base import Staged

__all__ = ["staged_from_json", "staged_to_json"]

_BYTES = "base64"


def staged_to_json(staged: Staged) -> dict[str, Any]:
    """Return the attributes of a part by name, without those that have their default."""
    values = {
        field.name: getattr(staged, field.name)
        for field in dataclasses.fields(staged)
        if getattr(staged, field.name) != field.default
    }
    return {name: _to_json(value) for name, value in values.items()}


def staged_from_json(values: Mapping[str, Any]) -> Staged:
    """Return the part of which `staged_to_json` returned the attributes."""
    return Staged(**{name: _from_json(value) for name, value in values.items()})


def _to_json(value: object) -> object:
    return {_BYTES: b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def _from_json(value: object) -> Any:
    if isinstance(value, Mapping) and value.keys() == {_BYTES}:
        return b64decode(value[_BYTES])
    return value
