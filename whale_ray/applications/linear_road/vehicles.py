"""What each vehicle does: it enters a segment, stops, or continues."""

from __future__ import annotations

from typing import Any

from ... import state
from ...operators.keyed.keyed_process import KeyedProcess, compiled
from ...operators.process import Output
from ...transport.wire.types import Schema

__all__ = ["GONE_ON", "STOPPED", "STOPPED_REPORTS", "VehicleMoves"]

STOPPED_REPORTS = 4
"""So many reports in a row from one place: the vehicle is stopped (Linear Road, 2.1)."""
STOPPED, GONE_ON = 1, -1
"""The values of `change`, beside 0."""


class VehicleMoves(KeyedProcess):
    """Emits the reports, with what they change; keyed by `vid`, in the order of event time.

    `entered` is 1 if the last report of the vehicle was from another segment, expressway or
    direction, or if there was none. `change` is `STOPPED` with the fourth report in a row from one
    place, and `GONE_ON` with the first from elsewhere after that; `stop_*` say where it stood.
    """

    reports = state.count()
    same = state.count()
    xway = state.value("int64")
    direction = state.value("int64")
    seg = state.value("int64")
    lane = state.value("int64")
    pos_ft = state.value("int64")
    schema = Schema.of(
        time_s="int64",
        vid="int64",
        xway="int64",
        dir="int64",
        seg="int64",
        lane="int64",
        entered="int64",
        change="int64",
        stop_xway="int64",
        stop_dir="int64",
        stop_seg="int64",
        stop_lane="int64",
        stop_ft="int64",
    )

    @compiled
    def on_row(self, row: Any, out: Output) -> None:
        """Compare one report with the vehicle's last one."""
        known = self.reports.get() > 0
        stop_xway = self.xway.get(row.xway)
        stop_dir = self.direction.get(row.dir)
        stop_seg = self.seg.get(row.seg)
        stop_lane = self.lane.get(row.lane)
        stop_ft = self.pos_ft.get(row.pos_ft)
        on_road = stop_xway == row.xway and stop_dir == row.dir
        entered = 0 if known and on_road and stop_seg == row.seg else 1
        change = 0
        if known and on_road and stop_lane == row.lane and stop_ft == row.pos_ft:
            self.same.add(1)
            if self.same.get() == STOPPED_REPORTS:
                change = STOPPED
        else:
            if self.same.get() >= STOPPED_REPORTS:
                change = GONE_ON
            self.same.set(1)
        self.reports.add(1)
        self.xway.set(row.xway)
        self.direction.set(row.dir)
        self.seg.set(row.seg)
        self.lane.set(row.lane)
        self.pos_ft.set(row.pos_ft)
        out.emit_row(
            time_s=row.time_s,
            vid=row.vid,
            xway=row.xway,
            dir=row.dir,
            seg=row.seg,
            lane=row.lane,
            entered=entered,
            change=change,
            stop_xway=stop_xway,
            stop_dir=stop_dir,
            stop_seg=stop_seg,
            stop_lane=stop_lane,
            stop_ft=stop_ft,
        )
