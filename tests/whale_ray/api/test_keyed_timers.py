"""Timers of keyed processes: their order, those in the past, and chains of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from tests.whale_ray.api.opened_processes import KeptRows, feed, opened
from tests.whale_ray.api.test_keyed_processes import EPOCH, timed
from whale_ray import state
from whale_ray.api.submission import run
from whale_ray.errors import UsageError, UserFunctionError


class Endless(whale.KeyedProcess):
    """Its timer sets itself to the same time again."""

    again = state.timer()

    def on_row(self, row: Any, out: whale.Output) -> None:
        self.again.set(5)

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        self.again.set(out.time_ns)


class Mutual(whale.KeyedProcess):
    """Its two timers set each other to the same time."""

    again = state.timer()
    other = state.timer()

    def on_row(self, row: Any, out: whale.Output) -> None:
        self.again.set(5)

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        (self.other if timer is self.again else self.again).set(out.time_ns)


@pytest.mark.parametrize("kind", [Endless, Mutual])
@pytest.mark.parametrize(
    "fire",
    [
        lambda process: process.on_watermark(10, KeptRows()),
        lambda process: process.close(KeptRows()),
        lambda process: process.on_batch(timed([{"k": 1}], 7), KeptRows()),
    ],
    ids=["by a watermark", "at the end", "before a row"],
)
def test_timers_that_would_fire_for_ever_are_refused(
    kind: Any, fire: Callable[[Any], None]
) -> None:
    process = opened(kind, in_event_time_order=True)
    process.on_batch(timed([{"k": 1}], 0), KeptRows())
    with pytest.raises(UsageError) as raised:
        fire(process)
    assert str(raised.value).startswith(
        "timer 'again' of key {k=1}: on_timer set it, directly or by another timer, to a time that"
        " is not after the one at which it had fired, so it would fire for ever"
    )


class Chained(whale.KeyedProcess):
    """Each timer sets the next one, 10 ns later, as often as the row says."""

    beat = state.timer()
    left = state.count()

    def on_row(self, row: Any, out: whale.Output) -> None:
        self.left.set(row.n)
        self.beat.set(row.at)

    def on_timer(self, timer: Any, out: Any) -> None:
        out.emit_row(k=self.key.k, at=out.time_ns)
        self.left.add(-1)
        if self.left.get():
            self.beat.set(out.time_ns + 10)


@given(keys=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=6))
@settings(max_examples=50)
def test_a_chain_of_timers_goes_on_to_its_end_when_the_input_has_ended(
    keys: list[tuple[int, int]],
) -> None:
    process, sink = opened(Chained), KeptRows()
    rows = [{"k": k, "at": at, "n": n} for k, (at, n) in enumerate(keys)]
    process.on_batch(timed(rows, 0), sink)
    process.close(sink)
    expected = [(k, at + 10 * i) for k, (at, n) in enumerate(keys) for i in range(n)]
    found = [(row["k"], row["at"]) for row in sink.rows]
    assert sorted(found) == expected
    horizon = max(at for at, _ in keys)
    known = [at for _, at in found if at <= horizon]
    assert known == sorted(known) and [at for _, at in found[: len(known)]] == known


def test_a_heartbeat_ends_with_the_input_if_it_asks_and_is_refused_if_it_does_not() -> None:
    class Heartbeat(whale.KeyedProcess):
        beat = state.timer()
        echo = state.timer()
        asks = state.value("bool")

        def on_row(self, row: Any, out: whale.Output) -> None:
            assert not self.input_ended
            self.asks.set(row.asks)
            self.beat.set(10)

        def on_timer(self, timer: Any, out: Any) -> None:
            if timer is self.beat and not (self.asks.get() and self.input_ended):
                self.beat.set(out.time_ns + 10)
                self.echo.set(out.time_ns + 5)

    process = opened(Heartbeat)
    feed(process, [{"k": 1, "asks": True}])
    process.on_watermark(100, KeptRows())
    process.close(KeptRows())
    process = opened(Heartbeat)
    feed(process, [{"k": 1, "asks": True}, {"k": 2, "asks": False}])
    with pytest.raises(UsageError) as raised:
        process.close(KeptRows())
    assert str(raised.value) == (
        "timer 'echo' of key {k=2}: on_timer has set it again 100,000 times since the input ended,"
        " so it would fire for ever: set it only while not self.input_ended"
    )


def test_timers_of_the_clock_fire_once_when_the_input_has_ended_and_those_they_set_too() -> None:
    fired = []

    class Clocked(whale.KeyedProcess):
        beat = state.timer("processing")
        other = state.timer("processing")
        later = state.timer()

        def on_row(self, row: Any, out: whale.Output) -> None:
            self.beat.set(10)

        def on_timer(self, timer: Any, out: Any) -> None:
            fired.append(timer.name)
            self.beat.set(20)
            self.other.set(10)
            if timer is self.other:
                self.later.set(30)

    process = opened(Clocked)
    feed(process, [{"k": 1}])
    process.close(KeptRows())
    assert fired == ["beat", "other", "later"]


def test_an_error_in_a_method_names_the_row_or_the_timer_and_its_key() -> None:
    class Wrong(whale.KeyedProcess):
        alarm = state.timer()
        n = state.count()

        def on_row(self, row: Any, out: whale.Output) -> None:
            self.alarm.set(5)
            if row.wrong:
                self.n.add("x")

        def on_timer(self, timer: Any, out: whale.Output) -> None:
            raise ValueError

    topology = whale.Topology("wrong")
    rows = topology.source(whale.sources.iterable([{"k": 7, "wrong": 0}, {"k": 7, "wrong": 1}]))
    rows.key_by("k").process(Wrong, id="counted").sink(whale.sinks.collect())
    with pytest.raises(UsageError) as refused:
        run(topology)
    assert str(refused.value) == (
        "operator 'counted': 'n' keeps values of int64, not 'x'; input: {k=7, wrong=1}"
    )
    topology = whale.Topology("raising")
    rows = topology.source(whale.sources.iterable([{"k": 7, "wrong": 0}]))
    rows.key_by("k").process(Wrong, id="counted").sink(whale.sinks.collect())
    with pytest.raises(
        UserFunctionError, match="operator 'counted'.*; input: timer 'alarm' of"
    ) as e:
        run(topology)
    assert str(e.value).endswith("; input: timer 'alarm' of key {k=7}")


@pytest.mark.parametrize("when", [EPOCH.replace(year=9999), 1 << 63])
def test_a_time_that_no_timer_can_tell_is_refused(when: Any) -> None:
    class Far(whale.KeyedProcess):
        alarm = state.timer()

        def on_row(self, row: Any, out: whale.Output) -> None:
            self.alarm.set(when)

        def on_timer(self, timer: Any, out: Any) -> None:
            raise AssertionError

    with pytest.raises(UsageError) as raised:
        feed(opened(Far), [{"k": 1}])
    assert str(raised.value) == (
        f"'alarm' is set to {when!r}: a timer tells the years 1678 to 2261; input: {{k=1}}"
    )


def test_a_timer_in_the_past_fires_with_the_next_watermark() -> None:
    fired = []

    class Past(whale.KeyedProcess):
        alarm = state.timer()

        def on_row(self, row: Any, out: whale.Output) -> None:
            self.alarm.set(row.at)

        def on_timer(self, timer: Any, out: Any) -> None:
            fired.append((self.key.k, out.time_ns))

    process = opened(Past)
    process.on_watermark(100, KeptRows())
    feed(process, [{"k": 1, "at": 50}, {"k": 2, "at": 101}, {"k": 3, "at": 20}])
    assert fired == []
    process.on_watermark(100, KeptRows())
    assert fired == [(3, 20), (1, 50)]
    process.close(KeptRows())
    assert fired[2:] == [(2, 101)]


def test_timers_fire_in_order_of_time_and_may_set_others() -> None:
    fired = []

    class Chain(whale.KeyedProcess):
        tick = state.timer()
        left = state.count()

        def on_row(self, row: Any, out: whale.Output) -> None:
            self.left.add(row.n)
            self.tick.set(1000)
            self.tick.set(row.at)

        def on_timer(self, timer: Any, out: Any) -> None:
            fired.append((out.time_ns, self.key.k))
            self.left.add(-1)
            if self.left.get():
                self.tick.set(out.time_ns + 10)

    process = opened(Chain)
    feed(process, [{"k": k, "n": 3, "at": 7 * k} for k in (4, 1, 2)])
    process.on_watermark(30, KeptRows())
    assert fired == [(7, 1), (14, 2), (17, 1), (24, 2), (27, 1), (28, 4)]
    process.on_watermark(999, KeptRows())
    assert fired[6:] == [(34, 2), (38, 4), (48, 4)]
    process.on_watermark(2000, KeptRows())
    assert len(fired) == 9 and len(process._state.store) == 0


class Beats(whale.KeyedProcess):
    """Emits every 10 ns, from the first row of a key to the end of the input."""

    beats = state.count()
    beat = state.timer()

    def on_row(self, row: Any, out: whale.Output) -> None:
        if not self.beat.exists:
            self.beat.set(10)

    def on_timer(self, timer: Any, out: whale.Output) -> None:
        self.beats.add(1)
        out.emit_row(k=self.key.k, beat=self.beats.get(), ended=self.input_ended)
        if not self.input_ended:
            self.beat.set(out.time_ns + 10)


@pytest.mark.parametrize("wtl_ms", [0, 1_000])
def test_timers_up_to_the_last_row_fire_before_the_input_has_ended(wtl_ms: int) -> None:
    """Whether the source's end is sent with its last rows, or long after them."""
    topology = whale.Topology("beats")
    rows = [{"k": 1, "at": 0}, *({"k": 2, "at": at} for at in range(45))]
    source = topology.source(
        whale.sources.iterable(rows), id="rows", event_time="at", event_time_unit="ns"
    )
    beats = source.key_by("k").process(Beats, id="beats", parallelism=2)
    beats.sink(whale.sinks.collect(), id="out")
    job = run(topology, settings={"runtime.source_batch_rows": 10, "transport.wtl_ms": wtl_ms})
    found = job.results("out").to_arrow().to_pylist()
    ended = [(row["beat"], row["ended"]) for row in found if row["k"] == 1]
    assert ended == [(1, False), (2, False), (3, False), (4, False), (5, True)]
