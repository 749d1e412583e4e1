"""Slices in the real runtime: an open-loop source, and the receive times of every instance.

Each slice is one row, scheduled in advance, so that measurement and simulation have the same slices
at the same times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...configs.errors import JobCancelledError
from ...configs.units import NS_PER_S
from ...operators.process import InstanceContext, Output, Process
from ...operators.sources.base import Source, SourceReader
from .arrivals import Seconds

if TYPE_CHECKING:
    from ...deployment.processes.process_fleet import HostPlace
    from ...transport.wire.batch import Batch

_LEAD_NS = 700_000_000
"""From opening the source to the first emission; by then all links are up."""
PATIENCE_S = 600.0


@dataclass(frozen=True)
class ScheduledSlices(Source):
    """One row of `slice_bytes` per scheduled moment (ns from the first)."""

    due_ns: tuple[int, ...]
    slice_bytes: int

    def open(self, context: InstanceContext) -> SourceReader:
        """Start the schedule shortly, by the context's clock."""
        return _ScheduledReader(self, context)

    def describe(self) -> str:
        """Return how many slices there are, and their size."""
        return f"{len(self.due_ns):,} scheduled slices of {self.slice_bytes:,} bytes"


class _ScheduledReader(SourceReader):
    """Emits one slice at a time, when it is due."""

    def __init__(self, source: ScheduledSlices, context: InstanceContext) -> None:
        from ...transport.wire.batch import Batch

        self._source = source
        self._clock = context.clock
        self._start_ns = context.clock.monotonic_ns() + _LEAD_NS
        self._next = 0
        payload = Batch.from_pydict({"payload": [bytes(source.slice_bytes)]})
        self._payload = payload.column("payload")

    def read(self, max_rows: int) -> Batch | None:
        """Return the next slice if it is due."""
        if self.finished:
            return None
        at_ns = self._start_ns + self._source.due_ns[self._next]
        if self._clock.monotonic_ns() < at_ns:
            return None
        from ...transport.wire.batch import Batch

        values = {"n": self._next, "at": at_ns, "cpu": time.process_time_ns()}
        batch = Batch.from_pydict({name: np.array([one]) for name, one in values.items()})
        self._next += 1
        return batch.with_column("payload", self._payload).with_origin(at_ns)

    @property
    def finished(self) -> bool:
        """Whether all were emitted."""
        return self._next == len(self._source.due_ns)

    def next_ready_ns(self) -> int | None:
        """Return when the next slice is due."""
        if self.finished:
            return None
        return self._start_ns + self._source.due_ns[self._next]


class Receipts(Process):
    """Records when each slice arrived, and emits these times at the end."""

    def open(self, context: InstanceContext) -> None:
        """Begin without receipts."""
        self._clock = context.clock
        self._instance = context.instance
        self._noted: list[tuple[int, int, int, int, int]] = []

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Record the time for every slice of a batch."""
        now_ns, cpu_ns = self._clock.monotonic_ns(), time.process_time_ns()
        for n, at, cpu in zip(
            batch["n"].tolist(), batch["at"].tolist(), batch["cpu"].tolist(), strict=True
        ):
            self._noted.append((n, at, now_ns, cpu, cpu_ns))

    def close(self, out: Output) -> None:
        """Emit all receipts."""
        names = ("n", "at", "came", "source_cpu", "cpu")
        columns = np.array(self._noted, np.int64).reshape(-1, len(names)).T
        told = {name: column.copy() for name, column in zip(names, columns, strict=True)}
        out.emit({"instance": np.full(len(self._noted), self._instance), **told})


@dataclass(frozen=True)
class MeasuredSlices:
    """When the runtime delivered slices, and its processor time."""

    scheduled_s: Seconds
    """When each slice was scheduled, shape (slices,)."""
    came_s: npt.NDArray[np.float64]
    """When each instance had it, shape (instances, slices); instance 0 is the source's host."""
    source_cpu_s: float
    """Processor time of the source's worker per slice."""
    worker_cpu_s: float
    """The same of another worker, on average."""
    cpu_s: float
    """Processor time of all workers and relays per slice."""


def measure(
    due_s: Seconds,
    slice_bytes: int,
    instances: int,
    settings: dict[str, Any],
    places: Sequence[HostPlace] = (),
) -> MeasuredSlices:
    """Run the schedule in plain processes, one worker per instance.

    `settings` are the job's; each slice is sent by itself. Raises the job's error.
    """
    from ... import sinks
    from ...api.submission import submit
    from ...api.topology import Topology

    first_ns = int(due_s[0] * NS_PER_S)
    due_ns = tuple(int(one * NS_PER_S) - first_ns for one in due_s)
    topology = Topology("measured-slices")
    slices = topology.source(ScheduledSlices(due_ns, slice_bytes), id="slices")
    every = slices.broadcast().process(Receipts, id="every", parallelism=instances)
    every.sink(sinks.collect(), id="out")
    chosen = {
        "transport.mms_bytes": slice_bytes,
        "transport.wtl_ms": 0.0,
        **settings,
    }
    job = submit(topology, on="processes", workers=instances, settings=chosen, places=places)
    if job.wait(PATIENCE_S).state != "finished":
        msg = "the measurement was interrupted"
        raise JobCancelledError(msg)
    table = job.results("out").to_arrow()
    told = {name: table[name].to_numpy() for name in table.column_names}
    return _measured(told, instances, len(due_ns), job.metrics().cpu_s)


def _measured(told: dict[str, Any], instances: int, slices: int, cpu_s: float) -> MeasuredSlices:
    came = np.full((instances, slices), np.nan)
    came[told["instance"], told["n"]] = told["came"] / NS_PER_S
    if np.isnan(came).any():
        msg = f"{int(np.isnan(came).sum())} of {came.size} receipts are missing"
        raise RuntimeError(msg)
    scheduled = np.zeros(slices)
    scheduled[told["n"]] = told["at"] / NS_PER_S
    begin_s = float(scheduled[0])
    others = [_cpu_s(told, instance, "cpu") for instance in range(1, instances)]
    return MeasuredSlices(
        scheduled - begin_s,
        came - begin_s,
        _cpu_s(told, 0, "source_cpu"),
        float(np.mean(others)) if others else 0.0,
        cpu_s / slices,
    )


def _cpu_s(told: dict[str, Any], instance: int, column: str) -> float:
    """Return a process's time per slice, between its first and last receipt."""
    spent = told[column][told["instance"] == instance]
    return float(spent.max() - spent.min()) / max(1, len(spent) - 1) / NS_PER_S
