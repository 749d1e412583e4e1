"""Ride-hailing and stock exchange with generated input, over the same hosts.

`reading` measures the cost of the broadcast alone; an application also computes. Its whole input is
run once per mode of addressing, and the time within the matching operator is reported separately.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....api.submission import submit
from ..report import BenchRow
from .deployment import Shape
from .measuring import log_progress
from .modes import mode_named

if TYPE_CHECKING:
    from ....api.topology import Topology
    from ....control.outcome import JobOutcome

__all__ = ["application_rows"]

_MODES: Final = ("non-blocking", "star", "instances, tcp")
_MATCH: Final = "match"
_VEHICLES: Final = 100_000
_BEST_INSTANCES: Final = 4


@dataclass(frozen=True)
class _Application:
    """An application to measure.

    Attributes:
        name: of the application.
        build: creates its topology.
        rows: rows that its sources read.
        to_all: how many of them go to every instance.
    """

    name: str
    build: Callable[[], Topology]
    rows: int
    to_all: int


def application_rows(shape: Shape, *, quick: bool) -> Iterator[BenchRow]:
    """Run both applications in the modes over tcp."""
    with tempfile.TemporaryDirectory(prefix="whale-ray-") as folder:
        for application in (
            _ride_hailing(Path(folder), shape, quick=quick),
            _stock_exchange(shape, quick=quick),
        ):
            baseline: float | None = None
            for name in reversed(_MODES):
                log_progress(f"{application.name}, {shape.instances} instances, {name}")
                outcome = _run(application, shape, name)
                baseline = baseline or application.rows / outcome.seconds
                yield _row(application, shape, name, outcome, baseline)


def _run(application: _Application, shape: Shape, name: str) -> JobOutcome:
    mode = mode_named(name)
    settings = {
        "runtime.hosts": shape.hosts + 1,
        "runtime.source_workers": 1,
        "runtime.route": mode.route,
        "runtime.addressing": mode.addressing,
        "runtime.source_batch_rows": 32_768,
        "runtime.start_timeout_ms": 300_000,
        "transport.memory_budget_fraction": 0.5,
    }
    job = submit(application.build(), on="processes", workers=shape.hosts + 1, settings=settings)
    return job.outcome()


def _row(
    application: _Application, shape: Shape, name: str, outcome: JobOutcome, baseline: float
) -> BenchRow:
    metrics = outcome.metrics
    rate = application.rows / outcome.seconds
    matching_s = metrics.operator(_MATCH).busy_ns / 1e9
    return BenchRow(
        application.name,
        {"instances": shape.instances, "hosts": shape.hosts, "mode": name},
        rate,
        "tuples/s",
        ratio=rate / baseline,
        against="instances, tcp",
        cores=metrics.cpu_s / outcome.seconds,
        also={
            "tuples": float(application.rows),
            "of them to all": float(application.to_all),
            # In wall time, which includes the time of other processes where they outnumber the
            # cores.
            "s in matcher": matching_s,
            "CPU s in all": metrics.cpu_s,
            "CPU µs/tuple": metrics.cpu_s / application.rows * 1e6,
        },
    )


def _ride_hailing(folder: Path, shape: Shape, *, quick: bool) -> _Application:
    from .... import sinks, sources
    from ....applications.ride_hailing.generator import CabGeneratorSettings, generate
    from ....applications.ride_hailing.settings import RideHailingSettings
    from ....applications.ride_hailing.topology import build

    hours = 0.1 if quick else 0.3
    made = generate(folder, CabGeneratorSettings(vehicles=_VEHICLES, hours=hours))
    settings = RideHailingSettings(
        matching_instances=shape.instances, best_instances=_BEST_INSTANCES
    )
    return _Application(
        "ride-hailing",
        lambda: build(
            sources.parquet(made.positions_path),
            sources.parquet(made.requests_path),
            sinks.collect(),
            settings,
        ),
        made.positions + made.requests,
        made.requests,
    )


def _stock_exchange(shape: Shape, *, quick: bool) -> _Application:
    from .... import sinks
    from ....applications.stock_exchange.generator import OrderGeneratorSettings, orders
    from ....applications.stock_exchange.settings import StockExchangeSettings
    from ....applications.stock_exchange.topology import build

    records = 300_000 if quick else 2_000_000
    settings = StockExchangeSettings(matching_instances=shape.instances)
    return _Application(
        "stock-exchange",
        lambda: build(
            orders(OrderGeneratorSettings(records=records)),
            sinks.collect(),
            sinks.collect(),
            settings,
        ),
        records,
        records,
    )
