"""The watermark of several inputs is their minimum, and never moves back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.state.watermarks import WATERMARK_END, WATERMARK_NONE, WatermarkTracker


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=40))
def test_the_watermark_is_the_minimum_of_the_latest_of_each(
    updates: list[tuple[str, int]],
) -> None:
    tracker = WatermarkTracker("abc")
    seen: dict[str, list[int]] = {name: [WATERMARK_NONE] for name in "abc"}
    for name, watermark in updates:
        before = tracker.current_ns
        advanced = tracker.update(name, watermark)
        seen[name].append(watermark)
        expected = min(max(values) for values in seen.values())
        assert tracker.current_ns == expected
        assert advanced == (expected > before)


def test_the_end_is_reached_when_all_inputs_have_ended() -> None:
    tracker = WatermarkTracker([1, 2])
    assert not tracker.update(1, WATERMARK_END)
    assert not tracker.ended
    assert tracker.slowest() == (2,)
    assert tracker.update(2, WATERMARK_END)
    assert tracker.ended


def test_an_operator_without_inputs_has_ended() -> None:
    assert WatermarkTracker(()).ended


def test_an_unknown_input_is_refused() -> None:
    with pytest.raises(KeyError):
        WatermarkTracker("a").update("b", 1)
