"""The simulator against the real runtime: `whale-ray simulate --validate`.

Each configuration runs on plain processes of this machine as it is simulated: once with all slices
at once, for the sustainable throughput, and once as a Poisson process at half of it, for the
latency. Hosts are network namespaces with limited links where this machine can have them;
otherwise, and where a configuration says so, they are logical hosts without a limit. Simulated
hosts share the machine's cores, and children their parent's link, as the real ones do. Other load
on the machine makes the real runs slower, never faster, so the least disturbed of several
repetitions counts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrivals import RateStep, Seconds, all_at_once, paced, poisson
from .costs import LinkRate, MachineCosts
from .model import RouteName, Scenario
from .outcome import WARM_UP, SimulationOutcome, SliceLatency
from .shared_cores import simulate_shared

if TYPE_CHECKING:
    from ...deployment.processes.process_fleet import HostPlace
    from ...testing.hosts import NamespaceHosts

AIM = 0.2
"""Greatest deviation of simulated from measured values."""
HOLDING_MIN = 6
"""Number of configurations that must be within the limit; the others are shown as well."""
LOAD = 0.5
"""Share of the sustainable throughput at which latencies are compared."""
REPETITIONS = 3
_PATIENCE_MS = 300_000
_RING_BYTES = 2 << 20
_BURST_BYTES_MIN = 64 << 10
_BURST_S = 4e-3
_SEGMENT_BYTES = 64 << 10
"""Most bytes that the kernel sends on one connection before it serves another one."""
_FRAME_BYTES = 256
"""Bytes of a frame in a ring beside its rows, about."""


@dataclass(frozen=True)
class LinkFit:
    """Properties of links beside their rate, measured on a chain of three hosts."""

    efficiency: float = 1.0
    delay_s: float = 0.0


@dataclass(frozen=True)
class Configuration:
    """A job that is run and simulated."""

    hosts: int
    """Including the source's."""
    route: RouteName
    degree: int
    mbit_per_s: float | None
    slice_bytes: int

    def link(self, fit: LinkFit) -> LinkRate:
        """Return the link of every host, with the burst that `testing.hosts` gives it."""
        if self.mbit_per_s is None:
            return LinkRate(delay_s=fit.delay_s)
        burst = max(int(self.mbit_per_s * 1e6 / 8 * _BURST_S), _BURST_BYTES_MIN)
        return LinkRate(self.mbit_per_s, burst, fit.efficiency, fit.delay_s)

    def scenario(self, costs: MachineCosts, fit: LinkFit) -> Scenario:
        """Return the simulated scenario; the source's worker has an instance as well."""
        own = costs.serialize.at(self.slice_bytes) + costs.process.at(self.slice_bytes)
        return Scenario(
            self.hosts - 1,
            costs.slice_costs(self.slice_bytes, self.link(fit), produce_s=own),
            self.route,
            self.degree,
            queue_slices=_RING_BYTES // (self.slice_bytes + _FRAME_BYTES),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the real job."""
        return {
            "runtime.hosts": self.hosts,
            "runtime.route": self.route,
            "multicast.out_degree": self.degree,
            "transport.ring_bytes": _RING_BYTES,
            "runtime.start_timeout_ms": _PATIENCE_MS,
        }

    @property
    def what(self) -> str:
        """A short description of the configuration."""
        degree = f" d={self.degree}" if self.degree else ""
        link = "no limit" if self.mbit_per_s is None else f"{self.mbit_per_s:g} Mbit/s"
        return f"{self.hosts} hosts, {self.route}{degree}, {link}, {self.slice_bytes >> 10} KiB"


REFERENCE = {
    True: Configuration(3, "chain", 0, 100, 128 << 10),
    False: Configuration(3, "chain", 0, None, 64 << 10),
}
"""Configurations on which links are fitted, with and without a limit; none of them is compared."""
_LONE_PER_S, _LONE = 5.0, 20
CONFIGURATIONS = (
    Configuration(4, "star", 0, 100, 128 << 10),
    Configuration(8, "star", 0, 200, 128 << 10),
    Configuration(4, "chain", 0, 100, 128 << 10),
    Configuration(8, "chain", 0, 100, 128 << 10),
    Configuration(8, "binomial", 0, 100, 128 << 10),
    Configuration(8, "non-blocking", 2, 100, 128 << 10),
    Configuration(8, "non-blocking", 3, 100, 128 << 10),
    Configuration(4, "binomial", 0, 100, 128 << 10),
    Configuration(6, "star", 0, 100, 128 << 10),
    Configuration(6, "non-blocking", 3, 50, 64 << 10),
    Configuration(6, "binomial", 0, None, 64 << 10),
    Configuration(4, "star", 0, None, 128 << 10),
)


@dataclass(frozen=True)
class Comparison:
    """Simulated and measured, of one configuration."""

    configuration: Configuration
    simulated_per_s: float
    measured_per_s: float
    rate_per_s: float
    """Offered rate at which latencies were compared."""
    simulated: SliceLatency
    """Time from a slice's scheduled emission until the last destination's instance has it."""
    measured: SliceLatency

    @property
    def throughput_deviation(self) -> float:
        """Simulated over measured, less 1."""
        return self.simulated_per_s / self.measured_per_s - 1

    @property
    def latency_deviation(self) -> float:
        """The same of the mean latency."""
        return self.simulated.mean_s / self.measured.mean_s - 1

    @property
    def median_deviation(self) -> float:
        """The same of the median latency, which a few stalls of the machine hardly affect."""
        return self.simulated.p50_s / self.measured.p50_s - 1

    @property
    def holds(self) -> bool:
        """Whether throughput and mean latency are within the limit."""
        return max(abs(self.throughput_deviation), abs(self.latency_deviation)) <= AIM

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "configuration": self.configuration.what,
            "simulated_slices_per_s": self.simulated_per_s,
            "measured_slices_per_s": self.measured_per_s,
            "throughput_deviation": self.throughput_deviation,
            "offered_slices_per_s": self.rate_per_s,
            "simulated_latency_mean_ms": self.simulated.mean_s * 1e3,
            "measured_latency_mean_ms": self.measured.mean_s * 1e3,
            "latency_deviation": self.latency_deviation,
            "simulated_latency_median_ms": self.simulated.p50_s * 1e3,
            "measured_latency_median_ms": self.measured.p50_s * 1e3,
            "median_deviation": self.median_deviation,
            "holds": self.holds,
        }


