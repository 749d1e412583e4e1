"""Beyond the paper's figures: multicast over the whole range of loads, and up to 10,000 hosts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .figure import Curve, Figure, Panel
from .figures import (
    HOSTS,
    FigureMaker,
    Setup,
    dynamic,
    latency_ms,
    multicast_latency,
    offered,
    parallelism,
    sustainable_per_s,
    trees,
)
from .model import RouteName, Scenario

SHOWN: Mapping[str, tuple[RouteName, int]] = {
    "sequential (star)": ("star", 0),
    "binomial": ("binomial", 0),
    "non-blocking, d = 3": ("non-blocking", 3),
    "chain": ("chain", 0),
    "non-blocking (self-adjusting)": ("non-blocking", 0),
}


def load(setup: Setup) -> Figure:
    """Draw multicast latency and throughput against λ, from 1 k/s to beyond saturation."""
    points = np.geomspace(1e3, 4e5, 8 if setup.quick else 25)
    slices = 400 if setup.quick else 3000
    latencies: dict[str, Curve] = {}
    rates: dict[str, Curve] = {}
    carried: dict[str, list[tuple[float, float]]] = {}
    for name, (route, degree) in SHOWN.items():
        got, late, kept = [], [], []
        for rate in points:
            tuples = setup.tuples_at(rate)
            scenario = setup.scenario(route, degree, tuples=tuples)
            outcome = offered(setup, scenario, float(rate), slices)
            got.append(outcome.carried * float(rate) / 1e3)
            late.append(latency_ms(outcome))
            kept.append((float(rate), late[-1]))
        x = (points / 1e3).tolist()
        rates[name], latencies[name] = Curve(name, x, got), Curve(name, x, late)
        carried[name] = kept
    offered_curve = Curve("offered", (points / 1e3).tolist(), (points / 1e3).tolist(), "dashed")
    return setup.figure(
        "load",
        f"Multicast to {HOSTS} hosts against the input rate",
        "as Figs. 17-22, over all rates",
        (
            Panel(
                "mean multicast latency, where the rate is carried",
                "λ, k tuples/s",
                "ms",
                tuple(latencies.values()),
                x_log=True,
                y_log=True,
            ),
            Panel(
                "throughput",
                "λ, k tuples/s",
                "k tuples/s",
                (offered_curve, *rates.values()),
                x_log=True,
                y_log=True,
            ),
        ),
        setup.conditions,
        _who_wins(carried),
    )


def _who_wins(carried: Mapping[str, list[tuple[float, float]]]) -> tuple[str, ...]:
    """Return, for each range of rates, the trees with the least latency."""
    count = len(next(iter(carried.values())))
    found: list[tuple[str, float, float]] = []
    for place in range(count):
        rate = next(iter(carried.values()))[place][0]
        latencies = {name: kept[place][1] for name, kept in carried.items()}
        fit = {name: late for name, late in latencies.items() if np.isfinite(late)}
        if not fit:
            break
        least = min(fit.values())
        best = " and ".join(name for name, late in fit.items() if late <= 1.01 * least)
        if found and found[-1][0] == best:
            found[-1] = (best, found[-1][1], rate)
        else:
            found.append((best, rate, rate))
    return tuple(
        f"least latency from {low / 1e3:.3g} to {high / 1e3:.3g} k/s: {best}"
        for best, low, high in found
    )


def scale(setup: Setup) -> Figure:
    """Draw latency and sustainable throughput up to 10,000 hosts."""
    hosts = (10, 100, 1000) if setup.quick else (10, 30, 100, 300, 1000, 3000, 10_000)
    slices = 200 if setup.quick else 600
    full = float(setup.tuples_max)
    rate = 30e3
    tuples = setup.tuples_at(rate)
    chosen: dict[str, tuple[RouteName, int]] = {
        "sequential (star)": ("star", 0),
        "binomial": ("binomial", 0),
        "non-blocking, d*(30 k/s)": ("non-blocking", -1),
        "non-blocking, d = 1 (chain)": ("non-blocking", 1),
    }
    latencies: dict[str, list[float]] = {name: [] for name in chosen}
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    for count in hosts:
        for name, (route, degree) in chosen.items():
            at_load = _scenario(setup, route, degree, count, tuples, rate / tuples)
            outcome = offered(setup, at_load, rate, slices)
            latencies[name].append(latency_ms(outcome))
            at_full = setup.scenario(route, at_load.degree, hosts=count, tuples=full)
            # The last host of a deep tree gets its first slice late, so only the second half is
            # steady.
            rates[name].append(sustainable_per_s(at_full, full, slices) / 1e3)
    x = [float(count) for count in hosts]
    return setup.figure(
        "scale",
        f"From {hosts[0]} to {hosts[-1]:,} hosts",
        "beyond the paper",
        (
            Panel(
                f"mean multicast latency at λ = {rate / 1e3:g} k tuples/s, where it is carried",
                "hosts",
                "ms",
                tuple(Curve(name, x, found) for name, found in latencies.items()),
                x_log=True,
                y_log=True,
            ),
            Panel(
                "sustainable throughput",
                "hosts",
                "k tuples/s",
                tuple(Curve(name, x, found) for name, found in rates.items()),
                x_log=True,
                y_log=True,
            ),
        ),
        setup.conditions,
    )


def _scenario(
    setup: Setup, route: RouteName, degree: int, hosts: int, tuples: float, slices_per_s: float
) -> Scenario:
    """Return a scenario; a degree of −1 stands for d* at a rate."""
    made = setup.scenario(route, max(degree, 0), hosts=hosts, tuples=tuples)
    if degree >= 0:
        return made
    return setup.scenario(route, made.affordable_degree(slices_per_s), hosts=hosts, tuples=tuples)


FIGURES: Mapping[str, FigureMaker] = {
    "parallelism": parallelism,
    "trees": trees,
    "multicast-latency": multicast_latency,
    "dynamic": dynamic,
    "load": load,
    "scale": scale,
}
"""All figures, by the name that `--only` accepts and their files have."""
