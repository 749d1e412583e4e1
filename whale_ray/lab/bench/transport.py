"""`whale-ray bench transport`: the channels against memcpy, plain sockets, ZeroMQ, pipes, pickle.

`PARTS` are what `--only` takes. Here are those of the ring within one host; the others are in
fan_out.py, matrix.py, sweeps.py, vega.py and verbs.py. Every figure is the median of several
repetitions; every ratio compares figures of this run. The two sides run in processes of their own
and wait for each other on doorbells, as workers do; compiled loops spin. The aims are for a quiet
machine with at least two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from typing import Final

import numpy as np

from ...transport import ring_kernels as kernels
from ...transport.atomics import direct
from ...transport.clock import SystemClock
from ...transport.segment import Bytes, Segment
from . import matrix, sweeps, vega, verbs
from .fan_out import fan_out_rows
from .peers.sockets import load_zmq, pipe_roles, zmq_roles
from .processes import Role, Together, Work, run_together
from .report import Aim, BenchReport, BenchRow, describe_machine, median
from .ring_loops import BARE_HEADER_BYTES, read_bare, receive_loop, send_loop, sum_frame, write_bare
from .ring_pair import DEFAULT_RING_BYTES, RingPair

_KIB = 1 << 10
_SMALL_BYTES = 64
_TINY_BYTES = 32
_SLICE_BYTES = 256 * _KIB
_ZMQ = "pyzmq PAIR ipc"
_MEMCPY = "memcpy, same memory, one process"
_BARE = "bare loop over shared memory, no ring"
_CLOCK = SystemClock()
_NOTES = (
    "The median of several repetitions; ratios compare figures of this run. Cores: CPU seconds of",
    "all processes per second. Aims are for a quiet machine: processes that spin or",
    "sleep lose time where another one takes their core.",
    "Messages: prepared; a channel's sender copies them in, its reader reads every word in place",
    "from 4 KiB on. Plain sockets and pyzmq send them without a copy, once per reader, and read",
    "them too; pyzmq copies no message of 64 KiB or more. Tcp: one link to the readers' host, the",
    "endpoint polled in the loops of the sender and of the first reader. A ring holds 4 MiB, or 8",
    "messages. The backends take turns; a ratio is the",
    "median of the ratios of all turns.",
    "Sweeps: 100-byte tuples, Poisson arrivals in an open loop; latency from when a tuple was due",
    "until its reader has decoded it.",
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    repetitions: int
    scale: float
    """Factor of all message counts."""
    matrix: matrix.MatrixEffort
    sweeps: sweeps.SweepEffort
    verbs: verbs.VerbsEffort

    def count(self, full: int) -> int:
        """Return the number of messages where the full effort has `full`."""
        return max(1, int(full * self.scale))


QUICK = Effort(3, 0.1, matrix.QUICK, sweeps.QUICK, verbs.QUICK)
FULL = Effort(5, 1.0, matrix.FULL, sweeps.FULL, verbs.FULL)


@dataclass(frozen=True, slots=True)
class MedianTiming:
    """The median of a measurement's repetitions."""

    seconds: float
    cores: float


def run(*, quick: bool, only: str | None = None) -> BenchReport:
    """Measure all `PARTS`, or `only` one; `quick` takes a tenth, and its figures vary more."""
    load_zmq()
    effort = QUICK if quick else FULL
    parts = PARTS.values() if only is None else [PARTS[only]]
    options = (" --quick" if quick else "") + (f" --only {only}" if only else "")
    machine = describe_machine(("numpy", "numba", "pyzmq"))
    return BenchReport(
        suite="transport",
        command="whale-ray bench transport" + options,
        machine=machine,
        rows=tuple(row for part in parts for row in part(effort)),
        notes=_NOTES + (verbs.notes() if only in {None, "verbs"} else ()),
    )


def measure(effort: Effort, make_roles: Callable[[], Sequence[Role]]) -> MedianTiming:
    """Repeat a measurement; each time with new roles."""
    return _figure([run_together(make_roles()) for _ in range(effort.repetitions)])


