"""What slices cost on this machine: `whale-ray simulate --calibrate`.

Relays' costs come from the transport itself: a parent's and its children's endpoints, each in a
process of its own, joined by TCP as relays are, once with paced slices and once at full speed.
Workers' costs come from the runtime: a source and an instance, on one host. Times are processor
times, which other processes on the machine hardly affect.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...transport.clock import SystemClock
from ...transport.wire import codec
from ...transport.wire.batch import Batch
from ..bench.report import describe_machine, median
from .arrivals import RateStep, Seconds, all_at_once, paced
from .calibration_roles import TOGETHER, RelaySample, sample_control_s, sample_relays
from .costs import LinearCost, MachineCosts
from .measured import measure

SMALL_BYTES, LARGE_BYTES = 1 << 10, 1 << 16
RATE_PER_S = 200.0
"""For paced slices: every process sleeps when one arrives."""
BUSY_SLICES = 3000
"""For workers at full speed."""
MORE_CHILDREN = 4
"""Children of a parent whose cost is compared with that of a parent with one child."""
_FLOOR_S = 1e-7
"""Lower bound of every measured cost."""


@dataclass(frozen=True)
class Calibration:
    """Costs, and how they were measured."""

    costs: MachineCosts
    notes: tuple[str, ...]


def calibrate(*, quick: bool = False, tell: Callable[[str], object] = str) -> Calibration:
    """Measure this machine; call `tell` with a line for each step."""
    repetitions, seconds = (1, 0.5) if quick else (3, 1.5)
    slices = int(RATE_PER_S * seconds)

    def relays(nbytes: int, children: int, rate_per_s: float | None) -> RelaySample:
        """Return medians of several repetitions, but the lowest latency, the least disturbed."""
        samples = [
            sample_relays(nbytes, children, slices if rate_per_s else 20 * slices, rate_per_s)
            for _ in range(repetitions)
        ]
        return RelaySample(
            median([one.parent_s for one in samples]),
            median([one.child_s for one in samples]),
            min(one.latency_s for one in samples),
        )

    tell("relays, as many slices as go")
    busy = {nbytes: relays(nbytes, 1, None) for nbytes in (SMALL_BYTES, LARGE_BYTES)}
    tell("relays, slices at a distance")
    one, more = (relays(SMALL_BYTES, children, RATE_PER_S) for children in (1, MORE_CHILDREN))
    tell("control messages")
    control_s = min(sample_control_s(slices) for _ in range(repetitions))
    tell("workers")
    serialize, process, worker_wake_s = _workers(slices, repetitions)
    per_child_s = (more.parent_s - one.parent_s) / (MORE_CHILDREN - 1)
    turn_s = max(_FLOOR_S, per_child_s * (1 - 1 / TOGETHER))
    send = _line({nbytes: one.parent_s - turn_s / TOGETHER for nbytes, one in busy.items()})
    receive = _line({nbytes: one.child_s for nbytes, one in busy.items()})
    moving_s = turn_s + send.at(SMALL_BYTES) + receive.at(SMALL_BYTES)
    # On one machine the kernel moves bytes in the sender's time. Apart from sending and receiving,
    # a slice waits only for both hosts to wake up.
    wake_s = max(_FLOOR_S, (one.latency_s - moving_s) / 2)
    settle_s = max(_FLOOR_S, (one.parent_s + one.child_s - one.latency_s) / 2)
    costs = MachineCosts(
        machine=_machine(),
        serialize=serialize,
        encode=_encoding(1000 * repetitions),
        send=send,
        receive=receive,
        process=process,
        turn_s=turn_s,
        wake_s=wake_s,
        settle_s=settle_s,
        worker_wake_s=worker_wake_s,
        delay_s=0.0,
        control_s=control_s,
    )
    both_s = one.parent_s + one.child_s
    path = f"a slice of {SMALL_BYTES:,} bytes took {one.latency_s * 1e6:.0f} µs from ring to ring"
    lines = f"lines are through slices of {SMALL_BYTES:,} and {LARGE_BYTES:,} bytes"
    return Calibration(
        costs,
        (
            f"{path}; both hosts together spent {both_s * 1e6:.0f} µs on it",
            f"{lines}; medians of {repetitions}",
        ),
    )


def _workers(slices: int, repetitions: int) -> tuple[LinearCost, LinearCost, float]:
    """Return what a slice costs the source's worker and another one's instance, and a wake-up."""
    serialize, process = {}, {}
    for nbytes in (SMALL_BYTES, LARGE_BYTES):
        serialize[nbytes], process[nbytes] = _worker_s(
            nbytes, all_at_once(BUSY_SLICES), repetitions
        )
    rested = _worker_s(SMALL_BYTES, paced([RateStep(RATE_PER_S, slices / RATE_PER_S)]), repetitions)
    more_s = sum(rested) - serialize[SMALL_BYTES] - process[SMALL_BYTES]
    return _line(serialize), _line(process), max(_FLOOR_S, more_s / 2)


def _worker_s(nbytes: int, due_s: Seconds, repetitions: int) -> tuple[float, float]:
    """Return the processor time per slice of serializing and of one instance."""
    settings = {"runtime.hosts": 1, "transport.ring_bytes": 1 << 20}
    found = [measure(due_s, nbytes, 2, settings) for _ in range(repetitions)]
    process_s = median([one.worker_cpu_s for one in found])
    # The source's worker has an instance as well.
    own_s = median([one.source_cpu_s for one in found]) - process_s
    return max(_FLOOR_S, own_s), process_s


def _encoding(times: int) -> LinearCost:
    """Return the cost of encoding one more message of the same rows, in one compiled call."""
    clock = SystemClock()
    found = {}
    for nbytes in (SMALL_BYTES, LARGE_BYTES):
        batch = Batch.from_pydict({"payload": [bytes(nbytes)]})
        buffer = np.zeros(codec.message_size(batch), np.uint8)
        codec.encode_into(buffer, batch, stream=0, source=0, attempt=0, sequence=0)
        began_ns = clock.monotonic_ns()
        for _ in range(times):
            codec.encode_into(buffer, batch, stream=0, source=0, attempt=0, sequence=0)
        found[nbytes] = (clock.monotonic_ns() - began_ns) / times / 1e9
    return _line(found)


def _line(points: dict[int, float]) -> LinearCost:
    """Return the line through two measured sizes; it neither falls nor begins below 0."""
    (low, low_s), (high, high_s) = sorted(points.items())
    per_byte_s = max(0.0, (high_s - low_s) / (high - low))
    return LinearCost(max(_FLOOR_S, low_s - low * per_byte_s), per_byte_s)


def _machine() -> str:
    machine = describe_machine()
    now_s = SystemClock().wall_ns() / 1e9
    day = datetime.datetime.fromtimestamp(now_s, datetime.UTC).date()
    return (
        f"{machine.processor}, {machine.cores} cores, {machine.system}, "
        f"Python {machine.python}, load {machine.load:.1f}, {day.isoformat()}"
    )
