"""The shape of the paper's Figs. 13-14 and 17-24, simulated: the runs and the curves.

Hosts are joined by links of 1 Gbit/s, as in the paper's cluster, and send slices as the runtime
cuts them by default. λ is in tuples per second; latencies are of slices, from the time at which
they are cut. With costs of single tuples (the published ones) nothing is sliced, and links are
unlimited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...configs.settings import TransportSettings
from ...multicast.out_degree import QUEUE_SLICES_MAX, queue_capacity_slices
from .arrivals import Cut, RateStep, Seconds, all_at_once, cut_into_slices, poisson
from .costs import LinkRate, MachineCosts
from .figure import Curve, Figure, Mark, Panel
from .model import RouteName, Scenario
from .outcome import SimulationOutcome
from .run import simulate

TUPLE_BYTES = 600
"""A link of 1 Gbit/s sends 200,000 of them per second: 5 µs each, about the paper's t_e."""
LINK = LinkRate(1000.0)
HOSTS = 30
CORES_PER_HOST = 16
INSTANCES = (120, 180, 240, 300, 360, 420, 480)
MATCHING_S = 1e-3
"""Assumed work per tuple over all instances, which share it, as those of ride-hailing do."""
STEPS_PER_S = (30e3, 60e3, 80e3, 100e3, 80e3)
STEP_S = 40.0
CARRIED_MIN = 0.95
"""A tree that delivers a smaller share of the offered rate is overloaded: its latency grows with
time.
"""
ROUTES: Mapping[str, tuple[RouteName, int]] = {
    "sequential (star)": ("star", 0),
    "binomial": ("binomial", 0),
    "non-blocking (self-adjusting)": ("non-blocking", 0),
}
NON_BLOCKING = "non-blocking (self-adjusting)"


