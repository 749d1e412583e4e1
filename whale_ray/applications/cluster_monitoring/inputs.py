"""The user's files, and which of them an input consists of."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...configs.errors import InputError
from ..shared.preparing import input_folder, pairs_of_inputs
from .replay import Replay
from .schemas import CPU, JOB_EVENTS

__all__ = ["replay_of"]

_JOB_EVENTS, _CPU = "job_events.parquet", "cpu.parquet"
_REAL_JOB_EVENTS, _REAL_CPU = "cluster_job_events_*.parquet", "cluster_cpu_*.parquet"


def replay_of(directory: str | Path, most_jobs: int | None = None) -> Replay:
    """Return the samples of a folder with events of jobs and the CPU of tasks, on its first day.

    Args:
        directory: holds job_events.parquet and cpu.parquet, or cluster_job_events_NAME.parquet and
            cluster_cpu_NAME.parquet; each a file or a folder of files.
        most_jobs: how many jobs to replay; None is all.

    Raises:
        InputError: there is no such folder or file, a column is missing or has another type, a
            value is null, or there are no rows.
    """
    wanted = f"samples.parquet, or {_JOB_EVENTS} and {_CPU},"
    folder = input_folder(directory, wanted)
    names = [(_JOB_EVENTS, _CPU)]
    names += [
        (events.name, cpu.name)
        for events in sorted(folder.glob(_REAL_JOB_EVENTS))
        for cpu in sorted(folder.glob(_REAL_CPU))
    ]
    whole = pairs_of_inputs(folder, names, wanted)
    if len(whole) > 1:
        several = ", ".join(f"{events.name} and {cpu.name}" for events, cpu in whole)
        msg = f"{str(folder)!r} has several inputs ({several}): leave one of them there"
        raise InputError(msg)
    events_path, cpu_path = whole[0]
    events, cpu = _read(events_path, JOB_EVENTS), _read(cpu_path, CPU)
    days = pc.floor_temporal(cpu["sample_time"], unit="day")
    return Replay(events, cpu.filter(pc.equal(days, pc.min(days))), most_jobs)


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the columns of a file or folder; raises InputError."""
    try:
        table = pq.read_table(path, columns=schema.names).select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        needed = ", ".join(f"{field.name} ({field.type})" for field in schema)
        reason = str(error).splitlines()[0]
        msg = f"{str(path)!r}: needs the columns {needed}; {reason}"
        raise InputError(msg) from error
    if not table.num_rows:
        msg = f"{str(path)!r} has no rows: put some there"
        raise InputError(msg)
    for name in schema.names:
        if table[name].null_count:
            msg = f"{str(path)!r}: column {name!r} holds nulls: leave these rows out"
            raise InputError(msg)
    return table
