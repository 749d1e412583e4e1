"""`whale-ray run cluster-monitoring`: the mean CPU of jobs, generated, real or a user's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.errors import UsageError
from ..shared.benchmark import (
    Benchmark,
    BenchmarkCommand,
    add_common,
    add_input,
    add_parallelism,
    add_window,
    check_window,
    numbers_of,
)
from ..shared.ranges import check_whole, named_as_options
from .settings import ClusterSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from ...cli.parser import Parser
    from .replay import Replay

__all__ = ["explain", "main"]

_SAMPLES = "samples"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    add_input(
        parser,
        "with samples, in order of time, or with job_events and cpu, as Parquet",
        ClusterSettings(),
        jobs="to generate",
        seed="of the generator",
    )
    question = parser.add_argument_group("question")
    question.add_argument(
        "--first-jobs", type=int, metavar="N", help="of job_events (default: all)"
    )
    add_window(question, "2 seconds")
    add_parallelism(question, "instances that aggregate (default: one per worker)")
    parser.need("--data", "--first-jobs")
    add_common(parser, APPLICATION)


def _generated(options: argparse.Namespace) -> ClusterSettings:
    """Return the generator's settings; raises UsageError for any value out of range."""
    check_window(options)
    if options.first_jobs is not None:
        with named_as_options():
            check_whole("first_jobs", options.first_jobs, 1, 10**12)
    return numbers_of(ClusterSettings, options)


def _benchmark(options: argparse.Namespace) -> Benchmark:
    from .replay import write_samples
    from .schemas import SAMPLES

    generated = _generated(options)
    return Benchmark(
        options=_with_samples(options),
        application=APPLICATION,
        streams={_SAMPLES: SAMPLES},
        build=lambda source_of, sink: build(
            source_of(_SAMPLES, ("event_time", "job_id", "cpu_pct")),
            sink,
            window=options.window,
            parallelism=options.parallelism,
        ),
        generate=lambda folder, _: write_samples(folder, _replay(options, generated)),
        generated=generated if options.data is None else None,
        question={
            "window": options.window,
            "data": options.data,
            **({"first_jobs": options.first_jobs} if options.data else {}),
        },
    )


def _with_samples(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options; without `data` where the samples are to be made of what is there."""
    folder = None if options.data is None else Path(options.data)
    names = (f"{_SAMPLES}.parquet", _SAMPLES)
    if folder is None or not any((folder / name).exists() for name in names):
        return argparse.Namespace(**{**vars(options), "data": None})
    if options.first_jobs is not None:
        msg = f"--first-jobs means nothing where --data {folder} has samples; leave it out"
        raise UsageError(msg)
    return options


def _replay(options: argparse.Namespace, generated: ClusterSettings) -> Replay:
    """Return the samples, of the user's files or generated; raises InputError."""
    from .generator import cpu_of_tasks, job_events
    from .inputs import replay_of
    from .replay import Replay

    if options.data is not None:
        return replay_of(options.data, options.first_jobs)
    return Replay(job_events(generated), cpu_of_tasks(generated))


_COMMAND = BenchmarkCommand(add_arguments, _benchmark)
main, explain = _COMMAND.main, _COMMAND.explain
