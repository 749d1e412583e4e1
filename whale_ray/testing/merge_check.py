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

    from ..operators.aggregates.accumulator import Accumulator
    from ..operators.aggregates.aggregate import Aggregate
    from ..transport.wire.batch import Batch
    from ..transport.wire.column import Column

    State = Mapping[str, npt.NDArray[Any]]

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
    from ..operators.expressions.evaluation import Environment
    from ..transport.wire.batch import Batch

    batch = rows if isinstance(rows, Batch) else Batch.from_pydict(dict(rows))
    accumulator = aggregate.bind(batch.schema)
    environment = Environment(batch)
    inputs = [environment.evaluate(one) for one in aggregate.inputs]
    whole = _result(accumulator, _added(accumulator, inputs, np.arange(batch.num_rows)))
    chance = random.Random(7)  # the same parts each time
    for _ in range(_TRIALS):
        numbers = np.array([chance.randrange(_PARTS_MAX) for _ in range(batch.num_rows)])
        parts = [np.flatnonzero(numbers == number) for number in range(_PARTS_MAX)]
        for way, found in _merged_ways(accumulator, inputs, parts):
            if not _same(found, whole, relative):
                shown = "; ".join(str(batch.take(part).to_pylist()) for part in parts)
                msg = (
                    f"{aggregate}: merged {way} the parts [{shown}] give {found!r}, all rows at"
                    f" once {whole!r}: merge must not depend on the order and grouping of parts"
                )
                raise ContractError(msg)


def _merged_ways(
    accumulator: Accumulator, inputs: list[Column], parts: list[npt.NDArray[np.int64]]
) -> list[tuple[str, Any]]:
    """Return the results of merging parts in several ways, with the name of each."""

    def states() -> list[State]:
        return [_added(accumulator, inputs, part) for part in parts]

    def merge(one: State, other: State) -> State:
        slot = np.zeros(1, np.int64)
        accumulator.merge(one, slot, other, slot)
        return one

    left, right, pairs = states(), states(), states()
    backwards = states()[::-1]
    ways = {
        "left to right": list(itertools.accumulate(left, merge))[-1],
        "right to left": merge(right[0], merge(right[1], merge(right[2], right[3]))),
        "in pairs": merge(merge(pairs[0], pairs[1]), merge(pairs[2], pairs[3])),
        "in reverse": list(itertools.accumulate(backwards, merge))[-1],
    }
    return [(way, _result(accumulator, state)) for way, state in ways.items()]


def _added(
    accumulator: Accumulator, inputs: list[Column], rows: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    """Return the state of one group that has these rows."""
    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Field, Schema

    state: dict[str, npt.NDArray[Any]] = {}
    for field in accumulator.fields:
        state[field.name] = np.empty((1, *field.dtype.shape), field.dtype.base)
        state[field.name][...] = None if field.dtype == object else field.initial
    if len(rows):
        schema = Schema(tuple(Field(f"{n}", one.type) for n, one in enumerate(inputs)))
        columns = Batch(schema, inputs).take(rows).columns if inputs else ()
        accumulator.update(state, np.zeros(len(rows), np.int64), columns, None)
    return state


def _result(accumulator: Accumulator, state: State) -> Any:
    return accumulator.finish(state, np.zeros(1, np.int64)).to_pylist()[0]


def _same(found: Any, whole: Any, relative: float) -> bool:
    if isinstance(found, float) and isinstance(whole, float):
        return bool(np.isclose(found, whole, rtol=relative, atol=relative, equal_nan=True))
    return bool(found == whole)
