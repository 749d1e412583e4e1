"""The application's topology.

::

    records ─ by key ─ counts ─ out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import functions
from ...api.topology import Topology

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source

__all__ = ["APPLICATION", "build", "count_keys"]

APPLICATION = "read-only-count"


def build(records: Source, sink: Sink, *, parallelism: int | None = None) -> Topology:
    """Return the topology that counts how often each key occurs.

    Args:
        records: key.
        sink: receives key and occurrences, once all records are read.
        parallelism: the number of instances that count; None is one per worker.

    Raises:
        InputError: the input lacks the column.
    """
    topology = Topology(APPLICATION)
    stream = topology.source(records, id="records")
    count_keys(stream, parallelism=parallelism).sink(sink, id="out")
    return topology


def count_keys(records: Stream, *, parallelism: int | None = None) -> Stream:
    """Return how often each key occurs; arguments and columns as `build`."""
    return records.group_by("key").agg(
        functions.count().alias("occurrences"),
        id="counts",
        output_mode="append",
        parallelism=parallelism,
    )
