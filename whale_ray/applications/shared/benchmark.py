"""Commands of applications whose streams are generated, or Parquet files of the user's.

Each has one output. A stream is generated when the topology asks for it, so a query makes only
those that it reads. What the generator makes is said by numbers, the fields of a dataclass, and
each is an option of the command.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ...cli.running import (
    add_placement,
    add_settings,
    check_placement,
    explained,
    settings_of,
)
from ...configs.errors import EXIT_INTERRUPTED, InputError, UsageError
from . import command as shared
from . import report
from .phases import Phases
from .ranges import check_whole, named_as_options

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

    from ...api.job import Job
    from ...api.topology import Topology
    from ...cli.parser import Parser
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source
    from ...plan.explanation import Explanation

__all__ = [
    "SINK",
    "Benchmark",
    "BenchmarkCommand",
    "SourceOf",
    "add_common",
    "add_input",
    "add_parallelism",
    "add_window",
    "check_window",
    "given_stream",
    "numbers_of",
]

SINK = "out"
"""The id of the sink."""

SourceOf: TypeAlias = "Callable[[str, Sequence[str] | None], Source]"
"""Returns the source of a stream, with the columns named, or with all of them for None."""


_INSTANCES_MAX = 4_096

Numbers = TypeVar("Numbers", bound="DataclassInstance")


@dataclass(frozen=True)
class Benchmark:
    """An application that `run` runs.

    Attributes:
        options: parsed; see `add_input`, `add_parallelism` and `add_common`.
        application: its name; out/NAME is the result's folder unless the user chooses another.
        streams: the names of its streams → the columns of each; NAME.parquet in a folder is the
            stream NAME.
        build: returns the topology, given the sources and the sink.
        generate: writes a stream into a folder, and returns the path of the file.
        generated: the generator's settings, a dataclass; None where it makes nothing.
        question: what was asked beside the parallelism, for the report.
    """

    options: argparse.Namespace
    application: str
    streams: Mapping[str, pa.Schema]
    build: Callable[[SourceOf, Sink], Topology]
    generate: Callable[[Path, str], Path]
    generated: DataclassInstance | None
    question: Mapping[str, object] = field(default_factory=dict)

    def run(self, arguments: Sequence[str]) -> int:
        """Run the application; return the exit code.

        Args:
            arguments: the words of the command line after the application's name, for the report.
        """
        from ...metrics.job_metrics import JobMetrics

        options = self.options
        settings = settings_of(options)
        check_placement(options, settings)
        sink = shared.parquet_sink(options, _output_of(self.application), options.output)
        if options.detach and options.data is None:
            shared.check_detached(options, *self.streams)
        phases = Phases(self.application)
        with ExitStack() as stack:
            topology = self.build(
                lambda name, columns: self._source(name, columns, phases, stack), sink
            )
            shared.log_step(self.application, "streaming")
            job = shared.run_job(phases, topology, options, settings, JobMetrics.progress_line)
            return 0 if options.detach else self._report(arguments, job, phases)

    def explain(self) -> Explanation:
        """Return the plan of what `run` would run, over empty streams."""
        from ... import sinks, sources

        def empty(name: str, columns: Sequence[str] | None) -> Source:
            table = self.streams[name].empty_table()
            return sources.arrow(table if columns is None else table.select(columns))

        topology = self.build(empty, sinks.parquet(self.options.output, overwrite=True))
        return explained(topology, self.options)

    def _source(
        self,
        name: str,
        columns: Sequence[str] | None,
        phases: Phases,
        stack: ExitStack,
    ) -> Source:
        from ... import sources

        options = self.options
        if options.data is not None:
            return sources.parquet(str(given_stream(Path(options.data), name)), columns=columns)
        if options.detach:  # the job outlives this command
            (folder,) = shared.kept_input_folders(options, name)
        else:
            made = tempfile.TemporaryDirectory(prefix="whale-ray-")
            folder = Path(stack.enter_context(made))
        with phases.phase(f"generating {name}"):
            path = self.generate(folder, name)
        if options.detach:
            from ...operators.sinks.manifest import write_manifest

            write_manifest(str(folder), [path.name])
        return sources.parquet(str(path), columns=columns)

    def _report(self, arguments: Sequence[str], job: Job, phases: Phases) -> int:
        options = self.options
        outcome, published = job.outcome(), job.results(SINK)
        operators = {one.operator_id: one for one in outcome.metrics.operators}
        rows_in = {name: operators[name].rows_in for name in self.streams if name in operators}
        run = shared.describe_run(
            options,
            ["whale-ray", "run", self.application, *arguments],
            outcome,
            SINK,
            rows_in=rows_in,
            rows_rejected={},
            streamed=sum(rows_in.values()),
            phases=phases,
            more_settings=self._shown(),
        )
        result = report.described(
            self.application, run, rows_out=published.rows, output=published.path
        )
        if job.state == "drained":
            shared.log_early_stop(self.application, published)
        shown = report.rendered(result, published.preview(), published.load_line)
        shared.print_result(result, shown, as_json=options.json)
        return 0 if job.state == "finished" else EXIT_INTERRUPTED

    def _shown(self) -> dict[str, object]:
        """Return what the report shows beside the settings of the run."""
        shown = {**self.question, "parallelism": self.options.parallelism}
        if self.generated is not None and self.options.data is None:
            shown |= asdict(self.generated)
        return shown


@dataclass(frozen=True)
class BenchmarkCommand:
    """What `whale-ray run` and `whale-ray explain` call of an application.

    Attributes:
        add_arguments: adds its options.
        benchmark: returns what the parsed options ask for; raises UsageError and InputError.
    """

    add_arguments: Callable[[Parser], None]
    benchmark: Callable[[argparse.Namespace], Benchmark]

    def main(self, arguments: Sequence[str], parser: Parser) -> int:
        """Run the application; return the exit code."""
        return self.benchmark(self._parsed(arguments, parser)).run(arguments)

    def explain(self, arguments: Sequence[str], parser: Parser) -> Explanation:
        """Return the plan of what `main` would run; reads nothing of the user's data."""
        options = self._parsed(arguments, parser)
        options.data = None
        return self.benchmark(options).explain()

    def _parsed(self, arguments: Sequence[str], parser: Parser) -> argparse.Namespace:
        self.add_arguments(parser)
        return parser.parse_args(arguments)


