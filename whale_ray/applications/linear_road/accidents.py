"""Accidents: places where two vehicles or more are stopped, and whom to tell in which minute."""

from __future__ import annotations

from typing import Any

from ... import state
from ...operators.keyed.keyed_process import KeyedProcess
from ...operators.process import Output
from ...transport.wire.types import Schema
from .schemas import SEGMENTS
from .vehicles import STOPPED

__all__ = ["REACH", "Accidents"]

REACH = 4
"""How many segments before the accident are warned, beside its own."""
_IN_ACCIDENT = 2
_MINUTES = 180
"""How long a run of Linear Road lasts: reports have seconds from 0 to 10,799."""
_MINUTE_NS = 60_000_000_000


class Accidents(KeyedProcess):
    """Emits, for each minute and segment, that an accident lies ahead; keyed by place.

    It takes the rows of `VehicleMoves` whose `change` is not 0. An accident counts from the minute
    after that in which the second vehicle stopped until that in which fewer than two are left. A
    row has the event time of the last nanosecond before its minute.
    """

    stopped = state.count()
    seg = state.value("int64")
    minute = state.timer()
    schema = Schema.of(xway="int64", dir="int64", seg="int64", minute="int64", distance="int64")

    def on_row(self, row: Any, out: Output) -> None:
        """Count a vehicle that has stopped, or gone on."""
        self.stopped.add(row.change)
        if self.stopped.get() < _IN_ACCIDENT:
            self.minute.clear()
        elif row.change == STOPPED and self.stopped.get() == _IN_ACCIDENT:
            self.seg.set(row.stop_seg)
            self.minute.set((row.time_s // 60 + 1) * _MINUTE_NS - 1)

    def on_timer(self, timer: Any, out: Output) -> None:
        """Warn for the minute that begins."""
        before_ns = out.time_ns
        assert before_ns is not None
        minute = (before_ns + 1) // _MINUTE_NS
        direction, seg = self.key.stop_dir, self.seg.get()
        for distance in range(REACH + 1):
            warned = seg - distance if direction == 0 else seg + distance
            if 0 <= warned < SEGMENTS:
                out.emit_row(
                    xway=self.key.stop_xway,
                    dir=direction,
                    seg=warned,
                    minute=minute,
                    distance=distance,
                )
        # The end may come with the last reports, before their minutes have been told one by one.
        if not self.input_ended or minute < _MINUTES:
            self.minute.set(before_ns + _MINUTE_NS)
