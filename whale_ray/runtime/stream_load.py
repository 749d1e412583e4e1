"""How a stream's source is loaded, in the monitor's units: slices (DESIGN 6, "in our units").

The relay of the source's host is the sender whose queue is watched: what the stream's ring holds
that the slowest child has not got. Serializing happens in another process, before the queue, so t_s
is 0 here. t_d, the time that a slice takes per child, is what the sender needed while it had
something to send and a child with room for it: processor or link, whichever is slower.
"""

from __future__ import annotations

from ..multicast.monitor import Sample
from ..multicast.out_degree import QUEUE_SLICES_MAX
from .tree_messages import Load


class SampleClock:
    """Brings a relay's clock and the controller's together."""

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._offset_ns: int | None = None

    def sample(self, load: Load, now_ns: int) -> Sample | None:
        """Return the monitor's sample of a load; None if it has no rate, or tells nothing new."""
        if self._offset_ns is None or load.at_ns + self._offset_ns <= self._last_ns:
            self._offset_ns = max(now_ns, self._last_ns + 1) - load.at_ns  # another relay's clock
        at_ns = load.at_ns + self._offset_ns
        if load.elapsed_ns <= 0 or load.slice_bytes <= 0:
            return None
        # The rate is of the time that the relay counted, however long the news took to come.
        scale = (at_ns - self._last_ns) / load.elapsed_ns
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
    """Counts for one stream at the relay of its source's host."""

    def __init__(self, stream: int, capacity_bytes: int, now_ns: int, head: int) -> None:
        self._stream = stream
        self._capacity_bytes = capacity_bytes
        self._since_ns = now_ns
        self._since_head = head
        self._seen_ns = now_ns
        self._was_busy = False
        self._busy_ns = 0
        self._sent_bytes = 0

    def look(self, now_ns: int, busy: bool) -> None:
        """Take note whether there is something to send to a child that has room for it."""
        if self._was_busy:
            self._busy_ns += now_ns - self._seen_ns
        self._seen_ns, self._was_busy = now_ns, busy

    def sent(self, nbytes: int) -> None:
        """Count bytes that went to one child."""
        self._sent_bytes += nbytes

    def take(self, now_ns: int, head: int, tail: int, slice_bytes: float) -> Load:
        """Return the load since the last time; `tail` is where the slowest child is."""
        self.look(now_ns, self._was_busy)
        send_s = None
        if self._sent_bytes and self._busy_ns and slice_bytes > 0:
            send_s = self._busy_ns * slice_bytes / self._sent_bytes / 1e9
        load = Load(
            self._stream,
            now_ns,
            head,
            now_ns - self._since_ns,
            head - self._since_head,
            head - tail,
            slice_bytes,
            send_s,
            self._capacity_bytes,
        )
        self._since_ns, self._since_head = now_ns, head
        self._busy_ns = self._sent_bytes = 0
        return load
