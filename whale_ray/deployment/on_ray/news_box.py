"""What a worker's actor tells the controller, kept until the controller has dealt with it."""

from __future__ import annotations

import threading
from collections import deque

from ...control.fleet import MemberMessage

_MESSAGES_MAX = 65_536
"""Far more than a worker tells in an epoch; the oldest are dropped, and then an epoch fails."""


class NewsBox:
    """Numbered messages from 1; `add` and `fetch` may be called from any thread.

    A controller that fails takes messages with it that it has not dealt with. The one that replaces
    it fetches from 0, and so gets them again.
    """

    def __init__(self) -> None:
        self._messages: deque[tuple[int, MemberMessage]] = deque(maxlen=_MESSAGES_MAX)
        self._last = 0
        self._changed = threading.Condition()

    def add(self, message: MemberMessage) -> None:
        """Keep a message."""
        with self._changed:
            self._last += 1
            self._messages.append((self._last, message))
            self._changed.notify_all()

    def fetch(self, received: int, timeout_s: float) -> tuple[int, list[MemberMessage]]:
        """Return the number of the last message, and all behind `received`; wait for the first.

        Those up to `received` are dropped.
        """
        with self._changed:
            while self._messages and self._messages[0][0] <= received:
                self._messages.popleft()
            self._changed.wait_for(lambda: bool(self._messages), timeout_s)
            last = self._messages[-1][0] if self._messages else received
            return last, [message for _, message in self._messages]
