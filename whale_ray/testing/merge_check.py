"""`check_merge`: whether an aggregate comes out the same however its rows are cut into parts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .conformance import ContractError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..operators.aggregates.aggregate import Aggregate
    from ..transport.wire.batch import Batch

    Int64s = npt.NDArray[np.int64]

_TRIALS = 50
_PARTS_MAX = 4


def check_merge(
    aggregate: Aggregate, rows: Batch | Mapping[str, Any], *, relative: float = 1e-9
) -> None:
    """Check that parts of the rows can be merged in any grouping and order.

    Windows that overlap, and sessions that join, merge what they have computed of parts. So the
    result must be that of all rows at once, whether parts are merged left to right, right to left
    or in pairs, and whichever comes first. An empty part must change nothing.

    ::

        check_merge(GeometricMean()("price"), {"price": [1.0, 2.5, 4.0, 8.0]})

    Args:
        aggregate: one of your own, `MyAggregate()("column")`, or of `whale.functions`.
        rows: the columns that it reads, with two rows or more; all have one event time.
        relative: by how much floats may differ.

    Raises:
        ContractError: a way to merge has another result; the message shows the parts.
    """
    from ..transport.wire.batch import Batch

    batch = rows if isinstance(rows, Batch) else Batch.from_pydict(dict(rows))
    groups = _Groups(aggregate, batch)
    whole = groups.result(groups.added(np.arange(batch.num_rows)))
    chance = random.Random(7)  # the same parts each time
    for _ in range(_TRIALS):
        numbers = np.array([chance.randrange(_PARTS_MAX) for _ in range(batch.num_rows)])
        parts = [np.flatnonzero(numbers == number) for number in range(_PARTS_MAX)]
        for way, found in _merged_ways(groups, parts):
            if not _same(found, whole, relative):
                shown = "; ".join(str(batch.take(part).to_pylist()) for part in parts)
                msg = (
                    f"{aggregate}: merged {way} the parts [{shown}] give {found!r}, all rows at"
                    f" once {whole!r}: merge must not depend on the order and grouping of parts"
                )
                raise ContractError(msg)


class _Groups:
    """Groups of rows of a batch, which are kept and merged as windows keep them."""

    def __init__(self, aggregate: Aggregate, batch: Batch) -> None:
        from ..operators.process import InstanceContext
        from ..operators.windows.group_state import GroupState
        from ..transport.clock import SystemClock
        from ..transport.wire.types import Schema

        context = InstanceContext("check_merge", str(aggregate), 0, (0,), 1, 0, SystemClock())
        self._aggregate, self._batch = aggregate, batch
        self._groups = GroupState(Schema(()), [aggregate.bind(batch.schema)], context)
        self._made = 0

    def added(self, rows: Int64s) -> Int64s:
        """Return a new group that has these rows: its slot, int64 (1,)."""
        from ..operators.windows.aggregation import evaluated_inputs
        from ..state.keys import hash_keys

        no_key = self._batch.slice(0, 1).select(())
        slice_ = np.full(1, self._made, np.int64)
        self._made += 1
        slot = self._groups.slots(slice_, hash_keys(no_key, ())[0], no_key)
        if len(rows):
            inputs = evaluated_inputs([self._aggregate], self._batch.take(rows).with_times(None))
            self._groups.update(np.repeat(slot, len(rows)), inputs, None)
        return slot

    def merged(self, one: Int64s, other: Int64s) -> Int64s:
        """Add a group to another one, which is returned."""
        self._groups.merge(one, self._groups, other)
        return one

    def result(self, slot: Int64s) -> Any:
        """Return the result of a group."""
        return self._groups.finish(0, slot).to_pylist()[0]

    def clear(self) -> None:
        """Drop all groups."""
        for slice_ in self._groups.slices:
            self._groups.free(slice_)


def _merged_ways(groups: _Groups, parts: list[Int64s]) -> list[tuple[str, Any]]:
    """Return the results of merging parts in several ways, with the name of each."""
    left, right, pairs, backwards = ([groups.added(part) for part in parts] for _ in range(4))
    merge = groups.merged
    ways = {
        "left to right": list(itertools.accumulate(left, merge))[-1],
        "right to left": merge(right[0], merge(right[1], merge(right[2], right[3]))),
        "in pairs": merge(merge(pairs[0], pairs[1]), merge(pairs[2], pairs[3])),
        "in reverse": list(itertools.accumulate(backwards[::-1], merge))[-1],
    }
    results = [(way, groups.result(slot)) for way, slot in ways.items()]
    groups.clear()
    return results


def _same(found: Any, whole: Any, relative: float) -> bool:
    if isinstance(found, float) and isinstance(whole, float):
        return bool(np.isclose(found, whole, rtol=relative, atol=relative, equal_nan=True))
    return bool(found == whole)
