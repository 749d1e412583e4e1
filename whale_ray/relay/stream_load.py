"""How a stream's source is loaded, in the monitor's units: slices (DESIGN 6, "in our units").

Each relay is a sender whose queue is watched: what the stream's ring holds there that the slowest
child has not got. Serializing happens in another process, before the queue, so t_s
is 0 here. t_d, the time that a slice takes per child, is that of the processor or of the link,
whichever is slower. A link's is only seen while it is full: then the bytes that leave the host in a
time are all that it carries. That is remembered for a while, or a tree that was narrowed since its
link was full would be widened at once.
"""

from __future__ import annotations

from ..multicast.monitor import Sample
from ..multicast.out_degree import QUEUE_SLICES_MAX
from ..multicast.tree_messages import StreamLoad

LINK_MEMORY_NS = 60_000_000_000
"""How long it is remembered what a full link carries; then a wider tree may try again."""

HELD_BACK_FROM = 0.75
"""A ring that is fuller than this, before a full link, holds its source back."""

HELD_BACK = 1.15
"""Then more is offered than arrives; how much, nobody counts. It makes a degree of up to 7 one
less, and the next look tells whether that is enough."""

LINK_FULL_NS = 2_000_000
"""A link that is full for a shorter time between two reports has only had a burst."""


class SampleClock:
    """Brings a relay's clock and the controller's together."""

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._offset_ns: int | None = None

    def sample(self, load: StreamLoad, now_ns: int) -> Sample | None:
        """Return the monitor's sample of a load; None if it has no rate, or tells nothing new."""
        if self._offset_ns is None or load.at_ns + self._offset_ns <= self._last_ns:
            self._offset_ns = max(now_ns, self._last_ns + 1) - load.at_ns  # another relay's clock
        at_ns = load.at_ns + self._offset_ns
        if load.elapsed_ns <= 0 or load.slice_bytes <= 0:
            return None
        # The rate is of the time that the relay counted, however long the news took to come.
        scale = (at_ns - self._last_ns) / load.elapsed_ns
        if load.link_was_full and load.queue_bytes > HELD_BACK_FROM * load.capacity_bytes:
            scale *= HELD_BACK
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
    """Counts for one stream at one relay."""

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
        """Count what went to all children since the last look, and whether their links are full."""
        if self._was_full:
            self._full_ns += now_ns - self._seen_ns
            self._full_bytes += sent_bytes
        self._sent_bytes += sent_bytes
        self._seen_ns, self._was_full = now_ns, link_is_full

    def take(
        self, now_ns: int, head: int, tail: int, slice_bytes: float, cpu_ns: int
    ) -> StreamLoad:
        """Return the load since the last time.

        `tail` is where the slowest child is; `cpu_ns` what the relay has used so far. What it does
        for other streams is taken for this one's: they wait for each other.
        """
        send_s = None
        if self._sent_bytes and slice_bytes > 0:
            per_byte_ns = (cpu_ns - self._cpu_ns) / self._sent_bytes
            send_s = max(per_byte_ns, self._link(now_ns)) * slice_bytes / 1e9
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

    def _link(self, now_ns: int) -> float:
        """Return the time that a byte takes a full link, in ns; 0 if none was full of late."""
        if self._full_bytes and self._full_ns >= LINK_FULL_NS:
            self._link_per_byte_ns = self._full_ns / self._full_bytes
            self._link_known_ns = now_ns
        elif now_ns - self._link_known_ns > LINK_MEMORY_NS:
            self._link_per_byte_ns = 0.0
        else:  # it carries at least what it has carried
            carried = (now_ns - self._since_ns) / self._sent_bytes
            self._link_per_byte_ns = min(self._link_per_byte_ns, carried)
        return self._link_per_byte_ns
