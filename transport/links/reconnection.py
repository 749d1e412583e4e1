"""When to dial a parent: at once, and again after every failure, later and later.

Pure: the time and the chance are passed in. ::

    WAITING ──due──► DIALLING ──authenticated──► UP
       ▲                │                         │
       └────failed──────┴─────────────────────────┘
"""

from __future__ import annotations

import enum
from collections import Counter


class LinkState(enum.Enum):
    """Where a link stands."""

    WAITING = "waiting"
    """For the time of the next attempt."""
    DIALLING = "dialling"
    """Connecting, or proving who we are."""
    UP = "up"


class Reconnection:
    """The state of one link that is to be kept up."""

    def __init__(self, now_ns: int, first_ns: int, longest_ns: int) -> None:
        """Be due at once; wait `first_ns` after a failure, twice that after the next, and so on.

        Never longer than `longest_ns`. `failed` varies each wait by half, so that many hosts do
        not dial one in step.
        """
        self.state = LinkState.WAITING
        self.next_dial_ns = now_ns
        """When the next attempt is due, while WAITING."""
        self.unreachable_since_ns: int | None = now_ns
        """Since when there has been no link; None while it is up."""
        self.connections = 0
        """Times that the link came to stand."""
        self.failures: Counter[str] = Counter()
        """Times that it did not, or broke, by reason."""
        self._first_ns = first_ns
        self._longest_ns = longest_ns
        self._in_a_row = 0

    def due(self, now_ns: int) -> bool:
        """Return whether to dial now."""
        return self.state is LinkState.WAITING and now_ns >= self.next_dial_ns

    def dialled(self) -> None:
        """Take note that an attempt has begun. ValueError unless one was due."""
        self._expect(LinkState.WAITING)
        self.state = LinkState.DIALLING

    def up(self) -> None:
        """Take note that both sides have proved who they are. ValueError unless dialling."""
        self._expect(LinkState.DIALLING)
        self.state = LinkState.UP
        self.unreachable_since_ns = None
        self.connections += 1
        self._in_a_row = 0

    def failed(self, now_ns: int, reason: str, chance: float) -> None:
        """Take note that the link broke or did not come to stand; `chance` from 0 up to 1.

        ValueError while WAITING.
        """
        if self.state is LinkState.WAITING:
            msg = "a link that waits to be dialled cannot fail"
            raise ValueError(msg)
        if self.state is LinkState.UP:
            self.unreachable_since_ns = now_ns
        self.state = LinkState.WAITING
        self.failures[reason] += 1
        # The exponent is bounded too: no number grows with the length of an outage.
        wait_ns = min(self._longest_ns, self._first_ns << min(self._in_a_row, 30))
        self._in_a_row += 1
        self.next_dial_ns = now_ns + min(self._longest_ns, int(wait_ns * (0.5 + chance)))

    def _expect(self, state: LinkState) -> None:
        if self.state is not state:
            msg = f"the link is {self.state.value}, not {state.value}"
            raise ValueError(msg)
