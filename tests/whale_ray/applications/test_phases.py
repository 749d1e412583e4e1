"""Phases are reported when they end, and their seconds add up."""

from __future__ import annotations

import pytest

from whale_ray.applications.shared.phases import Phases
from whale_ray.transport.clock import VirtualClock


def test_every_phase_is_reported_at_its_end_and_repetitions_add_up():
    clock, told = VirtualClock(), []
    phases = Phases("app", clock, told.append)
    end = phases.begin("outer")
    for seconds in (1, 2):
        with phases.phase("inner"):
            clock.sleep_ns(seconds * 10**9)
    phases.add("elsewhere", 0.26)
    end()
    assert dict(phases.seconds) == {"inner": 3.0, "elsewhere": 0.26, "outer": 3.0}
    assert told == [
        "app: [inner] 1.0 s\n",
        "app: [inner] 2.0 s\n",
        "app: [elsewhere] 0.3 s\n",
        "app: [outer] 3.0 s\n",
    ]


def test_a_failed_phase_is_not_reported():
    told = []
    phases = Phases("app", VirtualClock(), told.append)
    with pytest.raises(ZeroDivisionError), phases.phase("failing"):
        raise ZeroDivisionError
    assert not told and not phases.seconds
