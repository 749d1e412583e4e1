"""The log of all decisions on a job (`tspec-opt`), each with its formula and its numbers.

Those of the optimizer before it starts, and those that are made while it runs, with their time.

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

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ..configs.errors import InputError

if TYPE_CHECKING:
    import yaml

__all__ = [
    "Choice",
    "Decides",
    "DecisionLog",
    "OptimizerDecision",
    "choices_after",
    "log_from_yaml",
    "log_to_yaml",
    "step_as_plain",
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
    WAIT_MS = "wait_ms"
    """How many milliseconds a row waits at most in a batch that it sends."""
    OUT_DEGREE = "out_degree"
    """How many hosts the source of a multicast tree sends to."""
    LATE_MERGE = "late_merge"
    """Whether an aggregate is computed where its rows are made (1), or where they go (0)."""
    PROPOSED_DOP = "proposed_dop"
    """A degree of parallelism that the user may give it; nothing is changed."""
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
        at_s: seconds since the job began; None of what was decided before.
    """

    operator: str
    decides: Decides
    value: float
    formula: str
    numbers: Mapping[str, float]
    reason: str
    at_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", MappingProxyType(dict(self.numbers)))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Pickle it without the mapping, since one that cannot be changed cannot be pickled."""
        plain = (self.operator, self.decides, self.value, self.formula, dict(self.numbers))
        return OptimizerDecision, (*plain, self.reason, self.at_s)

    def __str__(self) -> str:
        """Return it as a line."""
        numbers = ", ".join(f"{name} = {value:.6g}" for name, value in self.numbers.items())
        at = "" if self.at_s is None else f"at {self.at_s:.1f} s, "
        return (
            f"{at}{self.operator}: {self.decides} = {self.value:.6g}"
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
    """What was decided on a topology, in order; empty if nothing was.

    Args:
        topology: its name.
        steps: the decisions.
        left_out: how many were made after those before the start, and are not kept any more.
    """

    topology: str
    steps: tuple[OptimizerDecision, ...] = ()
    left_out: int = 0

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
            case _:
                pass
    return found


def log_to_yaml(topology: str, steps: Sequence[OptimizerDecision]) -> str:
    """Return the log of an optimization as a `tspec-opt` file."""
    import yaml

    written = [step_as_plain(step) for step in steps]
    content = {_KEY: _VERSION, "topology": topology, "steps": written}
    # libyaml where it is there: a long log takes seconds otherwise.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(content, Dumper=dumper, sort_keys=False, allow_unicode=True))


def step_as_plain(step: OptimizerDecision) -> dict[str, Any]:
    """Return a decision as plain data, as it stands in a log."""
    plain = {
        "operator": step.operator,
        "decides": str(step.decides),
        "value": step.value,
        "formula": step.formula,
        "numbers": dict(step.numbers),
        "reason": step.reason,
    }
    return plain if step.at_s is None else {**plain, "at_s": round(step.at_s, 3)}


def log_from_yaml(text: str, where: str) -> tuple[str, tuple[OptimizerDecision, ...]]:
    """Return the topology's name and the steps of a `tspec-opt` file; `where` is for messages.

    Raises:
        InputError: it is none, is of another version, or lacks something.
    """
    import yaml

    try:
        content = yaml.load(text, Loader=_loader_class())
        version = content[_KEY]
        if version != _VERSION:
            msg = f"{where}: it is of version {version} of {_KEY}, this is {_VERSION}"
            raise InputError(msg)
        return str(content["topology"]), tuple(_step(one) for one in content["steps"])
    except RecursionError as error:
        msg = f"{where}: not the log of an optimization ({_KEY}): it is nested too deeply"
        raise InputError(msg) from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        msg = f"{where}{line}: not the log of an optimization ({_KEY}): {error.problem}"
        raise InputError(msg) from error
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError) as error:
        msg = f"{where}: not the log of an optimization ({_KEY}): {error!r}"
        raise InputError(msg) from error


@functools.cache
def _loader_class() -> type[yaml.SafeLoader]:
    """Return a loader that refuses references (*name): a short text may grow without bound."""
    import yaml

    class LoaderOfLogs(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML
                problem = "a log has no references to other entries"
                raise yaml.composer.ComposerError(None, None, problem, mark)
            return super().compose_node(parent, index)

    return LoaderOfLogs


def _finite(written: Any) -> float:
    value = float(written)
    if not math.isfinite(value):
        msg = f"{value} is no number that is decided"
        raise ValueError(msg)
    return value


def _step(written: Mapping[str, Any]) -> OptimizerDecision:
    return OptimizerDecision(
        str(written["operator"]),
        Decides(written["decides"]),
        _finite(written["value"]),
        str(written["formula"]),
        {str(name): float(value) for name, value in written["numbers"].items()},
        str(written["reason"]),
        None if written.get("at_s") is None else float(written["at_s"]),
    )
