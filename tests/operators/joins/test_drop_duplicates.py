"""De-duplication against a loop over all rows, in random order and beyond the watermark."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.api.submission import run, submit
from whale_ray.operators.joins.deduplication import Deduplication
from whale_ray.operators.process import Output
from whale_ray.state.budget import StateBudget
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

US = 1_000
SECOND = 1_000_000 * US
ROWS = Schema.of(key="double", text="string", n="int64")
TIMES = st.integers(-40, 40).map(lambda at: at * US)
KEYS = st.tuples(
    st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.5]), st.none() | st.just("é")
)


class Passed(Output):
    """Keeps the numbers of the rows that were passed on, and of the late ones."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.late: list[int] = []

    def emit(self, batch, times=None) -> None:
        assert times is None and batch.has_times
        self.numbers += batch["n"].tolist()

    def emit_to(self, output, rows, times=None) -> None:
        assert output == "late"
        self.late += rows["n"].tolist()

    def emit_rows(self, rows) -> None:
        raise AssertionError("it emits columns")


def first_rows(batches: Any, within: int) -> tuple[list[int], list[int]]:
    """Return the numbers of the rows that are passed on and of the late ones, by a loop."""
    passed: list[tuple[Any, int]] = []
    numbers, late, number, watermark_ns = [], [], 0, -(1 << 63)
    for rows, after_ns in batches:
        for time_ns, key in rows:
            known = tuple(
                "nan" if isinstance(value, float) and math.isnan(value) else value for value in key
            )
            if time_ns <= watermark_ns:
                late.append(number)
            elif all(k != known or abs(time_ns - t) >= within for k, t in passed):
                passed.append((known, time_ns))
                numbers.append(number)
            number += 1
        watermark_ns = max(watermark_ns, after_ns)
    return numbers, late


def drive(batches: Any, within: int) -> tuple[Passed, list[int], StateBudget]:
    """Hand over batches, each with the watermark behind it, then the end."""
    process, out, budget = Deduplication(("key", "text"), within)(), Passed(), StateBudget()
    context = instance_context(operator_id="once")
    process.open(dataclasses.replace(context, state_budget=budget))
    number, watermark_ns, sizes = 0, -(1 << 63), []
    for rows, after_ns in batches:
        columns = {
            "key": [key[0] for _, key in rows],
            "text": [key[1] for _, key in rows],
            "n": list(range(number, number + len(rows))),
        }
        number += len(rows)
        times = np.array([time_ns for time_ns, _ in rows], np.int64)
        if rows:
            process.on_batch(Batch.from_pydict(columns, ROWS).with_times(times), out)
        if after_ns > watermark_ns:
            watermark_ns = after_ns
            process.on_watermark(watermark_ns, out)
        sizes.append(budget.used_bytes)
    process.close(out)
    return out, sizes, budget


@pytest.mark.long
@settings(max_examples=150)
@given(
    batches=st.lists(st.tuples(st.lists(st.tuples(TIMES, KEYS), max_size=12), TIMES), max_size=6),
    within=st.integers(1, 30).map(lambda at: at * US),
)
def test_the_first_row_of_a_key_within_the_horizon_passes(batches, within):
    out, _, _ = drive(batches, within)
    assert (out.numbers, out.late) == first_rows(batches, within)


@pytest.mark.long
def test_an_hour_of_keys_leaves_nothing_behind():
    batches = [([(at * SECOND, (float(at), "é"))], at * SECOND - 1) for at in range(3600)]
    out, sizes, _ = drive(batches, 10 * SECOND)
    assert len(out.numbers) == 3600
    assert max(sizes[100:]) <= max(sizes[:100])


@pytest.mark.long
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("runner", ["inline", "processes"])
def test_jobs_pass_on_one_row_of_each_key(runner, parallelism):
    rows = [{"t": at, "k": at % 7 or None, "x": at} for at in range(200)]
    topology = whale.Topology("once")
    stream = topology.source(
        whale.sources.iterable(rows), id="rows", event_time="t", event_time_unit="s"
    )
    once = stream.drop_duplicates("k", within="50 seconds", id="once", parallelism=parallelism)
    once.sink(whale.sinks.collect(), id="out")
    once.late.sink(whale.sinks.collect(), id="late")
    assert "first rows of k within 50 seconds" in str(topology.explain())
    job = run(topology) if runner == "inline" else submit(topology, on="processes").wait()
    expected = [at for at in range(200) if at % 56 < 7]
    assert sorted(job.results("out").to_pandas()["x"]) == expected


@pytest.mark.parametrize(
    ("columns", "within", "said"),
    [
        (("kay",), "1 s", "drop_duplicates names column 'kay', which the stream does not have"),
        (("k", "k"), "1 s", "names column 'k' twice"),
        ((whale.col("k"),), "1 s", "takes names of columns, not"),
        (("k",), "0 s", "within is '0 s': it must be longer than nothing"),
        (("k",), "soon", "within is 'soon'"),
    ],
)
def test_mistakes_are_reported_with_their_remedy(columns, within, said):
    rows = Batch.from_pydict({"k": [1], "t": [1]}).to_arrow()
    source: Any = whale.sources.arrow(rows)
    topology = whale.Topology("t")
    stream = topology.source(source, id="rows", event_time="t", event_time_unit="s")
    with pytest.raises(whale.errors.TopologyError, match=said):
        stream.drop_duplicates(*columns, within=within)
    untimed = topology.source(source, id="untimed")
    with pytest.raises(whale.errors.TopologyError, match="needs event times"):
        untimed.drop_duplicates("k", within="1 s")
