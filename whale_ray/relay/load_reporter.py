"""Reports the load of a stream that this host sends on, to the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..configs.settings import MulticastSettings
from ..multicast.monitor import asks_for_scale_down, period_ns
from ..multicast.tree_messages import StreamLoad
from ..transport.clock import NEVER_NS
from .multicast_stream import MulticastStream
from .stream_load import LINK_MEMORY_NS, LoadMeter

EARLY_REPORTS_PER_INTERVAL: Final = 5
"""A queue that stays full asks for a scale-down all the time; this limits the reports it causes."""

_SLICES_MEASURED = 8


class LoadReporter:
    """Measures one stream at one host, and decides when its load is reported.

    The source's host reports at every interval. Others report only while their way out is full,
    and for some time after: each of them has an out-degree of its own.
    """

    def __init__(
        self,
        stream: MulticastStream,
        host: int,
        settings: MulticastSettings,
        now_ns: int,
        congested: Callable[[str], bool],
        cpu_ns: Callable[[], int],
        is_root: bool,
    ) -> None:
        """Begin to measure at `now_ns`.

        `congested` tells whether the link to a host is full, `cpu_ns` what the relay has used.
        """
        self._is_root = is_root
        self._reports_until_ns = now_ns
        self._congested = congested
        self._cpu_ns = cpu_ns
        self._offer = stream.offer
        self._settings = settings
        self._meter = LoadMeter(stream.id, host, self._offer.tap.capacity, now_ns, self._offer.head)
        self._interval_ns = settings.report_interval_ms * 1_000_000
        self.report_ns = now_ns + self._interval_ns
        self._rule_applied_ns = self._next_rule_ns = now_ns
        self._next_early_report_ns = now_ns
        self._slice_bytes = 0.0
        self._queue_slices = 0.0
        self._received: dict[str, int] = {}
        self._head = self._offer.head
        self._rule_head = self._reported_head = self._head

    def look(self, now_ns: int) -> None:
        """Count what was produced, and what the children have received."""
        self._head = head = self._offer.head
        all_received, is_full = 0, False
        for child, outgoing in self._offer.outgoing.items():
            # What was only handed to a socket has not passed the link yet.
            received = outgoing.sender.acknowledged
            all_received += max(0, received - self._received.get(child, received))
            self._received[child] = received
            is_full = is_full or (outgoing.sender.sent < head and self._congested(child))
        self._meter.look(now_ns, all_received, is_full)

    def report(self, now_ns: int) -> StreamLoad | None:
        """Return the load if it is due: at the interval, or early if the queue grows fast."""
        tail = self._tail
        if now_ns < self.report_ns and not self._needs_early_report(now_ns, tail):
            return None
        self.report_ns = now_ns + self._interval_ns
        self._measure_slices()
        load = self._meter.take(now_ns, self._head, tail, self._slice_bytes, self._cpu_ns())
        if load.link_was_full:
            self._reports_until_ns = now_ns + LINK_MEMORY_NS
        idle, self._reported_head = self._idle, self._head
        return load if self._is_root or (now_ns < self._reports_until_ns and not idle) else None

    @property
    def due_ns(self) -> int:
        """The latest time for the next `report`; far in the future while nothing is sent on."""
        return self.report_ns if self._is_root or not self._idle else NEVER_NS

    @property
    def _idle(self) -> bool:
        """Whether there was nothing to send on since the last report."""
        return self._head == self._reported_head or not self._offer.outgoing

    @property
    def _tail(self) -> int:
        """The position of the slowest child."""
        offer, head = self._offer, self._head  # a child to come may begin beyond the head
        return min([head, *(offer.position_of(child) for child in offer.children)])

    def _needs_early_report(self, now_ns: int, tail: int) -> bool:
        """Apply the scale-down rule on the queue's growth between two reports (Whale 3.3)."""
        if now_ns < self._next_rule_ns or self._slice_bytes <= 0:
            return False
        capacity = self._offer.tap.capacity / self._slice_bytes
        arrived = (self._head - self._rule_head) / self._slice_bytes
        elapsed_s = max(1, now_ns - self._rule_applied_ns) / 1e9
        self._rule_applied_ns = now_ns
        self._next_rule_ns = now_ns + period_ns(capacity, arrived / elapsed_s)
        self._rule_head = self._head
        before, self._queue_slices = self._queue_slices, (self._head - tail) / self._slice_bytes
        waterline = self._settings.waterline_fraction * capacity
        threshold = self._settings.threshold_down
        asks = asks_for_scale_down(before, self._queue_slices, waterline, threshold)
        if not asks or now_ns < self._next_early_report_ns:
            return False
        self._next_early_report_ns = now_ns + self._interval_ns // EARLY_REPORTS_PER_INTERVAL
        return True

    def _measure_slices(self) -> None:
        """Measure the mean size of a slice over some frames in the ring."""
        tap = self._offer.tap
        start = stop = tap.released
        count = 0
        while count < _SLICES_MEASURED:
            after = tap.whole_frames(stop, self._head, 64)
            if after == stop:
                break
            stop, count = after, count + 1
        if count:
            self._slice_bytes = (stop - start) / count
