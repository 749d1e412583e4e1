"""Both ends of a push channel within one process."""

from __future__ import annotations

from whale_ray.transport.doorbell import Doorbell
from whale_ray.transport.push.channel import PushReceivingEnd, PushSendingEnd, create_push


def create_inproc_push(
    label: str,
    receiver_doorbell: Doorbell | None = None,
    sender_doorbell: Doorbell | None = None,
    *,
    slots: int,
    slot_bytes: int,
    poison_released: bool = False,
    held_fraction: float = 0.5,
) -> tuple[PushSendingEnd, PushReceivingEnd]:
    """Create a push channel within this process; return both ends, open.

    A loop that runs both needs no doorbells.
    """
    receiver, _handle = create_push(
        "inproc",
        label,
        sender_doorbell,
        slots=slots,
        slot_bytes=slot_bytes,
        kind="private",
        poison_released=poison_released,
        held_fraction=held_fraction,
    )
    sender = PushSendingEnd(receiver.segment.share(), receiver_doorbell)
    sender.open()
    return sender, receiver
