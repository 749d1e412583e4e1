"""Shared memory against the published figures of Vega, and fused operators against both.

Vega (section V, Fig. 7; an IBM x3950 X5): one way 0.5 to 0.7 µs, fused about 0.1 µs; 10.1 million
messages of 32 bytes per second, and 0.8 million of 16 KiB; fused 25.3 to 27.8 million. Those are
from another machine, so a ratio with a published figure is only an order of magnitude.

Here both sides are compiled and spin, as Vega's do; the receiver reads every word of a message.
Fused: the sender's process calls the same reader on the message in place. Figures are medians of
blocks of messages, since a spinning process loses much time when another one takes its core.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

import numpy as np

from .processes import Work, run_together
from .report import BenchRow, median
from .ring_loops import answer_loop, ask_loop, fused_loop, receive_loop, send_loop
from .ring_pair import RingPair

LATENCY_BYTES: Final = (8, 64, 512)
FUSED: Final = "fused: the reader called where the message lies"
_PUBLISHED_US: Final = 0.6
_PUBLISHED_RATES: Final = {32: 10.1, 16 << 10: 0.8}
_SHM: Final = "shm: ring, compiled loops that spin"
_MEMORY_BYTES: Final = 1 << 20
_ECHOES: Final = 100
"""Of a block."""


def vega_rows(repetitions: int, scale: float) -> list[BenchRow]:
    """Measure latency and rate; `scale` is the factor of all message counts."""
    rows = []
    for nbytes in LATENCY_BYTES:
        echoes = int(50_000 * scale)
        shm = median([_shm_us(nbytes, echoes) for _ in range(repetitions)])
        rows += _pair_of_rows(
            ("small message, one way", "µs"), nbytes, (shm, fused_us(nbytes)),
            (_PUBLISHED_US / shm, shm / fused_us(nbytes)), "Vega, published: 0.5 to 0.7 µs",
        )  # fmt: skip
    for nbytes, published in _PUBLISHED_RATES.items():
        count = int((2_000_000 if nbytes < 1024 else 50_000) * scale)
        shm = median([_shm_rate(nbytes, count) for _ in range(repetitions)])
        fused = 1 / fused_us(nbytes)
        rows += _pair_of_rows(
            ("messages", "M/s"), nbytes, (shm, fused), (shm / published, fused / shm),
            f"Vega, published: {published:g} M/s",
        )  # fmt: skip
    return rows


def _pair_of_rows(
    what: tuple[str, str],
    nbytes: int,
    values: tuple[float, float],
    ratios: tuple[float, float],
    published: str,
) -> list[BenchRow]:
    """Return the row of shared memory against the published figure, and of fused against that row.

    `what` is name and unit.
    """
    name, unit = what
    return [
        BenchRow(name, {"bytes": nbytes, "how": how}, value, unit, ratio, against)
        for how, value, ratio, against in zip(
            (_SHM, FUSED), values, ratios, (published, _SHM), strict=True
        )
    ]


def fused_us(nbytes: int) -> float:
    """Return the µs of one message whose reader is called in place."""
    places = max(1, _MEMORY_BYTES // nbytes)
    memory = np.arange(_MEMORY_BYTES, dtype=np.uint8)
    address, count = int(memory.ctypes.data), max(100, 1_000_000 // (nbytes + 100))
    return _block_ns(lambda: fused_loop(address, nbytes, places, count), 50) / count / 1e3


def _shm_us(nbytes: int, count: int) -> float:
    with RingPair() as there, RingPair() as back:
        source = np.zeros(nbytes, np.uint8)
        address = int(source.ctypes.data)
        blocks = max(1, count // _ECHOES)

        def ask() -> Work:
            there.touch()
            asking, answers = there.producer.state_address, back.consumer()

            def echo() -> None:
                ask_loop(asking, answers.state_address, address, nbytes, _ECHOES)

            return lambda: _block_ns(echo, blocks)

        def answer() -> Work:
            back.touch()
            answering, questions = back.producer.state_address, there.consumer()
            echoes = blocks * _ECHOES
            return lambda: answer_loop(questions.state_address, answering, address, nbytes, echoes)

        block_ns: float = run_together([ask, answer]).timings[0].result
    return block_ns / _ECHOES / 2 / 1e3


def _shm_rate(nbytes: int, count: int) -> float:
    """Return million messages per second."""
    with RingPair() as pair:
        source = np.zeros(nbytes, np.uint8)
        address = int(source.ctypes.data)
        block = max(100, _MEMORY_BYTES // nbytes)
        blocks = max(1, count // block)

        def send() -> Work:
            pair.touch()
            state = pair.producer.state_address
            return lambda: send_loop(state, address, nbytes, blocks * block)

        def receive() -> Work:
            consumer = pair.consumer()
            return lambda: _block_ns(lambda: receive_loop(consumer.state_address, block), blocks)

        block_ns: float = run_together([send, receive]).timings[1].result
    return block / block_ns * 1e3


def _block_ns(work: Callable[[], object], blocks: int) -> float:
    """Return the median ns of a block."""
    took_ns = []
    for _ in range(blocks):
        start_ns = perf_counter_ns()
        work()
        took_ns.append(float(perf_counter_ns() - start_ns))
    return median(took_ns)
