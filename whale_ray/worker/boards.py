"""The doorbells of one host: its workers and its relay sleep on them, and wake each other.

The host's first worker makes the board, the others attach it. Each has a line on it, the relay the
last one. A board is never shared between hosts: relays send each other the watermarks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ..configs.settings import TransportSettings
from ..plan.streams import StreamPlan
from ..transport.doorbell import Doorbell, DoorbellBoard
from ..transport.handles import BoardHandle
from ..transport.segment import sweep_stale


class HostBoard:
    """The board of the host of `member`, as that member uses it in one attempt.

    `slots` is the number of sources that show watermarks, on all hosts; `job` names the segment.
    """

    def __init__(
        self, plan: StreamPlan, settings: TransportSettings, member: int, job: str, slots: int
    ) -> None:
        self._settings = settings
        self._member = member
        self._job = job
        self._slots = slots
        host = plan.host_of(member)
        workers = plan.hosts.workers_on(host)
        self._maker = workers[0]
        self._lines = (*workers, plan.relay_of(host)) if plan.relays else workers
        self._alone = plan.members == 1
        has_own_cores = plan.members <= len(os.sched_getaffinity(0))
        self._spin_pauses = settings.spin_pauses if has_own_cores else 0
        self._board: DoorbellBoard | None = None
        self._own: Doorbell | None = None

    def make(self) -> BoardHandle | None:
        """Make the board if this member is the one to make it; return its handle for the others."""
        if self._member != self._maker:
            return None
        if self._settings.segment_kind == "named":
            sweep_stale()
        kind = "private" if self._alone else self._settings.segment_kind
        self._board = DoorbellBoard.create(len(self._lines), self._slots, self._job, kind=kind)
        return self._board.handle

    def join(self, boards: Sequence[BoardHandle | None]) -> None:
        """Attach the board, unless this member made it; `boards` has what all members made."""
        if self._board is None:
            handle = boards[self._maker]
            assert handle is not None
            self._board = DoorbellBoard.attach(handle)
        self._own = self.doorbell_of(self._member)

    @property
    def board(self) -> DoorbellBoard:
        """The board itself."""
        assert self._board is not None, "make() or join() comes first"
        return self._board

    def doorbell_of(self, member: int) -> Doorbell:
        """Return the doorbell of a worker or relay of this host."""
        return self.board.doorbell(self._lines.index(member), self._spin_pauses)

    def sleep(self, timeout_ns: int, ready: Callable[[], bool]) -> None:
        """Sleep on the member's own doorbell."""
        if self._own is not None:
            self._own.wait(timeout_ns, ready)

    def rest(self, turn: Callable[[], int]) -> None:
        """Take a turn, then sleep on the member's own doorbell for the ns that it returns."""
        if self._own is not None:
            self._own.rest(turn)

    def wake(self) -> None:
        """Ring the member's own doorbell; callable from any thread."""
        doorbell = self._own
        if doorbell is not None:
            doorbell.ring()

    def close(self) -> None:
        """Give the board back."""
        self._own = None
        if self._board is not None:
            self._board.close()
