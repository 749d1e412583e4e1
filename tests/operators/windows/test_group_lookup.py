"""Groups whose counts and sums are updated as they are found, beside groups of the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from whale_ray import functions
from whale_ray.operators.windows.group_state import GroupState
from whale_ray.state.keys import hash_keys
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import Schema

ROWS = Schema.of(city="int64", street="int32", whole="int64", real="float64")
KEYS = ("city", "street")
AGGREGATES = (
    functions.count(),
    functions.count("real"),
    functions.sum("whole"),
    functions.avg("whole"),
    functions.sum("real"),
)
INPUTS = ((), ("real",), ("whole",), ("whole",), ("real",))
WHOLE = (0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 40)
REAL = (0.0, -0.0, 0.1, -1e300, 1e300, 1e-300, np.inf, np.nan)


def rows_of(random: np.random.Generator, count: int, keys: int) -> Batch:
    data = (
        random.integers(0, keys, count),
        random.integers(0, 3, count, np.int32),
        random.choice(WHOLE, count),
        random.choice(REAL, count),
    )
    valid = [None if random.random() < 0.3 else random.random(count) < 0.7 for _ in data]
    columns = [
        Column(field.type, one, None, there)
        for field, one, there in zip(ROWS, data, valid, strict=True)
    ]
    return Batch(ROWS, columns, count)


def groups_of() -> GroupState:
    accumulators = [one.bind(ROWS) for one in AGGREGATES]
    return GroupState(ROWS.select(KEYS), accumulators, instance_context(operator_id="op"))


def dumped(groups: GroupState) -> dict[tuple[Any, ...], list[bytes]]:
    found = {}
    for slice_ in groups.slices:
        slots = groups.scan(slice_)
        keys = zip(*(column.to_pylist() for column in groups.keys_of(slots).columns), strict=True)
        columns = groups.dump(slots).values()
        for row, key in enumerate(keys):
            found[slice_, *key] = [one.data[row : row + 1].tobytes() for one in columns]
    return found


def test_groups_have_the_same_bits_if_they_are_updated_as_they_are_found() -> None:
    """Keys of two columns are never in the cache of slots; tables grow, and seals are gone back."""
    random = np.random.default_rng(7)
    together, apart = groups_of(), groups_of()
    kept: dict[int, Any] = {}
    for step in range(50):
        batch = rows_of(random, int(random.integers(1, 1200)), int(random.choice((5, 3000))))
        slices = np.full(batch.num_rows, int(random.integers(0, 2)), np.int64)
        keys, hashes = batch.select(KEYS), hash_keys(batch, KEYS)[0]
        inputs = [[batch.column(name) for name in names] for names in INPUTS]
        assert together._lookup.may_update
        together.add(slices, hashes, keys, inputs, None)
        apart.update(apart.slots(slices, hashes, keys), inputs, None)
        assert len(together) == len(apart)
        if step % 10 == 4:
            together.seal(step)
            kept[step] = dumped(together)
            assert kept[step] == dumped(apart)
        if step in (28, 47):  # without the rows since the seal
            together.roll_back(step - step % 10 + 4)
            assert dumped(together) == kept[step - step % 10 + 4]
            apart = groups_of()
            for slice_ in together.slices:
                slots = together.scan(slice_)
                known = together.keys_of(slots)
                own = apart.slots(np.full(len(slots), slice_), hash_keys(known, KEYS)[0], known)
                apart.load(own, with_dump(together, slots, known))
    assert dumped(together) == dumped(apart)


def with_dump(groups: GroupState, slots: Any, keys: Batch) -> Batch:
    from whale_ray.state.node_transfer import with_columns

    return with_columns(keys, groups.dump(slots))
