"""Handles by which other processes of a host attach a ring or a board; picklable.

A process that only passes handles on, as a driver does, loads no compiled code.
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
