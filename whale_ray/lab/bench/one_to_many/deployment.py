"""A measured job: started once, then switched from mode to mode.

::

    worker 0, host 0      worker 1, host 1            worker n, host n
    feed ─► ring ─ … ──►  read, read, read, …         read, read, read, …

The source has a worker, and with several hosts a host, for itself. Between two measurements the
source pauses until every instance has every row; the checksums of all must then be right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

import numpy as np

from ....api.submission import submit
from ....api.topology import Topology
from ....configs.errors import JobError
from ....multicast.out_degree import binomial_degree
from ....operators.sinks.collect import collect
from ....plan.hosts import host_name
from ....transport.clock import SystemClock
from . import control_block as b
from .accounting import Spent, find_members, spent
from .feed import Feed
from .latency import Latencies, latencies_of
from .modes import RING_BYTES, SLICE_ROWS, Mode
from .reading import ReadEveryByte

if TYPE_CHECKING:
    from ....api.job import Job

__all__ = ["Deployment", "IntervalCounts", "Shape"]

_CLOCK: Final = SystemClock()
_POLL_NS: Final = 20_000_000
_STARTED_TIMEOUT_NS: Final = 300 * 10**9
_DRAINED_TIMEOUT_NS: Final = 120 * 10**9
_SWITCHED_TIMEOUT_NS: Final = 120 * 10**9
_RECEIVED_TIMEOUT_NS: Final = 120 * 10**9
_NOTICED_NS: Final = 1 * 10**9
"""After this time a controller has seen a request, and its members' counters have arrived."""
_TRICKLE: Final = 20.0
"""Rows per second during a switch, few enough that tens of hosts have time for it."""
_SAMPLES_PER_S: Final = 2000
WTL_MS: Final = 5.0

_ALWAYS: Final[Mapping[str, object]] = {
    "runtime.source_workers": 1,
    "transport.wtl_ms": WTL_MS,
    "transport.memory_budget_fraction": 0.5,
    # Sixty processes on two cores are slow.
    "multicast.patience_ms": 20_000,
    "runtime.start_timeout_ms": 300_000,
}


@dataclass(frozen=True)
class Shape:
    """The size of a job.

    Attributes:
        hosts: hosts with instances; the source's is one more.
        instances: number of instances, the same on every host.
    """

    hosts: int
    instances: int

    @property
    def per_host(self) -> int:
        """Instances of a host."""
        return self.instances // self.hosts


@dataclass(frozen=True)
class IntervalCounts:
    """Counts of an interval.

    Attributes:
        rows: rows that the source emitted or that every instance read (as the caller has chosen).
        seconds: wall time.
        spent: processor time, by role.
        reading_ns: time of all workers inside the operator.
        sent_bytes: bytes sent by the source's host; 0 on one host.
        copies: hosts to which it sent rows.
    """

    rows: int
    seconds: float
    spent: Spent
    reading_ns: int
    sent_bytes: int = 0
    copies: int = 0

    @property
    def rows_per_s(self) -> float:
        """Source tuples per second; less than one in all this time counts as one."""
        return max(self.rows, 1) / self.seconds

    def per_row_ns(self, total_ns: float) -> float:
        """Return a time per source tuple."""
        return total_ns / self.rows if self.rows else 0.0


