"""The push channel keeps the contract of channels over private memory, memfd, named segments."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.transport.conformance import ChannelConformance, Ends, Make
from tests.transport.push_ends import create_inproc_push
from whale_ray.configs.errors import ResourceError
from whale_ray.transport.push.channel import attach_push, create_push
from whale_ray.transport.segment import SegmentKind

SLOT_BYTES = 256
_LABELS = (f"push{number}" for number in itertools.count())


class PushConformance(ChannelConformance):
    """Slots so small that the suite's frames take from one to eight of them."""

    memory = "push channel"
    smallest_frame_bytes = SLOT_BYTES


class TestInproc(PushConformance):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:

            def make(ring_bytes: int, receivers: int, **options) -> Ends:
                assert receivers == 1
                sender, receiver = create_inproc_push(
                    next(_LABELS), slots=ring_bytes // SLOT_BYTES, slot_bytes=SLOT_BYTES, **options
                )
                stack.callback(sender.close)
                stack.callback(receiver.close)
                return Ends(sender, [receiver], sender.max_frame_bytes)

            yield make


class SharedConformance(PushConformance):
    """What also holds where the sender attaches from outside."""

    kind: SegmentKind

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        with contextlib.ExitStack() as stack:

            def make(ring_bytes: int, receivers: int, **options) -> Ends:
                assert receivers == 1
                receiver, handle = self.create(slots=ring_bytes // SLOT_BYTES, **options)
                stack.callback(receiver.close)
                sender = attach_push(handle)
                stack.callback(sender.close)
                return Ends(sender, [receiver], sender.max_frame_bytes)

            yield make

    def create(self, slots: int = 4, **options):
        return create_push(
            "conformance",
            next(_LABELS),
            slots=slots,
            slot_bytes=SLOT_BYTES,
            kind=self.kind,
            **options,
        )

    def test_a_vanished_channel_is_named(self):
        receiver, handle = self.create()
        receiver.close()
        with pytest.raises(ResourceError) as caught:
            attach_push(handle)
        assert str(caught.value) == (
            f"segment {handle.segment.path!r} is gone: process {handle.segment.pid}, which "
            "created it, has closed it or has ended"
        )

    def test_another_generation_is_refused(self):
        receiver, handle = self.create()
        stale = replace(handle, segment=replace(handle.segment, generation=5))
        with pytest.raises(ResourceError, match="is not the one announced"):
            attach_push(stale)
        receiver.close()

    def test_a_channel_has_one_sender(self):
        receiver, handle = self.create()
        sender = attach_push(handle)
        for _ in range(2):
            with pytest.raises(ResourceError) as caught:
                attach_push(handle)
            assert str(caught.value) == (
                f"push channel {handle.segment.path!r} has, or had, another sender"
            )
            sender.close()
        receiver.close()


class TestMemfd(SharedConformance):
    kind = "memfd"


class TestNamed(SharedConformance):
    kind = "named"
