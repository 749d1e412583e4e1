"""`whale-ray bench SUITE`: ratios measured in one run."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any

SUITES = {
    "transport": "the ring and shared memory against memcpy, ZeroMQ and pickle",
    "ride-hailing": "the application at 16 matching instances, and what bounds it",
}


def add_bench(commands: Any) -> None:
    """Add `bench`."""
    command = commands.add_parser("bench", help="measure; prints ratios from one run")
    suites = "; ".join(f"{name}: {what}" for name, what in SUITES.items())
    command.add_argument("suite", choices=SUITES, metavar="SUITE", help=suites)
    command.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    command.add_argument("--json", action="store_true", help="one JSON object on the last line")
    command.set_defaults(function=_bench)


def _bench(parsed: argparse.Namespace) -> int:
    suite = import_module(f"whale_ray.bench.{parsed.suite.replace('-', '_')}")
    report = suite.run(quick=parsed.quick)
    sys.stdout.write((report.as_json() if parsed.json else report.render()).rstrip() + "\n")
    return 0