def validate(
    costs: MachineCosts,
    cores: int,
    seed: int,
    *,
    configurations: Sequence[Configuration] = CONFIGURATIONS,
    seconds: float = 3.0,
    tell: Callable[[str], object] = str,
) -> list[Comparison]:
    """Run and simulate configurations, each for about `seconds`; pass a line for each to `tell`."""
    found = []
    fits: dict[bool, LinkFit] = {}
    with _places(configurations, tell) as places_of:
        for configuration in configurations:
            limited = configuration.mbit_per_s is not None
            if limited and places_of is None:
                tell(f"left out: {configuration.what}")
                continue

            def places_for(one: Configuration) -> Sequence[HostPlace]:
                """Return the addresses of the hosts."""
                is_limited = one.mbit_per_s is not None
                return places_of(one) if is_limited and places_of is not None else ()

            if limited not in fits:
                fits[limited] = _fit(costs, cores, places_for, REFERENCE[limited])
                tell(f"fitted on {REFERENCE[limited].what}: {fits[limited]}")
            run = _Comparing(costs, cores, seed, seconds, fits[limited])
            comparison = run.compare(configuration, places_for(configuration))
            tell(_line(comparison))
            found.append(comparison)
    return found


def _fit(
    costs: MachineCosts,
    cores: int,
    places_for: Callable[[Configuration], Sequence[HostPlace]],
    reference: Configuration,
) -> LinkFit:
    """Measure the capacity of links, and the latency of a single slice on each."""
    plain = reference.scenario(costs, LinkFit())
    at_once = all_at_once(100)
    full_per_s = throughput_per_s(simulate_shared(plain, at_once, cores).processed_s)
    places = places_for(reference)
    measured_per_s = max(
        throughput_per_s(_last_came(reference, at_once, places)[1]) for _ in range(REPETITIONS)
    )
    efficiency = 1.0
    if reference.mbit_per_s is not None:
        efficiency = min(1.0, measured_per_s / full_per_s)
    lone_s = paced([RateStep(_LONE_PER_S, _LONE / _LONE_PER_S)])
    fitted = reference.scenario(costs, LinkFit(efficiency))
    expected_s = simulate_shared(fitted, lone_s, cores).processing.p50_s
    late_s = min(latency(*_last_came(reference, lone_s, places)).p50_s for _ in range(REPETITIONS))
    hops = reference.hosts - 1
    return LinkFit(efficiency, max(0.0, late_s - expected_s) / hops)


@dataclass(frozen=True)
class _Comparing:
    """The state that all comparisons share."""

    costs: MachineCosts
    cores: int
    seed: int
    seconds: float
    fit: LinkFit

    def compare(self, configuration: Configuration, places: Sequence[HostPlace]) -> Comparison:
        """Run and simulate one configuration."""
        scenario = configuration.scenario(self.costs, self.fit)
        segment_s = configuration.link(self.fit).seconds(_SEGMENT_BYTES)

        def simulated(due_s: Seconds) -> SimulationOutcome:
            """Simulate the same slices."""
            return simulate_shared(scenario, due_s, self.cores, segment_s)

        full_per_s = throughput_per_s(simulated(all_at_once(100)).processed_s)
        at_once = all_at_once(_count(full_per_s, self.seconds))
        simulated_per_s = throughput_per_s(simulated(at_once).processed_s)
        measured_per_s = max(
            throughput_per_s(_last_came(configuration, at_once, places)[1])
            for _ in range(REPETITIONS)
        )
        rate_per_s = LOAD * min(simulated_per_s, measured_per_s)
        span_s = _count(rate_per_s, self.seconds) / rate_per_s
        due_s = poisson([RateStep(rate_per_s, span_s)], self.seed)
        due_s -= due_s[0]
        measured = [latency(*_last_came(configuration, due_s, places)) for _ in range(REPETITIONS)]
        return Comparison(
            configuration,
            simulated_per_s,
            measured_per_s,
            rate_per_s,
            simulated(due_s).processing,
            min(measured, key=lambda one: one.mean_s),
        )


