"""Topologies in `tspec` files and logs of the optimizer, as the page draws them.

Nothing that a text names is imported here: that is left to the process that runs it.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from typing import Any

from ..optimizer.algorithm import optimize
from ..optimizer.dataflow import OptimizerLimits
from ..optimizer.decisions import OptimizerDecision, choices_after, log_from_yaml, log_to_yaml
from ..tspec.dataflows import dataflow_of
from ..tspec.reading import parse_tspec
from ..tspec.specification import TopologySpec
from ..tspec.writing import optimized_spec, tspec_to_yaml

__all__ = ["drawn_log", "drawn_topology", "optimized"]

_WHERE = "the topology"


def drawn_topology(text: str) -> dict[str, Any]:
    """Return the operators and edges of a `tspec` text; raises InputError, with the line."""
    return _drawn(parse_tspec(text, _WHERE))


def optimized(text: str) -> dict[str, Any]:
    """Return what the optimizer does with a `tspec` text: its steps, and the text that results.

    Raises:
        InputError: the text is none, or lacks costs.
        UsageError: the optimizer cannot take it.
    """
    from ..cli.optimize_stated import sending_costs

    spec = parse_tspec(text, _WHERE)
    limits = OptimizerLimits(len(os.sched_getaffinity(0)))
    found = optimize(dataflow_of(spec), sending_costs("measured")[0], limits)
    return {
        "topology": spec.name,
        "steps": _steps(found.steps),
        "throughput": found.throughput,
        "limited_by": found.limited_by,
        "text": tspec_to_yaml(optimized_spec(spec, found.choices)),
        "log": log_to_yaml(spec.name, found.steps),
        "drawn": _drawn(spec),
    }


def drawn_log(text: str) -> dict[str, Any]:
    """Return the steps of a log of the optimizer; raises InputError."""
    topology, steps = log_from_yaml(text, "the log")
    return {"topology": topology, "steps": _steps(steps)}


def _steps(steps: tuple[OptimizerDecision, ...]) -> list[dict[str, Any]]:
    """Return the decisions, each with all that is decided by then."""
    return [
        {
            "operator": step.operator,
            "decides": str(step.decides),
            "value": step.value,
            "formula": step.formula,
            "numbers": {
                name: value if math.isfinite(value) else None  # for which JSON has no number
                for name, value in step.numbers.items()
            },
            "reason": step.reason,
            "choices": {
                name: asdict(choice) for name, choice in choices_after(steps[: place + 1]).items()
            },
        }
        for place, step in enumerate(steps)
    ]


def _drawn(spec: TopologySpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "operators": [
            {"id": one.id, "kind": str(one.kind), "what": one.what, "dop": one.dop}
            for one in spec.operators
        ],
        "edges": [
            {"source": feed.upstream, "target": one.id, "grouping": str(feed.grouping)}
            for one in spec.operators
            for feed in one.inputs
        ],
    }
