"""Reads what a reader of Kafka returns, and makes messages for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.operators.kafka.kafka_cluster import PARTITIONS
from whale_ray.operators.sources.base import SourceReader
from whale_ray.transport.wire.batch import Batch

PATIENCE = 20_000  # pauses of a millisecond


def batches(reader: SourceReader, rows: int | None = None, max_rows: int = 1000) -> Iterator[Batch]:
    """Yield what the reader returns, to its end or until there were so many rows."""
    pause = threading.Event()
    seen = 0
    for _ in range(PATIENCE):
        if reader.finished or (rows is not None and seen >= rows):
            return
        batch = reader.read(max_rows)
        if batch is None:
            pause.wait(0.001)
        else:
            seen += batch.num_rows
            yield batch
    pytest.fail(f"{seen} rows came, not {rows}")


def rows_of(reader: SourceReader, rows: int | None = None) -> list[dict[str, Any]]:
    return [row for batch in batches(reader, rows) for row in batch.to_pylist()]


def numbers(first: int, stop: int) -> list[dict[str, Any]]:
    """Return messages of objects with a number, dealt out to partitions in turn."""
    return [
        {"value": json.dumps({"n": n}).encode(), "partition": n % PARTITIONS}
        for n in range(first, stop)
    ]
