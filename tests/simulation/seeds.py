"""Scenarios over many seeds: which seeds to try, and the command that repeats a failure.

Every run draws new seeds from a base that is printed first. A seed that failed once is
kept in a file of its scenario (one per line, ``#`` begins a comment) and tried before all others.
"""

from __future__ import annotations

import importlib
import runpy
import secrets
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.simulator import Simulator
from whale_ray.configs.errors import InputError, UsageError

COMMAND = "python -m tests.simulation"
BASE_BITS = 40

_SCENARIOS_PACKAGE = f"{__package__}.scenarios"
SCENARIOS = {
    name: f"{_SCENARIOS_PACKAGE}.{name}:SCENARIO"
    for name in (
        "resumption",
        "forwarding",
        "moving",
        "multicast",
        "epochs",
        "store",
        "tasks",
        "merging",
    )
}
"""The scenarios of whale-ray: name, and where it is."""


class SeedFailedError(AssertionError):
    """A scenario failed; the message has the command to repeat it, the cause is the error."""


@dataclass(frozen=True)
class Scenario:
    """Nodes, a workload and faults; the run must reach its goal with every seed."""

    name: str
    """What the command line finds it by: a name in SCENARIOS, `module:attribute`, or
    `file.py:attribute`."""
    play: Callable[[Simulator], object]
    """Adds nodes to an empty simulator, runs it, and raises if it does not reach its goal."""


def find_scenario(name: str) -> Scenario:
    """Return a scenario by its name or its `FILE:NAME`; UsageError if there is none."""
    module, _, attribute = SCENARIOS.get(name, name).rpartition(":")
    try:
        if module.endswith(".py"):
            found = runpy.run_path(module).get(attribute)
        else:
            found = getattr(importlib.import_module(module), attribute, None) if module else None
    except (ImportError, OSError) as error:
        msg = f"scenario {name!r}: {error}"
        raise UsageError(msg) from error
    if not isinstance(found, Scenario):
        msg = f"no scenario {name!r}; there are {', '.join(sorted(SCENARIOS))}, and FILE.py:NAME"
        raise UsageError(msg)
    return found


def play_seed(scenario: Scenario, seed: int, *, trace: Callable[[str], None] | None = None) -> int:
    """Run a scenario once and return the fingerprint of the run.

    Raises SeedFailedError, with the replay line and the end of the trace, for any error of the
    scenario. `trace` gets that end on success, too.
    """
    simulation = Simulator(seed)
    try:
        scenario.play(simulation)
    except Exception as error:
        msg = "\n".join(
            [
                replay_line(scenario.name, seed),
                f"{type(error).__name__}: {error}",
                simulation.trace_text(),
            ]
        )
        raise SeedFailedError(msg) from error
    if trace is not None:
        trace(simulation.trace_text())
    return simulation.fingerprint


def replay_line(name: str, seed: int) -> str:
    """Return the command that repeats a seed."""
    return f"replay: seed={seed} ({COMMAND} replay {shlex.quote(name)} {seed})"


def for_seeds(scenario: Scenario, seeds: Iterable[int]) -> int:
    """Run a scenario with every seed; return the number of seeds.

    Stops at the first failure with its SeedFailedError.
    """
    count = 0
    for seed in seeds:
        play_seed(scenario, seed)
        count += 1
    return count


def fresh_base() -> int:
    """Return a random base for new seeds, to be printed so that the run can be repeated."""
    return secrets.randbits(BASE_BITS)


def seeds_from(base: int, count: int) -> range:
    """Return `count` seeds that follow from a base."""
    return range(base, base + count)


def seeds_of_file(path: Path) -> tuple[int, ...]:
    """Return the seeds in a file of past failures, none if there is no such file.

    Raises InputError for a line that is neither a number nor a comment.
    """
    if not path.exists():
        return ()
    seeds = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        if not text.isdigit():
            msg = f"{path}:{number}: {text!r} is no seed"
            raise InputError(msg)
        seeds.append(int(text))
    return tuple(seeds)
