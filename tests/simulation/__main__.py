"""Replay a seed of a scenario, or run very many seeds: `python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from tests.simulation.seeds import (
    COMMAND,
    SCENARIOS,
    SeedFailedError,
    find_scenario,
    fresh_base,
    play_seed,
    seeds_from,
)
from whale_ray.configs.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, UsageError

SOAK_SEEDS = 100_000
_PROGRESS = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.command == "replay":
            return _replay(chosen.name, chosen.seed)
        return _soak(chosen.names, chosen.count, chosen.base)
    except UsageError as error:
        _print_line(str(error), to_errors=True)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Deterministic simulations.")
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="play one seed and show the end of its trace")
    replay.add_argument("name", help=f"{', '.join(SCENARIOS)}, or FILE.py:NAME")
    replay.add_argument("seed", type=int)
    soak = commands.add_parser("soak", help="play new seeds of scenarios until one fails")
    soak.add_argument("names", nargs="*", metavar="NAME", help="which scenarios (all)")
    soak.add_argument("--count", type=int, default=SOAK_SEEDS, help="seeds in all (%(default)s)")
    soak.add_argument("--base", type=int, help="the base of an earlier run (a new one)")
    return parser


def _replay(name: str, seed: int) -> int:
    try:
        fingerprint = play_seed(find_scenario(name), seed, trace=_print_line)
    except SeedFailedError as error:
        _print_line(str(error))
        return EXIT_FAILURE
    _print_line(f"{name}: seed {seed} is well, fingerprint {fingerprint:016x}")
    return 0


def _soak(names: Sequence[str], count: int, base: int | None) -> int:
    """Run the scenarios in turn; a failed scenario gets no more seeds, the others continue."""
    base = fresh_base() if base is None else base
    left = {name: find_scenario(name) for name in names or SCENARIOS}
    _print_line(f"{count:,} seeds from base {base}: {', '.join(left)}")
    played, failed = dict.fromkeys(left, 0), 0
    order = list(left)
    for number, seed in enumerate(seeds_from(base, count), 1):
        name = order[number % len(order)]
        if name in left:
            try:
                play_seed(left[name], seed)
            except SeedFailedError as error:
                _print_line(f"{name} failed\n{error}")
                del left[name]
                failed += 1
            played[name] += 1
        if number % _PROGRESS == 0:
            _print_line(f"{number:,} of {count:,}")
    _print_line(f"played {', '.join(f'{name} {times:,}' for name, times in played.items())}")
    _print_line(f"{failed} of {len(order)} scenarios failed (base {base})")
    return EXIT_FAILURE if failed else 0


def _print_line(text: str, *, to_errors: bool = False) -> None:
    stream = sys.stderr if to_errors else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # who is hit by a fault that a scenario injects, says so
    sys.exit(main())
