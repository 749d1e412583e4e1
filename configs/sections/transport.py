"""Settings of the section `transport`: slices, rings, doorbells, links between hosts."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..declaring import GIB, KIB, MIB, check_section, setting
from ..errors import SettingsError


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
        if self.port_range_high and not self.port_range_low:
            msg = (
                f"transport.port_range_high ({self.port_range_high:,}) needs a "
                "transport.port_range_low of 1 or more; leave both at 0 to let the kernel choose"
            )
            raise SettingsError(msg)
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
