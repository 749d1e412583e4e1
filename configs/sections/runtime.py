"""Settings of the section `runtime`: workers, memory, restarts, timeouts."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..declaring import check_section, setting
from ..units import GIB, HOUR_MS, KIB, MIB


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
        why="number of workers, the first ones, that run only sources; 0: sources run on all",
    )
    hosts: int = setting(
        0,
        low=0,
        high=4096,
        why="logical hosts among which workers are divided, each with a relay; 0 means one per Ray "
        "node, or one without Ray",
    )
    route: Literal["non-blocking", "star", "chain", "binomial"] = setting(
        "non-blocking",
        choices=("non-blocking", "star", "chain", "binomial"),
        why="shape of the multicast tree of hosts; non-blocking adapts to the load",
    )
    addressing: Literal["worker-oriented", "instance-oriented"] = setting(
        "worker-oriented",
        choices=("worker-oriented", "instance-oriented"),
        why="serialize a broadcast row once, or once per instance as Storm does",
    )
    aggregation: Literal["auto", "partitioned", "late_merge"] = setting(
        "auto",
        choices=("auto", "partitioned", "late_merge"),
        why="send rows by key and aggregate them there, or aggregate them where they are made and "
        "merge by key; auto does the latter where no result differs by a bit and a delta stands "
        "for 2 rows or more",
    )
    unreachable_after_ms: int = setting(
        30_000,
        low=1,
        high=HOUR_MS,
        why="time that a host may be unreachable from another before the job is restarted",
    )
    virtual_nodes: int = setting(
        1024,
        low=1,
        high=65_536,
        power_of_two=True,
        why="parts of the key space; instances own ranges of them, so it limits parallelism",
    )
    pipelines: Literal["auto", "compiled", "interpreted"] = setting(
        "auto",
        choices=("auto", "compiled", "interpreted"),
        why="whether filters and projections by expressions run as one compiled loop; auto "
        "compiles once a million rows have come, or at once what was compiled before; the rows "
        "are the same",
    )
    meter_stages: bool = setting(
        False,
        why="whether workers measure what processor time each stage takes, as the optimizer's "
        "calibration does; it reads a clock for every message",
    )
    adapt: bool = setting(
        False,
        why="whether slices follow the rate while the job runs: small ones while workers have time "
        "to spare, larger ones while they do not; costs are measured as with meter_stages, and "
        "another parallelism is proposed where it is needed",
    )
    adapt_interval_ms: int = setting(
        1000,
        low=10,
        high=HOUR_MS,
        why="how often that is looked at; a change needs two looks that agree",
    )
    adapt_wait_max_ms: float = setting(
        20.0,
        low=0.0,
        high=10_000.0,
        why="to what transport.wtl_ms may be raised while workers have no time to spare",
    )
    source_batch_rows: int = setting(
        0,
        low=0,
        high=1_048_576,
        why="maximum rows that a source reads at a time; 0: 8,192, or, where no function of Python "
        "is fused behind it, up to 65,536 of Parquet files and 262,144 of Arrow IPC files",
    )
    max_drift_ms: int = setting(
        60_000,
        low=0,
        high=24 * HOUR_MS,
        why="event time by which a source may be ahead of the slowest source",
    )
    order_buffer_bytes: int = setting(
        64 * MIB,
        low=KIB,
        high=64 * GIB,
        why="memory per operator instance for rows that wait for the watermark; more are spilled",
    )
    state_bytes: int = setting(
        GIB,
        low=MIB,
        high=1024 * GIB,
        why="memory per worker for the state of windows, joins and keyed processes; what keeps "
        "records by key spills beyond it, other operators fail the job",
    )
    spill_bytes_max: int = setting(
        4 * GIB,
        low=0,
        high=1024 * GIB,
        why="disk space per operator instance for waiting rows, and per worker for state; beyond "
        "it the job fails",
    )
    spill_directory: str = setting(
        "",
        why="directory for spilled rows and state; empty means the system's temporary directory",
    )
    collect_bytes_max: int = setting(
        512 * MIB,
        low=KIB,
        high=64 * GIB,
        why="maximum size of the result of a collect sink; beyond it the job fails",
    )
    max_restarts: int = setting(
        3,
        low=0,
        high=1000,
        why="maximum restarts of a job after workers died",
    )
    poll_interval_ms: int = setting(
        200,
        low=1,
        high=10_000,
        why="interval at which the controller polls its workers",
    )
    drain_timeout_ms: int = setting(
        30_000,
        low=0,
        high=HOUR_MS,
        why="time for a stopped job to process the rows that its sources have read",
    )
    output_lines_per_s: int = setting(
        1000,
        low=0,
        high=1_000_000,
        why="average lines per second that the driver shows of functions in one worker; more "
        "are only counted; 0 leaves all output where the worker runs",
    )
    kill_grace_ms: int = setting(
        3000,
        low=0,
        high=HOUR_MS,
        why="time between asking a worker to end and killing it",
    )
    start_timeout_ms: int = setting(
        300_000,
        low=1,
        high=HOUR_MS,
        why="time for all workers to start, in which they may have to compile functions on busy "
        "processors; a worker that dies meanwhile is noticed at once",
    )
    commit_interval_ms: int = setting(
        10_000,
        low=1,
        high=24 * HOUR_MS,
        why="interval at which an unbounded job publishes parts of its output",
    )
    partial_output: Literal["beside", "replace"] = setting(
        "beside",
        choices=("beside", "replace"),
        why="where a bounded job that was stopped before the end of its input publishes: as "
        "OUTPUT.partial beside its output, or in place of its output",
    )
    on_loss: Literal["fail", "restart-at-least-once"] = setting(
        "fail",
        choices=("fail", "restart-at-least-once"),
        why="what an unbounded job does when a worker dies after parts were published",
    )

    def __post_init__(self) -> None:
        check_section("runtime", self)
