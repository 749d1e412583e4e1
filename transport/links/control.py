"""Control messages between two hosts: few, small, each delivered once and in order.

They outlive links: the sender keeps a message until the receiver has taken it, and sends it again
on the next link; the receiver drops what it has. Both queues are bounded. The sender's *mark* is a
random number that tells its messages from those of a predecessor that counted from 0 as well.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from ...configs.errors import ProtocolError
from ..channel import Outcome
from .link_header import CONTROL_BYTES_MAX

_COUNT_BITS: Final = 32


class ControlMessage(NamedTuple):
    """One message with its number."""

    number: int
    content: bytes


class ControlOutbox:
    """Messages to one host."""

    def __init__(self, mark: int, messages_max: int) -> None:
        """Hold at most `messages_max` messages; `mark` is random, from 1 up to 2**32 - 1."""
        self.mark = mark
        """Tells these messages from those of a predecessor."""
        self._messages: deque[bytes] = deque(maxlen=messages_max)
        self._first = 0  # number of the oldest message
        self._next = 0  # number of the message to be sent next on the present link
        self._furthest = 0  # number of the first message that was never sent
        self._messages_max = messages_max

    def put(self, content: bytes) -> Outcome:
        """Queue a message. ValueError for an empty one."""
        if not content:
            msg = "an empty control message says nothing"
            raise ValueError(msg)
        if len(content) > CONTROL_BYTES_MAX:
            return Outcome.TOO_LARGE
        if len(self._messages) == self._messages_max:
            return Outcome.BACK_PRESSURED
        self._messages.append(bytes(content))
        return Outcome.SENT

    def next_message(self) -> ControlMessage | None:
        """Return the next message to send on the present link; None if all were sent."""
        index = self._next - self._first
        if index == len(self._messages):
            return None
        self._next += 1
        self._furthest = max(self._furthest, self._next)
        return ControlMessage(self._next - 1, self._messages[index])

    def acknowledged(self, mark: int, count: int) -> None:
        """Take note that the receiver has taken `count` messages (modulo 2**32) of `mark`.

        Raises ProtocolError if it cannot have.
        """
        if mark != self.mark:
            return  # it knows only a predecessor yet
        taken = (count - self._first) % (1 << _COUNT_BITS)
        if taken >> (_COUNT_BITS - 1):
            return  # overtaken by a newer one: two links may lead to one host
        if taken > self._furthest - self._first:
            msg = f"{taken} control messages acknowledged, {self._furthest - self._first} are due"
            raise ProtocolError(msg)
        for _ in range(taken):
            self._messages.popleft()
        self._first += taken
        self._next = max(self._next, self._first)

    def forget(self, mark: int) -> None:
        """Drop all messages: the receiver has died. `mark` is another one, for its successor."""
        self.mark = mark
        self._messages.clear()
        self._first = self._next = self._furthest = 0

    def reconnected(self) -> None:
        """Send everything again that is not known to have been taken."""
        self._next = self._first

    @property
    def empty(self) -> bool:
        """Whether every message was taken."""
        return not self._messages


class ControlInbox:
    """Messages from one host."""

    def __init__(self, messages_max: int) -> None:
        """Hold at most `messages_max` messages that were not taken yet."""
        self._messages: deque[bytes] = deque(maxlen=messages_max)
        self._messages_max = messages_max
        self._arrived = 0
        self._of_others = 0  # messages at the front that bear an earlier mark
        self.mark = 0
        """Whose messages `taken` counts."""
        self.taken = 0
        """Number of the next message to be taken."""

    def arrived(self, mark: int, message: ControlMessage) -> bool:
        """Take in a message; False if it is here already.

        Raises ProtocolError for a gap, or for more than the sender may have on their way.
        """
        if mark != self.mark:
            # Another sender than before: what it says first is the oldest that it still has.
            self.mark, self._arrived = mark, message.number
            self.taken = message.number
            self._of_others = len(self._messages)
        if message.number < self._arrived:
            return False
        if message.number > self._arrived:
            msg = f"control message {message.number} where {self._arrived} is due"
            raise ProtocolError(msg)
        if len(self._messages) == self._messages_max:
            msg = f"more than {self._messages_max} control messages wait here"
            raise ProtocolError(msg)
        self._messages.append(message.content)
        self._arrived += 1
        return True

    def take(self) -> bytes | None:
        """Return the oldest message that was not taken yet, None if there is none."""
        if not self._messages:
            return None
        if self._of_others:
            self._of_others -= 1
        else:
            self.taken += 1
        return self._messages.popleft()
