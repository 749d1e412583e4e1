"""Commands of applications whose streams are generated, or Parquet files of the user's.

Each has one output. A stream is generated when the topology asks for it, so a query makes only
those that it reads.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...cli.running import add_placement, add_settings, check_placement, settings_of
from ...configs.errors import EXIT_INTERRUPTED, InputError
from . import command as shared
from . import report
from .phases import Phases

if TYPE_CHECKING:
    from ...api.job import Job
    from ...api.topology import Topology
    from ...cli.parser import Parser
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source

__all__ = ["SINK", "Benchmark", "SourceOf", "add_common", "given_stream"]

SINK = "out"
"""The id of the sink."""

SourceOf: TypeAlias = "Callable[[str, Sequence[str] | None], Source]"
"""Returns the source of a stream, with the columns named, or with all of them for None."""


@dataclass(frozen=True)
class Benchmark:
    """An application that `run` runs.

    Attributes:
        application: its name.
        streams: the names of its streams; NAME.parquet in a folder is the stream NAME.
        build: returns the topology, given the sources and the sink.
        generate: writes a stream into a folder, and returns the path of the file.
        settings: what the report shows beside the settings of the run.
        output: the folder of the result unless the user chooses another.
    """

    application: str
    streams: Sequence[str]
    build: Callable[[SourceOf, Sink], Topology]
    generate: Callable[[Path, str], Path]
    settings: Mapping[str, object]
    output: str

    def run(self, options: argparse.Namespace, command: Sequence[str]) -> int:
        """Run the application with parsed options; return the exit code.

        Args:
            options: see `add_common`.
            command: the words of the command line, which the report quotes.
        """
        from ...metrics.job_metrics import JobMetrics

        settings = settings_of(options)
        check_placement(options, settings)
        sink = shared.parquet_sink(options, self.output, options.output)
        if options.detach and options.data is None:
            shared.check_detached(options, *self.streams)
        phases = Phases(self.application)
        with ExitStack() as stack:
            topology = self.build(
                lambda name, columns: self._source(name, columns, options, phases, stack), sink
            )
            shared.log_step(self.application, "streaming")
            job = shared.run_job(phases, topology, options, settings, JobMetrics.progress_line)
            return 0 if options.detach else self._report(options, command, job, phases)

    def _source(
        self,
        name: str,
        columns: Sequence[str] | None,
        options: argparse.Namespace,
        phases: Phases,
        stack: ExitStack,
    ) -> Source:
        from ... import sources

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

    def _report(
        self, options: argparse.Namespace, command: Sequence[str], job: Job, phases: Phases
    ) -> int:
        outcome, published = job.outcome(), job.results(SINK)
        operators = {one.operator_id: one for one in outcome.metrics.operators}
        rows_in = {name: operators[name].rows_in for name in self.streams if name in operators}
        run = shared.describe_run(
            options,
            command,
            outcome,
            SINK,
            rows_in=rows_in,
            rows_rejected={},
            streamed=sum(rows_in.values()),
            phases=phases,
            more_settings=self.settings,
        )
        result = report.described(
            self.application, run, rows_out=published.rows, output=published.path
        )
        if job.state == "drained":
            shared.log_early_stop(self.application, published)
        shown = report.rendered(result, published.preview(), published.load_line)
        shared.print_result(result, shown, as_json=options.json)
        return 0 if job.state == "finished" else EXIT_INTERRUPTED


def add_common(parser: Parser, output: str) -> None:
    """Add the options of the result, of the placement and of settings."""
    shared.add_result_options(parser, "--output", default=output)
    add_placement(parser)
    add_settings(parser)


def given_stream(folder: Path, name: str) -> Path:
    """Return the file or folder of a stream in the user's folder; raises InputError."""
    for path in (folder / f"{name}.parquet", folder / name):
        if path.exists():
            return path
    msg = f"--data {folder} has no {name}: put {name}.parquet there, a file or a folder of files"
    raise InputError(msg)
