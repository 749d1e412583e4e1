"""A user's own operator seals and goes back: by its dump if it has one, else by what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.operators.process import InstanceContext
from whale_ray.operators.sealing import Sealing, state_of
from whale_ray.state.keys import hash_keys, virtual_node_of
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

NODES = instance_context().virtual_nodes


def nodes_of(batch: Batch) -> Any:
    hashes, _ = hash_keys(batch, ("key",))
    return virtual_node_of(hashes, NODES)


class Sums(whale.Process):
    """The sum of each key, in a dict; `seen` counts the calls of the object at hand."""

    def open(self, context: InstanceContext) -> None:
        self.context = context
        self.sums: dict[int, int] = {}

    def add(self, rows: list[tuple[int, int]]) -> None:
        for key, number in rows:
            self.sums[key] = self.sums.get(key, 0) + number

    def on_row(self, row: Any, out: Any) -> None:
        raise AssertionError


class DumpedSums(Sums):
    """The same, moved by virtual node."""

    def dump(self, nodes: Any) -> Iterable[Batch]:
        columns = {"key": list(self.sums), "sum": list(self.sums.values())}
        batch = Batch.from_pydict(columns, Schema.of(key="int64", sum="int64"))
        yield batch.filter(np.isin(nodes_of(batch), nodes))

    def load(self, batch: Batch) -> None:
        self.sums.update(zip(batch["key"].tolist(), batch["sum"].tolist(), strict=True))


class Sealed:
    """One operator, its state, and what it must be."""

    def __init__(self, kind: type[Sums]) -> None:
        self.kind = kind
        self.watermark_ns = 0
        self.renewed_at: list[int] = []
        self.context = instance_context(operator_id="sums")
        self.state: Sealing = state_of(
            self.made(), self.context, self.renew, lambda: self.watermark_ns
        )

    def made(self) -> Sums:
        operator = self.kind()
        operator.open(self.context)
        return operator

    def renew(self, watermark_ns: int) -> Sums:
        self.renewed_at.append(watermark_ns)
        return self.made()

    @property
    def operator(self) -> Any:
        return getattr(self.state, "operator")  # noqa: B009  # only users' objects are replaced


ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5)), max_size=8)


@pytest.mark.parametrize("kind", [Sums, DumpedSums])
@given(first=ROWS, second=ROWS, third=ROWS)
def test_an_operator_goes_back_to_what_it_was_at_a_seal(kind, first, second, third):
    sealed = Sealed(kind)
    sealed.operator.add(first)
    at_first = dict(sealed.operator.sums)
    sealed.state.seal(1)
    sealed.watermark_ns = 7
    sealed.operator.add(second)
    at_second = dict(sealed.operator.sums)
    sealed.state.seal(2)
    sealed.operator.add(third)
    left = sealed.operator
    sealed.state.roll_back(2)
    assert sealed.operator.sums == at_second
    assert sealed.operator is not left
    sealed.state.roll_back(1)
    assert sealed.operator.sums == at_first
    assert sealed.renewed_at == [7, 0]
    assert sealed.operator.context is sealed.context
    with pytest.raises(ValueError, match="no seal of epoch 2"):
        sealed.state.roll_back(2)


@pytest.mark.parametrize("kind", [Sums, DumpedSums])
def test_what_is_released_cannot_be_gone_back_to(kind):
    sealed = Sealed(kind)
    sealed.state.seal(1)
    sealed.state.seal(2)
    with pytest.raises(ValueError, match="epoch 2 after epoch 2"):
        sealed.state.seal(2)
    sealed.state.release(2)
    with pytest.raises(ValueError, match="no seal of epoch 1"):
        sealed.state.roll_back(1)
    sealed.state.roll_back(2)


def test_virtual_nodes_of_a_dump_are_loaded_by_others():
    ours, theirs = Sealed(DumpedSums), Sealed(DumpedSums)
    ours.operator.add([(key, key * key) for key in range(50)])
    half = np.arange(NODES // 2)
    for batch in ours.state.dump(half):
        theirs.state.load(batch)
    keys = Batch.from_pydict({"key": list(range(50))})
    nodes = nodes_of(keys).tolist()
    moved = {key: key * key for key in range(50) if nodes[key] < NODES // 2}
    assert 0 < len(moved) < 50
    assert theirs.operator.sums == moved


def test_the_state_of_a_class_without_a_dump_moves_whole():
    sealed = Sealed(Sums)
    with pytest.raises(whale.errors.UsageError, match="state of Sums moves whole: define dump"):
        sealed.state.dump(np.arange(3))
