"""`SealedEntries`: the entries of lists or maps as they were sealed, as rows of a snapshot.

The thread that makes the rows cannot use the index of entries beside the loop that changes it. So
it reads all entries, and picks out those of the keys that it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.node_transfer import kept_columns
from ...state.records import RecordField, copy_of_records
from ...state.sealed_records import SealedRecords, living
from ...transport.wire.column import Column

__all__ = ["SealedEntries"]

Int64s = npt.NDArray[np.int64]
Records = npt.NDArray[Any]


@dataclass(frozen=True)
class SealedEntries:
    """The entries of one declared list or map at a seal; of use as long as `SealedRecords`.

    Attributes:
        entries: their records, found by an id and one more key.
        id_field: the field of a key's record for its id.
        at_column: the name of the column for the other key.
        fields: what else is kept of an entry.
        place_field: the field that entries of a key are ordered by; None: by the other key.
    """

    entries: SealedRecords
    id_field: str
    at_column: str
    fields: Sequence[RecordField]
    place_field: str | None

    def of(self, keys: Records) -> tuple[Int64s, dict[str, Column]]:
        """Return the entries of keys as `EntriesHandle.dump` does: of which key, and columns."""
        order = np.argsort(keys[self.id_field])
        ids = keys[self.id_field][order]
        parts = [self._piece(number, ids) for number in range(self.entries.pieces)]
        none = np.empty(0, np.int64), np.empty(0, self.entries.layout.dtype)
        places, records = (np.concatenate(one) for one in zip(none, *parts, strict=True))
        rows = order[places]
        by = self._keys(records)[1].data if self.place_field is None else records[self.place_field]
        ordered = np.lexsort((by, rows))
        layout, memory = self.entries.layout, self.entries.memory
        records = copy_of_records(records, ordered)
        kept = kept_columns(layout, records, self.fields, memory)
        return rows[ordered], {self.at_column: self._keys(records)[1], **kept}

    def _piece(self, number: int, ids: Int64s) -> tuple[Int64s, Records]:
        """Return which of some ids, ascending, the entries of a piece have, and these entries."""
        records = living(self.entries.read(self.entries.piece(number)))
        owners = self._keys(records)[0].data
        places = np.searchsorted(ids, owners)
        places[places == len(ids)] = 0
        wanted = ids[places] == owners if len(ids) else np.zeros(len(owners), np.bool_)
        return places[wanted], copy_of_records(records, np.flatnonzero(wanted))

    def _keys(self, records: Records) -> list[Column]:
        """Return the ids and keys of entries."""
        return self.entries.layout.key_columns(records, slice(None), self.entries.memory)
