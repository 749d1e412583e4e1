"""The bytes of a ring, compared with bytes written by hand: remote readers rely on them."""

from __future__ import annotations

import numpy as np
import pytest

from whale_ray.configs.errors import ResourceError
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.ring_layout import (
    RING_BYTES_MAX,
    RingLayout,
    capacity_for,
    max_frame_bytes_of,
)
from whale_ray.transport.segment import Segment


def int64(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def at(image: bytearray, offset: int, content: bytes) -> None:
    image[offset : offset + len(content)] = content


def golden_image() -> bytearray:
    """Return a ring of 4 KiB with two readers, a frame of 3 bytes, a padding and a frame."""
    image = bytearray(4096 + 4096)
    at(image, 128, int64(2, 4096, 2, 4096))  # version, capacity, readers, data offset
    at(image, 256, int64(4096 + 1024))  # head
    at(image, 512, int64(1024 * 3 + 64, 1, 1024 * 3 + 64))  # reader 0: tail, open, position
    at(image, 640, int64(4096 + 1024, 1, 4096 + 1024))  # reader 1
    data = 4096
    at(image, data, int64(1016) + b"\3" * 1016)  # the frame after the wrap
    at(image, data + 1024, int64(1016) + b"\1" * 1016)
    at(image, data + 2048, int64(1016) + b"\2" * 1016)
    at(image, data + 3072, int64(3) + b"abc")
    at(image, data + 3136, int64(-(1024 - 64)))  # padding up to the end
    return image


def test_golden_bytes():
    producer, (first, second) = create_inproc_ring(4096, 2, "golden")
    segment = producer.segment.share()
    for number in range(3):
        producer.put_copy(np.full(1016, number, np.uint8))
        for consumer in (first, second):
            frame = consumer.get()
            assert frame is not None
            consumer.release_buffer(frame)
    producer.put_copy(np.frombuffer(b"abc", np.uint8))
    for consumer in (first, second):
        frame = consumer.get()
        assert frame is not None
        consumer.release_buffer(frame)
    producer.put_copy(np.full(1016, 3, np.uint8))
    frame = second.get()
    assert frame is not None
    assert (frame.position, frame.end, frame.size) == (3136, 5120, 960 + 1024)
    second.release_buffer(frame)
    found = segment.buffer.tobytes()[128:]
    expected = bytes(golden_image()[128:])
    differing = [
        offset
        for offset, pair in enumerate(zip(found, expected, strict=True))
        if len(set(pair)) > 1
    ]
    assert differing == []
    producer.close()
    assert segment.buffer[392:400].tobytes() == int64(1)
    first.close()
    assert segment.buffer[512:528].tobytes() == int64(1024 * 3 + 64, 2)
    assert segment.buffer[400:408].tobytes() == int64(1), "closings"
    second.close()
    segment.close()


def test_the_wanted_tail_is_what_a_waiting_producer_needs():
    producer, (consumer,) = create_inproc_ring(4096, 1, "wanted")
    segment = producer.segment.share()
    wanted = segment.words(384, 392)
    while producer.put_copy(np.zeros(184, np.uint8)).value == "sent":
        pass
    # 21 frames of 192 bytes fill 4032; 64 of padding and 192 more exceed the ring by 192.
    assert wanted.tolist() == [192]
    frame = consumer.get()
    assert frame is not None
    consumer.release_buffer(frame)
    producer.put_copy(np.zeros(184, np.uint8))
    assert wanted.tolist() == [0]
    for end in (producer, consumer, segment):
        end.close()


@pytest.mark.parametrize("readers", [1, 28, 29, 60, 61])
def test_data_begins_on_a_page_of_its_own(readers: int):
    layout = RingLayout(1 << 16, readers)
    assert layout.data_offset % 4096 == 0
    assert layout.reader_offset(readers - 1) + 128 <= layout.data_offset
    assert layout.data_offset - layout.reader_offset(readers - 1) < 128 + 4096
    assert layout.total_bytes == layout.data_offset + (1 << 16)


@pytest.mark.parametrize(
    ("capacity", "readers", "message"),
    [
        (5000, 1, "a ring of 5000 bytes: it must be a power of two from 4096 to 1073741824"),
        (2048, 1, "a ring of 2048 bytes: it must be a power of two from 4096 to 1073741824"),
        (RING_BYTES_MAX * 2, 1, "a ring of 2147483648 bytes: it must be"),
        (4096, 0, "a ring with 0 readers: from 1 to 4096 are possible"),
    ],
)
def test_impossible_sizes(capacity: int, readers: int, message: str):
    with pytest.raises(ValueError) as caught:
        RingLayout(capacity, readers)
    assert str(caught.value).startswith(message)


def test_an_unknown_reader_is_refused():
    with pytest.raises(IndexError, match="reader 2: the ring has readers 0 to 1"):
        RingLayout(4096, 2).reader_offset(2)


def test_a_segment_that_is_no_ring():
    segment = Segment.create(8192, "label", "job", "private")
    with pytest.raises(ResourceError, match="holds no ring of layout version 2: all workers"):
        RingLayout.read(segment)
    segment.words(128, 160)[:] = (1, 4096, 2, 8192)
    with pytest.raises(ResourceError, match="holds no ring"):
        RingLayout.read(segment)
    segment.close()


@pytest.mark.parametrize("nbytes", [1, 1016, 1017, 65_528, 65_529, 10_000_104])
def test_the_smallest_ring_for_a_payload(nbytes: int) -> None:
    capacity = capacity_for(nbytes)
    assert capacity.bit_count() == 1
    assert max_frame_bytes_of(capacity // 2) < nbytes <= max_frame_bytes_of(capacity)
