"""What sinks have staged at epochs, from the snapshots of workers to manifests and commits. Pure.

A part of a sink's output is made visible by one epoch, although workers may name it several times:
a participant that has ended belongs to all later epochs, and one that has not heard that an epoch
counts names its output again. In a bounded job nothing is visible before the end: each manifest
names all that was staged so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..operators.sinks.base import Staged
from ..operators.sinks.staged_json import LoadedChunk, staged_from_json
from ..state.epochs.manifest import Manifest, OperatorPart

_Key = tuple[str, str]
_Json = Mapping[str, Any]


class EpochOutput:
    """What has been staged and belongs to an epoch that counts."""

    def __init__(self, load: LoadedChunk, *, bounded: bool) -> None:
        """`load` reads the payload of a part that is in a file of the store."""
        self._load, self._bounded = load, bounded
        self._kept: dict[str, tuple[_Json, ...]] = {}
        self._counted: frozenset[_Key] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether the epoch that counted last names nothing."""
        return not self._kept

    def staged(self) -> dict[str, list[Staged]]:
        """Return what the epoch that counted last names, by sink: in a bounded job all there is."""
        return {
            sink: [staged_from_json(one, self._load) for one in all_]
            for sink, all_ in self._kept.items()
        }

    def parts(self, snapshots: Iterable[OperatorPart]) -> tuple[OperatorPart, ...]:
        """Return the parts of a manifest, with each output once, and in it those kept before."""
        seen = set(self._counted)
        first = set()
        found = []
        for part in snapshots:
            new = []
            for one in part.staged:
                key = _key(part.operator_id, one)
                if key not in seen:
                    seen.add(key)
                    new.append(one)
            if self._bounded and part.operator_id not in first:
                first.add(part.operator_id)
                new = [*self._kept.get(part.operator_id, ()), *new]
            found.append(replace(part, staged=tuple(new)))
        return tuple(found)

    def forget(self) -> None:
        """Forget all that was staged: an attempt begins, maybe from an epoch that counts."""
        self._kept, self._counted = {}, frozenset()

    def keep(self, snapshots: Iterable[OperatorPart]) -> None:
        """Add what snapshots name of which no epoch counts: a bounded job publishes it, too."""
        self._kept = _by_sink(self.parts(snapshots))

    def count(self, manifest: Manifest, snapshots: Iterable[OperatorPart] = ()) -> None:
        """Record that an epoch counts, which workers' snapshots with these parts belong to."""
        self._kept = _by_sink(manifest.parts)
        self._counted = frozenset(
            _key(part.operator_id, one)
            for part in (*manifest.parts, *snapshots)
            for one in part.staged
        )


def _by_sink(parts: Iterable[OperatorPart]) -> dict[str, tuple[_Json, ...]]:
    found: dict[str, tuple[_Json, ...]] = {}
    for part in parts:
        if part.staged:
            found[part.operator_id] = (*found.get(part.operator_id, ()), *part.staged)
    return found


def _key(operator_id: str, staged: _Json) -> _Key:
    return operator_id, json.dumps(staged, sort_keys=True)
