"""Keyed processes that are opened and called without a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import whale_ray as whale
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch


class KeptRows:
    """What `out` is to a process: it keeps the rows."""

    time_ns: int | None = None

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit_row(self, **values: Any) -> None:
        self.rows.append(values)


def opened(kind: type[whale.KeyedProcess], **changes: Any) -> Any:
    """Return a process whose key is column k; `changes` are those of its context."""
    process = kind()
    process.open(replace(instance_context(operator_id="op"), keys=(("k",),), **changes))
    return process


def feed(process: Any, rows: list[dict[str, Any]]) -> None:
    process.on_batch(Batch.from_rows(rows), KeptRows())