def measure_ring(effort: Effort, make_roles: Callable[[RingPair], Sequence[Role]]) -> MedianTiming:
    """Repeat a measurement; each time over a new ring with one reader."""
    runs = []
    for _ in range(effort.repetitions):
        with RingPair() as pair:
            runs.append(run_together(make_roles(pair)))
    return _figure(runs)


def _figure(runs: Sequence[Together]) -> MedianTiming:
    return MedianTiming(
        median([together.wall_ns for together in runs]) / 1e9,
        median([together.cores for together in runs]),
    )


# Small messages


def small_rows(effort: Effort) -> list[BenchRow]:
    """One message of 64 bytes at a time, one-way latency."""
    payload = np.arange(_SMALL_BYTES, dtype=np.uint8)
    looped, called, peer = (effort.count(full) for full in (4_000_000, 400_000, 40_000))
    loop = measure_ring(effort, lambda pair: _loop_roles(pair, payload, looped))
    call = measure_ring(effort, lambda pair: _call_roles(pair, payload, called))
    channel = measure_ring(effort, lambda pair: _channel_roles(pair, payload, called))
    message = payload.tobytes()
    pipe = measure(effort, lambda: pipe_roles(Pipe(duplex=False), message, peer))
    zmq = measure(effort, lambda: zmq_roles("small", [message], peer, len))
    zmq_ns = zmq.seconds / peer * 1e9

    def row(how: str, figure: MedianTiming, count: int, aim: Aim | None = None) -> BenchRow:
        nanoseconds = figure.seconds / count * 1e9
        parameters = {"bytes": _SMALL_BYTES, "how": how}
        ratio = None if how == _ZMQ else zmq_ns / nanoseconds
        against = "" if how == _ZMQ else _ZMQ
        name = "small message, one way"
        return BenchRow(name, parameters, nanoseconds, "ns", ratio, against, aim, figure.cores)

    return [
        row("compiled loop", loop, looped, Aim("value", "at most", 80)),
        row("one Python call each", call, called, Aim("value", "at most", 350)),
        row("channel: put, get, release", channel, called),
        row("multiprocessing.Pipe", pipe, peer),
        row(_ZMQ, zmq, peer),
    ]


def _loop_roles(pair: RingPair, payload: Bytes, count: int) -> list[Role]:
    def send() -> Work:
        state = pair.producer.state_address
        pair.touch()
        return lambda: send_loop(state, int(payload.ctypes.data), payload.size, count)

    def receive() -> Work:
        consumer = pair.consumer()
        return lambda: receive_loop(consumer.state_address, count)

    return [send, receive]


def _call_roles(pair: RingPair, payload: Bytes, count: int) -> list[Role]:
    def send() -> Work:
        # As called by a sender whose payload is a contiguous array of bytes.
        put, state = direct(kernels.put_copy), pair.producer.state_address
        pair.touch()

        def work() -> None:
            for _ in range(count):
                while put(state, payload) < 0:
                    pair.wait_for_room(payload.size)

        return work

    def receive() -> Work:
        consumer, get = pair.consumer(), direct(kernels.get_copy)
        state, target = consumer.state_address, np.empty_like(payload)

        def work() -> None:
            for _ in range(count):
                while get(state, target) < 0:
                    pair.wait_for_frame(consumer)

        return work

    return [send, receive]


def _channel_roles(pair: RingPair, payload: Bytes, count: int) -> list[Role]:
    def encode(buffer: Bytes) -> int:
        buffer[:] = payload
        return payload.size

    def receive() -> Work:
        consumer = pair.consumer()

        def work() -> None:
            for _ in range(count):
                while (frame := consumer.get()) is None:
                    pair.wait_for_frame(consumer)
                consumer.release_buffer(frame)

        return work

    return [pair.sender(lambda _number: (payload.size, encode), count), receive]


# Many small messages in one call


