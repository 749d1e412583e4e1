"""The workload of a scenario: numbered frames, sent and read at random rates, compared bytewise."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import numpy as np

from whale_ray.transport.channel import Outcome, ReceivingEnd, SendingEnd
from whale_ray.transport.segment import Bytes

US = 1_000
MS = 1_000_000
_PATTERN_BYTES = 8
_VAIN_NS = 4 * MS
"""Longest time until a producer without room, or a reader without frames, polls again."""


@dataclass(frozen=True)
class Load:
    """The frames of one channel; both ends know them."""

    channel: str
    sizes: tuple[int, ...]

    def content(self, number: int) -> bytes:
        """Return frame `number`, which no other frame of any channel equals, unless it is empty."""
        size = self.sizes[number]
        pattern = f"{self.channel}/{number}:".encode().ljust(_PATTERN_BYTES, b".")
        return (pattern * (size // len(pattern) + 1))[:size]


def draw_load(chance: random.Random, channel: str, nbytes: int, largest: int) -> Load:
    """Draw frames of about `nbytes` in all, none above `largest`, some empty, some as large."""
    typical = chance.choice((40, 200, 1_000, largest))
    sizes: list[int] = []
    while sum(sizes) + 64 * len(sizes) < nbytes:
        kind = chance.random()
        if kind < 0.05:
            size = largest
        elif kind < 0.1:
            size = 0
        else:
            size = chance.randrange(min(typical, largest) + 1)
        sizes.append(size)
    return Load(channel, tuple(sizes))


class Producer:
    """Sends a load in bursts, and closes behind the last frame."""

    def __init__(
        self, end: SendingEnd, load: Load, chance: random.Random, *, may_be_left: bool = False
    ) -> None:
        """Send `load` over `end`; with `may_be_left` the last receiver may leave before its end."""
        self._end = end
        self._may_be_left = may_be_left
        self._load = load
        self._chance = chance
        self._pause_ns = chance.choice((50 * US, MS, 5 * MS))
        self._burst = chance.choice((1, 4, 64))
        self._next = 0
        self.next_ns: int | None = 0
        """When it goes on; None once it is over."""

    def step(self, now_ns: int) -> None:
        """Send the due frames that fit."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        for _ in range(self._burst):
            if self._next == len(self._load.sizes):
                self._end.close()
                self.next_ns = None
                return
            content = np.frombuffer(self._load.content(self._next), np.uint8)
            outcome = self._end.put(content.size, partial(_copy, content))
            if outcome is Outcome.BACK_PRESSURED:
                self.next_ns = now_ns + 1 + self._chance.randrange(_VAIN_NS)
                return
            if outcome is Outcome.CLOSED and self._may_be_left:
                self._next = len(self._load.sizes)
                continue
            assert outcome is Outcome.SENT, f"{self._load.channel}: {outcome} for {self._next}"
            self._next += 1
        self.next_ns = now_ns + 1 + self._chance.randrange(self._pause_ns)


def _copy(content: Bytes, target: Bytes) -> int:
    target[:] = content
    return content.size


class Reader:
    """Reads a load at its pace, and compares every frame with the expected one."""

    def __init__(
        self,
        end: ReceivingEnd,
        load: Load,
        chance: random.Random,
        where: str,
        *,
        leaves_after: int | None = None,
    ) -> None:
        """Read from `end` until all has come, or `leaves_after` frames and then no more."""
        self._end = end
        self._load = load
        self._chance = chance
        self._where = where
        self._leaves_after = leaves_after
        self._pause_ns = chance.choice((50 * US, MS, MS, 20 * MS))
        self._burst = chance.choice((1, 4, 64))
        self._next = 0
        self._sleeps = False
        self.next_ns: int | None = 0
        """When it goes on; None once it is over."""

    @property
    def over(self) -> bool:
        """Whether it has read everything, or has left."""
        return self.next_ns is None

    @property
    def wakes_ns(self) -> int | None:
        """When it continues; None if it waits for something to read, or has finished."""
        if self._sleeps and not (self._end.available() or self._end.closed_by_peer):
            return None
        return self.next_ns

    def step(self, now_ns: int) -> None:
        """Read due frames; AssertionError if one differs from what was sent."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        self.next_ns = now_ns + 1 + self._chance.randrange(self._pause_ns)
        self._sleeps = False
        for _ in range(self._burst):
            if self._next == self._leaves_after:
                self._leave()
                return
            frame = self._end.get()
            if frame is None:
                self.next_ns = now_ns + 1 + self._chance.randrange(_VAIN_NS)
                self._sleeps = True
                break
            self._compare(frame.data.tobytes())
            self._end.release_buffer(frame)
            self._next += 1
        if self._end.closed_by_peer:
            sent = len(self._load.sizes)
            assert self._next == sent, f"{self._where}: ended after {self._next} of {sent} frames"
            self._leave()

    def _compare(self, content: bytes) -> None:
        is_known = self._next < len(self._load.sizes)
        wanted = self._load.content(self._next) if is_known else None
        assert content == wanted, (
            f"{self._where}: frame {self._next} is {content[:40]!r} ({len(content)} bytes), "
            f"not {wanted and wanted[:40]!r} ({wanted and len(wanted)} bytes)"
        )

    def _leave(self) -> None:
        self.next_ns = None
        self._end.close()
