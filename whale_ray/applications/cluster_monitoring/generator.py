"""A seeded generator of events of jobs and of the CPU of tasks, in the proportions of real traces.

Jobs: 29 days of a cluster at Google (ClusterData2011_2): their distances and lengths, and how they
end. Tasks: a day of PlanetLab's machines (CoMon, Beloglazov and Buyya): their means, and how far a
sample is from the one before it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .schemas import CPU, ENDS, JOB_EVENTS, SCHEDULE
from .settings import ClusterSettings

__all__ = ["cpu_of_tasks", "job_events"]

_TRACE_START_US = 600_000_000
_MEAN_GAP_S = 3.73
#: The logarithm of a job's length in seconds: mean and standard deviation.
_LENGTH_LOG_S = (5.26, 1.75)
#: How the jobs end, in the order of `ENDS`; the others still run at the end of the trace.
_END_SHARES = (0.5737, 0.4052, 0.0151, 0.00003, 0.00002)
_FIRST_JOB_ID = 3_418_309
_MEAN_ID_STEP = 9_600

_TASKS, _SAMPLES = 1_052, 288
_DAY_US = np.datetime64("2011-03-03", "us").astype(np.int64)
_SAMPLE_INTERVAL_US = 300_000_000
#: The logarithm of a task's usual CPU in percent: mean and standard deviation.
_CPU_LOG_PCT = (1.75, 1.1)
#: How the logarithm moves around the usual one: the share of a deviation that is left after
#: 5 minutes, and the standard deviation.
_KEPT, _DEVIATION = 0.75, 0.6
_MOST_PCT = 99


def job_events(settings: ClusterSettings) -> pa.Table:
    """Return `schemas.JOB_EVENTS`: SCHEDULE, and the end, of each job."""
    draws = np.random.default_rng((settings.seed, 0))
    jobs = settings.jobs
    starts_us = _TRACE_START_US + np.cumsum(_us(draws.exponential(_MEAN_GAP_S, jobs)))
    lengths_us = np.maximum(1, _us(draws.lognormal(*_LENGTH_LOG_S, jobs)))
    ids = _FIRST_JOB_ID + np.cumsum(draws.integers(1, 2 * _MEAN_ID_STEP, jobs))
    kinds = (*ENDS, None)
    shares = (*_END_SHARES, 1 - sum(_END_SHARES))
    chosen = draws.choice(len(kinds), jobs, p=shares)
    ended = chosen < len(ENDS)
    names = pa.array(kinds, pa.string()).take(pa.array(chosen[ended]))
    events = [
        pa.table([starts_us, ids, pa.array([SCHEDULE] * jobs)], schema=JOB_EVENTS),
        pa.table([(starts_us + lengths_us)[ended], ids[ended], names], schema=JOB_EVENTS),
    ]
    return pa.concat_tables(events)


def cpu_of_tasks(settings: ClusterSettings) -> pa.Table:
    """Return `schemas.CPU`: 288 samples of each of 1,052 tasks, whole percents."""
    draws = np.random.default_rng((settings.seed, 1))
    usual = draws.normal(*_CPU_LOG_PCT, _TASKS)
    moves = draws.normal(0, _DEVIATION * np.sqrt(1 - _KEPT**2), (_SAMPLES, _TASKS))
    moves[0] = draws.normal(0, _DEVIATION, _TASKS)
    for sample in range(1, _SAMPLES):
        moves[sample] += _KEPT * moves[sample - 1]
    cpu_pct = np.minimum(_MOST_PCT, np.floor(np.exp(usual + moves)))
    times_us = _DAY_US + _SAMPLE_INTERVAL_US * np.arange(_SAMPLES)
    return pa.table(
        [
            pa.array(np.repeat(times_us, _TASKS), pa.timestamp("us")),
            pa.array([f"task-{task:04}" for task in range(_TASKS)] * _SAMPLES),
            cpu_pct.ravel(),
        ],
        schema=CPU,
    )


def _us(seconds: np.ndarray) -> np.ndarray:
    return (1e6 * seconds).astype(np.int64)
