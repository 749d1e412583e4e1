"""What a worker hands to the controller when its rows are written and its parts are staged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..operators.sinks.base import Staged
from ..plan.logical import OutputKey
from ..transport.wire.types import Schema


@dataclass(frozen=True)
class StagedOutput:
    """What a worker hands over when all rows are written.

    Attributes:
        parts: what its sinks staged, by operator id.
        cut_short: whether a source of it was drained.
        columns: those of what its operators made, by output.
    """

    parts: Mapping[str, Sequence[Staged]]
    cut_short: bool
    columns: Mapping[OutputKey, Schema] = field(default_factory=dict)
