"""`whale-ray bench dynamic`: a load that changes, and the multicast tree that follows it.

Eight hosts behind links of a given rate, and the source on one more. First the highest rate of a
star is measured. Then the source emits at steps relative to that rate, once over a star and once
over a non-blocking tree that adjusts itself. Last, at a constant load, the tree is switched on
command repeatedly, and the suite reports how long each switch affected throughput and latency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ...configs.errors import ResourceError
from ...transport.clock import SystemClock
from .one_to_many import control_block as b
from .one_to_many.deployment import Deployment
from .one_to_many.link_bound import INSTANCES, RATE_MBIT, lack, narrow
from .one_to_many.measuring import log_progress
from .one_to_many.modes import mode_named
from .plots import canvas, check_plots
from .report import Aim, BenchReport, BenchRow, describe_machine, median
from .series import Recovery, Series, recovery, series_of

if TYPE_CHECKING:
    from ...multicast.tree_state import (
        SwitchReport,
    )

PARTS = ("steps", "switches", "thirty")

STEPS: Final = (0.3, 0.6, 0.8, 1.0, 0.8)
"""Shares of a star's highest rate, as 30, 60, 80, 100 and 80 k/s in the paper."""
SWITCH_LOAD: Final = 0.5
DEGREES: Final = (3, 2, 1, 2, 1, 4)
HOSTS: Final = 8
BIN_NS: Final = 10_000_000
_AFTER_NS: Final = 500_000_000
_SAMPLES: Final = 1 << 17
_ROWS_PER_SAMPLE: Final = 8
_CLOCK: Final = SystemClock()
_SETTINGS: Final = {
    "transport.ring_bytes": 1 << 20,
    "transport.mms_bytes": 8 << 10,
    "runtime.source_batch_rows": 64,
}
"""Slices of no more than 8 KiB: 0.3 ms on such a link."""

NOTES: Final = (
    (
        f"links of {RATE_MBIT:g} Mbit/s in each direction (network namespaces, tbf); paced rows, "
        "slices of 8 KiB at most"
    ),
    (
        "recovery: from the decision until throughput and latency, in bins of 10 ms, stay inside "
        "the band between the 5th and 95th percentile of the 2 s before; 0: they never left it; "
        "latency below its band counts as inside"
    ),
    (
        "settled: the same, but latencies that are usual in the new tree (the 2 s after) count "
        "as inside, too: a deeper tree has a higher latency for good"
    ),
)


@dataclass(frozen=True)
class Course:
    """A run: its series over time, and its switches."""

    name: str
    series: Series
    switches: tuple[SwitchReport, ...]


def run(quick: bool = False, only: str | None = None, plots: Path | None = None) -> BenchReport:
    """Measure.

    Args:
        quick: shorter steps.
        only: one of `PARTS`; None: all, but for 30 hosts with `quick`.
        plots: the folder for plots; None: none are drawn.

    Raises:
        ResourceError: this machine cannot create such hosts, or plots cannot be drawn.
    """
    if missing := lack():
        msg = f"the suite 'dynamic' needs hosts whose links have a rate: {missing}"
        raise ResourceError(msg)
    check_plots(plots)
    machine = describe_machine(("numpy", "numba"))
    rows: list[BenchRow] = []
    courses: list[Course] = []
    parts = PARTS if only is None else (only,)
    if "steps" in parts or "switches" in parts:
        rows += _eight(quick, parts, courses)
    if "thirty" in parts and (only or not quick):
        rows += _thirty(courses)
    if plots is not None:
        for course in courses:
            _draw(course, plots)
    options = "".join((" --quick" if quick else "", f" --only {only}" if only else ""))
    return BenchReport("dynamic", f"whale-ray bench dynamic{options}", machine, tuple(rows), NOTES)


