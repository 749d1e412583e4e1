"""The command `optimize`: degrees of parallelism and batches of a topology in a `tspec` file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.errors import EXIT_FAILURE, InputError
from .simulate import costs_named
from .tables import table

if TYPE_CHECKING:
    from ..optimizer.algorithm import Optimization
    from ..optimizer.dataflow import Dataflow, SendingCosts

_NS_PER_S = 1e9


def add_optimize(commands: Any) -> None:
    """Add `optimize`."""
    command = commands.add_parser(
        "optimize",
        help="the parallelism and batches that a topology in a tspec file needs (Aeolus)",
        epilog="Exits with 1 if not all of the sources' rows can be carried.",
    )
    command.add_argument("file", metavar="FILE", help="a topology as a tspec file (YAML)")
    command.add_argument(
        "--costs",
        default="measured",
        metavar="FILE",
        help="what messages cost: written by `whale-ray simulate --calibrate`; or 'measured' on"
        " another machine (default), or 'published'",
    )
    command.add_argument(
        "--cores", type=int, default=None, metavar="N", help="of all hosts (this machine's)"
    )
    command.add_argument(
        "--batch-bytes-max",
        type=int,
        default=65536,
        metavar="N",
        help="the largest batch (%(default)s)",
    )
    command.add_argument("--write", metavar="FILE", help="write the optimized topology")
    command.add_argument("--log", metavar="FILE", help="write every decision (tspec-opt, YAML)")
    command.add_argument("--steps", action="store_true", help="print every decision")
    command.add_argument("--json", action="store_true", help="one JSON object")
    command.set_defaults(function=_optimize)


def _optimize(parsed: argparse.Namespace) -> int:
    from ..optimizer.algorithm import optimize
    from ..optimizer.dataflow import OptimizerLimits
    from ..optimizer.decisions import log_to_yaml
    from ..tspec.dataflows import dataflow_of
    from ..tspec.reading import read_tspec
    from ..tspec.writing import optimized_spec, tspec_to_yaml

    spec = read_tspec(parsed.file)
    dataflow = dataflow_of(spec)
    sending, machine = _sending_costs(parsed.costs)
    cores = parsed.cores or len(os.sched_getaffinity(0))
    limits = OptimizerLimits(cores, parsed.batch_bytes_max)
    found = optimize(dataflow, sending, limits)
    if parsed.log:
        _write(parsed.log, log_to_yaml(spec.name, found.steps))
    if parsed.write:
        _write(parsed.write, tspec_to_yaml(optimized_spec(spec, found.choices)))
    if parsed.json:
        sys.stdout.write(json.dumps(_described(found, sending)) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(found, dataflow, machine, cores, parsed.steps)) + "\n")
    return 0 if found.throughput == 1 else EXIT_FAILURE


def _sending_costs(named: str) -> tuple[SendingCosts, str]:
    """Return what a message costs its sender, and where that was measured.

    What it costs its receiver is not in Aeolus' model: that is part of a row's processing time.
    """
    from ..optimizer.dataflow import SendingCosts

    costs = costs_named(named)
    message_s = costs.serialize.per_slice_s + costs.send.per_slice_s
    byte_s = costs.serialize.per_byte_s + costs.send.per_byte_s
    return SendingCosts(message_s * _NS_PER_S, byte_s * _NS_PER_S), costs.machine


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise InputError(msg) from error


def _lines(
    found: Optimization, dataflow: Dataflow, machine: str, cores: int, steps: bool
) -> list[str]:
    rows = [
        {
            "operator": node.id,
            "instances": found.choices[node.id].dop,
            "batch": found.choices[node.id].batch_rows or "",
            "rows out per s": f"{found.choices[node.id].rate_out_per_s:,.0f}",
        }
        for node in dataflow.in_order
    ]
    lines = [f"what messages cost: {machine}", *table(rows)]
    if steps:
        lines += ["", *map(str, found.steps)]
    lines.append("")
    if found.throughput < 1:
        lines += [step.reason for step in found.steps if step.decides == "throughput"]
    lines.append(f"busy cores: {found.cores:.2f} of {cores}")
    return lines


def _described(found: Optimization, sending: SendingCosts) -> dict[str, Any]:
    return {
        "throughput": found.throughput,
        "limited_by": found.limited_by,
        "cores": found.cores,
        "message_ns": sending.message_ns,
        "byte_ns": sending.byte_ns,
        "operators": {
            name: {
                "dop": one.dop,
                "batch_rows": one.batch_rows,
                "rate_out_per_s": one.rate_out_per_s,
            }
            for name, one in found.choices.items()
        },
    }
