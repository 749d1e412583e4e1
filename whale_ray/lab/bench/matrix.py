"""Channels against their peers: backend × message size × readers; and the aims for TCP.

The backends take turns in every repetition, so that other load on the machine affects all of them;
a ratio is the median of the repetitions' ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...configs.units import KIB, MIB
from .backends import (
    Backend,
    Measurement,
    Measurements,
    MessageLoad,
    measure_backend,
    paired_ratio,
    sample_copies,
    take_turns,
)
from .channel_backends import (
    ChannelBackend,
    HostRingSides,
    RingSides,
)
from .peer_backends import SocketBackend, ZmqBackend
from .report import Aim, BenchRow, median

SIZES: Final = (32, 64, 512, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB)
READERS: Final = (1, 4, 16)

SHM, TCP = "shm", "tcp"
MEMCPY, PLAIN = "memcpy, a call each", "plain sockets"
PLAIN_COPY = "plain sockets with the same copy"
ZMQ_IPC, ZMQ_TCP = "pyzmq ipc", "pyzmq tcp"
_BACKENDS: Final[Mapping[str, Callable[[MessageLoad], Backend]]] = {
    SHM: partial(ChannelBackend, RingSides),
    TCP: partial(ChannelBackend, HostRingSides),
    PLAIN: SocketBackend,
    PLAIN_COPY: partial(SocketBackend, copies=True),
    ZMQ_IPC: partial(ZmqBackend, "ipc"),
    ZMQ_TCP: partial(ZmqBackend, "tcp"),
}
_AGAINST: Final[Mapping[str, tuple[str, ...]]] = {
    SHM: (ZMQ_IPC, MEMCPY),
    TCP: (PLAIN, ZMQ_TCP),
    PLAIN: (MEMCPY,),
    ZMQ_IPC: (MEMCPY,),
    ZMQ_TCP: (PLAIN,),
    MEMCPY: (),
}
"""The peers that each backend is compared with; the row's ratio is against the first."""

AIM_BYTES: Final = 256 * KIB
_OURS: Final = "copied into the ring, endpoint polled in the same loop; read in place in the mirror"
_PLAIN_LOOP: Final = "plain sockets: sendall without a copy, recv_into one place"
_PLAIN_COPY_LOOP: Final = (
    "plain sockets: copied to successive places, sendall; recv_into such places"
)
_ZMQ_TCP_LOOP: Final = "pyzmq PAIR tcp, sent and received without copies"


@dataclass(frozen=True, slots=True)
class MatrixEffort:
    """How much of the matrix is measured, and for how long."""

    sizes: Sequence[int]
    readers: Sequence[int]
    repetitions: int
    duration_ns: int
    """Duration of each sample, without its start and end."""
    aim_repetitions: int


FULL: Final = MatrixEffort(SIZES, READERS, 3, 200_000_000, 9)
QUICK: Final = MatrixEffort((64, 4 * KIB, 256 * KIB, 4 * MIB), (1, 4), 1, 50_000_000, 3)


def matrix_rows(effort: MatrixEffort) -> list[BenchRow]:
    """Measure every backend with every size and number of readers."""
    rows = []
    for readers in effort.readers:
        for nbytes in effort.sizes:
            load = MessageLoad(nbytes, readers, effort.duration_ns)
            names = list(_AGAINST)
            samples = take_turns(_samplers(names), load, effort.repetitions)
            rows += [_matrix_row(name, load, samples) for name in names]
    return rows


def _samplers(names: Iterable[str]) -> dict[str, Callable[[MessageLoad], Measurement]]:
    return {name: partial(_sample, name) for name in names}


def _sample(name: str, load: MessageLoad) -> Measurement:
    if name == MEMCPY:
        return sample_copies(load)
    with _BACKENDS[name](load) as backend:
        return measure_backend(backend, load)


def _matrix_row(name: str, load: MessageLoad, samples: Measurements) -> BenchRow:
    first, *others = _AGAINST[name] or ("",)
    ratio = paired_ratio(samples, name, first) if first else None
    also = {f"x {peer}": paired_ratio(samples, name, peer) for peer in others}
    return BenchRow(
        "messages",
        {"bytes": load.nbytes, "readers": load.readers, "how": name, **_memory(name, load)},
        _gigabytes(load, samples[name]),
        "GB/s",
        ratio,
        first,
        cores=median([sample.cores for sample in samples[name]]),
        also={**also, **_costs(load, samples[name])},
    )


def _memory(name: str, load: MessageLoad) -> dict[str, object]:
    """Return the memory that messages pass through, where this project determines it."""
    return {"ring MiB": load.memory_bytes // MIB} if name in {SHM, TCP} else {}


def _gigabytes(load: MessageLoad, samples: Sequence[Measurement]) -> float:
    return median([sample.rate for sample in samples]) * load.nbytes / 1e9


def _costs(load: MessageLoad, samples: Sequence[Measurement]) -> dict[str, float]:
    """Return messages per second, and the CPU time per GB, or per million small messages."""
    large = load.nbytes >= 4 * KIB
    unit = "GB" if large else "M messages"
    units = load.nbytes / 1e9 if large else 1e-6

    def cost(seconds: Callable[[Measurement], float]) -> float:
        return median([seconds(sample) / (sample.messages * units) for sample in samples])

    return {
        "messages/s": median([sample.rate for sample in samples]),
        f"sender CPU s/{unit}": cost(lambda sample: sample.sender_cpu_s),
        f"readers CPU s/{unit}": cost(lambda sample: sample.readers_cpu_s),
    }


def tcp_rows(effort: MatrixEffort) -> list[BenchRow]:
    """Measure the aims for TCP: prepared messages of 256 KiB over loopback."""
    load = MessageLoad(AIM_BYTES, 1, max(effort.duration_ns, 200_000_000))
    hows = {
        TCP: _OURS,
        PLAIN: _PLAIN_LOOP,
        PLAIN_COPY: _PLAIN_COPY_LOOP,
        ZMQ_TCP: _ZMQ_TCP_LOOP,
    }
    samples = take_turns(_samplers(hows), load, effort.aim_repetitions)

    def row(name: str, against: str = "", limit: float = 0.0) -> BenchRow:
        return BenchRow(
            "256 KiB over loopback TCP",
            {"how": hows[name]},
            _gigabytes(load, samples[name]),
            "GB/s",
            paired_ratio(samples, name, against) if against else None,
            against,
            Aim("ratio", "at least", limit) if limit else None,
            median([sample.cores for sample in samples[name]]),
            _costs(load, samples[name]),
        )

    return [
        row(TCP, PLAIN, 0.9),
        row(TCP, PLAIN_COPY),
        row(TCP, ZMQ_TCP, 1.5),
        row(PLAIN),
        row(PLAIN_COPY, PLAIN),
        row(ZMQ_TCP, PLAIN),
    ]
