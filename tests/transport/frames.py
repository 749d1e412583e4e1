"""Frames that tests send over channels: each with bytes of its own, by number and size."""

from __future__ import annotations

import random

import numpy as np

from whale_ray.transport.channel import Channel, Outcome


def payload(number: int, size: int) -> bytes:
    """Return `size` bytes that only frame `number` of that size has."""
    return random.Random(f"{number}/{size}").randbytes(size)


def writer(content: bytes):
    """Return an encode function that writes `content`."""

    def encode(buffer: np.ndarray) -> int:
        buffer[: len(content)] = np.frombuffer(content, np.uint8)
        return len(content)

    return encode


def send(sender: Channel, content: bytes) -> Outcome:
    """Send `content` as one frame."""
    return sender.put(len(content), writer(content))


def receive(receiver: Channel) -> bytes | None:
    """Return a copy of the next frame's payload and release it."""
    frame = receiver.get()
    if frame is None:
        return None
    content = frame.data.tobytes()
    receiver.release_buffer(frame)
    return content


def receive_all(receiver: Channel) -> list[bytes]:
    """Return copies of all frames that are there."""
    return list(iter(lambda: receive(receiver), None))


def fill(sender: Channel, size: int) -> list[bytes]:
    """Send frames of `size` bytes until one is refused; return what was sent."""
    sent: list[bytes] = []
    while (outcome := send(sender, payload(len(sent), size))) is Outcome.SENT:
        sent.append(payload(len(sent), size))
    assert outcome is Outcome.BACK_PRESSURED
    return sent
