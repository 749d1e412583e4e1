"""State of what has ended is freed: an hour of event time leaves the bytes of live state flat.

Every step has new keys, so an operator that kept any of them for ever would take ever more. A probe
behind the operator, on the same worker, reads what all state takes after each watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

import whale_ray as whale
from whale_ray import state
from whale_ray.state import heap
from whale_ray.testing import ListSource

F = whale.functions
HOUR_S, STEP_S, KEYS = 3_600, 20, 20
LOCKSTEP = {
    "runtime.aggregation": "partitioned",  # else watermarks that close no window may wait
    "transport.wtl_ms": 0,
    "transport.ring_bytes": 65_536,
    "transport.ring_bytes_min": 65_536,
}
"""So that the operator is never far ahead of the probe."""
LONG = "a key that takes some memory, number "


class Probe(whale.Process):
    """Emits how many bytes the state of all operators of its worker takes."""

    takes_late_rows = True
    input_order = "arrival"

    def open(self, context: Any) -> None:
        self.budget = context.state_budget

    def on_batch(self, batch: Any, out: Any) -> None:
        pass

    def on_watermark(self, watermark_ns: int, out: Any) -> None:
        out.emit_row(watermark_ns=watermark_ns, nbytes=self.budget.used_bytes)


class Forgets(whale.KeyedProcess):
    """Keeps a value of each kind for a minute, until a timer clears them."""

    rows = state.count()
    text = state.value("string")
    items = state.list("int64")
    seen = state.map("int64", "int64")
    end = state.timer()

    def on_row(self, row: Any, out: Any) -> None:
        self.rows.add(1)
        self.text.set(LONG * 2)
        self.items.append(row.n)
        self.seen[row.n] = row.n
        self.end.set(row.t + timedelta(minutes=1))

    def on_timer(self, timer: Any, out: Any) -> None:
        self.clear()


class Expires(whale.KeyedProcess):
    """Keeps a value of each kind, which nobody clears, with a `ttl`."""

    rows = state.count(ttl="1 minute")
    text = state.value("string", ttl="1 minute")
    items = state.list("int64", ttl="1 minute")
    seen = state.map("int64", "int64", ttl="1 minute")

    def on_row(self, row: Any, out: Any) -> None:
        self.rows.add(1)
        self.text.set(LONG * 2)
        self.items.append(row.n)
        self.seen[row.n] = row.n


class Remembers(whale.KeyedProcess):
    """Keeps a number of each key for ever: what the probe must notice."""

    rows = state.count()

    def on_row(self, row: Any, out: Any) -> None:
        self.rows.add(1)


class Compiled(whale.KeyedProcess):
    """Keeps numbers of fixed width for a minute, compiled."""

    rows = state.count()
    end = state.timer()

    @whale.compiled
    def on_row(self, row: Any, out: Any) -> None:
        self.rows.add(1)
        self.end.set(row.t * 1_000 + 60_000_000_000)

    def on_timer(self, timer: Any, out: Any) -> None:
        self.clear()


class Both(whale.KeyedCoProcess):
    """Keeps what came left until a timer clears it."""

    text = state.value("string")
    end = state.timer()

    def on_left_row(self, row: Any, out: Any) -> None:
        self.text.set(LONG)
        self.end.set(row.t + timedelta(minutes=1))

    def on_right_row(self, row: Any, out: Any) -> None:
        self.text.get("")

    def on_timer(self, timer: Any, out: Any) -> None:
        self.clear()


def of_others(rows: whale.Stream) -> whale.Stream:
    """Return the same rows as another stream, with other names."""
    names = {"t": "u", "k": "key", "n": "m", "word": "other"}
    return rows.select(*(whale.col(name).alias(other) for name, other in names.items()))


AGGREGATES = (
    F.count(),
    F.min("word"),
    F.max_by("word", "n"),
    F.count_distinct("word"),
    F.collect_list("n"),
    F.percentile_approx("n", 0.5),
)


def grouped(*by: Any, **options: Any) -> Callable[[whale.Stream], whale.Stream]:
    return lambda rows: rows.group_by(*by).agg(*AGGREGATES, **options)


def joined(within: Any, how: Any) -> Callable[[whale.Stream], whale.Stream]:
    return lambda rows: rows.join(of_others(rows), on={"k": "key"}, within=within, how=how)


def processed(process: Any) -> Callable[[whale.Stream], whale.Stream]:
    return lambda rows: rows.key_by("k").process(process)


TUMBLING, HOPPING = whale.window("t", "1 minute"), whale.window("t", "1 minute", "20 seconds")
OPERATORS: dict[str, Callable[[whale.Stream], whale.Stream]] = {
    "tumbling window": grouped(TUMBLING, "k"),
    "hopping window": grouped(HOPPING, "k"),
    "lateness": grouped(TUMBLING, "k", allowed_lateness="1 minute"),
    "updates": grouped(HOPPING, "k", output_mode="update", trigger="1 second"),
    "session": grouped(whale.session_window("t", "30 seconds"), "k"),
    "count window": lambda rows: rows.group_by(whale.count_window(2), "k").agg(*AGGREGATES),
    "window without a key": grouped(TUMBLING),
    "window of windows": lambda rows: (
        rows.group_by(TUMBLING, "k")
        .agg(F.count().alias("rows"))
        .group_by("window_start", "window_end")
        .agg(F.sum("rows"))
    ),
    "top rows of a window": lambda rows: rows.group_by(TUMBLING, "k").top_n(1, by="n"),
    "duplicates": lambda rows: rows.drop_duplicates("k", within="1 minute"),
    **{
        f"{how} join within an interval": joined(whale.interval("-30 s", "30 s"), how)
        for how in ("inner", "left", "right", "outer", "semi", "anti")
    },
    **{
        f"{how} join within windows": joined(whale.window("1 minute"), how)
        for how in ("outer", "semi")
    },
    "timer": processed(Forgets),
    "compiled": processed(Compiled),
    "ttl": processed(Expires),
    "as-of join": lambda rows: rows.join_asof(
        of_others(rows), by={"k": "key"}, tolerance="30 seconds"
    ),
    "two inputs": lambda rows: (
        rows.key_by("k").connect(of_others(rows).key_by("key")).process(Both)
    ),
}


@cache
def rows_of_an_hour() -> list[dict[str, Any]]:
    """Return rows with new keys in every step; each key has two."""
    return [
        {
            "t": 1_000_000 * second,
            "k": f"{LONG}{second:04} {key:02}",
            "n": key,
            "word": f"{LONG}{key:02}",
        }
        for second in range(0, HOUR_S, STEP_S)
        for key in range(KEYS)
        for _ in range(2)
    ]


def sizes(operator: Callable[[whale.Stream], whale.Stream]) -> list[int]:
    """Return how many bytes all state takes after each watermark of an hour."""
    topology = whale.Topology("freed")
    schema = {"t": "timestamp[us]", "k": "string", "n": "int64", "word": "string"}
    source = ListSource(rows_of_an_hour(), schema=whale.Schema.of(**schema), batch_rows=2 * KEYS)
    stream = topology.source(source, id="rows", event_time="t")
    probed = operator(stream).global_().process(Probe, id="probe")
    probed.sink(whale.sinks.collect(), id="sizes")
    found = whale.run(topology, settings=LOCKSTEP).results("sizes").to_arrow()
    assert found.num_rows >= HOUR_S // STEP_S
    return found["nbytes"].to_pylist()


@pytest.fixture(autouse=True)
def compacted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let texts that were deleted be given up from 16 KiB on: an hour of many rows in few."""
    monkeypatch.setattr(heap, "_COMPACTED_FROM_BYTES", 1 << 14)


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATORS)
def test_an_hour_leaves_the_bytes_of_state_flat(name: str) -> None:
    found = sizes(OPERATORS[name])
    half = len(found) // 2
    assert 0 < max(found[half:]) <= max(found[:half])


def test_state_that_is_kept_for_ever_is_noticed() -> None:
    found = sizes(processed(Remembers))
    half = len(found) // 2
    assert max(found[half:]) > 1.5 * max(found[:half])