def _last_came(
    configuration: Configuration, due_s: Seconds, places: Sequence[HostPlace]
) -> tuple[Seconds, Seconds]:
    """Run slices; return when each was scheduled and when the last destination received it."""
    from .measured import measure

    result = measure(
        due_s, configuration.slice_bytes, configuration.hosts, configuration.settings, places
    )
    return result.scheduled_s, result.came_s[1:].max(axis=0)


def latency(scheduled_s: Seconds, last_s: Seconds) -> SliceLatency:
    """Return the times until the last destination received each slice, without the warm-up."""
    return SliceLatency.of((last_s - scheduled_s)[int(WARM_UP * last_s.size) :])


def throughput_per_s(last_s: Seconds) -> float:
    """Return the rate at which slices reached all destinations, over the whole run.

    The whole run counts, since children get unequal shares of a link until all have everything.
    """
    return last_s.size / float(last_s.max()) if last_s.size and last_s.max() > 0 else math.inf


def _count(rate_per_s: float, seconds: float) -> int:
    """Return the number of slices of a run: enough for a mean, bounded in time."""
    return int(np.clip(rate_per_s * seconds, 60, 4000))


@contextlib.contextmanager
def _places(
    configurations: Sequence[Configuration], tell: Callable[[str], object]
) -> Iterator[Callable[[Configuration], Sequence[HostPlace]] | None]:
    """Create hosts with links for the largest configuration; None where that is not possible."""
    from ...testing.hosts import NamespaceHosts, capability

    limited = [one.hosts for one in configurations if one.mbit_per_s is not None]
    lack = capability().lack
    if not limited or lack:
        if limited:
            tell(f"no links with a rate: {lack}")
        yield None
        return
    with NamespaceHosts(max(limited)) as hosts:
        yield lambda configuration: _placed(hosts, configuration)


def _placed(hosts: NamespaceHosts, configuration: Configuration) -> Sequence[HostPlace]:
    from ...deployment.processes.process_fleet import HostPlace

    chosen = hosts[: configuration.hosts]
    for host in chosen:
        host.set_rate(configuration.mbit_per_s)
    return [HostPlace(host.address, host.popen) for host in chosen]


def _line(one: Comparison) -> str:
    return (
        f"{one.configuration.what}: throughput {one.simulated_per_s:,.1f} simulated, "
        f"{one.measured_per_s:,.1f} measured slices/s ({one.throughput_deviation:+.0%}); latency "
        f"at {one.rate_per_s:,.1f}/s: mean {one.simulated.mean_s * 1e3:.2f} simulated, "
        f"{one.measured.mean_s * 1e3:.2f} measured ms ({one.latency_deviation:+.0%}), median "
        f"{one.simulated.p50_s * 1e3:.2f}, {one.measured.p50_s * 1e3:.2f} "
        f"({one.median_deviation:+.0%})"
    )


def table(comparisons: Sequence[Comparison]) -> str:
    """Return comparisons as text, and how many are within the limit."""
    head = (
        "configuration",
        "sim/s",
        "real/s",
        "dev",
        "at/s",
        "mean: sim ms",
        "real ms",
        "dev",
        "median: sim ms",
        "real ms",
        "dev",
        "",
    )
    rows = [
        (
            one.configuration.what,
            f"{one.simulated_per_s:,.0f}",
            f"{one.measured_per_s:,.0f}",
            f"{one.throughput_deviation:+.0%}",
            f"{one.rate_per_s:,.0f}",
            f"{one.simulated.mean_s * 1e3:.1f}",
            f"{one.measured.mean_s * 1e3:.1f}",
            f"{one.latency_deviation:+.0%}",
            f"{one.simulated.p50_s * 1e3:.1f}",
            f"{one.measured.p50_s * 1e3:.1f}",
            f"{one.median_deviation:+.0%}",
            "holds" if one.holds else f"beyond {AIM:.0%}",
        )
        for one in comparisons
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in (head, *rows)
    ]
    holding = sum(one.holds for one in comparisons)
    return "\n".join([*lines, f"{holding} of {len(rows)} hold, within {AIM:.0%}"])
