"""Makes a stream of samples: the jobs of one trace, with the CPU of tasks of another.

There is no trace with both in public. So the job of rank r, by the time when it is first scheduled,
then by its id, has the samples of task r mod N, the N tasks being ordered by their ids: one sample
every 2 s, from its first SCHEDULE until its end, or until the task has no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..shared.generated_file import write_stream
from .schemas import ENDS, SAMPLES, SCHEDULE

__all__ = ["INTERVAL_US", "Replay", "write_samples"]

Int64s = npt.NDArray[np.int64]

INTERVAL_US = 2_000_000
"""The time between two samples of a job."""
_BLOCK_US = 32 * INTERVAL_US
_ROW_GROUP = 500_000
_FOREVER_US = 1 << 62


@dataclass(frozen=True)
class _Jobs:
    """The jobs by rank; each array has the shape (jobs,)."""

    ids: Int64s
    starts_us: Int64s
    counts: Int64s
    """How many samples they have."""
    offsets: Int64s
    """Where the samples of their tasks begin."""


class Replay:
    """The samples of all jobs, in the order of time, then of rank.

    Args:
        job_events: `schemas.JOB_EVENTS`, in any order.
        cpu: `schemas.CPU`, in any order; not empty.
        most_jobs: how many jobs to replay, the first by rank; None is all.
    """

    def __init__(self, job_events: pa.Table, cpu: pa.Table, most_jobs: int | None = None) -> None:
        ordered = cpu.sort_by([("task_id", "ascending"), ("sample_time", "ascending")])
        self._cpu_pct = ordered["cpu_pct"].to_numpy()
        tasks = ordered.group_by("task_id").aggregate([([], "count_all")]).sort_by("task_id")
        lengths = tasks["count_all"].to_numpy()
        self._jobs = _jobs(job_events, lengths, most_jobs)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the samples, `schemas.SAMPLES`.

        A table covers 64 s, so it holds up to 32 samples of every job that is running.
        """
        jobs = self._jobs
        ends_us = jobs.starts_us + INTERVAL_US * jobs.counts
        last_ends_us = np.maximum.accumulate(ends_us)  # of this job and all before it
        begin_us, first = -_FOREVER_US, 0
        while first < len(jobs.ids):
            begin_us = max(begin_us, int(jobs.starts_us[first]))
            end_us = begin_us + _BLOCK_US
            stop = int(np.searchsorted(jobs.starts_us, end_us))
            yield self._between(begin_us, end_us, first, stop)
            begin_us = end_us
            first = int(np.searchsorted(last_ends_us, end_us, side="right"))

    def _between(self, begin_us: int, end_us: int, first: int, stop: int) -> pa.Table:
        """Return the samples of the jobs first to stop with begin ≤ time < end."""
        jobs = self._jobs
        starts_us, counts = jobs.starts_us[first:stop], jobs.counts[first:stop]
        lowest = np.clip(-((starts_us - begin_us) // INTERVAL_US), 0, counts)
        highest = np.clip(-((starts_us - end_us) // INTERVAL_US), 0, counts)
        rows = highest - lowest
        job = np.repeat(np.arange(stop - first), rows)
        number = np.arange(len(job)) - np.repeat(np.cumsum(rows) - rows, rows) + lowest[job]
        times_us = starts_us[job] + INTERVAL_US * number
        order = np.argsort(times_us, kind="stable")
        job, number = job[order], number[order]
        return pa.table(
            [
                pa.array(times_us[order], pa.timestamp("us")),
                jobs.ids[first + job],
                self._cpu_pct[jobs.offsets[first + job] + number],
            ],
            schema=SAMPLES,
        )


def write_samples(folder: str | Path, replay: Replay) -> Path:
    """Write samples.parquet into a folder, which is made if need be; return the file's path."""
    return write_stream(folder, "samples", SAMPLES, _row_groups(replay.tables()))


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of tables again, `_ROW_GROUP` or a little more at a time."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= _ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _jobs(events: pa.Table, lengths: Int64s, most_jobs: int | None) -> _Jobs:
    """Return the jobs that are scheduled, up to `most_jobs`, given the samples of each task."""
    starts = _first(events, pc.equal(events["event"], SCHEDULE), "start_us")
    ends = _first(events, pc.is_in(events["event"], pa.array(ENDS)), "end_us")
    jobs = (
        starts.join(ends, "job_id", join_type="left outer")
        .sort_by([("start_us", "ascending"), ("job_id", "ascending")])
        .slice(0, most_jobs)
    )
    starts_us = jobs["start_us"].to_numpy()
    ends_us = pc.fill_null(jobs["end_us"], _FOREVER_US).to_numpy()
    tasks = np.arange(len(starts_us)) % len(lengths)
    until_end = -((starts_us - ends_us) // INTERVAL_US)
    return _Jobs(
        ids=jobs["job_id"].to_numpy(),
        starts_us=starts_us,
        counts=np.clip(until_end, 0, lengths[tasks]),
        offsets=(np.cumsum(lengths) - lengths)[tasks],
    )


def _first(events: pa.Table, chosen: pa.ChunkedArray, name: str) -> pa.Table:
    """Return job_id and `name`, the time of the job's first chosen event."""
    times = events.filter(chosen).group_by("job_id").aggregate([("time_us", "min")])
    return times.select(["job_id", "time_us_min"]).rename_columns(["job_id", name])
