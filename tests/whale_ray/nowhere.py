"""A sink for topologies that are built and never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import whale_ray as whale
from whale_ray.operators.sinks.base import Sink, SinkWriter


@dataclass(frozen=True)
class Nowhere(Sink):
    """A sink that is never opened."""

    def open(self, context: whale.InstanceContext, token: str) -> SinkWriter:
        raise NotImplementedError

    def publish(self, token: str, staged: Any) -> Any:
        raise NotImplementedError

    def describe(self) -> str:
        return "nowhere"
