"""Sources with splits: the last rows of a split are on time, in whatever turn the splits come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations

import numpy as np
import pytest

import whale_ray as whale
from whale_ray.operators.instance_context import InstanceContext
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.transport.wire.batch import Batch

FROM_S = {"a": 4_000, "b": 1_000, "c": 2_000, "d": 3_000}
"""The time of the first row of each split; they are far apart."""
ROWS = 60


class Splits(Source):
    """Splits of which each is one batch, but for the first, which is three."""

    has_splits = True

    def __init__(self, order: tuple[str, ...]) -> None:
        self.order = order

    def open(self, context: InstanceContext) -> SourceReader:
        return SplitsReader(self.order)

    def describe(self) -> str:
        return "splits"


class SplitsReader(SourceReader):
    """Returns a third of the first split, then the others, then the rest of the first."""

    def __init__(self, order: tuple[str, ...]) -> None:
        first, *others = order
        third = ROWS // 3
        self._turns: Iterator[tuple[str, int, int]] = iter(
            [
                (first, 0, third),
                *((one, 0, ROWS) for one in others),
                (first, third, 2 * third),
                (first, 2 * third, ROWS),
            ]
        )
        self._read = dict.fromkeys(order, 0)
        self._split: str | None = None

    def read(self, max_rows: int) -> Batch | None:
        turn = next(self._turns, None)
        if turn is None:
            return None
        self._split, start, stop = turn
        self._read[self._split] = stop
        return Batch.from_pydict({"at": FROM_S[self._split] + np.arange(start, stop)})

    @property
    def finished(self) -> bool:
        return not self.splits()

    def splits(self) -> Mapping[str, bool]:
        return {one: True for one, count in self._read.items() if count < ROWS}

    @property
    def split(self) -> str | None:
        return self._split


@pytest.mark.parametrize("order", list(permutations(FROM_S)))
def test_no_row_of_a_split_is_late_for_another_split(order: tuple[str, ...]) -> None:
    topology = whale.Topology("splits")
    rows = topology.source(
        Splits(order), id="rows", event_time="at", event_time_unit="s", on_late="fail"
    )
    rows.sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow()["at"].to_pylist()
    assert sorted(found) == sorted(
        start + number for start in FROM_S.values() for number in range(ROWS)
    )
