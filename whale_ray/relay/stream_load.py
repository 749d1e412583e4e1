"""The load of a stream at one sender, in the monitor's unit: slices.

The queue of a relay is what the stream's ring holds there and the slowest child has not received.
Slices are serialized in another process, before the queue, so t_s is 0 here. t_d, the time per
slice and child, is that of the processor or that of the link, whichever is longer. The link's time
can be measured only while the link is full: then the bytes that leave the host in a time are all
that it carries. The measurement is kept for some time. Otherwise a tree that was narrowed because
of a full link would be widened again at once.
"""

from __future__ import annotations

from ..multicast.monitor import Sample
from ..multicast.out_degree import QUEUE_SLICES_MAX
from ..multicast.tree_messages import StreamLoad

LINK_MEMORY_NS = 60_000_000_000
"""How long the measured rate of a full link is kept; after that a wider tree may be tried."""

THROTTLED_FROM = 0.75
"""A ring that is fuller than this, before a full link, throttles its source."""

THROTTLED_SCALE = 1.15
"""Scales the measured rate while a full link throttles the source: the offered rate is unknown
then, but higher. This factor lowers an out-degree of up to 7 by one; the next sample shows whether
that is enough."""

LINK_FULL_NS = 2_000_000
"""A link that was full for less than this between two reports only had a burst."""


class SampleClock:
    """Converts times on a relay's monotonic clock to the controller's."""

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._offset_ns: int | None = None

    def sample(self, load: StreamLoad, now_ns: int) -> Sample | None:
        """Return the monitor's sample of a load; None if it has no rate."""
        if self._offset_ns is None or load.at_ns + self._offset_ns <= self._last_ns:
            self._offset_ns = (
                max(now_ns, self._last_ns + 1) - load.at_ns
            )  # the first load, or another process
        at_ns = load.at_ns + self._offset_ns
        if load.elapsed_ns <= 0 or load.slice_bytes <= 0:
            return None
        # The rate is over the time that the relay counted, however late the load arrives.
        scale = (at_ns - self._last_ns) / load.elapsed_ns
        if load.link_was_full and load.queue_bytes > THROTTLED_FROM * load.capacity_bytes:
            scale *= THROTTLED_SCALE
        self._last_ns = at_ns
        capacity = min(float(QUEUE_SLICES_MAX), load.capacity_bytes / load.slice_bytes)
        return Sample(
            at_ns,
            load.arrived_bytes / load.slice_bytes * scale,
            min(capacity, load.queue_bytes / load.slice_bytes),
            capacity,
            None,
            load.send_s,
        )


class LoadMeter:
    """Counts what one relay sends of one stream."""

    def __init__(self, stream: int, host: int, capacity_bytes: int, now_ns: int, head: int) -> None:
        self._stream = stream
        self._host = host
        self._capacity_bytes = capacity_bytes
        self._since_ns = now_ns
        self._since_head = head
        self._seen_ns = now_ns
        self._was_full = False
        self._full_ns = 0
        self._full_bytes = 0
        self._sent_bytes = 0
        self._cpu_ns = 0
        self._link_per_byte_ns = 0.0
        self._link_known_ns = now_ns

    def look(self, now_ns: int, sent_bytes: int, link_is_full: bool) -> None:
        """Count the bytes sent to all children since the last call, and the time of full links."""
        if self._was_full:
            self._full_ns += now_ns - self._seen_ns
            self._full_bytes += sent_bytes
        self._sent_bytes += sent_bytes
        self._seen_ns, self._was_full = now_ns, link_is_full

    def take(
        self, now_ns: int, head: int, tail: int, slice_bytes: float, cpu_ns: int
    ) -> StreamLoad:
        """Return the load since the last call.

        `tail`: the position of the slowest child. `cpu_ns`: the processor time that the relay has
        used so far. All of it is charged to this stream, since its streams wait for each other.
        """
        send_s = None
        if self._sent_bytes and slice_bytes > 0:
            per_byte_ns = (cpu_ns - self._cpu_ns) / self._sent_bytes
            send_s = max(per_byte_ns, self._link_per_byte(now_ns)) * slice_bytes / 1e9
        self._cpu_ns = cpu_ns
        load = StreamLoad(
            self._stream,
            self._host,
            now_ns,
            head,
            now_ns - self._since_ns,
            head - self._since_head,
            head - tail,
            slice_bytes,
            send_s,
            self._capacity_bytes,
            self._full_ns >= LINK_FULL_NS,
        )
        self._since_ns, self._since_head = now_ns, head
        self._full_ns = self._full_bytes = self._sent_bytes = 0
        return load

    def _link_per_byte(self, now_ns: int) -> float:
        """Return the time that a byte takes on a full link, in ns; 0 if none was full lately."""
        if self._full_bytes and self._full_ns >= LINK_FULL_NS:
            self._link_per_byte_ns = self._full_ns / self._full_bytes
            self._link_known_ns = now_ns
        elif now_ns - self._link_known_ns > LINK_MEMORY_NS:
            self._link_per_byte_ns = 0.0
        else:  # the link carries at least what it has just carried
            carried = (now_ns - self._since_ns) / self._sent_bytes
            self._link_per_byte_ns = min(self._link_per_byte_ns, carried)
        return self._link_per_byte_ns
