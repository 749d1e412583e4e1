"""`whale-ray bench SUITE`: ratios measured in one run."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Any

from ..configs.errors import UsageError
from .parser import did_you_mean

SUITES = {
    "transport": "shared memory, tcp and push against memcpy, plain sockets, ZeroMQ and pickle",
    "ride-hailing": "the application at 16 matching instances, and what bounds it",
}


def add_bench(commands: Any) -> None:
    """Add `bench`."""
    command = commands.add_parser("bench", help="measure; prints ratios from one run")
    suites = "; ".join(f"{name}: {what}" for name, what in SUITES.items())
    command.add_argument("suite", choices=SUITES, metavar="SUITE", help=suites)
    command.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    command.add_argument("--only", metavar="PART", help="measure one part of the suite")
    command.add_argument("--json", action="store_true", help="one JSON object on the last line")
    command.set_defaults(function=_bench)


def _bench(parsed: argparse.Namespace) -> int:
    suite = import_module(f"whale_ray.bench.{parsed.suite.replace('-', '_')}")
    options = {} if parsed.only is None else {"only": _part(parsed.suite, suite, parsed.only)}
    report = suite.run(quick=parsed.quick, **options)
    sys.stdout.write((report.as_json() if parsed.json else report.render()).rstrip() + "\n")
    return 0


def _part(name: str, suite: Any, part: str) -> str:
    """Return `part`; UsageError if the suite has no such part."""
    parts = tuple(getattr(suite, "PARTS", ()))
    if part not in parts:
        there_are = f"there are {', '.join(parts)}" if parts else "it has none"
        msg = f"suite {name!r} has no part {part!r}{did_you_mean(part, parts)}; {there_are}"
        raise UsageError(msg)
    return part
