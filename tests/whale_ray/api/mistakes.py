"""What the tests of mistakes in topologies start from, and how they check a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

import whale_ray as whale
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.transport.wire.types import Schema


@dataclass(frozen=True)
class Fixes(Source):
    """Known columns, never opened."""

    def schema(self) -> Schema:
        return Schema.of(vehicle_id="string", lat_e5="int32", at="timestamp[ms, tz=UTC]")

    def open(self, context: whale.InstanceContext) -> SourceReader:
        raise NotImplementedError

    def describe(self) -> str:
        return "fixes"


class Rig:
    """What every mistake starts from. Untyped on purpose: a type checker finds most of these."""

    def __init__(self) -> None:
        self.topology: Any = whale.Topology("t")
        self.fixes: Any = self.topology.source(Fixes(), id="fixes")
        self.timed: Any = self.topology.source(Fixes(), id="timed", event_time="at")
        other: Any = whale.Topology("u")
        self.foreign: Any = other.source(Fixes(), id="fixes")
        self.plain: Any = self.fixes.map(dict, id="plain")


Mistake: TypeAlias = tuple[Callable[[Rig], object], str]
"""A mistake, and its whole message: LINE stands for the number of a line, TYPE for what follows."""


def assert_message(make: Callable[[Rig], object], expected: str, *, is_added: bool = False) -> None:
    """Assert that a mistake has a message; no operator is added in part.

    Args:
        make: the mistake.
        expected: the message.
        is_added: whether it is found after the operator was added.
    """
    rig = Rig()
    before = [node.id for node in rig.topology._registry._nodes.values()]
    with pytest.raises(whale.errors.TopologyError) as caught:
        make(rig)
    message = str(caught.value)
    start, marker, rest = expected.partition("LINE")
    if marker:
        assert message.startswith(start)
        assert message.endswith(rest)
    elif expected.endswith("TYPE"):
        assert message.startswith(expected.removesuffix("TYPE"))
        assert "'in64'" in message
    else:
        assert message == expected
    if not is_added:
        after = [node.id for node in rig.topology._registry._nodes.values()]
        assert after == before, "an operator is added whole or not at all"
