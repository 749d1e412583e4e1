"""Round-robin between the streams to one child; a stream may use what the others leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from .link_header import DATA_BYTES_MAX
from .outgoing import Outgoing

_BATCH_MESSAGES_MAX: Final = 256
SLICE_BYTES: Final = 288 * 1024
"""Of one stream at a time: a full slice (256 KiB) with its header and the rows that overshoot."""

Plan: TypeAlias = list[tuple[Outgoing, int, int]]
"""Streams with the ranges that they send now; an empty range is a stream's end."""


class Turns:
    """Remembers whose turn it was last."""

    def __init__(self) -> None:
        """Begin with the first stream."""
        self._turn = 0
        self._turns: list[Outgoing] = []
        self.message_bytes = DATA_BYTES_MAX
        """Of one message, at most; a stream that is alone fills it, others take shorter turns."""

    def plan(self, streams: Mapping[int, Outgoing], max_bytes: int) -> Plan:
        """Let `streams` take turns until all are at their ends, or about `max_bytes` are full."""
        turns = self._turns
        if len(turns) != len(streams):
            turns[:] = streams.values()
        message_bytes = self.message_bytes
        turn_bytes = SLICE_BYTES if len(turns) > 1 else message_bytes
        plan: Plan = []
        # A stream that has nothing to send is asked once, not again in every round.
        waiting = [*range(self._turn, len(turns)), *range(min(self._turn, len(turns)))]
        while waiting and max_bytes > 0 and len(plan) < _BATCH_MESSAGES_MAX:
            again = []
            for index in waiting:
                if max_bytes <= 0 or len(plan) >= _BATCH_MESSAGES_MAX:
                    break
                taken = _take(turns[index], turn_bytes, message_bytes, plan)
                if taken:
                    max_bytes -= taken
                    again.append(index)
                    self._turn = index + 1
            waiting = again
        return plan


def _take(outgoing: Outgoing, turn_bytes: int, message_bytes: int, plan: Plan) -> int:
    """Plan what one stream has to send: a range, or its end; return how many bytes."""
    found = outgoing.next_range(turn_bytes)
    if found is None:
        end = outgoing.end_due
        if end is not None:
            outgoing.sender.told_end = True
            plan.append((outgoing, end, end))
        return 0
    start, stop = found
    taken = stop - start
    if plan and plan[-1][0] is outgoing and stop - plan[-1][1] <= message_bytes:
        start = plan.pop()[1]  # no other stream came between: one message will do
    plan.append((outgoing, start, stop))
    return taken
