"""Generated input without Spark: its rows are clean and in order, so only their span is cut.

The rows are those that `prepare` makes of the same files; a limit and the times are all that can
leave any of them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...configs.errors import InputError
from .cleaning import OUTSIDE_SPAN
from .generator import Generated

__all__ = ["TakenInput", "take"]

_COLUMNS = ("request_id", "request_time", "pickup_lat", "pickup_lon")
_TIME = pa.timestamp("us", tz="UTC")  # as Spark has it


@dataclass(frozen=True)
class TakenInput:
    """Two files as the topology takes them, and what became of the rows."""

    positions: Path
    requests: Path
    rows_in: Mapping[str, int]
    """Input → rows read."""
    rejected: Mapping[str, int]
    """"input: reason" → rows left out; only reasons that occurred."""


def take(made: Generated, limit: int | None = None) -> TakenInput:
    """Return generated rows for the topology; new files lie beside the given ones.

    Args:
        made: what the generator wrote.
        limit: take only so many positions, the earliest ones.

    Raises:
        InputError: there is no position.
    """
    if made.positions == 0:
        msg = "no position was generated: give more --vehicles or --hours"
        raise InputError(msg)
    positions, count = made.positions_path, made.positions
    if limit is not None and limit < count:
        positions, count = made.positions_path.with_name("taken-positions.parquet"), limit
        _copy_first(made.positions_path, positions, limit)
    first, last = _span(positions)
    requests = pq.read_table(made.requests_path, columns=list(_COLUMNS))
    times = requests["request_time"]
    within = requests.filter(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)))
    cast = within.set_column(1, "request_time", within["request_time"].cast(_TIME))
    path = made.requests_path.with_name("taken-requests.parquet")
    pq.write_table(cast, path)
    outside = requests.num_rows - within.num_rows
    return TakenInput(
        positions,
        path,
        {"positions": count, "requests": requests.num_rows},
        {f"requests: {OUTSIDE_SPAN}": outside} if outside else {},
    )


def _copy_first(source: Path, target: Path, rows: int) -> None:
    """Copy the first rows of a file, with no more than a batch of them in memory."""
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches():
            writer.write_batch(batch.slice(0, rows))
            rows -= min(rows, batch.num_rows)
            if rows == 0:
                break


def _span(positions: Path) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the first and the last time of a file that is in the order of time."""
    with pq.ParquetFile(positions) as file:
        groups = (0, file.num_row_groups - 1)
        first, last = (file.read_row_group(group, columns=["event_time"])[0] for group in groups)
    return first[0], last[-1]
