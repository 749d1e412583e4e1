"""What sinks have staged as JSON, for the manifests of checkpoints, and back.

A large payload becomes a chunk file, which the manifests of later epochs name again.
"""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ...state.epochs.manifest import INLINE_BYTES_MAX, ChunkFile
from .base import Staged

__all__ = ["LoadedChunk", "StoredChunk", "staged_from_json", "staged_to_json"]

StoredChunk: TypeAlias = Callable[[bytes], ChunkFile]
"""Writes the bytes of a payload to a chunk file."""

LoadedChunk: TypeAlias = Callable[[ChunkFile], bytes]
"""Reads them back."""

_BYTES = "base64"
_PAYLOAD = "payload"


def staged_to_json(staged: Staged, store: StoredChunk | None = None) -> dict[str, Any]:
    """Return the attributes of a part by name, without those that have their default.

    Args:
        staged: the part.
        store: called for a payload above 4 KiB; without it the payload stays in the JSON.
    """
    values = {
        field.name: getattr(staged, field.name)
        for field in dataclasses.fields(staged)
        if getattr(staged, field.name) != field.default
    }
    payload = staged.payload
    if store is not None and payload is not None and len(payload) > INLINE_BYTES_MAX:
        values[_PAYLOAD] = dataclasses.asdict(store(payload))
    return {name: _to_json(value) for name, value in values.items()}


def staged_from_json(values: Mapping[str, Any], load: LoadedChunk | None = None) -> Staged:
    """Return the part of which `staged_to_json` returned the attributes.

    Args:
        values: what it returned.
        load: called for a payload in a chunk file.

    Raises:
        ValueError: there is one, and nothing to load it.
    """
    found = {name: _from_json(value) for name, value in values.items()}
    if isinstance(found.get(_PAYLOAD), Mapping):
        if load is None:
            msg = "the payload is in a chunk file, which cannot be loaded here"
            raise ValueError(msg)
        found[_PAYLOAD] = load(ChunkFile(**found[_PAYLOAD]))
    return Staged(**found)


def _to_json(value: object) -> object:
    return {_BYTES: b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def _from_json(value: object) -> Any:
    if isinstance(value, Mapping) and value.keys() == {_BYTES}:
        return b64decode(value[_BYTES])
    return value
