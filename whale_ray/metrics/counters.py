"""What workers and relays count while they run."""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..state.watermarks import WATERMARK_NONE
from .loads import WorkerLoad

if TYPE_CHECKING:
    from ..transport.channel import ChannelStatistics
    from ..transport.links.statistics import LinkStatistics

_BUCKETS_PER_OCTAVE = 16
_BUCKETS = 64 * _BUCKETS_PER_OCTAVE


class LatencyHistogram:
    """Latencies in buckets that grow by 1/16 octave, so a quantile is right within 4.4 %."""

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, dtype=np.int64)
        self.sum_ns = 0
        """All latencies together, each times its rows."""

    def add(self, latency_ns: int, rows: int) -> None:
        """Count `rows` rows that took `latency_ns`."""
        bucket = int(math.log2(max(latency_ns, 1)) * _BUCKETS_PER_OCTAVE)
        self._counts[min(bucket, _BUCKETS - 1)] += rows
        self.sum_ns += latency_ns * rows

    def merge(self, other: LatencyHistogram) -> None:
        """Add another histogram's counts to this one."""
        self._counts += other._counts
        self.sum_ns += other.sum_ns

    def rows_up_to(self, bounds_ns: Sequence[int]) -> list[int]:
        """Return for each bound how many rows took no longer; a bound is right within 2.2 %."""
        reached = np.concatenate(([0], np.cumsum(self._counts)))
        edges = np.rint(np.log2(bounds_ns) * _BUCKETS_PER_OCTAVE).astype(np.int64)
        return [int(rows) for rows in reached[np.minimum(edges, _BUCKETS)]]

    @property
    def rows(self) -> int:
        """How many rows were counted."""
        return int(self._counts.sum())

    def __getstate__(self) -> tuple[bytes, bytes, int]:
        """Only the buckets that are in use are sent and copied: few of 1,024.

        They are looked for in a copy, since the worker's loop goes on counting meanwhile, and numpy
        refuses to find the elements of an array in which their number changes.
        """
        counts = self._counts.copy()
        used = np.flatnonzero(counts)
        return used.astype(np.int16).tobytes(), counts[used].tobytes(), self.sum_ns

    def __setstate__(self, state: tuple[bytes, bytes, int]) -> None:
        used, counts, self.sum_ns = state
        self._counts = np.zeros(_BUCKETS, dtype=np.int64)
        self._counts[np.frombuffer(used, np.int16)] = np.frombuffer(counts, np.int64)

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return what was counted since an earlier state of this histogram."""
        found = LatencyHistogram()
        found._counts = np.maximum(self._counts - earlier._counts, 0)
        return found

    def quantile_ms(self, quantile: float) -> float | None:
        """Return the latency in ms below which `quantile` of the rows lie, or None without rows."""
        total = int(self._counts.sum())
        if total == 0:
            return None
        bucket = int(np.searchsorted(np.cumsum(self._counts), quantile * total))
        return float(2.0 ** ((bucket + 0.5) / _BUCKETS_PER_OCTAVE)) / 1e6


@dataclass
class InstanceMetrics:
    """Counters of one operator in one instance (or in one worker's group of instances).

    Attributes:
        operator_id: the operator.
        instance: the instance; for a per-worker group its lowest one.
        worker: where it runs.
        rows_in: rows received, or read by a source.
        rows_out: rows emitted, on the main output.
        side_rows_out: rows emitted on each other output, by its name.
        busy_ns: time spent in the operator's own code.
        blocked_ns: time during which a full output kept its stage from working.
        watermark_ns: the operator's event-time watermark.
        rows_dropped: rows left out by the user's choice, by reason.
        rows_late: rows that came too late, whatever was done with them: at a source behind its own
            watermark, elsewhere behind the operator's after their producer had been idle.
        latency: for sinks, from the source's read of a slice's oldest row to its arrival here.
        buffered_rows: rows that wait for event time, or for the types of their columns.
        spilled_bytes: bytes of them, and of state, on disk.
        waits_for_table: whether it takes no row yet, since a table of its stage is not complete.
        gauges: what a source's reader tells of its input: by name, then by part.
        deltas_out: of a partial aggregate, how many of the rows out are deltas.
        flushes: of a partial aggregate, how often its groups have left as deltas, by reason.
        reduction: of a partial aggregate that may step aside, how many rows a delta stood for when
            that was last judged; None before.
        is_aside: whether it passes its rows on as they are, since that was too few.
        restored: what the counters held when its attempt went on from a checkpoint, by name; empty
            if it began at the start.
    """

    operator_id: str
    instance: int
    worker: int
    rows_in: int = 0
    rows_out: int = 0
    side_rows_out: dict[str, int] = field(default_factory=dict)
    busy_ns: int = 0
    blocked_ns: int = 0
    watermark_ns: int = WATERMARK_NONE
    rows_dropped: dict[str, int] = field(default_factory=dict)
    rows_late: int = 0
    latency: LatencyHistogram | None = None
    buffered_rows: int = 0
    spilled_bytes: int = 0
    waits_for_table: bool = False
    gauges: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deltas_out: int = 0
    flushes: Mapping[str, int] = field(default_factory=dict)
    reduction: float | None = None
    is_aside: bool = False
    restored: Mapping[str, Any] = field(default_factory=dict)

    def count_side(self, output: str, rows: int) -> None:
        """Count rows that were emitted on a side output."""
        self.side_rows_out[output] = self.side_rows_out.get(output, 0) + rows

    def drop(self, reasons: dict[str, int]) -> None:
        """Count rows left out."""
        for reason, rows in reasons.items():
            if rows:
                self.rows_dropped[reason] = self.rows_dropped.get(reason, 0) + rows


@dataclass(frozen=True)
class TransportMetrics:
    """One operator of a user's transport.

    Attributes:
        transport: the transport's name.
        edge: the edge's number.
        sender: the sender's worker; None for a receiver, which serves all senders of its edge.
        receiver: the receiver's worker.
        stream: the sender's stream; None for a receiver.
        messages: how many messages it carried, the last one included, which ends the stream.
        ended: whether that was among them; of a receiver, that of all senders.
        busy_ns: time spent in the operator's own code.
        counters: what is counted of every channel.
        own: what the operator counts itself.
        stale: messages of earlier attempts that a receiver dropped.
    """

    transport: str
    edge: int
    sender: int | None
    receiver: int
    stream: int | None
    messages: int
    ended: bool
    busy_ns: int
    counters: ChannelStatistics
    own: Mapping[str, int]
    stale: int = 0


@dataclass(frozen=True)
class RingLoad:
    """One ring, at its producer.

    Attributes:
        ring: its number.
        fill: share of its memory that its slowest reader has not released.
        messages: how many were sent.
        nbytes: the bytes of their payloads.
    """

    ring: int
    fill: float
    messages: int
    nbytes: int


@dataclass(frozen=True)
class MemberCounters:
    """One member's counters at one moment (`at_ns` monotonic), and its processor time so far.

    The counters are those of an `attempt`, but the processor time. A worker has instances, rings
    that it writes, a load, and operators of users' transports, if any; a relay, of the host `host`,
    has links, and connections that it refused before they said who they are, by reason. `turn_ns`
    is for how long the turn of a worker's loop has lasted: long, if a call does not return.
    """

    worker: int
    at_ns: int
    cpu_ns: int
    instances: tuple[InstanceMetrics, ...] = ()
    links: tuple[LinkStatistics, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    transports: tuple[TransportMetrics, ...] = ()
    attempt: int = 0
    rings: tuple[RingLoad, ...] = ()
    load: WorkerLoad | None = None
    turn_ns: int = 0


def cpu_time_ns() -> int:
    """Return the processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)
