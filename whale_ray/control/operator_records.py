"""What identifies a topology's operators to a later version of it, which takes over their state.

Operators are matched by their ids. One that keeps something must be of the same kind, and keep the
same, or what `state_migration` allows; one that is gone may only be left out if the user says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..configs.errors import InputError
from ..operators.groupings import All, Grouping
from ..operators.sinks.base import Sink
from ..operators.sources.base import Source
from ..plan.logical import LogicalPlan, OperatorKind, OperatorNode
from ..state.epochs.manifest import Manifest

_KEEPING = (OperatorKind.SOURCE, OperatorKind.SINK)
"""Kinds that keep something besides state: positions, and what is staged."""


_COMPARED = {
    "kind": "was a",
    "level": "kept state of level",
    "key": "had key",
    "inputs": "took rows in",
    "what": "was",
    "state": "kept",
    "sink": "staged rows for",
    "source": "read",
}
"""What must be the same for an operator to take over what another one has kept."""


def operator_records(logical: LogicalPlan) -> dict[str, Mapping[str, Any]]:
    """Return kind, level of state, key, parameters and declared state of each operator, by id."""
    return {node.id: _record(node) for node in logical.nodes}


def check_restorable(logical: LogicalPlan, manifest: Manifest, without: Collection[str]) -> None:
    """Check that a topology can resume from a manifest that another version of it may have written.

    Args:
        logical: the topology.
        manifest: the epoch.
        without: the ids of operators that may be gone: what they kept is given up.

    Raises:
        InputError: an operator that kept something is gone, or is of another kind, or keeps its
            state by other keys; or `without` names one that the epoch does not have; or see
            `check_adds_nothing`.
    """
    check_adds_nothing(logical, manifest)
    records = operator_records(logical)
    for named in sorted(set(without) - manifest.operators.keys()):
        msg = f"restore_without names {named!r}, which the checkpoint does not have; leave it out"
        raise InputError(msg)
    kept = {part.operator_id for part in manifest.parts if _keeps(part, manifest)}
    gone: dict[str, Mapping[str, Any]] = {}
    for name, before in manifest.operators.items():
        if name in without:
            if name in records:
                msg = f"restore_without names {name!r}, which the topology has; rename one of them"
                raise InputError(msg)
            continue
        now = records.get(name)
        if now is None:
            if name in kept:
                gone[name] = before
            continue
        _check_same(name, before, now)
    if gone:
        raise InputError(_lacks(gone, records.keys() - manifest.operators.keys()))


def check_adds_nothing(logical: LogicalPlan, manifest: Manifest) -> None:
    """Check that no rows are added to those of a job that ended while its sinks published.

    Some sinks have published them already, which they know by the job's id: they would leave out
    what is added.

    Raises:
        InputError: a source is new, or unbounded.
    """
    if not manifest.publisher:
        return
    for node in logical.of_kind(OperatorKind.SOURCE):
        if node.id not in manifest.operators or not getattr(node.payload, "bounded", True):
            msg = (
                f"job {manifest.publisher!r} has read all its input, and ended while its output was"
                f" being published: source {node.id!r} would add rows to that; resume it without"
                " this source, which another job may read"
            )
            raise InputError(msg)


def _check_same(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    from .state_migration import is_migratable  # loads what is compiled

    for what, meaning in _COMPARED.items():
        if what == "state" and is_migratable(before.get(what, ()), now[what]):
            continue
        if what == "inputs" and what not in before:
            continue  # of a version that did not say it
        if what in {"sink", "source"} and not (before.get(what) and now[what]):
            continue  # a user's own
        if before.get(what) != now[what]:
            msg = (
                f"operator {name!r} {meaning} {_text(before.get(what))} when the checkpoint was"
                f" taken, and now {_text(now[what])}: give the new operator another id, and name"
                f" the old one in restore_without=[{name!r}]"
            )
            raise InputError(msg)


def _lacks(gone: Mapping[str, Mapping[str, Any]], new: Collection[str]) -> str:
    operators = ", ".join(f"{one.get('kind', 'operator')} {name!r}" for name, one in gone.items())
    them = ("the operator that id", "it") if len(gone) == 1 else ("operators those ids", "they")
    renamed = f"; new in the topology: {', '.join(sorted(map(repr, new)))}" if new else ""
    return (
        f"the checkpoint has {operators}, which the topology lacks: give {them[0]}"
        f" again, or give up what {them[1]} kept with restore_without={list(gone)!r}{renamed}"
    )


def _keeps(part: Any, manifest: Manifest) -> bool:
    kind = manifest.operators.get(part.operator_id, {}).get("kind")
    return bool(part.chunks or part.position or part.staged) or kind in _KEEPING


def _record(node: OperatorNode) -> dict[str, Any]:
    is_process = node.kind.is_stateful
    level = "rows" if node.keeps_rows else "declared" if node.declared_state else "opaque"
    return {
        "kind": str(node.kind.value),
        "level": level if is_process else "",
        "key": [list(one.columns) for one in _key_groupings(node)],
        "inputs": [_takers(one.grouping) for one in node.inputs] if is_process else [],
        "what": _parameters(node) if is_process else "",
        "state": list(node.declared_state),
        "sink": node.payload.staged_as if isinstance(node.payload, Sink) else "",
        "source": node.payload.position_kind if isinstance(node.payload, Source) else "",
    }


def _takers(grouping: Grouping) -> str:
    """Return where rows of an input, that may wait there, are: each once, or in all instances."""
    return "every instance" if isinstance(grouping, All) else "one instance"


def _parameters(node: OperatorNode) -> str:
    """Return what a ready-made operator does, in words; a class of the user's may be renamed."""
    describe = getattr(node.payload, "describe", None)
    return str(describe()) if callable(describe) and not isinstance(node.payload, type) else ""


def _key_groupings(node: OperatorNode) -> list[Any]:
    return [one.grouping for one in node.inputs if hasattr(one.grouping, "columns")]


def _text(value: object) -> str:
    if isinstance(value, list):
        parts = ("+".join(one) if isinstance(one, list) else str(one) for one in value)
        return "; ".join(parts) or "none"
    return str(value) or "none"
