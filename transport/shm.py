"""Rings between the processes of one host.

The producer creates the ring and hands its `RingHandle` to the workers that read it; each
attaches with its own reader index. All must have attached before the producer closes.
"""

from __future__ import annotations

from collections.abc import Sequence

from .doorbell import Doorbell
from .handles import RingHandle
from .ring import RingConsumer, RingProducer
from .ring_layout import RingLayout
from .segment import Segment, SegmentKind


def create_ring(
    ring_bytes: int,
    readers: int,
    job: str,
    label: str,
    doorbells: Sequence[Doorbell] = (),
    *,
    kind: SegmentKind = "memfd",
    poison_released: bool = False,
) -> tuple[RingProducer, RingHandle]:
    """Create a ring of `ring_bytes` (a power of two) and return its sending end and handle.

    `label` must be unique in the job and process. `doorbells` are those of the workers that
    read. Raises ResourceError if there is no room.
    """
    layout = RingLayout(ring_bytes, readers)
    segment = Segment.create(layout.total_bytes, label, job, kind)
    producer = RingProducer(segment, layout, doorbells, poison_released=poison_released)
    return producer, RingHandle(segment.handle, readers)


def attach_ring(
    handle: RingHandle,
    reader: int,
    producer_doorbell: Doorbell | None = None,
    *,
    held_fraction: float = 0.5,
) -> RingConsumer:
    """Attach a ring as reader number `reader` and return its receiving end, open.

    `producer_doorbell` is rung when the producer waits for this reader. Raises ResourceError if
    the ring has vanished, is another one, or has no such place to take.
    """
    segment = Segment.attach(handle.segment)
    try:
        consumer = RingConsumer(segment, reader, producer_doorbell, held_fraction=held_fraction)
        consumer.open()
    except BaseException:
        segment.close()
        raise
    return consumer
