"""The groups of a batch against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.windows import batch_combiner
from whale_ray.operators.windows.batch_combiner import BatchCombiner
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import DataType, Schema

TEXT = DataType.parse("string")
SCHEMA = Schema.of(k="string")
TEXTS = st.sampled_from(["", "a", "b", "12345678", "12345679", "1234567812345678", "é" * 9])


def _keys(texts: list[str | None]) -> Batch:
    return Batch(SCHEMA, [Column.of(texts, TEXT)], len(texts))


@given(
    st.lists(st.tuples(st.integers(-2, 2), TEXTS), min_size=1, max_size=80),
    st.sampled_from([1, 2, 1 << 40]),
)
def test_rows_with_the_same_slice_and_text_are_one_group(rows: list, hashes: int) -> None:
    texts = [text for _, text in rows]
    slices = np.array([slice_ for slice_, _ in rows], np.int64)
    hashed = np.array([hash(text) % hashes for text in texts], np.uint64)  # few: they collide
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_combiner, "_ROWS_MIN", 1)
        combined = BatchCombiner(SCHEMA).combine(slices, hashed, _keys(texts))
    assert combined is not None
    expected: dict[tuple[int, str], int] = {}
    for row, group in enumerate(rows):
        expected.setdefault(group, row)
    firsts, groups = combined
    assert firsts.tolist() == list(expected.values())
    assert firsts[groups].tolist() == [expected[group] for group in rows]


def _combines(combiner: BatchCombiner, texts: list[str | None]) -> bool:
    count = len(texts)
    hashes = np.arange(count, dtype=np.uint64)
    return combiner.combine(np.zeros(count, np.int64), hashes, _keys(texts)) is not None


def test_it_is_passed_over_for_longer_and_longer_where_groups_have_one_row_each() -> None:
    combiner = BatchCombiner(SCHEMA)
    distinct: list[str | None] = [str(number) for number in range(100)]
    tried = [number for number in range(12) if _combines(combiner, distinct)]
    assert tried == [0, 2, 5, 10]


def test_small_batches_null_keys_and_other_keys_are_looked_up_row_by_row() -> None:
    assert not _combines(BatchCombiner(SCHEMA), ["a"] * 63)
    assert not _combines(BatchCombiner(SCHEMA), ["a"] * 99 + [None])
    assert not _combines(BatchCombiner(Schema.of(k="int64")), ["a"] * 100)
    assert not _combines(BatchCombiner(Schema.of(k="string", other="string")), ["a"] * 100)