def _eight(quick: bool, parts: Sequence[str], courses: list[Course]) -> Iterator[BenchRow]:
    """Measure on eight hosts; add the runs to `courses`."""
    step_s = 3.0 if quick else 8.0
    star, tree = mode_named("star"), mode_named("non-blocking")
    with narrow(star, _SETTINGS, hosts=HOSTS, instances=INSTANCES, samples=_SAMPLES) as deployment:
        saturation = _saturation(deployment, HOSTS)
        yield _saturation_row(saturation, HOSTS)
        if "steps" in parts:
            for mode in (star, tree):
                deployment.switch(mode)
                course = _course(
                    deployment,
                    f"steps, {mode.name}",
                    [(share * saturation, step_s) for share in STEPS],
                )
                courses.append(course)
                yield from _step_rows(course, saturation, step_s)
                yield from _switch_rows(course, HOSTS)
        if "switches" in parts:
            course = _switched(deployment, SWITCH_LOAD * saturation, "switches")
            courses.append(course)
            yield from _switch_rows(course, HOSTS)
            yield from _aims(course, HOSTS)


def _thirty(courses: list[Course]) -> Iterator[BenchRow]:
    star = mode_named("star")
    with narrow(star, _SETTINGS, hosts=30, instances=30, samples=_SAMPLES) as deployment:
        saturation = _saturation(deployment, 30)
        yield _saturation_row(saturation, 30)
        course = _switched(deployment, SWITCH_LOAD * saturation, "switches of 30 hosts")
        courses.append(course)
        yield from _switch_rows(course, 30)


def _saturation(deployment: Deployment, hosts: int) -> float:
    rate = deployment.unpaced(4.0, 2.0).rows_per_s
    log_progress(f"{hosts} hosts, a star carries {rate:,.0f} tuples/s")
    return rate


def _saturation_row(rate: float, hosts: int) -> BenchRow:
    parameters = {"hosts": hosts, "Mbit/s": RATE_MBIT, "mode": "star"}
    return BenchRow("saturation", parameters, rate, "tuples/s")


# --- over time ---------------------------------------------------------------------------------


def _course(deployment: Deployment, name: str, steps: Sequence[tuple[float, float]]) -> Course:
    """Offer each rate for its time; return the run."""
    begin_ns = _begin(deployment)
    for rate, seconds in steps:
        log_progress(f"{name}: {rate:,.0f} tuples/s")
        deployment.order(rate)
        deployment.wait(seconds)
    return _end(deployment, name, begin_ns)


def _switched(deployment: Deployment, rate: float, name: str) -> Course:
    """Switch the tree from degree to degree under a constant load."""
    deployment.switch(mode_named("non-blocking"), 4)
    begin_ns = _begin(deployment)
    deployment.order(rate)
    deployment.wait(1.0)
    for degree in DEGREES:
        deployment.wait(2.5)
        log_progress(f"{name}: to degree {degree} at {rate:,.0f} tuples/s")
        deployment.job.set_route("non-blocking", degree)
    deployment.wait(2.5)
    return _end(deployment, name, begin_ns)


def _begin(deployment: Deployment) -> int:
    """From now on count rows in bins, and record the latency of some."""
    control_block = deployment.control_block
    for part in (
        control_block.bins,
        control_block.scheduled,
        control_block.arrived,
        control_block.done,
    ):
        part[...] = 0
    control_block.orders[b.STRIDE] = _ROWS_PER_SAMPLE
    control_block.orders[b.BIN_BEGIN_NS] = begin_ns = _CLOCK.monotonic_ns()
    control_block.orders[b.BIN_NS] = BIN_NS
    return begin_ns


