"""Settings of the section `runtime`: workers, memory, restarts, timeouts."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..declaring import GIB, KIB, MIB, check_section, setting

_HOUR_MS = 3_600_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeSettings:
    """How a job runs: workers, memory, restarts, timeouts."""

    workers: int = setting(
        0,
        low=0,
        high=4096,
        why="worker processes of a job; 0 means one per core",
    )
    source_workers: int = setting(
        0,
        low=0,
        high=4096,
        why="workers, the first ones, that run sources and nothing else; 0: sources share with all",
    )
    hosts: int = setting(
        0,
        low=0,
        high=4096,
        why="logical hosts, each with a relay, that share the workers; 0 means one per Ray node, "
        "or one without Ray",
    )
    route: Literal["non-blocking", "star", "chain", "binomial"] = setting(
        "non-blocking",
        choices=("non-blocking", "star", "chain", "binomial"),
        why="the tree of hosts along which a stream for several of them travels; the first adjusts "
        "itself to the load",
    )
    addressing: Literal["worker-oriented", "instance-oriented"] = setting(
        "worker-oriented",
        choices=("worker-oriented", "instance-oriented"),
        why="an all-grouped row is serialized once, or (as Storm does) once per instance",
    )
    unreachable_after_ms: int = setting(
        30_000,
        low=1,
        high=_HOUR_MS,
        why="time that a host may be unreachable from another before the job begins anew",
    )
    virtual_nodes: int = setting(
        1024,
        low=1,
        high=65_536,
        power_of_two=True,
        why="parts of the key space; instances own ranges of them, so it bounds the parallelism",
    )
    source_batch_rows: int = setting(
        8192,
        low=1,
        high=1_048_576,
        why="rows that a source reads at a time",
    )
    max_drift_ms: int = setting(
        60_000,
        low=0,
        high=24 * _HOUR_MS,
        why="event time by which one source may run ahead of the slowest",
    )
    order_buffer_bytes: int = setting(
        64 * MIB,
        low=KIB,
        high=64 * GIB,
        why="memory of one operator instance for rows that wait for event time; more are spilled",
    )
    spill_bytes_max: int = setting(
        4 * GIB,
        low=0,
        high=1024 * GIB,
        why="disk that one operator instance may fill with waiting rows before the job fails",
    )
    spill_directory: str = setting(
        "",
        why="where waiting rows are spilled; empty means the system's temporary directory",
    )
    collect_bytes_max: int = setting(
        512 * MIB,
        low=KIB,
        high=64 * GIB,
        why="what a collect sink may bring to the driver before the job fails",
    )
    max_restarts: int = setting(
        3,
        low=0,
        high=1000,
        why="times that a job is started again after a worker died",
    )
    poll_interval_ms: int = setting(
        200,
        low=1,
        high=10_000,
        why="time between two looks of the controller at its workers",
    )
    drain_timeout_ms: int = setting(
        30_000,
        low=0,
        high=_HOUR_MS,
        why="time that a stopped job has to finish what its sources have read",
    )
    output_lines_per_s: int = setting(
        1000,
        low=0,
        high=1_000_000,
        why="lines that users' functions in one worker may print a second, on average, and have "
        "shown by the driver; more are counted; 0 leaves them where the worker runs",
    )
    kill_grace_ms: int = setting(
        3000,
        low=0,
        high=_HOUR_MS,
        why="time between asking a worker to end and ending it",
    )
    start_timeout_ms: int = setting(
        60_000,
        low=1,
        high=_HOUR_MS,
        why="time that all workers have to come up",
    )
    commit_interval_ms: int = setting(
        10_000,
        low=1,
        high=24 * _HOUR_MS,
        why="time between two published parts of an unbounded job's output",
    )
    partial_output: Literal["beside", "replace"] = setting(
        "beside",
        choices=("beside", "replace"),
        why="where a bounded job publishes that was stopped before its input had ended: beside its "
        "output, as OUTPUT.partial, or in its place",
    )
    on_loss: Literal["fail", "restart-at-least-once"] = setting(
        "fail",
        choices=("fail", "restart-at-least-once"),
        why="what an unbounded job does when a worker dies after parts were published",
    )

    def __post_init__(self) -> None:
        check_section("runtime", self)
