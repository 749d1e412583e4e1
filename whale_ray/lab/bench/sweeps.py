"""Costs and gains of slicing: sweeps over MMS and WTL, as in Whale's Figs 11 and 12.

Tuples of 100 bytes go through a `StreamSlicer` and a channel to one reader. For latency they are
due at random times, Poisson arrivals at a fixed rate, whatever becomes of those before (an open
loop): the latency of a tuple counts from when it was due to when its reader has decoded it. For
throughput they are sent as fast as they are consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...configs.units import NS_PER_MS
from ...transport.clock import SystemClock
from ...transport.segment import Bytes
from ...transport.slicing import StreamSlicer
from ...transport.wire import codec
from ...transport.wire.batch import Batch
from ...transport.wire.messages import WorkerMessage
from .backends import SendingSide
from .channel_backends import HostRingSides, RingSides, Sides
from .processes import Work, run_together
from .report import BenchRow, median

Times = npt.NDArray[np.int64]

ARRIVALS_PER_S: Final = 200_000
_KIB: Final = 1 << 10
_TUPLE_BYTES: Final = 100
_NUMBERS, _TEXT_BYTES = 3, 68  # the time at which it is due
_RING_BYTES: Final = 8 << 20
_TURN_NS: Final = 50_000
"""Interval at which tuples that became due are passed to the slicer."""
_ROWS_PER_TURN: Final = 64
"""Tuples passed to the slicer at a time when throughput is measured."""
_MMS_SWEEP_WTL_MS: Final = 100.0
_WTL_SWEEP_MMS_BYTES: Final = 256 * _KIB
_DEFAULT_MMS_BYTES: Final = 256 * _KIB
_DEFAULT_WTL_MS: Final = 1.0
_BACKENDS: Final[dict[str, Callable[[int, int], Sides]]] = {"shm": RingSides, "tcp": HostRingSides}
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class SweepEffort:
    """Which values are measured, and for how long."""

    mms_bytes: Sequence[int]
    """The default, 256 KiB, among them."""
    wtl_ms: Sequence[float]
    """The default, 1 ms, among them."""
    repetitions: int
    tuples: int
    """Tuples of one open loop, and of one measurement of throughput."""


FULL: Final = SweepEffort(
    tuple(size * _KIB for size in (4, 16, 64, 256, 1024)), (0.1, 0.3, 1.0, 3.0, 10.0), 3, 200_000
)
QUICK: Final = SweepEffort((4 * _KIB, 256 * _KIB, 1024 * _KIB), (0.1, 1.0, 10.0), 1, 40_000)


@dataclass(frozen=True, slots=True)
class Slicing:
    """One point of a sweep."""

    backend: str
    mms_bytes: int
    wtl_ms: float


@dataclass(frozen=True, slots=True)
class Flow:
    """The result of one run."""

    tuples_per_s: float
    p50_ms: float
    p99_ms: float
    slices: int
    cores: float


def mms_rows(effort: SweepEffort) -> list[BenchRow]:
    """Measure latency at a fixed rate, and the highest rate, for each MMS."""
    points = [
        Slicing(backend, mms, _MMS_SWEEP_WTL_MS)
        for mms in effort.mms_bytes
        for backend in _BACKENDS
    ]
    default = _DEFAULT_MMS_BYTES
    latency = _take_turns(points, effort, ARRIVALS_PER_S)
    fastest = _take_turns(points, effort, None)
    rows = []
    for point in points:
        shown = {"MMS KiB": point.mms_bytes // _KIB, "WTL ms": point.wtl_ms, "over": point.backend}
        base = Slicing(point.backend, default, point.wtl_ms)
        rows.append(_latency_row("MMS sweep: latency p50", shown, latency, point, base))
        rate, against = (_median(fastest[one], "tuples_per_s") for one in (point, base))
        cores = _median(fastest[point], "cores")
        name = "MMS sweep: highest rate"
        against_text = f"MMS {default // _KIB} KiB"
        rows.append(
            BenchRow(
                name, shown, rate / 1e3, "k tuples/s", rate / against, against_text, cores=cores,
                also={"slices": _median(fastest[point], "slices")},
            )
        )  # fmt: skip
    return rows


def wtl_rows(effort: SweepEffort) -> list[BenchRow]:
    """Measure latency at a fixed rate for each WTL."""
    points = [
        Slicing(backend, _WTL_SWEEP_MMS_BYTES, wtl)
        for wtl in effort.wtl_ms
        for backend in _BACKENDS
    ]
    latency = _take_turns(points, effort, ARRIVALS_PER_S)
    rows = []
    for point in points:
        shown = {"WTL ms": point.wtl_ms, "MMS KiB": point.mms_bytes // _KIB, "over": point.backend}
        base = Slicing(point.backend, point.mms_bytes, _DEFAULT_WTL_MS)
        rows.append(_latency_row("WTL sweep: latency p50", shown, latency, point, base))
    return rows


def _latency_row(
    name: str,
    shown: dict[str, object],
    flows: dict[Slicing, list[Flow]],
    point: Slicing,
    base: Slicing,
) -> BenchRow:
    here, there = (_median(flows[one], "p50_ms") for one in (point, base))
    against = (
        f"MMS {base.mms_bytes // _KIB} KiB" if name.startswith("MMS") else f"WTL {base.wtl_ms:g} ms"
    )
    return BenchRow(
        name,
        {**shown, "due per s": ARRIVALS_PER_S},
        here,
        "ms",
        here / there,
        f"the same at {against}",
        cores=_median(flows[point], "cores"),
        also={
            "p99 ms": _median(flows[point], "p99_ms"),
            "k tuples/s": _median(flows[point], "tuples_per_s") / 1e3,
            "slices": _median(flows[point], "slices"),
        },
    )


def _median(flows: Sequence[Flow], figure: str) -> float:
    return median([getattr(flow, figure) for flow in flows])


def _take_turns(
    points: Sequence[Slicing], effort: SweepEffort, per_s: int | None
) -> dict[Slicing, list[Flow]]:
    codec.warm_up()
    rows, due = tuples(effort.tuples, per_s)
    flows: dict[Slicing, list[Flow]] = {point: [] for point in points}
    for _ in range(effort.repetitions):
        for point in points:
            flows[point].append(sample_flow(point, rows, due if per_s else None))
    return flows


def tuples(count: int, per_s: int | None) -> tuple[Batch, Times]:
    """Return tuples of 100 bytes, and when each is due, in ns since the start, int64 (count,)."""
    random = np.random.default_rng(0)
    waits_ns = random.exponential(1e9 / (per_s or ARRIVALS_PER_S), count)
    due = np.cumsum(waits_ns).astype(np.int64)
    numbers = {f"n{column}": random.integers(0, 1 << 60, count) for column in range(_NUMBERS)}
    text = random.integers(65, 91, (count, _TEXT_BYTES), np.uint8)
    binary = pa.array([row.tobytes() for row in text], pa.binary(_TEXT_BYTES))
    columns = {name: pa.array(values) for name, values in {"due": due, **numbers}.items()}
    return Batch.from_arrow(pa.record_batch({**columns, "text": binary})), due


def sample_flow(point: Slicing, rows: Batch, due: Times | None) -> Flow:
    """Send `rows` once, each when it is `due`; without `due` as fast as possible."""
    sides = _BACKENDS[point.backend](_RING_BYTES, 1)
    try:
        together = run_together(
            [partial(_emitter, sides, point, rows, due), partial(_reader, sides, rows)]
        )
    finally:
        sides.close()
    start_ns, slices = together.timings[0].result
    times: Times = together.timings[1].result
    if len(times) != rows.num_rows:
        msg = f"{rows.num_rows} tuples were sent, {len(times)} received"
        raise RuntimeError(msg)
    late_ms = (times - start_ns) / NS_PER_MS
    p50, p99 = (float(np.percentile(late_ms, share)) for share in (50, 99))
    return Flow(len(times) / together.wall_ns * 1e9, p50, p99, slices, together.cores)


def _emitter(sides: Sides, point: Slicing, rows: Batch, due: Times | None) -> Work:
    side = sides.sending()
    emitter = Emitter(side, point, rows)
    return emitter.as_fast_as_possible if due is None else partial(emitter.when_due, due)


class Emitter:
    """Passes tuples to a slicer, and its slices to a channel."""

    def __init__(self, side: SendingSide, point: Slicing, rows: Batch) -> None:
        """Send `rows`, sliced as `point` says."""
        self._side = side
        self._slicer = StreamSlicer(point.mms_bytes, int(point.wtl_ms * NS_PER_MS))
        self._slice_rows = point.mms_bytes // _TUPLE_BYTES // 2
        self._rows = rows
        self._next = 0
        self._slices = 0

    def when_due(self, due: Times) -> tuple[int, int]:
        """Send each tuple as soon as it is due; return when that began, in ns, and the slices."""
        start_ns = _CLOCK.monotonic_ns()
        turn_ns = start_ns
        while self._next < due.size:
            now_ns = _CLOCK.monotonic_ns()
            if now_ns < turn_ns:
                continue
            turn_ns = now_ns + _TURN_NS
            stop = int(np.searchsorted(due, now_ns - start_ns, "right"))
            while self._next < stop:  # after a stall, more than a slice
                self._add(min(stop, self._next + self._slice_rows), now_ns)
            self._add(self._next, now_ns)
            self._side.pump()
        self._send()  # at once, since no more tuples follow
        self._side.finish()
        return start_ns, self._slices

    def as_fast_as_possible(self) -> tuple[int, int]:
        """Send all; return when that began, in ns, and the number of slices."""
        start_ns = _CLOCK.monotonic_ns()
        while self._next < self._rows.num_rows:
            self._add(min(self._next + _ROWS_PER_TURN, self._rows.num_rows), _CLOCK.monotonic_ns())
        self._send()
        self._side.finish()
        return start_ns, self._slices

    def _add(self, stop: int, now_ns: int) -> None:
        if stop > self._next:
            self._slicer.add(self._rows.slice(self._next, stop), now_ns)
            self._next = stop
        if self._slicer.ready(now_ns):
            self._send()

    def _send(self) -> None:
        batch = self._slicer.take()
        if batch is None:
            return
        sequence = self._next - batch.num_rows
        self._slices += 1

        def encode(buffer: Bytes) -> int:
            return codec.encode_into(
                buffer, batch, stream=1, source=0, attempt=0, sequence=sequence
            )

        self._side.put(codec.message_size(batch), encode)
        self._side.pump()


def _reader(sides: Sides, rows: Batch) -> Work:
    """Return work that returns, for each tuple, its latency in ns."""
    side = sides.receiving(0)
    schemas = {rows.schema.schema_id: rows.schema}
    late: list[Times] = []

    def take(data: Bytes) -> None:
        message = codec.decode(data, schemas)
        assert isinstance(message, WorkerMessage), "nothing else is sent"
        due = message.batch["due"]
        late.append(_CLOCK.monotonic_ns() - due)

    def work() -> Times:
        side.receive(take)
        return np.concatenate(late)

    return work
