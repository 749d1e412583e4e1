"""The push channel against a model: a list of messages, and the uses that each of them took.

Hypothesis drives both through any sequence of sends, receives, releases, stored views, closes and
deaths, and finds the shortest sequence after which they differ. The model says exactly when there
is room.
"""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.transport.frames import payload, writer
from tests.transport.push_ends import create_inproc_push
from whale_ray.configs.errors import HeldViewsError
from whale_ray.transport.channel import Frame, Outcome

SLOT_BYTES = 128
ROOM = SLOT_BYTES - 32


class Message:
    """What the model knows of a message that has not been given back."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.slots = max(1, -(-len(content) // ROOM))
        self.frame: Frame | None = None
        self.released = False
        self.view: np.ndarray | None = None

    @property
    def held(self) -> bool:
        """Whether its slots are still in use: by the receiver, or by a view of them."""
        return not self.released or (self.view is not None and self.slots == 1)


class PushMachine(RuleBasedStateMachine):
    """Few and small slots, so that fragments, wraps and a lack of credits are common."""

    @initialize(slots=st.integers(2, 9), poison=st.booleans())
    def create(self, slots: int, poison: bool):
        self.sender, self.receiver = create_inproc_push(
            "model", slots=slots, slot_bytes=SLOT_BYTES, poison_released=poison
        )
        self.slots = slots
        self.sent = self.got = 0
        # Sent and not given back, oldest first; those before `taken` were received.
        self.messages: deque[Message] = deque(maxlen=slots)
        self.taken = 0
        self.copies: list[tuple[np.ndarray, bytes]] = []
        self.over = self.deaf = False

    def _settle(self) -> None:
        """Give back what a look of the receiver gives back."""
        while self.taken and not self.messages[0].held:
            self.messages.popleft()
            self.taken -= 1

    def _uses(self) -> int:
        return sum(message.slots for message in self.messages)

    def _held(self) -> int:
        taken = list(self.messages)[: self.taken]
        return sum(message.slots for message in taken if message.released)

    @rule(size=st.integers(0, 5 * ROOM), slack=st.sampled_from((0, 0, 1, 40)), copy=st.booleans())
    def put(self, size: int, slack: int, copy: bool):
        content = payload(self.sent, size)
        reserved = size if copy else size + slack
        limit = self.slots // 2 * ROOM
        expected = Outcome.SENT
        if self.over:
            expected = Outcome.CLOSED
        elif reserved > limit:
            expected = Outcome.TOO_LARGE
        elif self.deaf:
            expected = Outcome.CLOSED
        elif self._uses() + max(1, -(-reserved // ROOM)) > self.slots:
            expected = Outcome.BACK_PRESSURED
        assert self.sender.ready_to_send(reserved) is expected
        if copy:
            outcome = self.sender.put_copy(np.frombuffer(content, np.uint8))
        else:
            outcome = self.sender.put(reserved, writer(content))
        assert outcome is expected
        if outcome is Outcome.SENT:
            self.messages.append(Message(content))
            self.sent += 1

    @rule()
    def get(self):
        if self._held():  # otherwise `get` does not look for views that have gone
            self._settle()
        if not self.deaf and self._held() * SLOT_BYTES > self.slots * SLOT_BYTES // 2:
            try:
                self.receiver.get()
            except HeldViewsError:
                return
            raise AssertionError("more than half is held")
        frame = self.receiver.get()
        if self.deaf or self.taken == len(self.messages):
            assert frame is None
            return
        message = self.messages[self.taken]
        assert frame is not None
        assert frame.data.tobytes() == message.content
        message.frame = frame
        self.taken += 1
        self.got += 1

    @rule(which=st.integers(0, 100), store=st.booleans())
    def release(self, which: int, store: bool):
        unreleased = [
            message for message in self.messages if message.frame and not message.released
        ]
        if not unreleased or self.deaf:
            return
        message = unreleased[which % len(unreleased)]
        assert message.frame is not None
        if store and len(message.content) > 1:
            message.view = message.frame.data[1:]
            if message.slots > 1:
                self.copies.append((message.view, message.content[1:]))
        message.released = True
        frame, message.frame = message.frame, None
        self.receiver.release_buffer(frame)
        self._settle()

    @rule(which=st.integers(0, 100))
    def forget_a_view(self, which: int):
        viewed = [message for message in self.messages if message.view is not None]
        if viewed:
            viewed[which % len(viewed)].view = None

    @rule()
    def look(self):
        self._settle()
        if not self.deaf:
            too_much = self._held() * SLOT_BYTES > self.slots * SLOT_BYTES // 2
            assert self.receiver.available() == (too_much or self.taken < len(self.messages))

    @rule()
    def drain(self):
        """Without it channels would mostly be full."""
        if self.deaf:
            return
        for message in self.messages:
            message.view = None
        while True:
            while any(message.frame for message in self.messages):
                self.release(0, False)
            if self.taken == len(self.messages):
                return
            self.get()

    @precondition(lambda self: self.sent > 8)
    @rule(dies=st.booleans())
    def lose_the_receiver(self, dies: bool):
        if dies and not self.over:
            self.sender.peer_died()
        self.receiver.close()
        self.deaf = True

    @precondition(lambda self: self.sent > 8)
    @rule(dies=st.booleans())
    def lose_the_sender(self, dies: bool):
        if dies:
            self.receiver.peer_died()
        self.sender.close()
        self.over = True

    @invariant()
    def what_is_held_stays_as_it_was(self):
        for message in getattr(self, "messages", ()):
            if message.frame is not None:
                assert message.frame.data.tobytes() == message.content
            if message.view is not None:
                assert message.view.tobytes() == message.content[1:]
        for view, content in getattr(self, "copies", ()):
            assert view.tobytes() == content

    @invariant()
    def both_agree_on_the_end(self):
        if hasattr(self, "messages") and not self.deaf:
            drained = self.taken == len(self.messages)
            assert self.receiver.closed_by_peer == (self.over and drained)
            uses = self._uses() * SLOT_BYTES
            assert self.receiver.statistics().lag_bytes == (uses,)
            assert self.receiver.statistics().frames == self.got
            assert self.sender.statistics().frames == self.sent

    def teardown(self):
        if hasattr(self, "messages"):
            self.sender.close()
            self.receiver.close()


TestPushModel = PushMachine.TestCase
TestPushModel.settings = settings(stateful_step_count=60, max_examples=40)
