"""Event time by split, against a model that takes one row at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import BadRowError
from whale_ray.operators.event_time import LATE, EventTime
from whale_ray.operators.split_event_times import SplitEventTimes
from whale_ray.state.watermarks import WATERMARK_NONE
from whale_ray.transport.wire.batch import Batch

BEHIND = 5
SPLITS = ("a", "b", "c")


def batch(times: list[int]) -> Batch:
    return Batch.from_pydict({"t": times})


def times_of(got: Batch) -> list[int]:
    assert got.times is not None
    return got.times.tolist()


class SplitModel:
    """What is late, and the least watermark, by the definition."""

    def __init__(self) -> None:
        self.watermark = WATERMARK_NONE
        self.reached: dict[str, int] = {}
        self.idle: set[str] = set()
        self.late = 0

    def know(self, split: str) -> None:
        self.reached.setdefault(split, self.watermark)

    def wake(self, split: str) -> None:
        if split in self.idle:
            self.idle.discard(split)
            self.reached[split] = max(self.reached[split], self.watermark)

    def take(self, split: str, times: list[int]) -> list[int]:
        self.know(split)
        self.wake(split)
        kept = []
        for time in times:
            if time <= self.reached[split]:
                self.late += 1
            else:
                kept.append(time)
            self.reached[split] = max(self.reached[split], time - BEHIND - 1)
        self.advance()
        return kept

    def advance(self) -> None:
        active = [mark for split, mark in self.reached.items() if split not in self.idle]
        if active:
            self.watermark = max(self.watermark, min(active))


takes = st.tuples(
    st.just("take"), st.sampled_from(SPLITS), st.lists(st.integers(0, 60), min_size=1, max_size=6)
)
observes = st.tuples(
    st.just("observe"),
    st.dictionaries(st.sampled_from(SPLITS), st.booleans(), max_size=3),
    st.integers(0, 30),
)


@given(st.lists(takes | observes, max_size=25))
def test_watermarks_and_late_rows_are_those_of_the_definition(steps):
    found = SplitEventTimes(EventTime("t", BEHIND / 1e6, "ns", "drop", idle_after_ms=4e-5), "s")
    model, now, quiet = SplitModel(), 0, dict.fromkeys(SPLITS, 0)
    asked = False
    for what, given_, more in steps:
        if what == "take":
            got, dropped = found.assign(given_, batch(more))
            kept = model.take(given_, more)
            assert times_of(got) == kept
            assert dropped.get(LATE, 0) == len(more) - len(kept)
            quiet[given_] = 0
        else:
            now += more
            found.observe(given_, now)
            for split in set(model.reached) - given_.keys():
                del model.reached[split]
                model.idle.discard(split)
            for split, has_rows in given_.items():
                if split not in model.reached:
                    model.know(split)
                    quiet[split] = 0
                # idle after 40 ns, of which one question counts for a quarter at most
                quiet[split] = 0 if has_rows else quiet[split] + (min(more, 10) if asked else 0)
                if quiet[split] >= 40:
                    model.idle.add(split)
                elif has_rows:
                    model.wake(split)
            asked = True
            model.advance()
        assert found.watermark_ns == model.watermark
        assert found.late_rows == model.late
        assert found.idle == (len(model.idle) == len(model.reached))


def test_the_least_watermark_counts_until_its_split_is_idle():
    found = SplitEventTimes(EventTime("t", 0, "ns", idle_after_ms=1), "s")
    found.observe({"a": True, "b": True}, 0)
    found.assign("a", batch([100]))
    assert found.watermark_ns == WATERMARK_NONE  # b has had no row
    found.assign("b", batch([50]))
    assert found.watermark_ns == 49
    for now_ns in range(0, 1_500_000, 250_000):
        found.observe({"a": True, "b": False}, now_ns)
    assert found.watermark_ns == 99


def test_rows_of_idle_splits_that_come_together_are_not_late_for_each_other():
    found = SplitEventTimes(EventTime("t", 0, "ns", "drop", idle_after_ms=1e-6), "s")
    for now_ns in range(6):
        found.observe({"a": False, "b": False}, now_ns)
    assert found.idle
    found.observe({"a": True, "b": True}, 6)  # the reader has taken rows of both
    assert times_of(found.assign("a", batch([100, 200]))[0]) == [100, 200]
    assert times_of(found.assign("b", batch([100, 200]))[0]) == [100, 200]
    assert found.watermark_ns == 199


def test_time_in_which_nobody_asked_does_not_make_a_split_idle():
    found = SplitEventTimes(EventTime("t", 0, "ns", idle_after_ms=1), "s")
    found.observe({"a": True, "b": False}, 0)
    found.assign("a", batch([100]))
    found.observe({"a": True, "b": False}, 10**12)
    assert found.watermark_ns == WATERMARK_NONE
    assert not found.idle


def test_a_split_that_comes_back_behind_the_watermark_is_refused_by_name():
    found = SplitEventTimes(EventTime("t", 0, "ns", idle_after_ms=1e-6), "orders")
    found.observe({"a": True, "b": False}, 0)
    found.assign("a", batch([100]))
    for now_ns in range(1, 6):
        found.observe({"a": True, "b": False}, now_ns)
    with pytest.raises(BadRowError, match=r"source 'orders', split 'b', row 0: the event time "):
        found.assign("b", batch([99]))


def test_splits_that_move_take_their_watermarks_along():
    event_time = EventTime("t", 0, "ns", "drop")
    first, second, both, none = (SplitEventTimes(event_time, "s") for _ in range(4))
    first.assign("a", batch([100]))
    second.assign("b", batch([70, 60]))
    for one, splits in ((both, {"a": True, "b": True}), (none, {"c": True})):
        one.restore([first.kept(), second.kept()])
        one.observe(splits, 0)
        assert (one.watermark_ns, one.late_rows) == (69, 1)
    assert times_of(both.assign("a", batch([99, 100]))[0]) == [100]
    assert times_of(both.assign("b", batch([69, 71]))[0]) == [71]
    assert times_of(none.assign("c", batch([69, 71]))[0]) == [71]


def test_it_goes_on_from_what_was_kept():
    first = SplitEventTimes(EventTime("t", BEHIND / 1e6, "ns", "drop"), "s")
    first.observe({"a": True, "b": True}, 0)
    first.assign("a", batch([100]))
    first.assign("b", batch([70]))
    second = SplitEventTimes(EventTime("t", BEHIND / 1e6, "ns", "drop"), "s")
    second.restore([first.kept()])
    assert second.watermark_ns == first.watermark_ns == 64
    for one in (first, second):
        assert times_of(one.assign("a", batch([94, 95, 120]))[0]) == [95, 120]
        assert times_of(one.assign("b", batch([64, 65]))[0]) == [65]
    assert second.kept() == first.kept()


def test_an_instance_without_a_split_takes_no_watermark_back():
    event_time = EventTime("t", 0, "ns", "drop", idle_after_ms=1e-6)
    first, second, after = (SplitEventTimes(event_time, "s") for _ in range(3))
    first.assign("a", batch([10]))
    first.assign("b", batch([100]))
    for now_ns in range(6):
        first.observe({"a": False, "b": True}, now_ns)
    assert first.watermark_ns == 99  # a is idle
    second.observe({}, 0)
    after.restore([first.kept(), second.kept()])
    assert after.watermark_ns == 99
    assert times_of(after.assign("a", batch([50, 100]))[0]) == [100]


def test_without_a_split_it_is_idle():
    found = SplitEventTimes(EventTime("t", 0, "ns"), "s")
    assert found.idle
    found.observe({"a": True}, 0)
    assert not found.idle
