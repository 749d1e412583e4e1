"""Drives a windowed operator as a worker would, and draws rows for it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import whale_ray as whale
from tests.operators.windows.model import NO_WATERMARK_NS, Event, aggregates, same
from whale_ray.operators.process import Output, Process
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

F = whale.functions
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)
US = 1_000
TIMES = st.integers(-40 * US, 40 * US)
WINDOWS = st.builds(
    lambda slide, more, start: TimeWindow(
        "time", (slide + more) * US, slide * US, start % slide * US
    ),
    st.integers(1, 12),
    st.integers(0, 25),
    st.integers(0, 11),
)
EVENTS = Schema.of(key="int32", number="int64", ratio="double", text="string")

AGGREGATES = (
    F.count().alias("rows"),
    F.count("number").alias("numbers"),
    F.sum("number").alias("sum"),
    F.sum("ratio").alias("total"),
    F.avg("number").alias("mean"),
    F.avg("ratio").alias("average"),
    F.min("number").alias("least"),
    F.max("ratio").alias("most"),
    F.min("ratio").alias("lowest"),
    F.min("text").alias("word"),
    F.first("text").alias("first"),
    F.last("number").alias("last"),
    F.min_by("text", "ratio").alias("least_by"),
    F.max_by("ratio", "number").alias("most_by"),
    F.var_samp("number").alias("variance"),
    F.stddev_pop("ratio").alias("deviation"),
    F.count_distinct("ratio").alias("different"),
    F.count_distinct("number", "text").alias("pairs"),
    F.percentile_approx("number", 0.5).alias("median"),
    F.collect_list("ratio").alias("list"),
)
"""One of each; `model.aggregates` has the same names."""


class Emitted(Output):
    """Keeps what is emitted, with its event times and the watermark before it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.times: list[int] = []
        self.batches: list[Batch] = []
        self.late: list[dict[str, Any]] = []
        self.watermark_ns = NO_WATERMARK_NS

    def emit(self, batch, times=None) -> None:
        assert isinstance(batch, Batch)
        self.batches.append(batch)
        self.rows += batch.to_pylist()
        if times is not None:
            assert (times > self.watermark_ns).all()
            self.times += times.tolist()

    def emit_to(self, output, rows, times=None) -> None:
        assert output == "late" and (rows.times <= self.watermark_ns).all()
        self.late += rows.to_pylist()

    def emit_rows(self, rows) -> None:
        raise AssertionError("these operators emit columns")


def bounds(row: dict[str, Any]) -> tuple[int, int]:
    """Return the bounds of a result's window, ns since 1970."""
    us = datetime.timedelta(microseconds=1)
    start, end = ((row[name] - EPOCH) // us * 1_000 for name in ("window_start", "window_end"))
    return start, end


def check(row: dict[str, Any], events: list[Event]) -> None:
    """Compare a result with the aggregates of its rows."""
    expected = aggregates(events)
    names = [one.output_name for one in AGGREGATES]
    differing = [name for name in names if not same(row[name], expected[name])]
    assert not differing, [(name, row[name], expected[name]) for name in differing]


def batch_of(events: Sequence[Event]) -> Batch:
    """Return rows of `EVENTS`."""
    columns = {name: [getattr(event, name) for event in events] for name in EVENTS.names}
    times = np.array([event.time_ns for event in events], np.int64)
    return Batch.from_pydict(columns, EVENTS).with_times(times)


def drive(process: Process, batches: Sequence[tuple[Sequence[Event], int]]) -> Emitted:
    """Hand over batches, each with the watermark behind it, then the end."""
    out = Emitted()
    context = instance_context(operator_id="windows")
    process.open(context)
    for events, watermark_ns in batches:
        if events:
            process.on_batch(batch_of(events), out)
        if watermark_ns > out.watermark_ns:
            process.on_watermark(watermark_ns, out)
            out.watermark_ns = watermark_ns
    process.close(out)
    # Stores keep their first chunks and indexes, which hold no rows by now.
    assert context.state_budget.used_bytes <= 1 << 20
    return out


def arrivals(times_ns: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Draw batches of rows in any order, each with a watermark: some rows come behind it."""
    event = st.builds(
        Event,
        time_ns=times_ns,
        key=st.none() | st.integers(0, 3),
        number=st.none() | st.integers(-(2**40), 2**40) | st.integers(-3, 3),
        ratio=st.none()
        | st.sampled_from([0.0, -0.0, float("nan"), 1.5])
        | st.floats(-1e6, 1e6, allow_subnormal=False),
        text=st.none() | st.sampled_from(["", "a", "ab", "é", "\U0001f40b"]),
    )
    return st.lists(st.tuples(st.lists(event, max_size=12), times_ns), max_size=6)


def take(operator: Process, keys: Sequence[int], time_ns: int) -> None:
    """Give an operator a row of each key, all of one event time and with texts that name it."""
    columns = {"key": keys, "number": [time_ns] * len(keys), "text": [f"at {time_ns}"] * len(keys)}
    schema = whale.Schema.of(key="int64", number="int64", text="string")
    batch = Batch.from_pydict(columns, schema).with_times(np.full(len(keys), time_ns))
    operator.on_batch(batch, Emitted())
