"""Segments of a store: the chunks of their records, and what is put aside when it is cleared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .heap import HeapChunk
from .log import Chunk


@dataclass
class Extent:
    """The records of one chunk: first … stop - 1."""

    chunk: Chunk
    segment: int
    first: int
    stop: int


@dataclass
class Cleared:
    """What `clear` dropped from sealed segments: a roll back brings it back."""

    segment: int
    buckets: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.int32]
    at: npt.NDArray[np.int64]
    extents: list[Extent]
    heap: list[HeapChunk]
