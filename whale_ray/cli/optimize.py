"""The command `optimize`: degrees of parallelism and batches, of stated costs or measured ones.

A tspec file states what its operators cost, and nothing is run (`optimize_stated`), unless they are
to be measured; applications and topologies in Python are always measured (`optimize_measured`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..configs.errors import InputError, UsageError

_TSPEC = (".yaml", ".yml")


def add_optimize(commands: Any) -> None:
    """Add `optimize`."""
    command = commands.add_parser(
        "optimize",
        help="measure a topology, and compute its parallelism and batches (Aeolus)",
        usage="%(prog)s [-h] APP [OPTION ...]",
        epilog="Behind APP stand its own options, too, as for `whale-ray run`. Exits with 1 if not"
        " all of the rows can be carried that sources are to read.",
    )
    command.add_argument(
        "app",
        metavar="APP",
        nargs="?",
        help="a tspec file (YAML); or an application, file.py or file.py:topology, as for run",
    )
    _add_options(command)
    rest = command.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False
    command.set_defaults(function=_optimize)


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--measured",
        action="store_true",
        help="measure the operators of a tspec file, instead of the costs that it states",
    )
    command.add_argument(
        "--costs",
        default="measured",
        metavar="FILE",
        help="what messages cost, for stated costs: written by `whale-ray simulate --calibrate`;"
        " or 'measured' on another machine (default), or 'published'",
    )
    command.add_argument(
        "--cores", type=int, default=None, metavar="N", help="of all hosts (this machine's)"
    )
    command.add_argument(
        "--hosts",
        type=int,
        default=None,
        metavar="N",
        help="among which the cores are divided (if costs are measured: runtime.hosts; else 1)",
    )
    command.add_argument(
        "--batch-bytes-max",
        type=int,
        default=None,
        metavar="N",
        help="the largest batch (if costs are measured: transport.mms_bytes; else 65536)",
    )
    command.add_argument(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="how often each trial is repeated, if costs are measured (%(default)s)",
    )
    command.add_argument("--write", metavar="FILE", help="write the optimized topology (tspec)")
    command.add_argument("--log", metavar="FILE", help="write every decision (tspec-opt, YAML)")
    command.add_argument("--steps", action="store_true", help="print every decision")
    command.add_argument(
        "--replay",
        metavar="LOG",
        help="go through the decisions of a log, or of a job by its id, step by step",
    )
    command.add_argument("--json", action="store_true", help="one JSON object")


def _optimize(parsed: argparse.Namespace) -> int:
    from . import optimize_measured, optimize_stated

    others = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_options(others)
    parsed, rest = others.parse_known_args(parsed.rest, parsed)
    if parsed.replay is not None:
        if parsed.app is not None:
            msg = "--replay shows what was decided before; leave the topology out"
            raise UsageError(msg)
        return _replay(parsed.replay)
    if parsed.app is None:
        msg = "optimize needs a topology: a tspec file, an application, file.py or file.py:topology"
        raise UsageError(msg)
    for option, number in (
        ("--cores", parsed.cores),
        ("--hosts", parsed.hosts),
        ("--batch-bytes-max", parsed.batch_bytes_max),
        ("--rounds", parsed.rounds),
    ):
        if number is not None and number < 1:
            msg = f"{option} is {number}; it must be at least 1"
            raise UsageError(msg)
    if parsed.app.endswith(_TSPEC) and not parsed.measured:
        if rest:
            msg = f"unknown option {rest[0]}; with --measured, options of `whale-ray run` are taken"
            raise UsageError(msg)
        return optimize_stated.run(parsed)
    return optimize_measured.run(parsed, rest)


def _replay(named: str) -> int:
    """Print the decisions of a log, or of a job, and what was decided after each of them."""
    from ..configs.loading import load_settings
    from ..optimizer.decisions import choices_after, log_from_yaml
    from ..records.folders import DECISIONS, RunFolders

    run = None if Path(named).exists() else RunFolders(load_settings().records).of(named)
    if run is not None and not (run / DECISIONS).is_file():
        sys.stdout.write(f"{named}: nothing was decided\n")
        return 0
    path = named if run is None else str(run / DECISIONS)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise InputError(msg) from error
    name, steps = log_from_yaml(text, path)
    sys.stdout.write(f"{name}: {len(steps)} decisions\n")
    for number, step in enumerate(steps, 1):
        sys.stdout.write(f"\n{number}. {step}\n")
        for operator, choice in choices_after(steps[:number]).items():
            shown = [
                text
                for text in (
                    None if choice.dop is None else _counted(choice.dop, "instance"),
                    None
                    if choice.batch_rows is None
                    else f"batches of {_counted(choice.batch_rows, 'row')}",
                    None
                    if choice.rate_out_per_s is None
                    else f"{choice.rate_out_per_s:,.0f} rows/s out",
                )
                if text
            ]
            sys.stdout.write(f"   {operator}: {', '.join(shown)}\n")
    return 0


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"
