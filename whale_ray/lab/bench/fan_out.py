"""One-to-many within one host: the source's cost of sending every tuple to every reader.

Four methods, each with 100-byte tuples of which every reader reads every byte:

- *ring*: a slice is encoded once, into the ring, and read there by all;
- *binary once, n sends*: the same encoding, once, then one ZeroMQ send for each reader;
- *pickled batch once, n sends*: the same with a pickled list of tuples;
- *pickled per tuple and reader*: instance-oriented communication, as Storm's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from ...transport.segment import Bytes
from ...transport.wire import codec
from ...transport.wire.batch import Batch
from .peers.sockets import ZmqSender, load_zmq, pickled, zmq_address, zmq_receiver
from .processes import Role, Together, Work, run_together
from .report import Aim, BenchRow, median
from .ring_loops import sum_frame
from .ring_pair import RingPair

ROWS_PER_SLICE = 2621
"""Of 100 bytes each: a slice of 256 KiB."""
_TEXT_BYTES = 68

RING = "ring"
BINARY = "binary once, n sends"
PICKLED_BATCH = "pickled batch once, n sends"
PICKLED_TUPLES = "pickled per tuple and reader"


@dataclass(frozen=True, slots=True)
class FanOutMethod:
    """One method of sending to many readers, and the number of tuples per measurement."""

    name: str
    slices: int
    """Slices with one reader; fewer with more readers."""
    rows_per_slice: int
    roles: Callable[[int, int], list[Role]]
    """(readers, slices) -> the source's role and the readers'."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The medians of one method with one number of readers."""

    tuples_per_s: float
    source_ns: float
    """CPU time of the source per tuple."""
    cores: float


def slice_batch(rows: int = ROWS_PER_SLICE) -> Batch:
    """Return tuples of 100 bytes: four int64 and 68 bytes of text."""
    random = np.random.default_rng(0)
    numbers = {f"n{column}": random.integers(0, 1 << 60, rows) for column in range(4)}
    text = random.integers(65, 91, (rows, _TEXT_BYTES), np.uint8)
    binary = pa.array([row.tobytes() for row in text], pa.binary(_TEXT_BYTES))
    columns = {name: pa.array(values) for name, values in numbers.items()}
    return Batch.from_arrow(pa.record_batch({**columns, "text": binary}))


def fan_out_rows(repetitions: int, scale: float, readers: tuple[int, ...]) -> list[BenchRow]:
    """Measure each method and number of readers; the last number is compared with the first."""
    # Loaded once here, not in every forked process.
    codec.warm_up()
    load_zmq()
    ways = (
        FanOutMethod(RING, 8000, ROWS_PER_SLICE, _ring_roles),
        FanOutMethod(BINARY, 1200, ROWS_PER_SLICE, _binary_roles),
        FanOutMethod(PICKLED_BATCH, 160, ROWS_PER_SLICE, _pickled_batch_roles),
        FanOutMethod(PICKLED_TUPLES, 60_000, 1, _pickled_tuple_roles),
    )
    costs = {
        (way.name, count): _cost(way, count, repetitions, scale)
        for count in readers
        for way in ways
    }
    rows = []
    for count in readers:
        for way in ways:
            rows += _throughput_rows(way.name, count, costs, count == readers[-1])
    for way in ways:
        rows.append(_source_row(way.name, readers, costs))
    return rows


def _cost(way: FanOutMethod, readers: int, repetitions: int, scale: float) -> Cost:
    slices = max(4, int(way.slices * scale / max(1.0, readers / 4)))
    tuples = slices * way.rows_per_slice
    runs: list[Together] = [run_together(way.roles(readers, slices)) for _ in range(repetitions)]
    return Cost(
        tuples_per_s=tuples / median([run.wall_ns for run in runs]) * 1e9,
        source_ns=median([run.timings[0].cpu_ns for run in runs]) / tuples,
        cores=median([run.cores for run in runs]),
    )


