"""`whale-ray run cluster-monitoring`: the mean CPU of jobs, generated, real or a user's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...cli.running import explained
from ...configs.errors import InputError, UsageError
from ..shared.benchmark import Benchmark, add_common
from ..shared.ranges import check_whole, named_as_options
from .settings import ClusterSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from ...cli.parser import Parser
    from ...plan.explanation import Explanation
    from .replay import Replay

__all__ = ["explain", "main"]

DEFAULT_OUTPUT = "out/cluster-monitoring"
_SAMPLES = "samples"
_INSTANCES_MAX = 4_096


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    defaults = ClusterSettings()
    source = parser.add_argument_group("input: a folder, or generated")
    source.add_argument(
        "--data",
        metavar="DIR",
        help="with samples, in order of time, or with job_events and cpu, as Parquet",
    )
    source.add_argument(
        "--jobs",
        type=int,
        help=f"to generate (default {defaults.jobs:,}), or of job_events to replay (default all)",
    )
    source.add_argument("--seed", type=int, default=defaults.seed, help="of the generator")
    question = parser.add_argument_group("question")
    question.add_argument(
        "--window", default="2 seconds", help="length of the windows (default '2 seconds')"
    )
    question.add_argument(
        "--parallelism", type=int, help="instances that aggregate (default: one per worker)"
    )
    add_common(parser, DEFAULT_OUTPUT)
    parser.exclude("--data", "--seed")


def main(arguments: Sequence[str], parser: Parser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    options = parser.parse_args(arguments)
    generated = _generated(options)
    command = ["whale-ray", "run", APPLICATION, *arguments]
    return _benchmark(options, generated).run(_with_samples(options), command)


def explain(arguments: Sequence[str], parser: Parser) -> Explanation:
    """Return the plan of what `main` would run, over empty inputs."""
    from ... import sinks, sources
    from .schemas import SAMPLES

    add_arguments(parser)
    options = parser.parse_args(arguments)
    _generated(options)
    topology = build(
        sources.arrow(SAMPLES.empty_table()),
        sinks.parquet(options.output, overwrite=True),
        window=options.window,
        parallelism=options.parallelism,
    )
    return explained(topology, options)


def _generated(options: argparse.Namespace) -> ClusterSettings:
    """Return the generator's settings; raises UsageError for any value out of range."""
    from ...operators.windows.durations import duration_ns

    with named_as_options():
        if options.parallelism is not None:
            check_whole("parallelism", options.parallelism, 1, _INSTANCES_MAX, "instances")
        jobs = ClusterSettings.jobs if options.jobs is None else options.jobs
        settings = ClusterSettings(jobs, options.seed)
    try:
        length_ns = duration_ns(options.window, "--window")
    except InputError as error:
        raise UsageError(str(error)) from None
    if length_ns <= 0:
        msg = f"--window is {options.window!r}: it must be longer than nothing"
        raise UsageError(msg)
    return settings


def _has_samples(options: argparse.Namespace) -> bool:
    """Whether the user's folder holds the stream itself."""
    return options.data is not None and any(
        (Path(options.data) / name).exists() for name in (f"{_SAMPLES}.parquet", _SAMPLES)
    )


def _with_samples(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options; without `data` if samples are to be made of what is there."""
    if not _has_samples(options):
        return argparse.Namespace(**{**vars(options), "data": None})
    if options.jobs is not None:
        msg = f"--jobs means nothing where --data {options.data} has samples; leave it out"
        raise UsageError(msg)
    return options


def _benchmark(options: argparse.Namespace, generated: ClusterSettings) -> Benchmark:
    from .replay import write_samples

    return Benchmark(
        application=APPLICATION,
        streams=(_SAMPLES,),
        build=lambda source_of, sink: build(
            source_of(_SAMPLES, ("event_time", "job_id", "cpu_pct")),
            sink,
            window=options.window,
            parallelism=options.parallelism,
        ),
        generate=lambda folder, _: write_samples(folder, _replay(options, generated)),
        settings={
            "window": options.window,
            "parallelism": options.parallelism,
            "data": options.data,
            **({"jobs": options.jobs} if options.data else asdict(generated)),
        },
        output=DEFAULT_OUTPUT,
    )


def _replay(options: argparse.Namespace, generated: ClusterSettings) -> Replay:
    """Return the samples, of the user's files or generated; raises InputError."""
    from .generator import cpu_of_tasks, job_events
    from .inputs import replay_of
    from .replay import Replay

    if options.data is not None:
        return replay_of(options.data, options.jobs)
    return Replay(job_events(generated), cpu_of_tasks(generated))
