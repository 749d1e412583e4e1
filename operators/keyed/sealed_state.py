"""`SealedState`: declared state as it was sealed, as rows of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import export_records, with_columns
from ...state.sealed_records import SealedRecords, living
from ...transport.wire.batch import Batch
from .changed_keys import FindSlots, all_slots, pieces_of
from .sealed_entries import SealedEntries

__all__ = ["SealedState"]

Slots = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SealedState:
    """The declared state of one operator at one seal; see `SealedRows`.

    Attributes:
        keys: what is of fixed width, and texts.
        entries: of each list and map.
        with_times: gives rows event times, if they have any.
    """

    keys: SealedRecords
    entries: Sequence[SealedEntries]
    with_times: Callable[[Batch], Batch]

    @property
    def parts(self) -> int:
        """The values, then the entries of each list and map."""
        return 1 + len(self.entries)

    def pieces(self, part: int) -> Sequence[FindSlots]:
        """See `SealedRows.pieces`: all entries are read for each piece, so these are in one."""
        return [lambda: all_slots(self.keys)] if part else pieces_of(self.keys)

    def rows(self, slots: Slots, part: int) -> Batch:
        """See `SealedRows.rows`."""
        records = living(self.keys.read(slots))
        layout, memory = self.keys.layout, self.keys.memory
        if not part:
            return self.with_times(export_records(layout, records, memory))
        rows, columns = self.entries[part - 1].of(records)
        keys = Batch(layout.keys, layout.key_columns(records, rows, memory), len(rows))
        return self.with_times(with_columns(keys, columns))