def batched_rows(effort: Effort) -> list[BenchRow]:
    """Messages of 32 bytes, several of them in each call of compiled code."""
    peer = effort.count(100_000)
    message = bytes(_TINY_BYTES)
    zmq = measure(effort, lambda: zmq_roles("tiny", [message], peer, len))
    zmq_rate = peer / zmq.seconds / 1e6
    rows = []
    for batch in (8, 32, 256):
        calls = effort.count(6_400_000) // batch
        figure = measure_ring(effort, partial(_batch_roles, batch=batch, calls=calls))
        rate = calls * batch / figure.seconds / 1e6
        aim = Aim("value", "at least", 30) if batch == 32 else None
        parameters = {"bytes": _TINY_BYTES, "per call": batch}
        rows.append(
            BenchRow(
                "small messages, batched", parameters, rate, "M/s", rate / zmq_rate,
                "pyzmq, one send each", aim, figure.cores,
            )
        )  # fmt: skip
    peer_parameters = {"bytes": _TINY_BYTES, "how": "pyzmq, one send each"}
    rows.append(BenchRow("small messages", peer_parameters, zmq_rate, "M/s", cores=zmq.cores))
    return rows


def _batch_roles(pair: RingPair, batch: int, calls: int) -> list[Role]:
    rows = np.arange(batch * _TINY_BYTES, dtype=np.uint8).reshape(batch, _TINY_BYTES)

    def send() -> Work:
        put, state = kernels.put_many, pair.producer.state_address
        pair.touch()

        def send_rest(rest: Bytes) -> None:
            while rest.size > 0:
                sent = put(state, rest)
                if sent < 0:
                    pair.wait_for_room(_TINY_BYTES)
                else:
                    rest = rest[sent:]

        def work() -> None:
            for _ in range(calls):
                sent = put(state, rows)
                if sent < batch:
                    send_rest(rows[max(0, sent) :])

        return work

    def receive() -> Work:
        consumer, get = pair.consumer(), kernels.get_many
        state, target = consumer.state_address, np.empty((batch, _TINY_BYTES), np.uint8)

        def work() -> None:
            missing = batch * calls
            while missing > 0:
                received = get(state, target)
                if received < 0:
                    pair.wait_for_frame(consumer)
                else:
                    missing -= received

        return work

    return [send, receive]


# Slices


