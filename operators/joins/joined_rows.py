"""Makes the rows of a join of the rows of both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ...configs.units import NS_PER_US
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema
    from .equi_join import EquiJoin

__all__ = ["Bounds", "JoinedRows"]

Bounds: TypeAlias = "tuple[int, int] | tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]"


class JoinedRows:
    """The rows that leave a join.

    Args:
        join: what was asked for.
        left: the left columns.
        right: the right columns.

    Raises:
        ExpressionError: as `EquiJoin.output_schema`.
    """

    def __init__(self, join: EquiJoin, left: Schema, right: Schema) -> None:
        self.schema = join.output_schema(left, right)
        self._shared = join.shared_keys
        self._window_types = tuple(join.window_columns.values())
        self._left = left
        self._right_names = () if join.only_left_columns else join.right_names(right.names)
        self._right_types = [right.field(name).type for name in self._right_names]

    def of(self, left: Batch | None, right: Batch | None, bounds_ns: Bounds | None = None) -> Batch:
        """Return joined rows.

        Args:
            left: the left rows; None: null, but for shared keys.
            right: the right rows, as many; None: null, or not part of the result.
            bounds_ns: start and end of their windows, of all or of each, int64 (n,); None in a
                join without windows.
        """
        known = right if left is None else left
        assert known is not None
        count = known.num_rows
        columns = [
            Column(kind, np.full(count, np.asarray(bound_ns, np.int64) // NS_PER_US))
            for kind, bound_ns in zip(self._window_types, bounds_ns or (), strict=True)
        ]
        if left is not None:
            columns += left.columns
        else:
            columns += [self._left_column(field.name, field.type, known) for field in self._left]
        if right is None:
            columns += [_nulls(kind, count) for kind in self._right_types]
        else:
            columns += [right.column(name) for name in self._right_names]
        return Batch(self.schema, columns, count)

    def _left_column(self, name: str, kind: DataType, right: Batch) -> Column:
        return right.column(name) if name in self._shared else _nulls(kind, right.num_rows)


def _nulls(kind: DataType, count: int) -> Column:
    none = np.zeros(count, np.bool_)
    if kind.kind == "bytes":
        return Column(kind, np.empty(0, np.uint8), np.zeros(count + 1, np.int32), none)
    return Column(kind, np.zeros(count, kind.storage), None, none)
