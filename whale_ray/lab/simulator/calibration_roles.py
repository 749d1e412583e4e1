"""A parent and its children, each an endpoint in a process of its own, for the calibration."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from ...configs.settings import TransportSettings
from ...transport.channel import Outcome
from ...transport.clock import NEVER_NS, SystemClock
from ...transport.doorbell import Doorbell
from ...transport.links.handshake import Identity
from ...transport.segment import Bytes
from ...transport.tcp.channel import TcpReceivingEnd, TcpSendingEnd
from ...transport.tcp.endpoint import TcpEndpoint
from ..bench.processes import Role, Work, run_together

_CLOCK: Final = SystemClock()
STAMP_BYTES: Final = 8
"""The first word of a slice is the time at which it was put into the parent's ring."""
_NUMBERS: Final = count()
_STREAM: Final = 1
_PARENT: Final = "parent"
_ADDRESS: Final = "127.0.0.1"
_SECRET: Final = bytes(32)
_RING_BYTES: Final = 4 << 20
_NAP_NS: Final = 50_000_000
TOGETHER: Final = 32
"""Slices that a relay finds at a time, at full speed."""


@dataclass(frozen=True)
class RelaySample:
    """What a slice cost, in seconds."""

    parent_s: float
    """Processor time of the parent's endpoint, for all children."""
    child_s: float
    """Of a child's."""
    latency_s: float
    """From the parent's ring until it is visible in a child's; the median, which other processes
    hardly affect.
    """


def sample_relays(nbytes: int, children: int, slices: int, rate_per_s: float | None) -> RelaySample:
    """Send slices from a parent to its children, without a rate as fast as possible."""
    job = f"calibration{os.getpid()}-{next(_NUMBERS)}"
    pipes = [Pipe(duplex=False) for _ in range(children)]
    names = [f"child-{number}" for number in range(children)]
    tellers = [pipe[1] for pipe in pipes]
    roles: list[Role] = [partial(_parent, job, names, tellers, nbytes, slices, rate_per_s)]
    roles += [partial(_child, job, name, pipe[0]) for name, pipe in zip(names, pipes, strict=True)]
    together = run_together(roles)
    parent, *others = together.timings
    return RelaySample(
        (parent.cpu_ns - parent.result) / slices / 1e9,
        float(np.mean([one.cpu_ns - one.result[1] for one in others])) / slices / 1e9,
        float(np.mean([one.result[0] for one in others])) / 1e9,
    )


def sample_control_s(rounds: int) -> float:
    """Return how long a control message takes from one endpoint to another: the median."""
    job = f"calibration{os.getpid()}-{next(_NUMBERS)}"
    ours, theirs = Pipe(duplex=False)
    roles: list[Role] = [partial(_asker, job, theirs, rounds), partial(_answerer, job, ours)]
    return run_together(roles).timings[0].result / 2e9


# --- processes ------------------------------------------------------------------------------


class _Host:
    """An endpoint that sleeps as a relay does."""

    def __init__(self, job: str, name: str) -> None:
        self.doorbell = Doorbell.private()
        self.endpoint = TcpEndpoint(
            Identity(job, 1, 1, name),
            _SECRET,
            TransportSettings(silence_timeout_ms=600_000),  # no process polls before the start
            _CLOCK.monotonic_ns,
            random.Random(name),
            self.doorbell,
        )

    def listen(self, tellers: list[Connection]) -> None:
        """Listen, send the others the address, and wait until all have connected."""
        address = self.endpoint.listen(_ADDRESS)
        for teller in tellers:
            teller.send(address)
        self.wait_for(len(tellers))

    def dial(self, listens_at: Connection) -> None:
        """Wait until the link to the parent is up."""
        self.endpoint.dial(_PARENT, listens_at.recv())
        self.wait_for(1)

    def wait_for(self, links: int) -> None:
        """Poll until so many links are up, then sleep as relays do."""
        while sum(peer.up for peer in self.endpoint.statistics()) < links:
            if not self.endpoint.poll():
                self.endpoint.sockets.wait(_NAP_NS)
        self.endpoint.watch()

    def rest(self, take: Callable[[], bool] | None = None, until_ns: int = NEVER_NS) -> None:
        """Take a turn, then sleep as a relay does until there is more to do or at a deadline.

        `take` consumes what may have arrived; if it returns True, this does not sleep.
        """
        self.doorbell.rest(partial(self._turn, take, until_ns))

    def _turn(self, take: Callable[[], bool] | None, until_ns: int) -> int:
        endpoint = self.endpoint
        now_ns = _CLOCK.monotonic_ns()
        endpoint.poll(now_ns)
        is_over = take is not None and take()
        if is_over or endpoint.unfinished or not endpoint.arm(now_ns):
            return 0
        return max(0, min(_NAP_NS, until_ns - now_ns, endpoint.next_due_ns - now_ns))


