"""The input: NEXMark's bids in Parquet files, which all systems read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....applications.nexmark.generator import generate
from ....applications.nexmark.settings import MAX_OUT_OF_ORDER_MS, NexmarkSettings

__all__ = ["MAX_OUT_OF_ORDER_MS", "BidFiles", "most_keys", "write_inputs"]

_ROW_GROUP = 1 << 16


@dataclass(frozen=True, slots=True)
class BidFiles:
    """The same bids in two files."""

    in_order: Path
    """By event time."""
    out_of_order: Path
    """As generated: a tenth arrives late, by up to 3 s."""
    rows: int


def write_inputs(folder: Path, events: int) -> BidFiles:
    """Write both files; of the events, 46 of 50 are bids, and 10,000 happen in a second."""
    import pyarrow.parquet as pq

    table = pq.read_table(generate(folder / "generated", "bids", NexmarkSettings(events=events)))
    inputs = BidFiles(folder / "in_order.parquet", folder / "out_of_order.parquet", table.num_rows)
    ordered = table.sort_by("date_time")
    for path, rows in ((inputs.in_order, ordered), (inputs.out_of_order, table)):
        pq.write_table(rows, path, row_group_size=_ROW_GROUP, compression="lz4")
    return inputs


def most_keys(path: Path, key: str, window_s: int | None) -> int:
    """Return how many keys the file has; with `window_s` the most in any window of that length."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=[key, "date_time"])
    keys = table[key].to_numpy()
    if window_s is None:
        return len(np.unique(keys))
    windows = table["date_time"].to_numpy().astype(np.int64) // (window_s * 1_000_000)
    return max(len(np.unique(keys[windows == window])) for window in np.unique(windows))
