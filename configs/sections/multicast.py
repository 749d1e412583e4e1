"""Settings of the section `multicast`: when and how far the tree adjusts itself."""

from __future__ import annotations

import dataclasses

from ..declaring import GIB, MIB, check_section, setting
from ..errors import SettingsError

_HOUR_MS = 3_600_000


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
