"""The columns of position reports, by the names of the benchmark, and what they say about roads."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["EXIT_LANE", "FEET_PER_SEGMENT", "POSITION", "REPORTS", "SEGMENTS"]

#: `time_s` counts from the beginning; `dir` is 0 eastbound, where segments ascend, or 1 westbound.
REPORTS = pa.schema(
    {
        "type": pa.int32(),
        "time_s": pa.int32(),
        "vid": pa.int32(),
        "speed_mph": pa.int32(),
        "xway": pa.int32(),
        "lane": pa.int32(),
        "dir": pa.int32(),
        "seg": pa.int32(),
        "pos_ft": pa.int32(),
    }
)
POSITION = 0
"""The type of position reports; other types are requests, which are left out."""
EXIT_LANE = 4
"""Lane 0 enters, lanes 1 to 3 travel, lane 4 leaves."""
SEGMENTS = 100
FEET_PER_SEGMENT = 5_280
