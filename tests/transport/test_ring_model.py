"""The ring against a model: lists of frames, one cursor for each reader.

Hypothesis drives both through any sequence of sends, receives, releases, stored views, closes and
deaths, and finds the shortest sequence after which they differ.
"""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.transport.frames import writer
from whale_ray.configs.errors import HeldViewsError, ResourceError
from whale_ray.transport import ring_kernels as kernels
from whale_ray.transport.channel import Frame, Outcome
from whale_ray.transport.inproc import create_inproc_ring

RING_BYTES = 4096
READERS = st.integers(0, 2)


def content_of(number: int, size: int) -> bytes:
    return bytes((number * 31 + index) % 256 for index in range(size))


class Reader:
    """What the model knows of a reader."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque(maxlen=RING_BYTES)
        self.open_frames: list[tuple[Frame, bytes]] = []
        self.stored: list[tuple[np.ndarray, bytes]] = []
        self.closed = False


class RingMachine(RuleBasedStateMachine):
    """Three readers of one small ring, so that wraps, padding and back-pressure are common."""

    @initialize(poison=st.booleans())
    def create(self, poison: bool):
        self.producer, self.consumers = create_inproc_ring(
            RING_BYTES, 3, "model", poison_released=poison, held_fraction=0.5
        )
        self.readers = [Reader() for _ in self.consumers]
        self.sent = 0
        self.closed = False

    @rule(size=st.integers(0, 1200), slack=st.integers(0, 100))
    def put(self, size: int, slack: int):
        content = content_of(self.sent, size)
        outcome = self.producer.put(size + slack, writer(content))
        if self.closed or all(reader.closed for reader in self.readers):
            assert outcome is Outcome.CLOSED or size + slack > self.producer.max_frame_bytes
        elif size + slack > self.producer.max_frame_bytes:
            assert outcome is Outcome.TOO_LARGE
        else:
            self._check_room(outcome, size + slack)
        if outcome is Outcome.SENT:
            self.sent += 1
            for reader in self.readers:
                if not reader.closed:
                    reader.waiting.append(content)

    def _check_room(self, outcome: Outcome, reserved: int):
        """Allow a refusal only where the frame, with padding in front of it, could not fit."""
        lags = [lag for lag in self.producer.statistics().lag_bytes if lag is not None]
        size = (reserved + 8 + 63) // 64 * 64
        free = RING_BYTES - max(lags)
        assert outcome in {Outcome.SENT, Outcome.BACK_PRESSURED}
        if outcome is Outcome.BACK_PRESSURED:
            assert free < 2 * size

    @rule(count=st.integers(1, 30), size=st.integers(0, 70))
    def put_many(self, count: int, size: int):
        contents = [content_of(self.sent + index, size) for index in range(count)]
        table = np.frombuffer(b"".join(contents), np.uint8).reshape(count, size)
        sent = 0 if self.closed else kernels.put_many(self.producer.state_address, table)
        assert sent <= count
        sent = max(0, sent)  # it may be a refusal
        self.sent += sent
        for reader in self.readers:
            if not reader.closed:
                reader.waiting.extend(contents[:sent])

    @rule(index=READERS)
    def get(self, index: int):
        reader, consumer = self.readers[index], self.consumers[index]
        try:
            frame = consumer.get()
        except HeldViewsError:
            assert reader.stored
            assert consumer.statistics().held_bytes > RING_BYTES // 2
            return
        if reader.closed or not reader.waiting:
            assert frame is None
            return
        assert frame is not None
        content = reader.waiting.popleft()
        assert frame.data.tobytes() == content
        reader.open_frames.append((frame, content))

    @rule(index=READERS, which=st.integers(0, 100), store=st.booleans())
    def release(self, index: int, which: int, store: bool):
        reader = self.readers[index]
        if not reader.open_frames:
            return
        frame, content = reader.open_frames.pop(which % len(reader.open_frames))
        if store and not reader.closed and content:
            reader.stored.append((frame.data[1:], content[1:]))
        self.consumers[index].release_buffer(frame)

    @rule(index=READERS)
    def forget_a_view(self, index: int):
        if self.readers[index].stored:
            self.readers[index].stored.pop(0)

    @rule(index=READERS)
    def drain(self, index: int):
        """Without it rings would mostly be full."""
        reader = self.readers[index]
        reader.stored.clear()
        while reader.open_frames:
            self.consumers[index].release_buffer(reader.open_frames.pop()[0])
        while not reader.closed and reader.waiting:
            self.get(index)
            self.consumers[index].release_buffer(reader.open_frames.pop()[0])

    @precondition(lambda self: self.sent > 20)
    @rule(index=READERS, dies=st.booleans())
    def lose_a_reader(self, index: int, dies: bool):
        reader = self.readers[index]
        if dies:
            self.producer.drop_reader(index)
            assert self.consumers[index].evicted or reader.closed or self.closed
            if self.consumers[index].evicted:
                with pytest.raises((ResourceError, HeldViewsError)):
                    self.consumers[index].get()
        self.consumers[index].close()
        reader.closed = True
        reader.waiting.clear()
        reader.open_frames.clear()
        reader.stored.clear()

    @precondition(lambda self: self.sent > 30)
    @rule()
    def close(self):
        self.producer.close()
        self.closed = True

    @invariant()
    def what_is_held_stays_as_it_was(self):
        for reader in getattr(self, "readers", ()):
            for frame, content in reader.open_frames:
                assert frame.data.tobytes() == content
            for view, content in reader.stored:
                assert view.tobytes() == content

    @invariant()
    def both_agree_on_what_waits(self):
        if not hasattr(self, "readers"):
            return
        for reader, consumer in zip(self.readers, self.consumers, strict=True):
            if not reader.closed:
                assert consumer.available() == bool(reader.waiting)
                assert consumer.closed_by_peer == (self.closed and not reader.waiting)

    def teardown(self):
        if hasattr(self, "readers"):
            self.producer.close()
            for consumer in self.consumers:
                consumer.close()


TestRingModel = RingMachine.TestCase
TestRingModel.settings = settings(stateful_step_count=60, max_examples=40)
