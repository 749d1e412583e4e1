"""Batches in memory that the caller provides, such as pages of a file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .batch import Batch, batch_of_block
from .block import Block, concat_block

__all__ = ["copy_to"]


def copy_to(batch: Batch, place: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]) -> Batch:
    """Return the same rows in memory that `place` returns, with the bytes that it is given."""
    block = concat_block(batch.sources(batch.has_times), batch.schema.names)
    memory = place(block.memory)
    memory.flags.writeable = False
    placed = Block(memory, block.layout, received=False)
    return batch_of_block(batch.schema, batch.num_rows, placed, batch.origin_ns)
