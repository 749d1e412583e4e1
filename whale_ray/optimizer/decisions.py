"""The log of an optimization (`tspec-opt`): each decision with its formula and its numbers.

It is what the optimizer's user reads, and what can be stepped through later: `choices_after` tells
which degrees of parallelism and batches were decided by then. The file is YAML::

    tspec-opt: 1
    topology: linear-road
    steps:
    - operator: toll
      decides: dop
      value: 3
      formula: dop > ppt · r_i
      numbers: {ppt_ns: 2000.0, rows_per_s: 1200000.0}
      reason: each instance processes 80 % of the time
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from ..configs.errors import InputError

__all__ = [
    "Choice",
    "Decides",
    "DecisionLog",
    "OptimizerDecision",
    "choices_after",
    "log_from_yaml",
    "log_to_yaml",
]

_KEY: Final = "tspec-opt"
_VERSION: Final = 1


class Decides(StrEnum):
    """What a decision sets."""

    DOP = "dop"
    """The degree of parallelism of an operator."""
    BATCH_ROWS = "batch_rows"
    """How many rows a batch has that it sends."""
    RATE_OUT = "rate_out"
    """How many rows per second it sends."""
    THROUGHPUT = "throughput"
    """What part of the sources' rates can be carried; its operator is the one that limits it."""


@dataclass(frozen=True)
class OptimizerDecision:
    """One step of the optimizer.

    Args:
        operator: what it is about.
        decides: what it sets.
        value: to what.
        formula: by which it was computed, with the paper's symbols.
        numbers: that were put into the formula, by name; names carry units.
        reason: the same in words.
    """

    operator: str
    decides: Decides
    value: float
    formula: str
    numbers: Mapping[str, float]
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))

    def __str__(self) -> str:
        """Return it as a line."""
        numbers = ", ".join(f"{name} = {value:.6g}" for name, value in self.numbers.items())
        return (
            f"{self.operator}: {self.decides} = {self.value:.6g}"
            f"  [{self.formula}; {numbers}]  {self.reason}"
        )


@dataclass(frozen=True)
class Choice:
    """What is decided for an operator: None as long as it is not."""

    dop: int | None = None
    batch_rows: int | None = None
    rate_out_per_s: float | None = None


@dataclass(frozen=True)
class DecisionLog:
    """What an optimizer decided on a topology, in order; empty if none was asked.

    Args:
        topology: its name.
        steps: the decisions.
    """

    topology: str
    steps: tuple[OptimizerDecision, ...] = ()

    @property
    def choices(self) -> dict[str, Choice]:
        """What is decided, by operator."""
        return choices_after(self.steps)

    def to_yaml(self) -> str:
        """Return it as a `tspec-opt` file, for `whale-ray optimize --replay`."""
        return log_to_yaml(self.topology, self.steps)


def choices_after(steps: Iterable[OptimizerDecision]) -> dict[str, Choice]:
    """Return what is decided, by operator, after these steps: the later ones count."""
    found: dict[str, Choice] = {}
    for step in steps:
        before = found.get(step.operator, Choice())
        match step.decides:
            case Decides.DOP:
                found[step.operator] = Choice(int(step.value), before.batch_rows, None)
            case Decides.BATCH_ROWS:
                found[step.operator] = Choice(before.dop, int(step.value), None)
            case Decides.RATE_OUT:
                found[step.operator] = Choice(before.dop, before.batch_rows, step.value)
            case Decides.THROUGHPUT:
                pass
    return found


def log_to_yaml(topology: str, steps: Sequence[OptimizerDecision]) -> str:
    """Return the log of an optimization as a `tspec-opt` file."""
    import yaml

    written = [
        {
            "operator": step.operator,
            "decides": str(step.decides),
            "value": step.value,
            "formula": step.formula,
            "numbers": dict(step.numbers),
            "reason": step.reason,
        }
        for step in steps
    ]
    content = {_KEY: _VERSION, "topology": topology, "steps": written}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def log_from_yaml(text: str, where: str) -> tuple[str, tuple[OptimizerDecision, ...]]:
    """Return the topology's name and the steps of a `tspec-opt` file; `where` is for messages.

    Raises:
        InputError: it is none, is of another version, or lacks something.
    """
    import yaml

    try:
        content = yaml.safe_load(text)
        version = content[_KEY]
        if version != _VERSION:
            msg = f"{where}: it is of version {version} of {_KEY}, this is {_VERSION}"
            raise InputError(msg)
        return str(content["topology"]), tuple(_step(one) for one in content["steps"])
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{where}: not the log of an optimization ({_KEY}): {error!r}"
        raise InputError(msg) from error


def _step(written: Mapping[str, Any]) -> OptimizerDecision:
    return OptimizerDecision(
        str(written["operator"]),
        Decides(written["decides"]),
        float(written["value"]),
        str(written["formula"]),
        {str(name): float(value) for name, value in written["numbers"].items()},
        str(written["reason"]),
    )