class Deployment:
    """A running job. Use it as a context manager."""

    def __init__(
        self,
        shape: Shape,
        mode: Mode,
        settings: Mapping[str, object] | None = None,
        start: Callable[..., Job] = submit,
        samples: int = 1 << 14,
    ) -> None:
        """Start the job, and wait until it runs.

        Args:
            shape: how large.
            mode: the first one; others of the same `deployment` can follow.
            settings: overrides.
            start: like `submit`, with on="processes".
            samples: most rows whose latency is recorded at a time.

        Raises:
            WhaleError: the job could not be started.
        """
        self.shape = shape
        self.mode = mode
        self.control_block = b.ControlBlock.create(
            b.ControlBlockShape(shape.hosts, shape.instances, samples)
        )
        chosen: dict[str, object] = {
            **_ALWAYS,
            "transport.ring_bytes": RING_BYTES,
            "runtime.source_batch_rows": SLICE_ROWS,
            **(settings or {}),
        }
        if mode.transport == "tcp":
            chosen["runtime.hosts"] = shape.hosts + 1
        # A job that begins with this has the rings for both addressings.
        chosen["runtime.addressing"] = "instance-oriented"
        chosen["runtime.route"] = mode.route
        self.settings = chosen
        self.job = start(
            self._topology(mode), on="processes", workers=shape.hosts + 1, settings=chosen
        )
        try:
            self.wait_until(self._up, _STARTED_TIMEOUT_NS, "start")
            self._members = find_members(os.getpid())
            self.switch(mode)
        except BaseException:
            self.close()
            raise

    def _topology(self, mode: Mode) -> Topology:
        handle = self.control_block.handle
        topology = Topology("one-to-many")
        feed = Feed(handle, pickles=self.shape.instances if mode.pickled else 0)
        reading = (
            topology.source(feed, id="feed")
            .broadcast()
            .process(
                partial(ReadEveryByte, handle), id="read_rows", parallelism=self.shape.instances
            )
        )
        reading.sink(collect(), id="nothing")
        return topology

    def _up(self) -> bool:
        known = self.control_block.workers[:, b.PID].all() and self.control_block.source[b.PID]
        return bool(known) and self.job.state == "running"

    # --- modes ---------------------------------------------------------------------------------

    def switch(self, mode: Mode, out_degree: int = 0) -> None:
        """Switch to another mode; call it while the source pauses.

        Raises ValueError for a mode that needs another job.
        """
        if mode.deployment != self.mode.deployment:
            msg = f"{mode.name!r} needs another job than {self.mode.name!r}"
            raise ValueError(msg)
        self.job.set_addressing(mode.addressing)
        if mode.transport == "tcp" and mode.addressing == "worker-oriented":
            self.order(_TRICKLE)  # a tree is switched at a future position
            self.job.set_route(mode.route, out_degree)
            degree = self._degree_of(mode.route, out_degree)
            done = partial(self._switched, degree, _CLOCK.monotonic_ns() + _NOTICED_NS)
            self.wait_until(done, _SWITCHED_TIMEOUT_NS, f"switch to {mode.name}")
            self.pause()
        self.mode = mode

    def _degree_of(self, route: str, out_degree: int) -> int:
        """Return the highest out-degree of the tree of a route; 0 if the load decides."""
        hosts = self.shape.hosts
        if route == "non-blocking":
            return min(out_degree, binomial_degree(hosts))
        return {"star": hosts, "chain": 1}.get(route, binomial_degree(hosts))

    def _switched(self, degree: int, noticed_ns: int) -> bool:
        """Return whether the tree has the degree or, if the load decides, is not being switched."""
        switches = [one for one in self.job.metrics().switches if not one.aborted]
        if any(switch.ended_ns is None for switch in switches):
            return False
        if not degree:
            return _CLOCK.monotonic_ns() > noticed_ns
        begun = self._degree_of(str(self.settings["runtime.route"]), self.shape.hosts)
        return (switches[-1].degree_after if switches else begun) == degree

    # --- measurements --------------------------------------------------------------------------

    def unpaced(self, seconds: float, warm_up_s: float) -> IntervalCounts:
        """Emit rows as fast as they are consumed; measure for `seconds` after `warm_up_s`.

        The measurement begins once every instance has received rows, and lasts until every one has
        received more; on a busy machine the first rows may take seconds to reach all. Bytes per row
        are those of the whole run, warm-up included.
        """
        links, begun = self._links(), int(self.control_block.source[b.ROWS])
        with self._everybody_receives():
            self.control_block.orders[b.RATE] = b.UNPACED
            self.wait(warm_up_s)
        before, rows_before = self._now(), self._rows_everywhere()
        with self._everybody_receives():
            self.wait(seconds)
        after, rows_after = self._now(), self._rows_everywhere()
        self.pause()
        emitted = int(self.control_block.source[b.ROWS]) - begun
        sent = {host: n - links.get(host, 0) for host, n in self._links().items()}
        rows = rows_after - rows_before
        return IntervalCounts(
            rows,
            (after.at_ns - before.at_ns) / 1e9,
            after.spent.since(before.spent),
            after.reading_ns - before.reading_ns,
            round(sum(sent.values()) * rows / max(emitted, 1)),
            sum(n > emitted for n in sent.values()),
        )

    def paced(self, rate: float, seconds: float, warm_up_s: float) -> Latencies:
        """Emit rows as a Poisson process of `rate` per second; return the latency of some.

        The measurement begins once every instance has received rows.

        Raises JobError if none of them has reached every instance.
        """
        control_block = self.control_block
        with self._everybody_receives():
            self.order(rate)
            self.wait(warm_up_s)
        for times in (control_block.scheduled, control_block.arrived, control_block.done):
            times[...] = 0
        control_block.orders[b.STRIDE] = max(1, round(rate / _SAMPLES_PER_S))
        self.wait(seconds)
        self.pause()
        control_block.orders[b.STRIDE] = 0
        found = latencies_of(control_block.scheduled, control_block.arrived, control_block.done)
        if found is None:
            msg = f"no row has reached all instances at {rate:,.0f} tuples/s ({self.mode.name})"
            raise JobError(msg)
        return found

    def order(self, rate: float) -> None:
        """Emit `rate` rows per second from now on."""
        self.control_block.orders[b.RATE] = max(1, round(rate))

    def pause(self) -> None:
        """Stop the source, wait until every instance has every row, and check what it has read.

        Raises JobError if rows are missing or differ from what was sent.
        """
        self.control_block.orders[b.RATE] = 0
        self.wait_until(self._drained, _DRAINED_TIMEOUT_NS, "deliver all rows")
        read, sent = self.control_block.sums[:, 0], int(self.control_block.source[b.WORD_SUM])
        if (wrong := np.flatnonzero(read != sent)).size:
            msg = (
                f"{wrong.size} instances have read something else than was sent, the first is "
                f"{wrong[0]} ({self.mode.name}, {int(self.control_block.source[b.ROWS]):,} rows)"
            )
            raise JobError(msg)

    def wait(self, seconds: float) -> None:
        """Wait; raises the job's error if it fails meanwhile."""
        until_ns = _CLOCK.monotonic_ns() + int(seconds * 1e9)
        while (left_ns := until_ns - _CLOCK.monotonic_ns()) > 0:
            _CLOCK.sleep_ns(min(left_ns, _POLL_NS))
            self._check()

    @contextmanager
    def _everybody_receives(self) -> Iterator[None]:
        """Leave the block only when every instance has received rows since it was entered.

        The checksum of an instance changes with each row.
        """
        before = self.control_block.sums[:, 0].copy()
        yield
        self.wait_until(
            lambda: bool((self.control_block.sums[:, 0] != before).all()),
            _RECEIVED_TIMEOUT_NS,
            "bring rows to every instance",
        )

    def _drained(self) -> bool:
        # Once the source has seen the order, its record has the last row it emitted.
        rows = int(self.control_block.source[b.ROWS])
        _CLOCK.sleep_ns(_POLL_NS)
        if rows != int(self.control_block.source[b.ROWS]):
            return False
        return bool((self.control_block.workers[:, b.ROWS] == rows * self.shape.per_host).all())

    def _rows_everywhere(self) -> int:
        """Return the rows that instances have read, as a mean."""
        return int(self.control_block.workers[:, b.ROWS].sum()) // self.shape.instances

    def _now(self) -> _Moment:
        reading_ns = int(self.control_block.workers[:, b.OWN_NS].sum())
        return _Moment(_CLOCK.monotonic_ns(), spent(self._members), reading_ns)

    def _links(self) -> dict[str, int]:
        """Return the bytes that the source's host has sent so far, by host."""
        interval_ns = 2 * 200_000_000
        if self.mode.transport == "tcp":
            _CLOCK.sleep_ns(interval_ns)  # so that the newest counters have arrived
        source = (one for one in self.job.metrics().relays if one.host == host_name(0))
        return {link.host: link.bytes_sent for relay in source for link in relay.links}

    def wait_until(self, done: Callable[[], bool], timeout_ns: int, what: str) -> None:
        """Wait until `done`; JobError if that takes longer, or the job ends meanwhile."""
        until_ns = _CLOCK.monotonic_ns() + timeout_ns
        while not done():
            self._check()
            if _CLOCK.monotonic_ns() > until_ns:
                msg = f"the measured job did not {what} within {timeout_ns / 1e9:.0f} s"
                raise JobError(msg)
            _CLOCK.sleep_ns(_POLL_NS)

    def _check(self) -> None:
        if self.job.state not in {"starting", "running"}:
            self.job.wait()
            msg = f"the measured job is {self.job.state}"
            raise JobError(msg)

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End the job."""
        self.control_block.orders[b.STOP] = 1
        try:
            self.job.abandon()
        finally:
            self.control_block.close()

    def __enter__(self) -> Deployment:
        """Return it."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End the job."""
        self.close()


@dataclass(frozen=True)
class _Moment:
    at_ns: int
    spent: Spent
    reading_ns: int
