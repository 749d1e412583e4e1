"""Prepares generated input without Spark.

Generated rows are valid and sorted, so only a limit on the positions and their time span can leave
any out. The result equals that of `prepare` for the same files.
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

__all__ = ["CutInput", "take"]

_COLUMNS = ("request_id", "request_time", "pickup_lat", "pickup_lon")
_TIME = pa.timestamp("us", tz="UTC")  # the same as in Spark's output


@dataclass(frozen=True)
class CutInput:
    """Two files, ready for the topology, and the number of rows read and left out."""

    positions: Path
    requests: Path
    rows_in: Mapping[str, int]
    """Input → rows read."""
    rejected: Mapping[str, int]
    """"input: reason" → rows left out; only reasons that occurred."""


def take(made: Generated, limit: int | None = None) -> CutInput:
    """Cut generated rows to the limit and time span; new files are written beside the given ones.

    Args:
        made: the generated files.
        limit: greatest number of positions, the earliest ones are taken; None takes all.

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
    return CutInput(
        positions,
        path,
        {"positions": count, "requests": requests.num_rows},
        {f"requests: {OUTSIDE_SPAN}": outside} if outside else {},
    )


def _copy_first(source: Path, target: Path, rows: int) -> None:
    """Copy the first rows of a file, with at most one batch in memory."""
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches():
            writer.write_batch(batch.slice(0, rows))
            rows -= min(rows, batch.num_rows)
            if rows == 0:
                break


def _span(positions: Path) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the first and the last time in a file that is sorted by time."""
    with pq.ParquetFile(positions) as file:
        groups = (0, file.num_row_groups - 1)
        first, last = (file.read_row_group(group, columns=["event_time"])[0] for group in groups)
    return first[0], last[-1]
