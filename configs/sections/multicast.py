"""Settings of the section `multicast`: when and how far the tree adapts to the load."""

from __future__ import annotations

import dataclasses

from ..declaring import check_section, setting
from ..errors import SettingsError
from ..units import GIB, HOUR_MS, MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class MulticastSettings:
    """When and how far the multicast tree adapts to the load (Whale, sections 3.3 and 4)."""

    out_degree: int = setting(
        0,
        low=0,
        high=1024,
        why="d*: maximum out-degree of a host in the tree; 0 computes it from the load",
    )
    retention_bytes: int = setting(
        64 * MIB,
        low=0,
        high=64 * GIB,
        why="memory per stream for what has left its ring and may be resent; more is spilled",
    )
    retention_spill_bytes_max: int = setting(
        1 * GIB,
        low=0,
        high=1024 * GIB,
        why="disk space for these bytes; when it is full, the source waits",
    )
    patience_ms: int = setting(
        2000, low=1, high=HOUR_MS, why="time for hosts to prepare a switch before it is cancelled"
    )
    report_interval_ms: int = setting(
        50,
        low=1,
        high=10_000,
        why="time between reports of a stream's load, unless one is due earlier",
    )
    repairs_max: int = setting(
        16, low=0, high=1_000_000, why="relays replaced in an attempt before the job is restarted"
    )
    rate_smoothing: float = setting(
        0.5,
        low=0.0,
        high=0.99,
        why="α: weight of earlier values in the moving average of the input rate",
    )
    waterline_fraction: float = setting(
        0.9, low=0.1, high=1.0, why="l_w: share of a queue beyond which out-degrees are reduced"
    )
    threshold_down: float = setting(
        0.8,
        low=0.01,
        high=100.0,
        why="T_down: ratio of queue growth to free space that reduces out-degrees",
    )
    threshold_up: float = setting(
        0.6,
        low=0.01,
        high=1.0,
        why="T_up: share by which a queue shrinks between reports that raises out-degrees",
    )
    queue_target_fraction: float = setting(
        0.45, low=0.001, high=1.0, why="mean queue occupancy for which an out-degree is chosen"
    )
    rate_hysteresis: float = setting(
        0.15,
        low=0.0,
        high=1.0,
        why="capacity in excess of the input rate that a larger out-degree needs",
    )
    dwell_min_ms: int = setting(
        1000,
        low=0,
        high=HOUR_MS,
        why="minimum time between switches while queues are below the waterline",
    )
    switch_prior_ms: float = setting(
        50.0,
        low=0.1,
        high=60_000.0,
        why="T_switch: assumed duration of a switch until one was measured",
    )

    def __post_init__(self) -> None:
        check_section("multicast", self)
        if self.queue_target_fraction > self.waterline_fraction:
            msg = (
                f"multicast.queue_target_fraction={self.queue_target_fraction} lies above "
                f"multicast.waterline_fraction={self.waterline_fraction}: the tree would oscillate"
            )
            raise SettingsError(msg)
