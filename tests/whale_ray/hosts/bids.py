"""Bids that are counted per key and window, partitioned or by late merge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import whale_ray as whale

F = whale.functions
KEYS, WINDOW_S = 50, 10


def write_bids(path: Path, rows: int) -> Path:
    """Write an Arrow file of bids, a millisecond apart; return its path."""
    keys = np.random.default_rng(5).integers(0, KEYS, rows)
    moments = (np.arange(rows) * 1_000_000).astype("datetime64[ns]")
    table = pa.table({"moment": moments, "key": keys, "price": np.arange(rows)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=8_192)
    return path


def totals(source: whale.Source, aggregation: str, parallelism: int) -> whale.Topology:
    """Return the topology."""
    topology = whale.Topology(f"bids-{aggregation}")
    rows = topology.source(source, id="bids", event_time="moment", parallelism=parallelism)
    groups = rows.group_by(whale.window("moment", f"{WINDOW_S} seconds"), "key")
    aggregates = (F.count().alias("bids"), F.sum("price").alias("total"))
    found = groups.agg(*aggregates, id="totals", aggregation=aggregation)
    found.sink(whale.sinks.collect(), id="out")
    return topology
