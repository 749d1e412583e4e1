"""The columns of the application's inputs and of its stream."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["CPU", "ENDS", "JOB_EVENTS", "SAMPLES", "SCHEDULE"]

#: What happened to jobs; `time_us` counts from the beginning of the trace.
JOB_EVENTS = pa.schema({"time_us": pa.int64(), "job_id": pa.int64(), "event": pa.string()})
SCHEDULE = "SCHEDULE"
ENDS = ("FINISH", "KILL", "FAIL", "EVICT", "LOST")
"""The events with which a job stops running."""

#: The CPU of tasks, in percent.
CPU = pa.schema(
    {"sample_time": pa.timestamp("us"), "task_id": pa.string(), "cpu_pct": pa.float64()}
)

#: The stream: the CPU of jobs. Its times are those of the trace, as if that had begun in 1970.
SAMPLES = pa.schema(
    {"event_time": pa.timestamp("us"), "job_id": pa.int64(), "cpu_pct": pa.float64()}
)
