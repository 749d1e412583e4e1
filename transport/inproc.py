"""Rings within one process: the same code over private memory."""

from __future__ import annotations

from .ring import RingConsumer, RingProducer
from .ring_layout import RingLayout
from .segment import Segment


def create_inproc_ring(
    ring_bytes: int,
    readers: int,
    label: str,
    *,
    poison_released: bool = False,
    held_fraction: float = 0.5,
) -> tuple[RingProducer, tuple[RingConsumer, ...]]:
    """Create a ring and return its sending end and its receiving ends, all open.

    A loop that runs both ends needs no doorbells.
    """
    layout = RingLayout(ring_bytes, readers)
    segment = Segment.create(layout.total_bytes, label, "inproc", "private")
    producer = RingProducer(segment, layout, poison_released=poison_released)
    consumers = tuple(
        RingConsumer(segment.share(), reader, held_fraction=held_fraction)
        for reader in range(readers)
    )
    for consumer in consumers:
        consumer.open()
    return producer, consumers
