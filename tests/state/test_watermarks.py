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


class TrackerModel:
    """The definition over a list of inputs: [watermark, whether it is idle]."""

    def __init__(self, names: str) -> None:
        self.inputs = {name: [WATERMARK_NONE, False] for name in names}
        self.current_ns = WATERMARK_NONE

    def settle(self) -> None:
        for state in self.inputs.values():
            state[1] = state[1] and state[0] != WATERMARK_END
        active = [at for at, idle in self.inputs.values() if not idle and at != WATERMARK_END]
        if all(at == WATERMARK_END for at, _ in self.inputs.values()):
            self.current_ns = WATERMARK_END
        elif active:
            self.current_ns = max(self.current_ns, min(active))

    @property
    def idle(self) -> bool:
        open_inputs = [idle for at, idle in self.inputs.values() if at != WATERMARK_END]
        return bool(open_inputs) and all(open_inputs)


watermarks = st.integers(-5, 5) | st.just(WATERMARK_END)


@given(st.lists(st.tuples(st.sampled_from("abc"), watermarks | st.booleans()), max_size=40))
def test_idle_inputs_leave_the_minimum_and_come_back(steps: list[tuple[str, int | bool]]) -> None:
    tracker, model = WatermarkTracker("abc"), TrackerModel("abc")
    for name, step in steps:
        before = tracker.current_ns
        if isinstance(step, bool):
            advanced = tracker.set_idle(name, step)
            model.inputs[name][1] = step
        else:
            advanced = tracker.update(name, step)
            model.inputs[name][0] = max(model.inputs[name][0], step)
        model.settle()
        assert tracker.current_ns == model.current_ns >= before
        assert advanced == (tracker.current_ns > before)
        assert tracker.idle == model.idle
        assert tracker.ended == (model.current_ns == WATERMARK_END)
        for key, (at, _) in model.inputs.items():
            assert tracker.is_behind(key) == (at < model.current_ns)


def test_the_watermark_stays_when_all_are_idle_or_have_ended() -> None:
    tracker = WatermarkTracker("ab")
    tracker.update("a", 10)
    tracker.update("b", 4)
    assert not tracker.set_idle("a", True)
    assert not tracker.set_idle("b", True)
    assert (tracker.current_ns, tracker.idle) == (4, True)
    assert not tracker.update("a", WATERMARK_END)
    assert (tracker.current_ns, tracker.idle, tracker.ended) == (4, True, False)
    assert not tracker.set_idle("b", False)
    assert tracker.update("b", 7)
    assert tracker.current_ns == 7


def test_the_end_is_reached_when_all_inputs_have_ended() -> None:
    tracker = WatermarkTracker([1, 2])
    assert not tracker.update(1, WATERMARK_END)
    assert not tracker.ended
    assert tracker.update(2, WATERMARK_END)
    assert tracker.ended


def test_an_operator_without_inputs_has_ended() -> None:
    assert WatermarkTracker(()).ended


def test_an_unknown_input_is_refused() -> None:
    with pytest.raises(KeyError):
        WatermarkTracker("a").update("b", 1)
