"""Rings within one process: the same code over private memory."""

from __future__ import annotations

from collections.abc import Sequence

from .doorbell import Doorbell
from .ring import RingConsumer, RingProducer
from .ring_layout import RingLayout
from .segment import Segment


def create_inproc_ring(
    ring_bytes: int,
    readers: int,
    label: str,
    doorbells: Sequence[Doorbell] = (),
    producer_doorbell: Doorbell | None = None,
    *,
    poison_released: bool = False,
    held_fraction: float = 0.5,
) -> tuple[RingProducer, tuple[RingConsumer, ...]]:
    """Create a ring and return its sending end and its receiving ends, all open.

    The doorbells are as in `shm.create_ring` and `shm.attach_ring`; a loop that runs both ends
    needs none.
    """
    layout = RingLayout(ring_bytes, readers)
    segment = Segment.create(layout.total_bytes, label, "inproc", "private")
    producer = RingProducer(segment, layout, doorbells, poison_released=poison_released)
    consumers = tuple(
        RingConsumer(segment.share(), reader, producer_doorbell, held_fraction=held_fraction)
        for reader in range(readers)
    )
    for consumer in consumers:
        consumer.open()
    return producer, consumers
