"""Sources read to their end, or row by row by a reader whose clock advances as it asks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from whale_ray.operators.sources.base import Source
from whale_ray.testing import VirtualClock, instance_context, read_all


def rows_of(source: Source, instance: int = 0, parallelism: int = 1) -> list[dict[str, Any]]:
    batches = read_all(source, instance, parallelism)
    return [row for batch in batches for row in batch.to_pylist()]


def message_of(error: type[Exception], source: Source) -> str:
    """Return the message of the error with which reading a source fails."""
    with pytest.raises(error) as caught:
        list(read_all(source))
    return str(caught.value)


class Opened:
    """A reader, whose clock advances as it asks."""

    def __init__(
        self,
        source: Source,
        instance: int,
        parallelism: int,
        positions: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.clock = VirtualClock()
        context = instance_context(instance, parallelism, clock=self.clock)
        if positions is None:
            self.reader = source.open(context)
        else:
            self.reader = source.open_at(context, positions)

    def read(self, max_rows: int) -> list[str]:
        """Return the next rows, none only at the end."""
        while not self.reader.finished:
            batch = self.reader.read(max_rows)
            if batch is not None:
                return list(map(repr, batch.to_pylist()))
            ready_ns = self.reader.next_ready_ns()
            if ready_ns is not None:
                self.clock.sleep_ns(max(0, ready_ns - self.clock.monotonic_ns()))
        return []

    def rest(self, max_rows: int = 1000) -> Iterator[str]:
        while rows := self.read(max_rows):
            yield from rows

    def position(self) -> Any:
        return json.loads(json.dumps(self.reader.position()))