def _parent(
    job: str,
    names: list[str],
    tellers: list[Connection],
    nbytes: int,
    slices: int,
    rate_per_s: float | None,
) -> Work:
    host = _Host(job, _PARENT)
    end = TcpSendingEnd(host.endpoint, _STREAM, _RING_BYTES, names, host.doorbell)
    host.listen(tellers)
    content = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)

    def encode(buffer: Bytes) -> int:
        buffer[:] = content
        buffer[:STAMP_BYTES] = np.array([_CLOCK.monotonic_ns()]).view(np.uint8)
        return nbytes

    def work() -> int:
        """Send all slices; return the processor time of putting them into the ring, in ns."""
        putting_ns = 0
        begin_ns = _CLOCK.monotonic_ns()
        together = 1 if rate_per_s else TOGETHER
        for number in range(slices):
            due_ns = begin_ns + (int(number / rate_per_s * 1e9) if rate_per_s else 0)
            while _CLOCK.monotonic_ns() < due_ns:
                host.rest(until_ns=due_ns)
            while True:
                before_ns = time.process_time_ns()
                outcome = end._producer.put(nbytes, encode)
                putting_ns += time.process_time_ns() - before_ns
                if outcome is Outcome.SENT:
                    break
                host.rest()
            if number % together == together - 1:
                host.endpoint.poll()
        end.close()
        while not end.delivered:
            host.rest()
        return putting_ns

    return work


def _child(job: str, name: str, listens_at: Connection) -> Work:
    host = _Host(job, name)
    end = TcpReceivingEnd(host.endpoint, _STREAM, _RING_BYTES, _PARENT, host.doorbell)
    host.dial(listens_at)

    latencies: list[int] = []
    consuming_ns = 0

    def consume() -> bool:
        """Take all visible slices as a worker would; this rings the relay's doorbell."""
        nonlocal consuming_ns
        before_ns = time.thread_time_ns()
        while (frame := end._consumer.get()) is not None:
            latencies.append(
                _CLOCK.monotonic_ns() - int(frame.data[:STAMP_BYTES].view(np.int64)[0])
            )
            end.release_buffer(frame)
        consuming_ns += time.thread_time_ns() - before_ns
        return False

    def work() -> tuple[float, int]:
        """Receive until the end; return the median latency, and the time of consuming, in ns."""
        while not end.closed_by_peer:
            host.rest(consume)
        host.endpoint.poll()
        return float(np.median(latencies)), consuming_ns

    return work


def _asker(job: str, teller: Connection, rounds: int) -> Work:
    host = _Host(job, _PARENT)
    host.listen([teller])

    def work() -> float:
        """Send requests one by one; return the median round-trip time, in ns."""
        spent_ns = []
        for _ in range(rounds):
            asked_ns = _CLOCK.monotonic_ns()
            host.endpoint.send_control("child-0", b"?")
            _hear(host)
            spent_ns.append(_CLOCK.monotonic_ns() - asked_ns)
        host.endpoint.send_control("child-0", b"end")
        for _ in range(rounds):
            if not host.endpoint.poll():
                break
        return float(np.median(spent_ns))

    return work


def _answerer(job: str, listens_at: Connection) -> Work:
    host = _Host(job, "child-0")
    host.dial(listens_at)

    def work() -> None:
        """Answer requests until the last one."""
        while _hear(host) != b"end":
            host.endpoint.send_control(_PARENT, b"!")
            host.endpoint.poll()

    return work


def _hear(host: _Host) -> bytes:
    """Return the next control message; sleeps until it is there."""
    heard: list[bytes] = []

    def hear() -> bool:
        told = host.endpoint.receive_control()
        if told is not None:
            heard.append(told[1])
        return told is not None

    while not heard:
        host.rest(hear)
    return heard[0]