def _end(deployment: Deployment, name: str, begin_ns: int) -> Course:
    control_block = deployment.control_block
    bins = min((_CLOCK.monotonic_ns() - begin_ns) // BIN_NS, control_block.shape.bins)
    deployment.pause()
    control_block.orders[b.BIN_NS] = control_block.orders[b.STRIDE] = 0
    switches = tuple(
        switch
        for switch in deployment.job.metrics().switches
        if switch.decided_ns >= begin_ns and switch.ended_ns is not None
    )
    return Course(name, series_of(control_block, begin_ns, BIN_NS, bins), switches)


# --- rows --------------------------------------------------------------------------------------


def _step_rows(course: Course, saturation: float, step_s: float) -> Iterator[BenchRow]:
    per_step = int(step_s * 1e9) // BIN_NS
    for place, share in enumerate(STEPS):
        # Only the second half of a step: the effect of a switch is reported separately.
        bins = slice(per_step * place + per_step // 2, per_step * (place + 1))
        delivered = float(course.series.delivered[bins].mean())
        latencies = course.series.latency_ms[bins]
        known = latencies[~np.isnan(latencies)]
        yield BenchRow(
            "step",
            {"run": course.name, "of the star's": share},
            delivered,
            "tuples/s",
            ratio=delivered / (share * saturation),
            against="offered",
            also={"mean latency ms": float(known.mean())} if known.size else {},
        )


def _switch_rows(course: Course, hosts: int) -> Iterator[BenchRow]:
    for switch, took in zip(course.switches, _recoveries(course), strict=True):
        assert switch.ended_ns is not None
        also = {"edges moved": float(switch.moves)}
        if took is not None:
            also["throughput back after ms"] = took.throughput_ms
            also["latency back after ms"] = took.latency_ms
            also["latency settled after ms"] = took.settled_ms
        yield BenchRow(
            "switch",
            {
                "run": course.name,
                "hosts": hosts,
                "why": switch.why,
                "degree": f"{switch.degree_before} → {switch.degree_after}",
                "at s": round((switch.decided_ns - course.series.begin_ns) / 1e9, 2),
            },
            (switch.ended_ns - switch.decided_ns) / 1e6,
            "ms" if not switch.aborted else "ms, given up",
            also=also,
        )


def _recoveries(course: Course) -> list[Recovery | None]:
    """Return how long each switch had an effect; None without enough values before it."""
    found: list[Recovery | None] = []
    for switch in course.switches:
        assert switch.ended_ns is not None
        try:
            found.append(recovery(course.series, switch.decided_ns, switch.ended_ns + _AFTER_NS))
        except ValueError:
            found.append(None)
    return found


def _aims(course: Course, hosts: int) -> Iterator[BenchRow]:
    known = [took for took in _recoveries(course) if took is not None]
    if not known:
        return
    for what, limit, values in (
        ("throughput back", 126.0, [took.throughput_ms for took in known]),
        ("latency back", 30.0, [took.latency_ms for took in known]),
        ("latency settled", 30.0, [took.settled_ms for took in known]),
    ):
        yield BenchRow(
            f"aim: {what} after a switch",
            {"hosts": hosts, "switches": len(known)},
            median(values),
            "ms, median",
            aim=Aim("value", "at most", limit),
            also={"worst ms": max(values)},
        )


def _draw(course: Course, folder: Path) -> None:
    """Draw throughput and latency over time, with the switches; aborted ones are dotted."""
    name = "dynamic_" + course.name.replace(", ", "_").replace(" ", "_").replace("-", "_")
    series = course.series
    seconds = [place * series.bin_ns / 1e9 for place in range(len(series.delivered))]
    with canvas(folder, name, panels=2) as (above, below):
        above.plot(seconds, series.offered / 1e3, linewidth=0.5, label="offered", color="0.75")
        above.plot(seconds, series.delivered / 1e3, linewidth=0.7, label="delivered")
        top = 1.3 * float(np.percentile(np.maximum(series.offered, series.delivered), 99)) / 1e3
        above.set_ylim(0, top)
        above.set_ylabel("k tuples/s")
        above.set_title(course.name, fontsize=10)
        below.plot(seconds, series.latency_ms, linewidth=0.7)
        below.set_ylabel("mean latency, ms")
        below.set_yscale("log")
        below.set_xlabel("s")
        for switch in course.switches:
            at_s = (switch.decided_ns - series.begin_ns) / 1e9
            style = ":" if switch.aborted else "-"
            for axes in (above, below):
                axes.axvline(at_s, color="tab:red", linewidth=0.6, linestyle=style)
            if not switch.aborted:
                change = f"{switch.degree_before}→{switch.degree_after}"
                above.text(at_s, 0.98 * top, change, fontsize=7, verticalalignment="top")
        above.legend(fontsize=7, loc="lower left", framealpha=0.6)
