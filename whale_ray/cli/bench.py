"""`whale-ray bench SUITE`: ratios measured in one run."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from ..configs.errors import UsageError
from .parser import did_you_mean

SUITES = {
    "transport": "shared memory, tcp and RDMA verbs against memcpy, sockets, ZeroMQ, pickle",
    "rows": "functions on rows against a plain Python loop over the same dicts",
    "streaming": "windows and keyed state against Flink, Bytewax, Pathway, Spark, DuckDB, Polars",
    "checkpoints": "rates, sizes and latencies with checkpoints; recovery; state on disk",
    "ride-hailing": "the application at 16 matching instances, and what bounds it",
    "one-to-many": "every row to up to 480 instances on 30 hosts: modes, trees, peers",
    "dynamic": "a load that changes, and the multicast tree that follows it",
    "optimizer": "predictions beside measurements; single rows against optimized",
    "options-market": "the application's placements, stage by stage, and the highest rate of each",
}


def add_bench(commands: Any) -> None:
    """Add `bench`."""
    command = commands.add_parser("bench", help="measure, and compare with other systems")
    suites = "; ".join(f"{name}: {what}" for name, what in SUITES.items())
    command.add_argument("suite", choices=SUITES, metavar="SUITE", help=suites)
    command.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    command.add_argument("--only", metavar="PART", help="measure one part of the suite")
    command.add_argument(
        "--sizes", metavar="N,N", type=_numbers, help="one-to-many: numbers of instances"
    )
    command.add_argument(
        "--plots",
        metavar="DIR",
        type=Path,
        help="one-to-many, dynamic, options-market, streaming: folder",
    )
    command.add_argument(
        "--rate", metavar="N", type=float, help="options-market: messages per second"
    )
    command.add_argument(
        "--resume",
        metavar="FILE",
        type=Path,
        help="streaming: keep what is measured there, and go on with what it lacks",
    )
    command.add_argument("--json", action="store_true", help="one JSON object on the last line")
    command.set_defaults(function=_bench)


def _bench(parsed: argparse.Namespace) -> int:
    suite = import_module(f"whale_ray.lab.bench.{parsed.suite.replace('-', '_')}")
    options = _options(parsed, suite)
    report = suite.run(quick=parsed.quick, **options)
    sys.stdout.write((report.as_json() if parsed.json else report.render()).rstrip() + "\n")
    return 0


def _options(parsed: argparse.Namespace, suite: Any) -> dict[str, Any]:
    """Return the options that were given; raise UsageError if the suite does not take one."""
    options: dict[str, Any] = {}
    if parsed.only is not None:
        options["only"] = _part(parsed.suite, suite, parsed.only)
    taken = signature(suite.run).parameters
    for option in ("sizes", "plots", "rate", "resume"):
        value = getattr(parsed, option)
        if value is None:
            continue
        if option not in taken:
            msg = f"suite {parsed.suite!r} takes no --{option}"
            raise UsageError(msg)
        options[option] = value
    return options


def _numbers(text: str) -> tuple[int, ...]:
    """Return numbers that are separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        msg = f"{text!r} is no list of numbers such as 120,480"
        raise argparse.ArgumentTypeError(msg) from error


def _part(name: str, suite: Any, part: str) -> str:
    """Return `part`; raise UsageError if the suite has no such part."""
    parts = tuple(getattr(suite, "PARTS", ()))
    if part not in parts:
        there_are = f"there are {', '.join(parts)}" if parts else "it has none"
        msg = f"suite {name!r} has no part {part!r}{did_you_mean(part, parts)}; {there_are}"
        raise UsageError(msg)
    return part
