"""What tells other processes of a host where a ring or a board is; picklable.

Whoever only passes one on, as a driver does, loads nothing that is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass

from .segment import SegmentHandle


@dataclass(frozen=True, slots=True)
class RingHandle:
    """What a reader needs to attach a ring."""

    segment: SegmentHandle
    readers: int
    """Readers are numbered from 0 to `readers` - 1."""


@dataclass(frozen=True, slots=True)
class BoardHandle:
    """What another worker needs to attach a board."""

    segment: SegmentHandle
    workers: int
    watermark_slots: int
