"""Trees where links are the bottleneck: hosts as network namespaces with links of limited rate.

On one machine every tree costs the same processor time in all. How many copies the source's host
sends matters only where its link is the bottleneck.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from ....api.submission import submit
from ....deployment.processes.process_fleet import HostPlace
from ....testing.hosts import NamespaceHosts, capability
from ..report import Aim, BenchRow
from .deployment import Deployment, Shape
from .measuring import Plan, log_progress
from .modes import Mode, mode_named

__all__ = ["HOSTS", "INSTANCES", "RATE_MBIT", "lack", "link_rows", "narrow"]

HOSTS: Final = 8
INSTANCES: Final = 32
RATE_MBIT: Final = 200.0

TREES: Final = ("star", "binomial", "chain", "non-blocking")

_SETTINGS: Final[Mapping[str, object]] = {
    "transport.ring_bytes": 1 << 20,
    "transport.mms_bytes": 1 << 16,
    "runtime.source_batch_rows": 640,
}
"""Slices of 64 KiB: a slice takes 2.6 ms on such a link."""


def lack() -> str:
    """Return what this machine lacks for such hosts; empty if nothing."""
    return capability().lack


@contextmanager
def narrow(
    mode: Mode,
    settings: Mapping[str, object],
    rate_mbit: float = RATE_MBIT,
    hosts: int = HOSTS,
    instances: int = INSTANCES,
    samples: int = 1 << 14,
) -> Iterator[Deployment]:
    """Yield a job over hosts with links of `rate_mbit` in each direction.

    Raises ResourceError if this machine cannot create such hosts.
    """
    with NamespaceHosts(hosts + 1, rate_mbit=rate_mbit) as made:
        start = partial(submit, places=[HostPlace(host.address, host.popen) for host in made])
        with Deployment(Shape(hosts, instances), mode, settings, start, samples) as deployment:
            yield deployment


def link_rows(plan: Plan) -> Iterator[BenchRow]:
    """Measure the highest rate of each tree."""
    log_progress(f"{HOSTS} hosts at {RATE_MBIT:g} Mbit/s: starting")
    carried: dict[str, float] = {}
    with narrow(mode_named(TREES[0]), _SETTINGS) as deployment:
        for name in TREES:
            deployment.switch(mode_named(name))
            # Rings and sockets buffer some seconds of rows before a slow link has an effect.
            measured = deployment.unpaced(2 * plan.unpaced_s, max(2.0, plan.warm_up_s))
            carried[name] = measured.rows_per_s
            log_progress(f"{name}: {measured.rows_per_s:,.0f} tuples/s")
            yield BenchRow(
                "link-bound",
                _parameters(name),
                measured.rows_per_s,
                "tuples/s",
                ratio=measured.rows_per_s / carried["star"],
                against="star",
                cores=measured.spent.total_ns / measured.seconds / 1e9,
                also={
                    "copies": float(measured.copies),
                    "Mbit/s of the source": measured.sent_bytes * 8e-6 / measured.seconds,
                },
            )
    for other, limit in (("star", 1.4), ("binomial", 1.2)):
        yield BenchRow(
            "aim: link-bound",
            _parameters("non-blocking"),
            carried["non-blocking"] / carried[other],
            f"x of {other}",
            aim=Aim("value", "at least", limit),
        )


def _parameters(name: str) -> dict[str, object]:
    return {"hosts": HOSTS, "instances": INSTANCES, "Mbit/s": RATE_MBIT, "mode": name}
