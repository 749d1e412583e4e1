"""How simulated and measured runs are compared, and that slices can be measured at all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from whale_ray.lab.simulator.arrivals import RateStep, paced
from whale_ray.lab.simulator.costs import wire_bytes
from whale_ray.lab.simulator.default_costs import MEASURED
from whale_ray.lab.simulator.measured import measure
from whale_ray.lab.simulator.outcome import SliceLatency
from whale_ray.lab.simulator.validation import (
    CONFIGURATIONS,
    Comparison,
    Configuration,
    LinkFit,
    latency,
    table,
    throughput_per_s,
)

STAR = Configuration(8, "star", 0, 100.0, 128 << 10)
SIMULATED, MEASURED_ONE = (
    SliceLatency(0.009, 0.008, 0.03),
    SliceLatency(0.010, 0.0075, 0.03),
)
CLOSE = Comparison(STAR, 110.0, 100.0, 50.0, SIMULATED, MEASURED_ONE)


def test_deviations_are_against_what_was_measured() -> None:
    assert CLOSE.throughput_deviation == pytest.approx(0.1)
    assert CLOSE.latency_deviation == pytest.approx(-0.1)
    assert CLOSE.holds
    assert CLOSE.median_deviation == pytest.approx(8 / 7.5 - 1)
    assert not dataclasses.replace(CLOSE, simulated=SliceLatency(0.013, 0, 0)).holds
    assert not dataclasses.replace(CLOSE, measured_per_s=150.0).holds


def test_the_table_says_what_holds() -> None:
    far = dataclasses.replace(CLOSE, simulated=SliceLatency(0.02, 0, 0))
    text = table([CLOSE, far]).splitlines()
    assert text[0].split()[0] == "configuration"
    assert text[1].startswith("8 hosts, star, 100 Mbit/s, 128 KiB  ")
    assert text[1].endswith("  holds") and text[2].endswith("  beyond 20%")
    assert text[3] == "1 of 2 hold, within 20%"
    assert CLOSE.as_dict()["simulated_latency_mean_ms"] == pytest.approx(9.0)


def test_there_are_enough_configurations_of_every_kind() -> None:
    assert len(CONFIGURATIONS) >= 6
    assert {one.route for one in CONFIGURATIONS} == {"star", "chain", "binomial", "non-blocking"}
    assert all(4 <= one.hosts <= 8 for one in CONFIGURATIONS)


def test_a_configuration_is_simulated_as_it_runs() -> None:
    scenario = STAR.scenario(MEASURED, LinkFit(0.5, 1e-3))
    assert (scenario.destinations, scenario.route) == (7, "star")
    assert scenario.costs.occupancy_s == pytest.approx(wire_bytes(128 << 10) * 8 / 50e6)
    assert scenario.costs.burst_s == pytest.approx(65_536 * 8 / 50e6)
    assert scenario.costs.delay_s == pytest.approx(MEASURED.delay_s + 1e-3)
    assert scenario.queue_slices == 15
    unlimited = Configuration(4, "chain", 0, None, 64 << 10).scenario(MEASURED, LinkFit())
    assert unlimited.costs.occupancy_s == 0


def test_rates_and_latencies_of_a_run() -> None:
    last_s = np.concatenate([np.linspace(0, 0.1, 100), np.linspace(0.2, 2.0, 100)])
    assert throughput_per_s(last_s) == pytest.approx(100)
    assert latency(last_s - 0.5, last_s).mean_s == pytest.approx(0.5)


@pytest.mark.long
def test_slices_travel_through_the_runtime_as_scheduled() -> None:
    due_s = paced([RateStep(100.0, 0.5)])
    settings = {"runtime.hosts": 2, "transport.ring_bytes": 1 << 20}
    found = measure(due_s, 8 << 10, 2, settings)
    assert found.scheduled_s == pytest.approx(due_s, abs=1e-6)
    assert found.came_s.shape == (2, 50)
    assert (found.came_s >= found.scheduled_s).all()
    assert found.cpu_s > found.source_cpu_s > 0