@dataclass(frozen=True)
class Setup:
    """What all figures share."""

    costs: MachineCosts
    seed: int
    quick: bool = False

    @property
    def transport(self) -> TransportSettings:
        """MMS, WTL and ring, as they are by default."""
        return TransportSettings()

    @property
    def link(self) -> LinkRate:
        """Every host's link."""
        return LinkRate() if self.costs.per_tuple else LINK

    @property
    def conditions(self) -> str:
        """What all figures assume."""
        if self.costs.per_tuple:
            return f"each tuple by itself, queues of {QUEUE_SLICES_MAX:,} tuples, no limit of links"
        return (
            f"{TUPLE_BYTES}-byte tuples, 1 Gbit/s links, slices by MMS 256 KiB and WTL 1 ms, "
            "rings of 4 MiB"
        )

    @property
    def tuples_max(self) -> int:
        """Tuples of a full slice, as sent under overload."""
        if self.costs.per_tuple:
            return 1
        return max(1, self.transport.mms_bytes // TUPLE_BYTES)

    def wait_s(self, produce_s: float) -> float:
        """Return how long a slice gathers tuples: WTL, or the worker's time per slice if longer."""
        return max(self.transport.wtl_ms / 1e3, produce_s)

    def tuples_at(self, rate_per_s: float, produce_s: float = 0.0) -> float:
        """Return how many tuples a slice has on average."""
        return min(float(self.tuples_max), 1.0 + rate_per_s * self.wait_s(produce_s))

    def scenario(
        self,
        route: RouteName,
        degree: int = 0,
        *,
        hosts: int = HOSTS,
        tuples: float,
        changes: Mapping[str, float] = MappingProxyType({}),
    ) -> Scenario:
        """Return a scenario for slices of so many tuples; `changes` replace single costs."""
        nbytes = round(tuples * TUPLE_BYTES)
        queue = max(1.0, queue_capacity_slices(self.transport.ring_bytes, nbytes))
        costs = self.costs.slice_costs(nbytes, self.link, **changes)
        fixed = self.costs.fixed_costs(self.link)
        return Scenario(hosts, costs, route, degree, queue_slices=int(queue), fixed=fixed)

    def slices(self, steps: tuple[RateStep, ...], produce_s: float = 0.0) -> Cut:
        """Return the slices of tuples that arrive as a Poisson process."""
        return cut_into_slices(poisson(steps, self.seed), self.wait_s(produce_s), self.tuples_max)

    def figure(
        self,
        name: str,
        title: str,
        paper: str,
        panels: tuple[Panel, ...],
        conditions: str,
        findings: tuple[str, ...] = (),
    ) -> Figure:
        """Return a figure with its origin."""
        return Figure(
            name, title, paper, panels, conditions, self.seed, self.costs.machine, findings
        )


def offered(setup: Setup, scenario: Scenario, rate_per_s: float, slices: int) -> SimulationOutcome:
    """Simulate tuples at a rate, in about so many slices, with `scenario` made for that rate.

    A tree that adjusts itself begins with the out-degree for the rate.
    """
    produce_s = scenario.costs.produce_s
    tuples = setup.tuples_at(rate_per_s, produce_s)
    cut = setup.slices((RateStep(rate_per_s, slices * tuples / rate_per_s),), produce_s)
    degree = scenario.affordable_degree(rate_per_s / tuples) if scenario.adjusts else 0
    return simulate(scenario, cut.at_s, degree, cut.tuples / tuples)


def latency_ms(outcome: SimulationOutcome) -> float:
    """Return the mean multicast latency, NaN where the tree is overloaded."""
    carries = outcome.carried >= CARRIED_MIN
    return outcome.multicast.mean_s * 1e3 if carries else math.nan


def sustainable_per_s(scenario: Scenario, tuples: float, slices: int = 1500) -> float:
    """Return the tuples per second of a fixed tree when all are offered at once."""
    return simulate(scenario, all_at_once(slices)).throughput_per_s * tuples


# --- Figs. 13-14 (and 15-16) ----------------------------------------------------------------


def _matching(setup: Setup, instances: int, tuples: float) -> float:
    """Return the time in which a host's instances process a slice, a core each."""
    rounds = max(1.0, instances / HOSTS / CORES_PER_HOST)
    share_s = MATCHING_S / instances * tuples
    return rounds * (setup.costs.process.at(round(tuples * TUPLE_BYTES)) + share_s)


def _instance_oriented(setup: Setup, instances: int, tuples: float) -> dict[str, float]:
    """Return the costs of a slice that is serialized and sent once per instance."""
    costs = setup.costs.slice_costs(round(tuples * TUPLE_BYTES), setup.link)
    encode_s = setup.costs.encode.at(round(tuples * TUPLE_BYTES))
    copies = instances / HOSTS
    return {
        "produce_s": costs.produce_s + (instances - 1) * encode_s,
        "send_s": costs.send_s * copies,
        "receive_s": costs.receive_s * copies,
        "occupancy_s": costs.occupancy_s * copies,
    }


def _systems(setup: Setup, instances: int, tuples: float, degree: int = 0) -> dict[str, Scenario]:
    """Return the scenarios of Figs. 13-14 for slices of so many tuples.

    `degree` is that of the non-blocking tree; 0: the tree adjusts itself.
    """
    process_s = _matching(setup, instances, tuples)

    def one(
        route: RouteName, degree: int = 0, more: Mapping[str, float] = MappingProxyType({})
    ) -> Scenario:
        changes = {**more, "process_s": process_s}
        return setup.scenario(route, degree, tuples=tuples, changes=changes)

    return {
        "instance-oriented (as Storm)": one(
            "star", more=_instance_oriented(setup, instances, tuples)
        ),
        "worker-oriented, star": one("star"),
        "worker-oriented, binomial": one("binomial"),
        "worker-oriented, non-blocking": one("non-blocking", degree),
    }


def parallelism(setup: Setup) -> Figure:
    """Draw Figs. 13-16: throughput and processing latency over the number of instances."""
    points = INSTANCES[::3] if setup.quick else INSTANCES
    slices = 300 if setup.quick else 1500
    full = float(setup.tuples_max)
    rates: dict[str, list[float]] = {}
    latencies: dict[str, list[float]] = {}
    for instances in points:
        found = {
            name: sustainable_per_s(scenario, full, slices)
            for name, scenario in _systems(setup, instances, full, 1).items()
        }
        for name, rate in found.items():
            rates.setdefault(name, []).append(rate)
        # All at the same load, which even the slowest sustains.
        rate = 0.8 * min(found.values())
        for name, one in _systems(setup, instances, setup.tuples_at(rate)).items():
            tuples = setup.tuples_at(rate, one.costs.produce_s)
            scenario = _systems(setup, instances, tuples)[name]
            latency = offered(setup, scenario, rate, slices).processing.mean_s
            latencies.setdefault(name, []).append(latency * 1e3)
    first, *_, last = rates
    gain = rates[last][-1] / rates[first][-1]
    less = 1 - latencies[last][-1] / latencies[first][-1]
    return setup.figure(
        "parallelism",
        f"Overall throughput and latency on {HOSTS} hosts",
        "Figs. 13-16",
        (
            _over_instances("sustainable throughput", "k tuples/s", points, rates, 1e-3),
            _over_instances(
                "mean processing latency, at 80 % of the slowest's throughput",
                "ms",
                points,
                latencies,
            ),
        ),
        f"{setup.conditions}; assumed matching work {MATCHING_S * 1e3:g} ms per tuple over all "
        f"instances, {CORES_PER_HOST} cores per host",
        (
            (
                f"{points[-1]} instances: {gain:.1f} × the throughput of instance-oriented "
                f"[paper: 56.6 ×], latency −{less:.1%} [−96.6 %]"
            ),
        ),
    )


def _over_instances(
    title: str,
    unit: str,
    points: tuple[int, ...],
    values: Mapping[str, list[float]],
    factor: float = 1.0,
) -> Panel:
    curves = tuple(
        Curve(name, points, [one * factor for one in found]) for name, found in values.items()
    )
    ticks = tuple(float(one) for one in points)
    return Panel(title, "matching instances", unit, curves, y_log=True, x_ticks=ticks)


# --- Figs. 17-20 -----------------------------------------------------------------------------


def trees(setup: Setup) -> Figure:
    """Draw Figs. 17-20: the three trees, worker-oriented all of them."""
    points = INSTANCES[::3] if setup.quick else INSTANCES
    slices = 300 if setup.quick else 1500
    full = float(setup.tuples_max)
    rates: dict[str, list[float]] = {}
    latencies: dict[str, list[float]] = {}
    names = list(ROUTES)
    for instances in points:
        systems = dict(
            zip(names, list(_systems(setup, instances, full, 1).values())[1:], strict=True)
        )
        found = {name: sustainable_per_s(one, full, slices) for name, one in systems.items()}
        rate = 0.8 * found[names[0]]
        tuples = setup.tuples_at(rate)
        for name in names:
            rates.setdefault(name, []).append(found[name])
            route, degree = ROUTES[name]
            scenario = setup.scenario(
                route,
                degree,
                tuples=tuples,
                changes={"process_s": _matching(setup, instances, tuples)},
            )
            outcome = offered(setup, scenario, rate, slices)
            latencies.setdefault(name, []).append(outcome.processing.mean_s * 1e3)
    return setup.figure(
        "trees",
        f"Three multicast trees on {HOSTS} hosts",
        "Figs. 17-20",
        (
            _over_instances("sustainable throughput", "k tuples/s", points, rates, 1e-3),
            _over_instances(
                "mean processing latency, at 80 % of sequential's throughput",
                "ms",
                points,
                latencies,
            ),
        ),
        f"{setup.conditions}; assumed matching work {MATCHING_S * 1e3:g} ms per tuple over all "
        "instances; non-blocking sustains what its narrowest tree does",
        tuple(
            f"{points[-1]} instances: non-blocking sustains "
            f"{rates[NON_BLOCKING][-1] / rates[name][-1]:.2f} × the rate of {name}"
            for name in names[:2]
        ),
    )


# --- Figs. 21-22 -----------------------------------------------------------------------------


def multicast_latency(setup: Setup) -> Figure:
    """Draw Figs. 21-22: multicast latency over the number of hosts, with 16 instances on each."""
    hosts = (8, 15, 30) if setup.quick else (8, 12, 16, 20, 24, 30)
    slices = 500 if setup.quick else 4000
    shown: dict[str, tuple[RouteName, int]] = {
        **ROUTES,
        "non-blocking, d = 3": ("non-blocking", 3),
    }
    panels = []
    full = float(setup.tuples_max)
    limit = sustainable_per_s(setup.scenario("binomial", tuples=full), full)
    low = 0.8 * sustainable_per_s(setup.scenario("star", tuples=full), full, 200)
    findings = []
    for rate, what in ((low, "80 % of sequential's rate"), (0.9 * limit, "90 % of binomial")):
        tuples = setup.tuples_at(rate)
        values: dict[str, list[float]] = {}
        for count in hosts:
            for name, (route, degree) in shown.items():
                scenario = setup.scenario(route, degree, hosts=count, tuples=tuples)
                outcome = offered(setup, scenario, rate, slices)
                values.setdefault(name, []).append(latency_ms(outcome))
        instances = [count * CORES_PER_HOST for count in hosts]
        curves = tuple(Curve(name, instances, found) for name, found in values.items())
        title = f"λ = {rate / 1e3:.1f} k tuples/s ({what} on {HOSTS} hosts)"
        ticks = tuple(float(one) for one in instances)
        panels.append(
            Panel(title, "instances, 16 on each host", "ms", curves, y_log=True, x_ticks=ticks)
        )
        ends = {name: found[-1] for name, found in values.items()}
        findings += [
            f"λ = {rate / 1e3:.1f} k/s, {instances[-1]} instances: {mine} "
            + (
                f"{ends[mine] / ends[name] - 1:+.0%} against {name}"
                if math.isfinite(ends[name])
                else f"carries it, {name} does not"
            )
            for name in list(ROUTES)[:2]
            for mine in (NON_BLOCKING, "non-blocking, d = 3")
        ]
    return setup.figure(
        "multicast-latency",
        "Mean multicast latency",
        "Figs. 21-22",
        tuple(panels),
        f"{setup.conditions}; until the last host has a slice, where the rate is carried",
        tuple(findings),
    )


# --- Figs. 23-24 -----------------------------------------------------------------------------


def dynamic(setup: Setup) -> Figure:
    """Draw Figs. 23-24: throughput and latency over time while the rate changes in steps."""
    length_s = STEP_S / 10 if setup.quick else STEP_S
    steps = tuple(RateStep(rate, length_s) for rate in STEPS_PER_S)
    cut = setup.slices(steps)
    reference = setup.tuples_at(max(STEPS_PER_S))
    end_s = length_s * len(steps)
    edges = np.linspace(0.0, end_s, 201)
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    rates = [Curve("offered", *_offered(steps), "dashed")]
    latencies, marks, findings = [], [], []
    for name, (route, degree) in ROUTES.items():
        outcome = simulate(
            setup.scenario(route, degree, tuples=reference),
            cut.at_s,
            weights=cut.tuples / reference,
        )
        got = np.histogram(outcome.received_s, edges, weights=cut.tuples)[0] / np.diff(edges)
        rates.append(Curve(name, middles, (got / 1e3).tolist(), "line"))
        late = outcome.latency_s(edges) * 1e3
        latencies.append(Curve(name, middles, late.tolist(), "line"))
        marks += [
            Mark(one.began_s, f"d {one.degree_before}→{one.degree_after}")
            for one in outcome.switches
        ]
        findings += [
            f"at {one.began_s:.2f} s d {one.degree_before}→{one.degree_after}: "
            f"{one.moved_edges} edges moved in {one.duration_s * 1e3:.0f} ms ({one.reason})"
            for one in outcome.switches
        ]
        findings.append(_kept_up(name, outcome, cut, edges, steps, length_s))
    return setup.figure(
        "dynamic",
        f"The rate changes: {', '.join(f'{step.rate_per_s / 1e3:g}' for step in steps)} k tuples/s",
        "Figs. 23-24",
        (
            Panel("throughput", "s", "k tuples/s", tuple(rates), marks=tuple(marks)),
            Panel(
                "mean multicast latency of the slices that arrived",
                "s",
                "ms",
                tuple(latencies),
                y_log=True,
                marks=tuple(marks),
            ),
        ),
        f"{HOSTS} hosts, {setup.conditions}; the tree's switches are marked with their out-degrees",
        tuple(findings),
    )


def _offered(steps: tuple[RateStep, ...]) -> tuple[list[float], list[float]]:
    x: list[float] = []
    y: list[float] = []
    now_s = 0.0
    for step in steps:
        x += [now_s, now_s + step.seconds]
        y += [step.rate_per_s / 1e3] * 2
        now_s += step.seconds
    return x, y


def _kept_up(
    name: str,
    outcome: SimulationOutcome,
    cut: Cut,
    edges: Seconds,
    steps: tuple[RateStep, ...],
    length_s: float,
) -> str:
    """Return the rate that a tree delivered while the offered rate was highest."""
    highest = max(range(len(steps)), key=lambda place: steps[place].rate_per_s)
    inside = (edges[0] + highest * length_s, edges[0] + (highest + 1) * length_s)
    got = np.histogram(outcome.received_s, inside, weights=cut.tuples)[0][0] / length_s
    rate = steps[highest].rate_per_s
    return f"{name}: {got / 1e3:.1f} of {rate / 1e3:.0f} k/s delivered at the highest rate"


FigureMaker = Callable[[Setup], Figure]