def _throughput_rows(
    way: str, readers: int, costs: dict[tuple[str, int], Cost], has_aims: bool
) -> list[BenchRow]:
    cost = costs[way, readers]
    parameters = {"readers": readers, "how": way}
    rate = cost.tuples_per_s / 1e3

    def row(against: str = "", limit: float = 0.0) -> BenchRow:
        ratio = rate / (costs[against, readers].tuples_per_s / 1e3) if against else None
        aim = Aim("ratio", "at least", limit) if against and has_aims else None
        return BenchRow("fan-out", parameters, rate, "k tuples/s", ratio, against, aim, cost.cores)

    return [row(PICKLED_TUPLES, 200), row(BINARY, 7)] if way == RING else [row()]


def _source_row(way: str, readers: tuple[int, ...], costs: dict[tuple[str, int], Cost]) -> BenchRow:
    first, last = costs[way, readers[0]].source_ns, costs[way, readers[-1]].source_ns
    parameters = {"readers": readers[-1], "how": way}
    aim = Aim("ratio", "at most", 1.6) if way == RING else None
    against = f"{readers[0]} reader"
    return BenchRow("source's CPU per tuple", parameters, last, "ns", last / first, against, aim)


def _encoder(batch: Batch) -> Callable[[int], tuple[int, Callable[[Bytes], int]]]:
    """Return a function: number of a slice → its size and its encoder."""
    nbytes = codec.message_size(batch)

    def message(number: int) -> tuple[int, Callable[[Bytes], int]]:
        def encode(buffer: Bytes) -> int:
            return codec.encode_into(
                buffer, batch, stream=1, source=0, attempt=0, sequence=number * batch.num_rows
            )

        return nbytes, encode

    return message


def _ring_roles(readers: int, slices: int) -> list[Role]:
    # Not closed here: the kernel frees the memory with the last process.
    pair = RingPair(readers)
    sender = pair.sender(_encoder(slice_batch()), slices)
    return [sender, *(pair.receiver(sum_frame, slices, reader) for reader in range(readers))]


def _binary_roles(readers: int, slices: int) -> list[Role]:
    message = _encoder(slice_batch())
    addresses = [zmq_address(f"binary-{reader}") for reader in range(readers)]

    def send() -> Work:
        sender = ZmqSender(addresses)
        nbytes, _ = message(0)
        buffer = np.empty(nbytes, np.uint8)

        def work() -> None:
            for number in range(slices):
                used = message(number)[1](buffer)
                sender.send(buffer[:used])

        return work

    return [send, *(_zmq_reader(address, slices, _sum_bytes) for address in addresses)]


def _pickled_batch_roles(readers: int, slices: int) -> list[Role]:
    rows = [tuple(row.values()) for row in slice_batch().to_pylist()]
    addresses = [zmq_address(f"batch-{reader}") for reader in range(readers)]

    def send() -> Work:
        sender = ZmqSender(addresses)

        def work() -> None:
            for _ in range(slices):
                sender.send(pickled(rows))

        return work

    return [send, *(_zmq_reader(address, slices, pickle.loads) for address in addresses)]


def _pickled_tuple_roles(readers: int, tuples: int) -> list[Role]:
    rows = [tuple(row.values()) for row in slice_batch().to_pylist()]
    addresses = [zmq_address(f"tuple-{reader}") for reader in range(readers)]

    def send() -> Work:
        sender = ZmqSender(addresses)

        def work() -> None:
            for number in range(tuples):
                sender.send_each(partial(pickled, rows[number % len(rows)]))

        return work

    return [send, *(_zmq_reader(address, tuples, pickle.loads) for address in addresses)]


def _zmq_reader(address: str, messages: int, consume: Callable[[bytes], object]) -> Role:
    def receive() -> Work:
        receive_one = zmq_receiver(address)

        def work() -> None:
            for _ in range(messages):
                consume(receive_one())

        return work

    return receive


def _sum_bytes(message: bytes) -> int:
    return sum_frame(np.frombuffer(message, np.uint8))
