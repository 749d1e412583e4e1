"""The rate generator: reproducible content, exponential interarrival times, an open loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from whale_ray.configs.errors import InputError
from whale_ray.operators import sources
from whale_ray.testing import VirtualClock, instance_context, read_all

SECOND_NS = 1_000_000_000


def columns(rows: npt.NDArray[np.int64], random: np.random.Generator) -> dict[str, Any]:
    return {"id": rows, "x": random.random(len(rows))}


def rows_of(source: sources.Source, *share: int, max_rows: int = 8192) -> list[dict[str, Any]]:
    batches = read_all(source, *share, max_rows=max_rows)
    return [row for batch in batches for row in batch.to_pylist()]


def test_content_depends_on_the_seed_alone() -> None:
    slow = rows_of(sources.poisson(10.0, columns, limit=3000), max_rows=7)
    fast = rows_of(sources.poisson(1e6, columns, limit=3000))
    assert slow == fast
    assert [row["id"] for row in slow] == list(range(3000))
    dealt = [
        row for i in range(3) for row in rows_of(sources.poisson(1.0, columns, limit=3000), i, 3)
    ]
    assert sorted(dealt, key=lambda row: row["id"]) == slow
    assert rows_of(sources.poisson(1e6, columns, limit=3000, seed=1)) != slow


@pytest.mark.long
@pytest.mark.parametrize("parallelism", [1, 4])
def test_distances_are_exponential(parallelism: int) -> None:
    rate = 1000.0
    gaps = []
    for instance in range(parallelism):
        source = sources.poisson(rate, columns, limit=100_000, time_column="at")
        at = np.concatenate(
            [b["at"].astype(np.int64) for b in read_all(source, instance, parallelism)]
        )
        gaps.append(np.diff(at) * rate / parallelism / SECOND_NS)
    scaled = np.concatenate(gaps)
    # An exponential distribution has mean 1, deviation 1 and median ln 2; no correlation.
    assert scaled.mean() == pytest.approx(1.0, abs=0.03)
    assert scaled.std() == pytest.approx(1.0, abs=0.04)
    assert np.median(scaled) == pytest.approx(math.log(2), abs=0.03)
    assert np.corrcoef(scaled[:-1], scaled[1:])[0, 1] == pytest.approx(0.0, abs=0.03)


def test_rows_are_read_when_due_with_their_scheduled_time_as_origin() -> None:
    clock = VirtualClock(start_ns=7 * SECOND_NS)
    source = sources.poisson(1000.0, columns, time_column="at")
    assert not source.bounded
    reader = source.open(instance_context(clock=clock))
    assert reader.read(100) is None
    ready_ns = reader.next_ready_ns()
    assert ready_ns is not None
    clock.advance(ready_ns - clock.monotonic_ns() - 1)
    assert reader.read(100) is None
    clock.advance(1)
    first = reader.read(100)
    assert first is not None
    assert first.num_rows == 1
    assert first.origin_ns == ready_ns
    # For a second nothing is read: the rows wait, and their origin is their scheduled time.
    second_due_ns = reader.next_ready_ns()
    clock.advance(SECOND_NS)
    late = reader.read(10)
    assert late is not None
    assert late.num_rows == 10
    assert late.origin_ns == second_due_ns
    assert late.origin_ns == 7 * SECOND_NS + int(late.column("at").data[0])
    count = 11
    while (batch := reader.read(8192)) is not None:
        count += batch.num_rows
    assert 900 < count < 1100


def test_an_infinite_rate_does_not_wait() -> None:
    clock = VirtualClock(start_ns=3)
    reader = sources.poisson(math.inf, columns, limit=1500).open(instance_context(clock=clock))
    sizes = []
    while (batch := reader.read(8192)) is not None:
        assert batch.origin_ns == 3
        sizes.append(batch.num_rows)
    assert sizes == [1024, 476]
    assert reader.finished
    assert reader.next_ready_ns() is None


def test_a_limit_of_zero_ends_at_once() -> None:
    assert rows_of(sources.poisson(1.0, columns, limit=0)) == []


def test_schema_and_description() -> None:
    source = sources.poisson(
        2.5, lambda rows, random: {"id": rows}, limit=10, schema={"id": "int32"}
    )
    assert rows_of(source)[9] == {"id": 9}
    assert str(source.schema()) == "id: int32"
    assert source.describe() == "poisson 2.5 rows/s, 10 rows, seed 0"


def test_golden_messages() -> None:
    def message_of(**arguments: Any) -> str:
        with pytest.raises(InputError) as error:
            list(read_all(sources.poisson(**{"rate_per_s": 1.0, "columns": columns, **arguments})))
        return str(error.value)

    assert message_of(rate_per_s=0) == ("rate_per_s=0 must be above 0; use math.inf for no pacing")
    assert message_of(limit=-1) == "limit=-1 must not be negative; leave it out for no limit"
    assert message_of(seed=-1) == "seed=-1 must not be negative"
    assert message_of(columns=5) == (
        "poisson() needs a function columns(rows, random) that returns a mapping of column name "
        "to values"
    )
    assert message_of(columns=lambda rows, random: [1, 2]) == (
        "poisson: columns() returned a list; return a dict from names to arrays"
    )
    assert message_of(columns=lambda rows, random: {"x": [1, 2]}) == (
        "poisson: columns() returned 2 values for 'x'; return one for each of the 1024 row numbers"
    )
