"""Rows by number, against one batch of all of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import InputError
from whale_ray.operators.joins import row_log
from whale_ray.operators.joins.row_log import RowLog
from whale_ray.operators.joins.row_queue import RowQueue
from whale_ray.state.page_file import PageFile
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

SCHEMA = Schema.of(
    number="int64",
    text="string",
    flag="bool",
    small="int16",
    byte="int8",
    real="float32",
    price="decimal(20, 2)",
    time="timestamp[us, tz=UTC]",
)
VALUES = {
    "number": st.integers(-(2**63), 2**63 - 1),
    "text": st.text(max_size=40),
    "flag": st.booleans(),
    "small": st.integers(-(2**15), 2**15 - 1),
    "byte": st.integers(-128, 127),
    "real": st.floats(width=32, allow_nan=False),
    "price": st.integers(-(10**18), 10**18).map(lambda cents: Decimal(cents).scaleb(-2)),
    "time": st.integers(-(10**16), 10**16).map(
        lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    ),
}
NO_NULLS = st.fixed_dictionaries(VALUES)
NULLS = st.fixed_dictionaries({name: st.none() | value for name, value in VALUES.items()})
PIECES = st.lists(
    st.lists(NO_NULLS, max_size=6) | st.lists(NULLS, max_size=6), min_size=1, max_size=6
)


@given(PIECES, st.integers(1, 2_000), st.integers(0, 4), st.randoms(use_true_random=False))
def test_rows_are_those_of_one_batch(
    pieces: list[list[dict[str, Any]]], batch_bytes: int, spilled: int, random: Any
) -> None:
    log = RowLog()
    batches = [Batch.from_rows(rows, SCHEMA) for rows in pieces]
    limits = {"_BATCH_BYTES_MAX": batch_bytes, "_SPILLED_BYTES_MIN": batch_bytes // 2}
    pages = PageFile("join")
    with mock.patch.multiple(row_log, **limits):
        for batch in batches:
            log.append(batch)
            if spilled and log.next_to_spill(batch_bytes // 2):
                spilled -= 1
                log.spill(pages)
        together = Batch.concat(batches)
        count = together.num_rows
        numbers = np.array([random.randrange(count) for _ in range(2 * count)], np.int64)
        assert log.take(numbers).to_pylist() == together.take(numbers).to_pylist()
        first, stop = sorted((random.randint(0, count), random.randint(0, count)))
        found = [row for batch in log.between(first, stop) for row in batch.to_pylist()]
        assert found == together.slice(first, stop).to_pylist()
        before = log.spilled_bytes
        for share in (0.8, 0.3):  # rows that ascend: those on the disk stay there
            kept = np.flatnonzero([random.random() < share for _ in range(count)])
            log.keep_only(kept, pages)
            together, count = together.take(kept), len(kept)
            numbers = np.array([random.randrange(count) for _ in range(count)], np.int64)
            if count:
                assert log.take(numbers).to_pylist() == together.take(numbers).to_pylist()
                log.append(batches[0])
                together = Batch.concat([together, batches[0]])
                count = together.num_rows
            else:
                break
        assert log.spilled_bytes <= before


def test_rows_kept_in_any_order_are_numbered_in_it() -> None:
    log = RowLog()
    for first in (0, 2_000, 2_100):
        log.append(Batch.from_pydict({"number": np.arange(first, first + 100)}))
    numbers = np.array([210, 3, 7, 205])
    log.keep_only(numbers)
    assert log.take(np.arange(4))["number"].tolist() == [2_110, 3, 7, 2_105]


def test_a_row_that_is_not_there_is_refused() -> None:
    log = RowLog()
    for rows in (2_000, 100, 10):
        log.append(Batch.from_pydict({"number": np.arange(rows)}))
    assert len(log) == 3
    for wrong in (-1, 2_110):
        with pytest.raises(InputError, match="outside"):
            log.take(np.array([5, wrong]))


def test_rows_of_other_types_are_converted_if_these_are_narrower() -> None:
    log = RowLog()
    log.append(Batch.from_pydict({"number": np.arange(3)}, Schema.of(number="int64")))
    log.append(Batch.from_pydict({"number": np.arange(2)}, Schema.of(number="int32")))
    assert log.take(np.arange(5))["number"].tolist() == [0, 1, 2, 0, 1]
    narrow = RowLog()
    narrow.append(Batch.from_pydict({"number": np.arange(2)}, Schema.of(number="int32")))
    with pytest.raises(InputError, match="rows of a join have columns"):
        narrow.append(Batch.from_pydict({"number": np.arange(3)}, Schema.of(number="int64")))


@pytest.mark.parametrize("spilled", [False, True])
def test_rows_of_a_snapshot_stay_as_they_are_when_a_queue_drops_rows(spilled: bool) -> None:
    queue, pages = RowQueue(), PageFile("test")
    numbers = np.arange(3_000)
    queue.add(Batch.from_pydict({"number": numbers}).with_times(numbers), numbers.copy())
    if spilled:
        queue.places.spill(pages)
    snapshot = list(queue.between(0, 3_000))
    queue.owners[:2_000] = -1
    assert queue.drop_unowned(numbers.copy(), pages)
    for rows, expected in ((snapshot, numbers), (queue.between(0, 1_000), numbers[2_000:])):
        (batch,) = rows
        assert batch.times is not None
        assert batch["number"].tolist() == batch.times.tolist() == expected.tolist()
