"""Settings of the section `transport`: slices, rings, doorbells, links between hosts."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..declaring import check_section, setting
from ..errors import SettingsError
from ..units import GIB, KIB, MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """How bytes move between workers: slices, rings, doorbells."""

    mms_bytes: int = setting(
        256 * KIB,
        low=KIB,
        high=16 * MIB,
        symbol="MMS",
        why="a slice is sent when it has this size",
    )
    wtl_ms: float = setting(
        1.0,
        low=0.0,
        high=1000.0,
        symbol="WTL",
        why="a slice is sent when its oldest row has waited this long",
    )
    ring_bytes: int = setting(
        4 * MIB,
        low=64 * KIB,
        high=GIB,
        power_of_two=True,
        symbol="Q",
        why="capacity of a ring (the papers' Q counts slices); reduced if memory is short",
    )
    ring_bytes_min: int = setting(
        256 * KIB,
        low=64 * KIB,
        high=GIB,
        power_of_two=True,
        why="minimum capacity of a ring; a job without memory for it is refused",
    )
    memory_budget_fraction: float = setting(
        0.25,
        low=0.01,
        high=0.9,
        why="share of free memory (the lesser of /dev/shm and RAM) that a job's rings may use",
    )
    spin_pauses: int = setting(
        100,
        low=0,
        high=200,
        why="spin pauses (a few µs in all) before a worker sleeps; 0 if workers outnumber cores",
    )
    doorbell_timeout_ms: int = setting(
        50,
        low=1,
        high=1000,
        why="maximum sleep of a worker whose doorbell is not rung",
    )
    checksum: bool = setting(
        False,
        why="verify a checksum of every message; for debugging",
    )
    poison_released: bool = setting(
        False,
        why="overwrite released frames, to detect views that are used too late; for debugging",
    )
    segment_kind: Literal["memfd", "named"] = setting(
        "memfd",
        choices=("memfd", "named"),
        why="memory of rings: anonymous, or files in /dev/shm if /proc/PID/fd is not readable",
    )
    held_fraction: float = setting(
        0.5,
        low=0.05,
        high=0.5,
        why="share of a ring that kept views may occupy; beyond it the job fails",
    )
    port_range_low: int = setting(
        0,
        low=0,
        high=65_535,
        why="lowest port on which a host listens for other hosts; 0 lets the kernel choose",
    )
    port_range_high: int = setting(
        0,
        low=0,
        high=65_535,
        why="highest such port; a firewall must open one port per host and job",
    )
    heartbeat_interval_ms: int = setting(
        500,
        low=1,
        high=60_000,
        why="interval of heartbeats on a link between hosts",
    )
    silence_timeout_ms: int = setting(
        3000,
        low=2,
        high=600_000,
        why="a link without any message for this long is considered broken and reconnected",
    )
    handshake_timeout_ms: int = setting(
        3000,
        low=1,
        high=60_000,
        why="time for a new connection to authenticate",
    )
    half_open_max: int = setting(
        64,
        low=1,
        high=65_536,
        why="maximum connections that are being authenticated; others are refused",
    )
    reconnect_backoff_ms: int = setting(
        20,
        low=1,
        high=60_000,
        why="mean wait before a broken link is reconnected; doubles with each failure",
    )
    reconnect_backoff_max_ms: int = setting(
        1000,
        low=1,
        high=600_000,
        why="maximum wait before a broken link is reconnected",
    )
    control_queue_messages: int = setting(
        256,
        low=1,
        high=65_536,
        why="control messages to or from a host that may be queued before senders block",
    )
    grant_delay_ms: float = setting(
        1.0,
        low=0.0,
        high=1000.0,
        why="maximum delay of a small grant, to combine it with later ones",
    )
    link_buffer_bytes: int = setting(
        0,
        low=0,
        high=64 * MIB,
        why="send buffer of a link within a machine; 0: 512 KiB, or 2 MiB for more than 4 hosts",
    )

    between_hosts: Literal["auto", "verbs", "tcp"] = setting(
        "auto",
        choices=("auto", "verbs", "tcp"),
        why="transport of links between hosts; auto: RDMA verbs if both have a usable device",
    )
    verbs_data: Literal["read", "write", "send"] = setting(
        "read",
        choices=("read", "write", "send"),
        why="verb that moves streams: READ by the child, WRITE by the parent, or SEND",
    )
    rdma_device: str = setting(
        "",
        why="the device for verbs; empty: the one with the host's address, else the first",
    )
    verbs_retry_ms: int = setting(
        10_000,
        low=1,
        high=3_600_000,
        why="time for which links to a host use TCP after verbs failed; doubles with each failure",
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
