"""`whale-ray`: run, resume, explain, optimize, bench, simulate, doctor, list, stop, savepoint.

Also `compile`, `state`, `settings`, `ui`, `metrics` and `completion`.

Every error that a user can cause prints one line on standard error, with exit code 2 for mistakes
in the call and 1 for failures at runtime; `--debug` shows the traceback. Ctrl-C drains a running
job and exits with 130, SIGTERM with 143.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..configs.errors import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    JobCancelledError,
    UserFunctionError,
    WhaleError,
    system_reason,
)
from ..configs.json_text import json_text
from ..deployment.closed_streams import open_closed_streams
from ..deployment.signals import exit_code_of_stop, interrupting_signals
from . import (
    bench,
    checkpoints,
    compiling,
    completion,
    jobs,
    optimize,
    running,
    simulate,
    state,
    ui,
)
from .parser import Parser

if TYPE_CHECKING:
    from ..api.job import Job

_JOBS = ("run", "attach", "resume")
"""The commands that wait for the end of a job."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="whale-ray", description="One-to-many stream processing on Ray, for Python and Spark."
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    running.add_run(commands)
    running.add_explain(commands)
    bench.add_bench(commands)
    simulate.add_simulate(commands)
    optimize.add_optimize(commands)
    doctor = commands.add_parser("doctor", help="show what this machine offers and lacks")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(function=_doctor)
    compiling.add_compile(commands)
    jobs.add_list(commands)
    jobs.add_attach(commands, _finish_followed)
    jobs.add_stop(commands)
    checkpoints.add_savepoint(commands)
    checkpoints.add_resume(commands, _finish_followed)
    state.add_state(commands)
    listing = commands.add_parser("settings", help="list all settings: default, range, effect")
    listing.set_defaults(function=_settings)
    ui.add_ui(commands)
    metrics = commands.add_parser("metrics", help="list all metrics that are exported")
    metrics.add_argument(
        "--grafana", action="store_true", help="a dashboard for Grafana instead, as JSON"
    )
    metrics.set_defaults(function=_metrics)
    completion.add_completion(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if completion.is_asked_for():
        completion.answer(build_parser())
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # at any position, also among an application's own options
    words = [word for word in words if word != "--debug"]
    open_closed_streams()
    _escape_unencodable_output()
    try:
        with interrupting_signals():
            code = _execute(words, debug)
    except KeyboardInterrupt:
        sys.stderr.write("whale-ray: interrupted\n")
        return exit_code_of_stop()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _drop_output()
        return EXIT_FAILURE
    except OSError as error:
        if error.filename is not None or _can_print():  # it is of something else
            raise
        return _report_unprintable(error)
    return exit_code_of_stop() if code == EXIT_INTERRUPTED else code


def _can_print() -> bool:
    """Return whether stdout takes one more line."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Let all that stdout still holds be lost, or Python would try to write it at its end."""
    with suppress(OSError):  # it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_unprintable(error: OSError) -> int:
    """Say that stdout cannot be written, such as on a full disk. Return the exit code."""
    _drop_output()
    with suppress(OSError):  # stderr may lie on the same disk
        sys.stderr.write(
            f"whale-ray: cannot print the result: {system_reason(error)}; what a finished job has"
            " published is complete: make room, or send the output elsewhere\n"
        )
    return EXIT_FAILURE


def _escape_unencodable_output() -> None:
    """Escape characters that stdout cannot encode, as stderr does, instead of failing.

    In the locales C and POSIX, Python's own handler is `surrogateescape`, which fails, too.
    """
    failing = ("strict", "surrogateescape")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in failing:
        sys.stdout.reconfigure(errors="backslashreplace")


def _execute(words: Sequence[str], debug: bool) -> int:
    try:
        return _call(words)
    except WhaleError as error:
        if debug:
            traceback.print_exc()
        code = _report(error)
        if "--json" in words and words[0] in _JOBS:  # an option of all of them, never a value
            sys.stdout.write(json_text(_described(error)) + "\n")
            sys.stdout.flush()
        return code


def _call(words: Sequence[str]) -> int:
    parsed = build_parser().parse_args(words)
    if parsed.version:
        return _version()
    if parsed.command is None:
        build_parser().print_help()
        return EXIT_USAGE
    code = int(parsed.function(parsed))
    sys.stdout.flush()
    return code


def _report(error: WhaleError) -> int:
    """Print an error: the traceback of a user's function, else one line. Return the exit code."""
    text = str(error)
    if not isinstance(error, UserFunctionError):
        text = f"whale-ray: {text}"
    notes: list[str] = getattr(error, "__notes__", [])
    sys.stderr.write("\n".join([text.rstrip(), *notes]) + "\n")
    return error.exit_code


def _described(error: WhaleError) -> dict[str, str]:
    """Return the object that `--json` prints of a job that did not end well."""
    state = "cancelled" if isinstance(error, JobCancelledError) else "failed"
    return {"state": state, "error": str(error), "kind": type(error).__name__}


def _version() -> int:
    import importlib.metadata

    sys.stdout.write(f"whale-ray {importlib.metadata.version('whale-ray')}\n")
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    from .. import doctor

    findings = doctor.examine()
    if parsed.json:
        sys.stdout.write(json_text(doctor.as_dict(findings)) + "\n")
    else:
        sys.stdout.write(doctor.render(findings).rstrip() + "\n")
    return 0


def _finish_followed(job: Job, parsed: argparse.Namespace) -> int:
    return running.finish_job(running.follow_job(job, parsed), parsed)


def _settings(_parsed: argparse.Namespace) -> int:
    from ..configs.describing import describe_settings

    for setting in describe_settings():
        symbol = f" ({setting.symbol} in the papers)" if setting.symbol else ""
        sys.stdout.write(
            f"{setting.path} = {setting.default!r}{symbol}\n"
            f"    {setting.why}; {setting.allowed}\n"
            f"    {setting.environment}\n"
        )
    return 0


def _metrics(parsed: argparse.Namespace) -> int:
    from ..metrics.export.catalogue import CATALOGUE
    from ..metrics.export.metric import labels_of

    if parsed.grafana:
        from ..metrics.export.grafana import dashboard

        sys.stdout.write(json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n")
        return 0
    for group in CATALOGUE:
        for metric in group.metrics:
            labels = ", ".join(labels_of(group, metric, per_instance=True))
            sys.stdout.write(
                f"{metric.name} ({metric.kind.value})\n    {metric.meaning}\n    {labels}\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
