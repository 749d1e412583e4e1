"""The parts of the suite, put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..plots import check_plots
from ..report import BenchReport, BenchRow, describe_machine
from . import HOSTS, PARTS
from .deployment import WTL_MS, Shape
from .measuring import ModeResult, Plan, find
from .modes import COMPARED, PICKLED, RING_BYTES, SLICE_ROWS
from .rows import aims, measured_rows

_FULL: Final = Plan(warm_up_s=1.5, unpaced_s=5.0, paced_s=5.0)
_QUICK: Final = Plan(warm_up_s=0.7, unpaced_s=1.5, paced_s=1.5)
_PEERS_FULL_S: Final = 8.0
_PEERS_QUICK_S: Final = 3.0

NOTES: Final = (
    (
        f"{HOSTS} logical hosts and the source's are this one machine: a worker and a relay per "
        "host, plain processes; between hosts tcp, on one host shared memory"
    ),
    (
        f"a WTL of {WTL_MS:g} ms; slices of {SLICE_ROWS:,} rows, rings of {RING_BYTES >> 20} MiB: "
        "with so many processes per core, few context switches matter; the same in all modes"
    ),
    (
        "two cores do the work of 31 hosts here: the rate of a mode with cores of its own per "
        "host follows from the CPU time of the source's host per tuple (source and its relay)"
    ),
    (
        "latencies are from when a tuple was due (Poisson, open loop) at 80 % of the rate of "
        "the slowest compared mode; multicast: until the last worker has received it"
    ),
    "every instance's checksum was compared with the source's after every measurement",
)


def run_suite(
    quick: bool, only: str | None, sizes: Sequence[int], plots: Path | None
) -> BenchReport:
    """Measure the chosen parts; see `one_to_many.run`."""
    check_plots(plots)
    machine = describe_machine(("numpy", "numba"))
    plan = _QUICK if quick else _FULL
    parts = PARTS if only is None else (only,)
    largest = Shape(HOSTS, sizes[-1])
    rows: list[BenchRow] = []
    notes: list[str] = []
    found: list[ModeResult] = []
    if "modes" in parts:
        found += _find_all(plan, sizes)
        rows += measured_rows(found)
        rows += aims(found, sizes[-1])
        if plots is not None:
            from .figures import draw

            draw(found, plots)
    if "steps" in parts:
        from .steps import step_rows

        rows += step_rows(found, largest, plan)
    if "links" in parts:
        notes += _links(plan, rows)
    if "peers" in parts:
        from .against_peers import peer_rows

        measured, missing = peer_rows(
            found, largest, plan, _PEERS_QUICK_S if quick else _PEERS_FULL_S
        )
        rows += measured
        notes += missing
    if "applications" in parts:
        from .applications import application_rows

        rows += application_rows(largest, quick=quick)
    options = "".join((" --quick" if quick else "", f" --only {only}" if only else ""))
    return BenchReport(
        suite="one-to-many",
        command=f"whale-ray bench one-to-many{options}",
        machine=machine,
        rows=tuple(rows),
        notes=(*NOTES, *notes),
    )


def _find_all(plan: Plan, sizes: Sequence[int]) -> list[ModeResult]:
    found: list[ModeResult] = []
    for size in sizes:
        # A pickle per row and instance is so slow that one size is enough.
        names = [name for name in COMPARED if name != PICKLED or size == sizes[-1]]
        found += find(Shape(HOSTS, size), plan, names)
    return found


def _links(plan: Plan, rows: list[BenchRow]) -> list[str]:
    """Add the link-bound rows; return a note if this machine cannot create such hosts."""
    from .link_bound import lack, link_rows

    if missing := lack():
        return [f"link-bound runs were left out: {missing}"]
    rows += link_rows(plan)
    return []
