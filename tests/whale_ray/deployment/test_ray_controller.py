"""For how long the controller of a detached job waits for the driver that submitted it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from whale_ray.deployment.on_ray.ray_controller import ControllerActor
from whale_ray.transport.clock import VirtualClock

S = 1_000_000_000


@pytest.mark.parametrize(
    ("told_ns", "waited_s"),
    [(None, 10.0), (100 * S, 10.0), (97 * S, 7.0), (1 * S, 0.0)],
    ids=["not answered yet", "just now", "a moment ago", "long ago: it was killed"],
)
def test_a_driver_that_was_answered_long_ago_is_not_waited_for(
    told_ns: int | None, waited_s: float
) -> None:
    waited: list[float] = []
    controller: Any = ControllerActor.__new__(ControllerActor)
    controller._told_ns, controller._left = told_ns, SimpleNamespace(wait=waited.append)
    controller._await_driver(VirtualClock(100 * S))
    assert waited == [waited_s]


def test_a_call_that_waits_for_the_end_gives_its_thread_back() -> None:
    controller: Any = ControllerActor.__new__(ControllerActor)
    controller.wait_until_gone(0.0)  # else a few callers who gave up would occupy all threads
