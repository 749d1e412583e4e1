"""Writes `tspec` files, and puts into them what the optimizer decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ..optimizer.decisions import Choice
from .dataflows import chain_heads
from .reading import VERSION
from .specification import InputSpec, OperatorSpec, SpecGrouping, SpecKind, TopologySpec

__all__ = ["optimized_spec", "tspec_to_yaml"]

_NOT_FIELDS = ("id", "kind", "what", "inputs", "line")


def optimized_spec(spec: TopologySpec, choices: Mapping[str, Choice]) -> TopologySpec:
    """Return a topology with the degrees of parallelism and batches that were decided.

    Args:
        spec: as it was given to the optimizer.
        choices: by the first operator of each chain.
    """
    heads = chain_heads(spec)
    senders = {
        feed.upstream
        for one in spec.operators
        for feed in one.inputs
        if feed.grouping is not SpecGrouping.FORWARD or heads[one.id] == one.id
    }
    changed = []
    for one in spec.operators:
        choice = choices.get(heads[one.id])
        if choice is None:  # it makes the table of a join
            changed.append(one)
            continue
        dop = choice.dop if heads[one.id] == one.id else one.dop
        batch_rows = choice.batch_rows if one.id in senders else None
        changed.append(replace(one, dop=dop, batch_rows=batch_rows))
    return replace(spec, operators=tuple(changed))


def tspec_to_yaml(spec: TopologySpec) -> str:
    """Return a topology as a `tspec` file."""
    import yaml

    content = {
        "tspec": VERSION,
        "topology": spec.name,
        "operators": {one.id: _operator(one) for one in spec.operators},
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if "\x85" in text:  # a line break in YAML 1.1, which PyYAML writes into texts as it is
        text = yaml.safe_dump(content, sort_keys=False)
    return text


def _operator(one: OperatorSpec) -> dict[str, Any]:
    written: dict[str, Any] = {str(one.kind): one.what}
    if one.inputs:
        written["inputs"] = _inputs(one)
    blank = OperatorSpec(one.id, SpecKind.SOURCE, "")
    for field in fields(one):
        value = getattr(one, field.name)
        if field.name not in _NOT_FIELDS and value != getattr(blank, field.name):
            written[field.name] = dict(value) if isinstance(value, Mapping) else value
    return written


def _inputs(one: OperatorSpec) -> list[Any]:
    """Return the inputs; of an operator with two sides, several of one side as a list."""
    if one.kind.inputs_max is None:
        return [_input(feed) for feed in one.inputs]
    sides = [[_input(feed) for feed in together] for together in one.sides]
    return [together[0] if len(together) == 1 else together for together in sides]


def _input(feed: InputSpec) -> dict[str, Any]:
    written: dict[str, Any] = {"from": feed.upstream}
    if feed.grouping is not SpecGrouping.FORWARD:
        written["grouping"] = str(feed.grouping)
    if feed.by:
        written["by"] = list(feed.by)
    for name in ("output", "on_null"):
        if getattr(feed, name) != getattr(InputSpec(""), name):
            written[name] = getattr(feed, name)
    if feed.largest_share:
        written["largest_share"] = feed.largest_share
    return written
