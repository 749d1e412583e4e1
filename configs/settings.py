"""All tunables of whale-ray: frozen, typed, with units in their names.

`Settings()` holds the defaults; `load_settings` (loading.py) reads YAML files, the environment and
explicit overrides on top of them. Each field is declared once, with its default, its range, one
line of why, and its symbol in the papers where it has one; a value outside its range raises
SettingsError when the object is built. `default.yaml` is written from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from .declaring import (
    GIB,
    KIB,
    MIB,
    Declaration,
    SettingValue,
    check_section,
    declarations,
    parse_values,
    setting,
)
from .errors import SettingsError

_HOUR_MS = 3_600_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """How bytes move between workers: slices, rings, doorbells."""

    mms_bytes: int = setting(
        256 * KIB,
        low=KIB,
        high=16 * MIB,
        symbol="MMS",
        why="a transfer buffer is sent once it holds this much",
    )
    wtl_ms: float = setting(
        1.0,
        low=0.0,
        high=1000.0,
        symbol="WTL",
        why="or once its oldest tuple has waited this long",
    )
    ring_bytes: int = setting(
        4 * MIB,
        low=64 * KIB,
        high=GIB,
        power_of_two=True,
        symbol="Q",
        why="capacity of a ring (Q counts it in slices); less where memory is short",
    )
    ring_bytes_min: int = setting(
        256 * KIB,
        low=64 * KIB,
        high=GIB,
        power_of_two=True,
        why="a job whose rings would have to be smaller than this is refused",
    )
    memory_budget_fraction: float = setting(
        0.25,
        low=0.01,
        high=0.9,
        why="share of the free memory (of /dev/shm or RAM, the lesser) that a job's rings may take",
    )
    spin_pauses: int = setting(
        100,
        low=0,
        high=200,
        why="pauses (a few µs in all) before a worker sleeps; 0 if workers outnumber cores",
    )
    doorbell_timeout_ms: int = setting(
        50,
        low=1,
        high=1000,
        why="longest sleep of a worker that nobody wakes",
    )
    checksum: bool = setting(
        False,
        why="check every message's bytes; for hunting faults, memory within a host needs none",
    )
    poison_released: bool = setting(
        False,
        why="overwrite released frames, so that a view used too late shows at once",
    )
    segment_kind: Literal["memfd", "named"] = setting(
        "memfd",
        choices=("memfd", "named"),
        why="rings' memory: anonymous, or files in /dev/shm where /proc/PID/fd may not be read",
    )
    held_fraction: float = setting(
        0.5,
        low=0.05,
        high=0.5,
        why="share of a ring that kept views may hold before the job fails instead of stalling",
    )
    push_slots: int = setting(
        8,
        low=2,
        high=4096,
        why="slots of a push channel, Slash's c: credits of its sender; half may be one message",
    )
    push_slot_bytes: int = setting(
        64 * KIB,
        low=KIB,
        high=MIB,
        power_of_two=True,
        why="bytes of one such slot, Slash's m; 32 of them are its footer",
    )
    port_range_low: int = setting(
        0,
        low=0,
        high=65_535,
        why="lowest port that a host may listen on for others; 0 lets the kernel choose",
    )
    port_range_high: int = setting(
        0,
        low=0,
        high=65_535,
        why="highest such port; where a firewall opens a range, make it one per host and job",
    )
    heartbeat_interval_ms: int = setting(
        500,
        low=1,
        high=60_000,
        why="time between two heartbeats on a link between hosts",
    )
    silence_timeout_ms: int = setting(
        3000,
        low=2,
        high=600_000,
        why="a link on which nothing was heard for this long is broken, and dialled anew",
    )
    handshake_timeout_ms: int = setting(
        3000,
        low=1,
        high=60_000,
        why="time that a new connection has to prove who it is",
    )
    half_open_max: int = setting(
        64,
        low=1,
        high=65_536,
        why="connections that may wait for their proof at a time; others are refused",
    )
    reconnect_backoff_ms: int = setting(
        20,
        low=1,
        high=60_000,
        why="mean wait before a broken link is dialled again; doubles with each failure",
    )
    reconnect_backoff_max_ms: int = setting(
        1000,
        low=1,
        high=600_000,
        why="longest such wait: how late a healed link may be noticed",
    )
    control_queue_messages: int = setting(
        256,
        low=1,
        high=65_536,
        why="control messages to a host, or from it, that may wait before senders are held up",
    )
    grant_delay_ms: float = setting(
        1.0,
        low=0.0,
        high=1000.0,
        why="longest time that a grant too small to send at once waits for more",
    )
    link_buffer_bytes: int = setting(
        0,
        low=0,
        high=64 * MIB,
        why="send buffer of a link within a machine; 0: 512 KiB, beyond 4 hosts 2 MiB",
    )

    between_hosts: Literal["auto", "verbs", "tcp"] = setting(
        "auto",
        choices=("auto", "verbs", "tcp"),
        why="what carries links between hosts; auto: RDMA verbs where both have a usable device",
    )
    verbs_data: Literal["read", "write", "send"] = setting(
        "read",
        choices=("read", "write", "send"),
        why="how streams travel over verbs: READ by the child, WRITE by the parent, or SEND",
    )
    rdma_device: str = setting(
        "",
        why="the device for verbs; empty: the one that bears the host's address, else the first",
    )
    verbs_retry_ms: int = setting(
        10_000,
        low=1,
        high=3_600_000,
        why="how long links to a host are not of verbs after one broke; doubles with each failure",
    )

    def __post_init__(self) -> None:
        check_section("transport", self)
        self._check_links()
        if self.ring_bytes_min > self.ring_bytes:
            msg = (
                f"transport.ring_bytes_min ({self.ring_bytes_min:,}) must not exceed "
                f"transport.ring_bytes ({self.ring_bytes:,}); lower the first or raise the second"
            )
            raise SettingsError(msg)

    def _check_links(self) -> None:
        """Refuse limits of links between hosts that contradict each other."""
        for low, high in (
            ("port_range_low", "port_range_high"),
            ("heartbeat_interval_ms", "silence_timeout_ms"),
            ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
        ):
            if getattr(self, low) > getattr(self, high):
                msg = (
                    f"transport.{low} ({getattr(self, low):,}) must not exceed transport.{high} "
                    f"({getattr(self, high):,}); lower the first or raise the second"
                )
                raise SettingsError(msg)


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
    on_loss: Literal["fail", "restart-at-least-once"] = setting(
        "fail",
        choices=("fail", "restart-at-least-once"),
        why="what an unbounded job does when a worker dies after parts were published",
    )

    def __post_init__(self) -> None:
        check_section("runtime", self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """The Spark session that whale-ray starts on Ray when there is none."""

    executors: int = setting(
        1,
        low=1,
        high=10_000,
        why="Spark executors; each is a Ray actor that keeps its cores until Spark stops",
    )
    executor_cores: int = setting(
        1,
        low=1,
        high=1024,
        why="cores of one executor",
    )
    executor_memory_mb: int = setting(
        1024,
        low=512,
        high=1_048_576,
        why="heap of one executor (Spark starts with no less than about 470)",
    )
    driver_memory_mb: int = setting(
        1024,
        low=512,
        high=1_048_576,
        why="heap of the Spark driver",
    )
    shuffle_partitions: int = setting(
        4,
        low=1,
        high=100_000,
        why="partitions of a Spark shuffle; its own default of 200 is for large clusters",
    )

    def __post_init__(self) -> None:
        check_section("spark", self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MulticastSettings:
    """When and how far the multicast tree adjusts itself (Whale, sections 3.3 and 4)."""

    out_degree: int = setting(
        0, low=0, high=1024, why="d*: most children of a host in the tree; 0 computes it from load"
    )
    retention_bytes: int = setting(
        64 * MIB,
        low=0,
        high=64 * GIB,
        why="memory per stream for what some host may need again, after its ring; more is spilled",
    )
    retention_spill_bytes_max: int = setting(
        1 * GIB, low=0, high=1024 * GIB, why="disk for the same; when it is full the source waits"
    )
    patience_ms: int = setting(
        2000, low=1, high=_HOUR_MS, why="time that hosts have to prepare a switch, else it is off"
    )
    report_interval_ms: int = setting(
        50, low=1, high=10_000, why="time between reports of a stream's load, if no rule hurries"
    )
    repairs_max: int = setting(
        16, low=0, high=1_000_000, why="relays replaced in an attempt before the job begins anew"
    )
    rate_smoothing: float = setting(
        0.5, low=0.0, high=0.99, why="α: weight of the past in the measured input rate"
    )
    waterline_fraction: float = setting(
        0.9, low=0.1, high=1.0, why="l_w: share of a queue beyond which degrees shrink"
    )
    threshold_down: float = setting(
        0.8, low=0.01, high=100.0, why="T_down: growth over room left that shrinks them"
    )
    threshold_up: float = setting(
        0.6, low=0.01, high=1.0, why="T_up: share of a queue gone at once, to widen them"
    )
    queue_target_fraction: float = setting(
        0.45, low=0.001, high=1.0, why="mean share of a queue that a degree is chosen for"
    )
    rate_hysteresis: float = setting(
        0.15, low=0.0, high=1.0, why="how much more a wider tree must carry than is offered"
    )
    dwell_min_ms: int = setting(
        1000, low=0, high=_HOUR_MS, why="shortest time between switches, below the waterline"
    )
    switch_prior_ms: float = setting(
        50.0, low=0.1, high=60_000.0, why="T_switch: duration of a switch, until measured"
    )

    def __post_init__(self) -> None:
        check_section("multicast", self)
        if self.queue_target_fraction > self.waterline_fraction:
            msg = (
                f"multicast.queue_target_fraction={self.queue_target_fraction} lies above "
                f"multicast.waterline_fraction={self.waterline_fraction}: the tree would flap"
            )
            raise SettingsError(msg)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a job. Immutable; `with_overrides` returns a changed copy."""

    transport: TransportSettings = dataclasses.field(default_factory=TransportSettings)
    runtime: RuntimeSettings = dataclasses.field(default_factory=RuntimeSettings)
    multicast: MulticastSettings = dataclasses.field(default_factory=MulticastSettings)
    spark: SparkSettings = dataclasses.field(default_factory=SparkSettings)

    def with_overrides(self, overrides: Mapping[str, object]) -> Settings:
        """Return a copy with the settings of `overrides` ({"transport.mms_bytes": 65536}) changed.

        Texts are parsed where a number or a truth value is wanted. Raises SettingsError for an
        unknown key, naming the nearest, and for a value that is not allowed.
        """
        return self.with_values(parse_values(DECLARATIONS, overrides))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return all values as plain nested mappings: {"transport": {"mms_bytes": …}, …}."""
        return dataclasses.asdict(self)

    def with_values(self, values: Mapping[str, SettingValue]) -> Settings:
        """Return a copy with `values`, by known dotted path and of the settings' own types."""
        sections: dict[str, dict[str, Any]] = {}
        for path, value in values.items():
            section, _, name = path.partition(".")
            sections.setdefault(section, {})[name] = value
        changed: dict[str, Any] = {
            section: dataclasses.replace(getattr(self, section), **fields)
            for section, fields in sections.items()
        }
        return dataclasses.replace(self, **changed)


SECTIONS: Mapping[str, type] = {
    "transport": TransportSettings,
    "runtime": RuntimeSettings,
    "multicast": MulticastSettings,
    "spark": SparkSettings,
}

DECLARATIONS: Mapping[str, Declaration] = {
    f"{section}.{name}": declaration
    for section, section_type in SECTIONS.items()
    for name, declaration in declarations(section_type).items()
}
"""Every setting's declaration by its dotted path, in the order of the declarations."""