def slice_rows(effort: Effort) -> list[BenchRow]:
    """Slices of 256 KiB, written in place; every word is read in place."""
    content = np.random.default_rng(0).integers(0, 256, _SLICE_BYTES, np.uint8)
    count, peer = effort.count(20_000), effort.count(2_000)
    ring = measure_ring(effort, lambda pair: _slice_roles(pair, content, count))
    read = measure_ring(effort, lambda pair: _slice_roles(pair, None, count))
    bare = _measure_bare(effort, content, count)
    zmq = measure(effort, lambda: zmq_roles("slice", [content], peer, _sum_received))
    memcpy_rate = median([_memcpy_rate(content, count) for _ in range(effort.repetitions)])
    rate, read_rate, bare_rate = (
        count * _SLICE_BYTES / figure.seconds / 1e9 for figure in (ring, read, bare)
    )
    zmq_rate = peer * _SLICE_BYTES / zmq.seconds / 1e9

    def row(
        how: str, value: float, cores: float, against: str = "", limit: float | None = None
    ) -> BenchRow:
        rates = {_MEMCPY: memcpy_rate, _ZMQ: zmq_rate, _BARE: bare_rate}
        ratio = value / rates[against] if against else None
        aim = None if limit is None else Aim("ratio", "at least", limit)
        parameters = {"KiB": _SLICE_BYTES // _KIB, "how": how}
        return BenchRow("slices", parameters, value, "GB/s", ratio, against, aim, cores)

    return [
        row("ring: written, then read in place", rate, ring.cores, _MEMCPY, 0.6),
        row("ring: written, then read in place", rate, ring.cores, _ZMQ, 15),
        row("ring: written, then read in place", rate, ring.cores, _BARE),
        row("ring: read in place alone", read_rate, read.cores, _MEMCPY),
        row(_BARE, bare_rate, bare.cores, _MEMCPY),
        row("pyzmq PAIR ipc, then read", zmq_rate, zmq.cores),
        row(_MEMCPY, memcpy_rate, 1.0),
    ]


def _slice_roles(pair: RingPair, content: Bytes | None, count: int) -> list[Role]:
    """Send slices of `content`; without it, slices are not written, to measure the reader alone."""

    def encode(buffer: Bytes) -> int:
        if content is not None:
            buffer[:] = content
        return _SLICE_BYTES

    return [
        pair.sender(lambda _number: (_SLICE_BYTES, encode), count),
        pair.receiver(sum_frame, count),
    ]


def _measure_bare(effort: Effort, content: Bytes, count: int) -> MedianTiming:
    """Measure compiled loops that write and read the same slices without a ring or Python."""
    places = DEFAULT_RING_BYTES // _SLICE_BYTES
    runs = []
    for _ in range(effort.repetitions):
        segment = Segment.create(BARE_HEADER_BYTES + DEFAULT_RING_BYTES, "bare", "bench")
        roles = _bare_roles(segment, content, places, count)
        runs.append(run_together(roles))
        segment.close()
    return _figure(runs)


def _bare_roles(segment: Segment, content: Bytes, places: int, count: int) -> list[Role]:
    words = segment.words(0, segment.handle.size)

    def send() -> Work:
        words.sum()  # maps the pages in this process
        source = int(content.ctypes.data)
        return lambda: write_bare(segment.address, source, content.size, places, count)

    def receive() -> Work:
        words.sum()
        return lambda: read_bare(words, content.size, places, count)

    return [send, receive]


def _sum_received(message: bytes) -> int:
    return sum_frame(np.frombuffer(message, np.uint8))


def _memcpy_rate(content: Bytes, count: int) -> float:
    """Return GB/s of copying one slice to successive places, as in a ring."""
    targets = [np.zeros_like(content) for _ in range(DEFAULT_RING_BYTES // _SLICE_BYTES)]
    start_ns = _CLOCK.monotonic_ns()
    for number in range(count):
        np.copyto(targets[number % len(targets)], content)
    return count * _SLICE_BYTES / (_CLOCK.monotonic_ns() - start_ns)


# Waking up


def wake_up_rows(effort: Effort) -> list[BenchRow]:
    """Latency of a message to a sleeping worker: half of a round trip."""
    count = effort.count(20_000)
    medians, cores = [], []
    for _ in range(effort.repetitions):
        with RingPair(spin_pauses=0) as there, RingPair(spin_pauses=0) as back:
            together = run_together(_ping_pong_roles(there, back, count))
            medians.append(together.timings[0].result / 2 / 1e3)
            cores.append(together.cores)
    parameters = {"bytes": _SMALL_BYTES, "how": "asleep in a futex"}
    name = "message to a sleeping worker, median"
    return [BenchRow(name, parameters, median(medians), "µs", cores=median(cores))]


def _ping_pong_roles(there: RingPair, back: RingPair, count: int) -> list[Role]:
    message = np.zeros(_SMALL_BYTES, np.uint8)

    def ask() -> Work:
        answers, target = back.consumer(), np.empty_like(message)

        def work() -> float:
            trips_ns = []
            for _ in range(count):
                start_ns = _CLOCK.monotonic_ns()
                there.producer.put_copy(message)
                while answers.get_copy(target) is None:
                    back.wait_for_frame(answers)
                trips_ns.append(_CLOCK.monotonic_ns() - start_ns)
            return median(trips_ns)

        return work

    def answer() -> Work:
        questions, target = there.consumer(), np.empty_like(message)

        def work() -> None:
            for _ in range(count):
                while questions.get_copy(target) is None:
                    there.wait_for_frame(questions)
                back.producer.put_copy(message)

        return work

    return [ask, answer]


PARTS: Final[Mapping[str, Callable[[Effort], list[BenchRow]]]] = {
    "small": small_rows,
    "batched": batched_rows,
    "slices": slice_rows,
    "fan-out": lambda effort: fan_out_rows(effort.repetitions, effort.scale, readers=(1, 4, 16)),
    "wake-up": wake_up_rows,
    "tcp": lambda effort: matrix.tcp_rows(effort.matrix),
    "matrix": lambda effort: matrix.matrix_rows(effort.matrix),
    "mms": lambda effort: sweeps.mms_rows(effort.sweeps),
    "wtl": lambda effort: sweeps.wtl_rows(effort.sweeps),
    "vega": lambda effort: vega.vega_rows(effort.repetitions, effort.scale),
    "verbs": lambda effort: verbs.verbs_rows(effort.verbs),
}
"""The parts of the suite, by name."""
