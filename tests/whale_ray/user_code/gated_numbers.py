"""A source without an end, to whoever plans the job; a test says when it reads on and ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import whale_ray as whale
from whale_ray import state
from whale_ray.operators.process import InstanceContext
from whale_ray.operators.snapshots import Position
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.state.disk_traffic import DiskTraffic
from whale_ray.transport.clock import Clock
from whale_ray.transport.wire.batch import Batch

KEYS = 5
_POLL_NS = 2_000_000


class GatedNumbers(Source):
    """The numbers below `count`; those from `gate` on only once the file `gate_file` is there.

    Instances take turns of `_TURN` numbers.
    """

    bounded = False
    turn = 50

    def __init__(self, count: int, gate: int, gate_file: Path) -> None:
        self.count = count
        self.gate = gate
        self.gate_file = str(gate_file)

    def open(self, context: InstanceContext) -> SourceReader:
        return self.open_at(context, [])

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        read = {turn for one in positions for turn in one["read"]}
        turns = range(-(-self.count // self.turn))
        left = [turn for turn in turns if turn not in read]
        mine = [turn for turn in left if turn % context.parallelism == context.instance]
        kept = sorted(read) if context.instance == 0 else []
        return _Reader(self, mine, kept, context.clock)

    def describe(self) -> str:
        return f"{self.count} numbers"


class _Reader(SourceReader):
    def __init__(
        self, source: GatedNumbers, turns: list[int], read: list[int], clock: Clock
    ) -> None:
        self._clock = clock
        self._source = source
        self._turns = turns
        self._read = read

    def read(self, max_rows: int) -> Batch | None:
        source = self._source
        if not self._turns:
            return None
        first = self._turns[0] * source.turn
        if first >= source.gate and not os.path.exists(source.gate_file):
            return None
        self._read.append(self._turns.pop(0))
        numbers = np.arange(first, min(first + source.turn, source.count))
        return Batch.from_pydict({"number": numbers, "key": numbers % KEYS})

    @property
    def finished(self) -> bool:
        return not self._turns

    def next_ready_ns(self) -> int | None:
        return self._clock.monotonic_ns() + _POLL_NS

    def position(self) -> Position:
        return {"read": list(self._read)}


class Counted(whale.KeyedProcess):
    """Numbers the rows of each key."""

    seen = state.count()

    def on_row(self, row: Any, out: Any) -> None:
        self.seen.add(1)
        out.emit_row(key=row.key, nth=self.seen.get(), number=row.number)


def expected(count: int) -> list[tuple[int, int]]:
    """Return (key, nth) of all rows of `Counted`, sorted."""
    of_key = [len(range(key, count, KEYS)) for key in range(KEYS)]
    return [(key, nth) for key in range(KEYS) for nth in range(1, of_key[key] + 1)]


def kill_worker_once(number: int, at: int, marker: Path) -> int:
    """Kill this process at a number, unless that was done before."""
    if number == at and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class ManyNumbers(GatedNumbers):
    """The same in larger turns; state on the disk is used as if the kernel had no memory for it."""

    turn = 8192

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        mock.patch.object(DiskTraffic, "is_heavy", True).start()  # in a worker, until it ends
        return super().open_at(context, positions)


class KilledOnce(whale.Process):
    """Passes rows on; the worker that meets a number is killed, unless that was done before."""

    def __init__(self, at: int, marker: Path) -> None:
        self._at, self._marker = at, marker

    def on_batch(self, batch: Batch, out: Any) -> None:
        if (batch.column("number").data == self._at).any():
            kill_worker_once(self._at, self._at, self._marker)
        out.emit(batch, batch.times)
