"""`optimize` of a `tspec` file with the costs that it states; nothing is run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.errors import EXIT_FAILURE, InputError
from ..configs.json_text import json_text
from ..configs.units import NS_PER_S
from .simulate import costs_named
from .tables import table

if TYPE_CHECKING:
    from ..optimizer.algorithm import Optimization
    from ..optimizer.dataflow import Dataflow, SendingCosts


def run(parsed: argparse.Namespace) -> int:
    """Optimize the topology of a file; return the exit code."""
    from ..optimizer.algorithm import optimize
    from ..optimizer.dataflow import OptimizerLimits
    from ..optimizer.decisions import log_to_yaml
    from ..tspec.dataflows import dataflow_of
    from ..tspec.reading import read_tspec
    from ..tspec.writing import optimized_spec, tspec_to_yaml

    spec = read_tspec(parsed.app)
    dataflow = dataflow_of(spec)
    sending, machine = sending_costs(parsed.costs)
    cores = parsed.cores or len(os.sched_getaffinity(0))
    batch_bytes_max = parsed.batch_bytes_max or OptimizerLimits.batch_bytes_max
    limits = OptimizerLimits(cores, parsed.hosts or 1, batch_bytes_max)
    found = optimize(dataflow, sending, limits)
    if parsed.log:
        write_file(parsed.log, log_to_yaml(spec.name, found.steps))
    if parsed.write:
        write_file(parsed.write, tspec_to_yaml(optimized_spec(spec, found.choices)))
    if parsed.json:
        sys.stdout.write(json_text(described(found, sending)) + "\n")
    else:
        sys.stdout.write("\n".join(lines_of(found, dataflow, machine, cores, parsed.steps)) + "\n")
    return 0 if found.throughput == 1 else EXIT_FAILURE


def sending_costs(named: str) -> tuple[SendingCosts, str]:
    """Return what a message costs its sender, and where that was measured.

    What it costs its receiver is not in Aeolus' model: that is part of a row's processing time.
    """
    from ..optimizer.dataflow import SendingCosts

    costs = costs_named(named)
    message_s = costs.serialize.per_slice_s + costs.send.per_slice_s
    byte_s = costs.serialize.per_byte_s + costs.send.per_byte_s
    return SendingCosts(message_s * NS_PER_S, byte_s * NS_PER_S), costs.machine


def write_file(path: str, text: str) -> None:
    """Write a file; InputError if that is not possible."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise InputError(msg) from error


def lines_of(
    found: Optimization, dataflow: Dataflow, machine: str, cores: int, steps: bool
) -> list[str]:
    """Return what was decided, for people."""
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


def described(found: Optimization, sending: SendingCosts) -> dict[str, Any]:
    """Return what was decided, for `--json`."""
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
