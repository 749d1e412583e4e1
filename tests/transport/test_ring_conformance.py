"""The ring keeps the contract of channels over private memory, memfd and named segments."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.transport.conformance import RING_BYTES, BroadcastConformance, Ends, Make
from whale_ray.configs.errors import ResourceError
from whale_ray.transport.inproc import create_inproc_ring
from whale_ray.transport.segment import SegmentKind
from whale_ray.transport.shm import attach_ring, create_ring

_LABELS = (f"ring{number}" for number in itertools.count())


class TestInproc(BroadcastConformance):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:

            def make(ring_bytes: int, receivers: int, **options) -> Ends:
                producer, consumers = create_inproc_ring(
                    ring_bytes, receivers, next(_LABELS), **options
                )
                for end in (producer, *consumers):
                    stack.callback(end.close)
                return Ends(producer, list(consumers), producer.max_frame_bytes)

            yield make


class SharedConformance(BroadcastConformance):
    """What also holds where receivers attach from outside."""

    kind: SegmentKind

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:

            def make(
                ring_bytes: int,
                receivers: int,
                *,
                held_fraction: float = 0.5,
                poison_released: bool = False,
            ) -> Ends:
                producer, handle = create_ring(
                    ring_bytes,
                    receivers,
                    "conformance",
                    next(_LABELS),
                    kind=self.kind,
                    poison_released=poison_released,
                )
                stack.callback(producer.close)
                consumers = []
                for reader in range(receivers):
                    consumers.append(attach_ring(handle, reader, held_fraction=held_fraction))
                    stack.callback(consumers[-1].close)
                return Ends(producer, list(consumers), producer.max_frame_bytes)

            yield make

    def test_a_receiver_that_attaches_late_misses_nothing(self):
        producer, handle = create_ring(RING_BYTES, 2, "conformance", next(_LABELS), kind=self.kind)
        early = attach_ring(handle, 0)
        while producer.put(100, len).value == "sent":
            frame = early.get()
            assert frame is not None
            early.release_buffer(frame)
        late = attach_ring(handle, 1)
        producer.close()
        count = 0
        while (frame := late.get()) is not None:
            late.release_buffer(frame)
            count += 1
        assert count == early.statistics().frames > 10
        early.close()
        late.close()

    def test_a_vanished_ring_is_named(self):
        producer, handle = create_ring(RING_BYTES, 1, "conformance", next(_LABELS), kind=self.kind)
        producer.close()
        with pytest.raises(ResourceError) as caught:
            attach_ring(handle, 0)
        assert str(caught.value) == (
            f"segment {handle.segment.path!r} is gone: process {handle.segment.pid}, which "
            "created it, has closed it or has ended"
        )

    def test_another_generation_is_refused(self):
        producer, handle = create_ring(RING_BYTES, 1, "conformance", next(_LABELS), kind=self.kind)
        stale = replace(handle, segment=replace(handle.segment, generation=5))
        with pytest.raises(ResourceError) as caught:
            attach_ring(stale, 0)
        assert str(caught.value) == (
            f"segment {handle.segment.path!r} of process {handle.segment.pid} is not the one "
            "announced (another size or generation): it belongs to an earlier or a later attempt"
        )
        producer.close()

    def test_a_place_is_taken_once(self):
        producer, handle = create_ring(RING_BYTES, 2, "conformance", next(_LABELS), kind=self.kind)
        consumer = attach_ring(handle, 0)
        with pytest.raises(ResourceError, match="reader 0 of ring .* is already attached"):
            attach_ring(handle, 0)
        consumer.close()
        with pytest.raises(ResourceError, match="reader 0 of ring .* was closed"):
            attach_ring(handle, 0)
        producer.drop_reader(1)
        with pytest.raises(ResourceError, match="reader 1 of ring .* was closed"):
            attach_ring(handle, 1)
        producer.close()


class TestMemfd(SharedConformance):
    kind = "memfd"


class TestNamed(SharedConformance):
    kind = "named"