def add_input(parser: Parser, folder: str, defaults: object, **numbers: str) -> None:
    """Add the options of the input: `--data` for the user's, or those of the generator.

    Args:
        parser: the command's.
        folder: what is in the folder `--data`, for its help.
        defaults: the generator's settings.
        numbers: those of its fields that are options → what they mean, for the help.
    """
    source = parser.add_argument_group("input: a folder, or generated")
    source.add_argument("--data", metavar="DIR", help=folder)
    for name, meaning in numbers.items():
        default = getattr(defaults, name)
        text = f"{meaning} (default {default:,})"
        source.add_argument(_option(name), type=type(default), default=default, help=text)
    parser.exclude("--data", *map(_option, numbers))


def add_parallelism(question: Any, instances: str) -> None:
    """Add `--parallelism` to a group of options; `instances` says of what, for its help."""
    question.add_argument("--parallelism", type=int, help=instances)


def add_window(question: Any, default: str) -> None:
    """Add `--window` to a group of options."""
    text = f"length of the windows (default '{default}')"
    question.add_argument("--window", default=default, help=text)


def check_window(options: argparse.Namespace) -> None:
    """Check the option of `add_window`; raises UsageError if it is no length of a window."""
    from ...operators.windows.durations import duration_ns

    try:
        length_ns = duration_ns(options.window, "--window")
    except InputError as error:
        raise UsageError(str(error)) from None
    if length_ns <= 0:
        msg = f"--window is {options.window!r}: it must be longer than nothing"
        raise UsageError(msg)


def numbers_of(kind: type[Numbers], options: argparse.Namespace) -> Numbers:
    """Return the generator's settings, and check the parallelism.

    Args:
        kind: the dataclass of the settings; fields that are no option keep their defaults.
        options: see `add_input` and `add_parallelism`.

    Raises:
        UsageError: a number is out of range; the message names its option.
    """
    with named_as_options():
        if options.parallelism is not None:
            check_whole("parallelism", options.parallelism, 1, _INSTANCES_MAX, "instances")
        names = [one.name for one in fields(kind) if hasattr(options, one.name)]
        return kind(**{name: getattr(options, name) for name in names})


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_common(parser: Parser, application: str) -> None:
    """Add the options of the result, of the placement and of settings."""
    shared.add_result_options(parser, "--output", default=_output_of(application))
    add_placement(parser)
    add_settings(parser)


def _output_of(application: str) -> str:
    return f"out/{application}"


def given_stream(folder: Path, name: str) -> Path:
    """Return the file or folder of a stream in the user's folder; raises InputError."""
    for path in (folder / f"{name}.parquet", folder / name):
        if path.exists():
            return path
    msg = f"--data {folder} has no {name}: put {name}.parquet there, a file or a folder of files"
    raise InputError(msg)
