"""Messages of a worker's actor to the controller, kept until the controller has processed them."""

from __future__ import annotations

import threading
from collections import deque

from ...control.fleet import MemberMessage

_MESSAGES_MAX = 65_536
"""More than a worker sends in an epoch; beyond it the oldest are dropped, and the epoch fails."""


class MessageOutbox:
    """Numbered messages from 1; `add` and `fetch` may be called from any thread.

    If a controller fails, messages that it has fetched and not processed are lost with it. Its
    successor fetches from 0, and so gets them again.
    """

    def __init__(self) -> None:
        self._messages: deque[tuple[int, MemberMessage]] = deque(maxlen=_MESSAGES_MAX)
        self._last = 0
        self._changed = threading.Condition()

    def add(self, message: MemberMessage) -> None:
        """Add a message."""
        with self._changed:
            self._last += 1
            self._messages.append((self._last, message))
            self._changed.notify_all()

    def fetch(self, received: int, timeout_s: float) -> tuple[int, list[MemberMessage]]:
        """Return the number of the last message, and all after `received`; wait for the first one.

        Messages up to `received` are dropped.
        """
        with self._changed:
            while self._messages and self._messages[0][0] <= received:
                self._messages.popleft()
            self._changed.wait_for(lambda: bool(self._messages), timeout_s)
            last = self._messages[-1][0] if self._messages else received
            return last, [message for _, message in self._messages]
