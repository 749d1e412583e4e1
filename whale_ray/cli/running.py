"""`whale-ray run APP` and `whale-ray explain APP`.

APP is an application of whale-ray or a topology of the user's: `path/to/file.py`, or
`path/to/file.py:name` if the file has several. Both commands take the same options after it, so
that `explain` shows exactly what `run` would start.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..configs.errors import EXIT_INTERRUPTED, SettingsError, UsageError, WhaleError
from ..configs.json_text import json_text
from .checkpoints import add_checkpoints, checkpoint_options, with_checkpoints
from .parser import Parser, did_you_mean
from .tables import preview

if TYPE_CHECKING:
    from ..api.job import Job
    from ..api.topology import Topology
    from ..configs.settings import Settings
    from ..control.outcome import JobOutcome
    from ..metrics.job_metrics import JobMetrics
    from ..plan.explanation import Explanation

NOT_READ = " (partial: the input was not read to its end)"
"""A note after the output of a job that was stopped."""

InsteadOfStart: TypeAlias = "Callable[[Topology, argparse.Namespace, Settings], int]"
"""Does something else with a topology than to start it, while its input is there."""

APPLICATIONS = (
    "ride-hailing",
    "stock-exchange",
    "options-market",
    "nexmark",
    "yahoo",
    "cluster-monitoring",
    "slash-nexmark",
    "read-only-count",
    "linear-road",
    "taxi-regions",
)


def add_run(commands: Any) -> None:
    """Add `run`, with a subcommand for every application."""
    _add_app(commands, "run", "run an application or a topology of your own", _run)


def add_explain(commands: Any) -> None:
    """Add `explain`, which takes the same arguments as `run`."""
    _add_app(commands, "explain", "print the plan of what run would start; reads nothing", _explain)


def _add_app(
    commands: Any, name: str, meaning: str, function: Callable[[argparse.Namespace], int]
) -> None:
    command = commands.add_parser(
        name,
        help=meaning,
        usage="%(prog)s [-h] APP [OPTION ...]",
        epilog="APP has options of its own, and they stand behind it: "
        f"whale-ray {name} ride-hailing --help",
    )
    command.add_argument("app", metavar="APP", help=_APP_HELP)
    rest = command.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False
    command.set_defaults(function=function)


_PORT = "metrics.prometheus_port"
_TSPEC = (".yaml", ".yml")
_APP_HELP = f"one of {', '.join(APPLICATIONS)}, or file.py, or file.py:topology, or tspec.yaml"


def add_settings(command: argparse.ArgumentParser) -> None:
    """Add the options that all commands with settings share."""
    command.add_argument("--workers", type=int, default=None, help="worker processes")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="a setting, such as transport.mms_bytes=65536 (may be repeated)",
    )
    command.add_argument(
        "--settings", action="append", default=[], metavar="FILE", help="a YAML file of settings"
    )


def add_placement(command: Parser) -> None:
    """Add the options that choose where a job runs."""
    command.add_argument(
        "--on",
        choices=("ray", "processes", "inline"),
        default="ray",
        help="Ray actors, plain processes, or this process alone",
    )
    command.add_argument("--address", default=None, help="of a running Ray; else one is started")
    command.add_argument("--detach", action="store_true", help="let the job outlive this command")
    command.add_argument(
        "--queue", action="store_true", help="wait for room on Ray if others hold it"
    )
    command.add_argument(
        "--optimize",
        action="store_true",
        help="measure for some seconds, then choose parallelism and batches (Aeolus)",
    )
    command.add_argument("--watch", action="store_true", help="print what every operator does")
    command.add_argument(
        "--metrics-port",
        type=int,
        default=None,
        metavar="PORT",
        help="serve the job's metrics to Prometheus at this port, at 127.0.0.1",
    )
    add_checkpoints(command)
    command.exclude("--detach", "--watch", "--json")


def check_placement(parsed: argparse.Namespace, settings: Settings) -> None:
    """Refuse options that have no effect where the job runs.

    For settings without effect it only prints a warning, since they may come from a file that other
    runs use, too.

    Raises:
        UsageError: an option has no effect.
        SettingsError: there are too few workers.
    """
    from ..plan.planner import check_workers

    given = {
        "--detach": parsed.detach,
        "--queue": parsed.queue,
        "--address": parsed.address is not None,
    }
    if parsed.on == "inline":
        given |= {"--workers": parsed.workers is not None}
    for option, is_given in given.items():
        if is_given and parsed.on != "ray":
            msg = f"{option} means nothing with --on {parsed.on}; leave one of them out"
            raise UsageError(msg)
    if parsed.on != "inline":
        check_workers(settings, parsed.workers)
    elif settings.runtime.hosts > 1:
        sys.stderr.write(
            f"whale-ray: runtime.hosts={settings.runtime.hosts} means nothing with --on inline: "
            "one process has one host\n"
        )


def settings_of(parsed: argparse.Namespace) -> Settings:
    """Return the settings of the options. The number of workers is checked, but not included.

    Raises:
        SettingsError: a setting is not known or has an invalid value.
        UsageError: an option is malformed, or the number of workers is out of range.
    """
    from ..configs.loading import load_settings

    overrides: dict[str, object] = {}
    for entry in parsed.overrides:
        key, equals, value = entry.partition("=")
        if not equals:
            msg = f"--set {entry} lacks its value; write --set {key}=VALUE"
            raise UsageError(msg)
        overrides[key] = value
    settings = load_settings(*parsed.settings, overrides=overrides)
    _overridden(settings, "runtime.workers", "--workers", parsed.workers)
    return _overridden(settings, _PORT, "--metrics-port", getattr(parsed, "metrics_port", None))


def _overridden(settings: Settings, path: str, option: str, value: int | None) -> Settings:
    """Return settings with the value of an option; raises UsageError by the option's name."""
    if value is None:
        return settings
    try:
        return settings.with_overrides({path: value})
    except SettingsError as error:
        raise UsageError(str(error).replace(path, option)) from None


def _run(parsed: argparse.Namespace) -> int:
    if parsed.app in APPLICATIONS:
        with _plain_processes_starting(parsed.rest):
            code: int = command_of(parsed.app).main(
                parsed.rest, Parser(prog=f"whale-ray run {parsed.app}")
            )
        return code
    return _run_topology(parsed.app, _own_options("run", parsed))


def _plain_processes_starting(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Start what forks plain processes, while this process loads the application and its input.

    This looks for the option alone: the application, which can parse the others, is not loaded.
    Only for applications, since a file of the user's may change what processes inherit.
    """
    if not {"processes", "--on=processes"} & set(arguments):
        return nullcontext()
    from ..configs.settings import Settings
    from ..deployment.processes.waiting_server import early_fork_server

    return early_fork_server(Settings().runtime.kill_grace_ms)


def _own_options(command: str, parsed: argparse.Namespace) -> argparse.Namespace:
    """Parse the options after a topology of the user's."""
    parser = Parser(prog=f"whale-ray {command} {parsed.app}")
    add_own_options(parser)
    return parser.parse_args(parsed.rest)


def add_own_options(parser: Parser) -> None:
    """Add the options of a topology of the user's."""
    add_settings(parser)
    add_placement(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def _run_topology(app: str, options: argparse.Namespace) -> int:
    settings = settings_of(options)
    check_placement(options, settings)
    job = start_job(load_topology(app), options, settings)
    return finish_job(job, options)


def finish_job(job: Job, options: argparse.Namespace) -> int:
    """Print what became of a job, unless it is detached; return the exit code."""
    from ..metrics.relay_metrics import describe_links

    if options.detach:
        return 0
    outcome = job.outcome()
    if outcome.state == "stopped":
        sys.stdout.write(f"stopped; go on with: whale-ray resume {outcome.checkpoint}\n")
    for name, result in outcome.results.items():
        where = f"{result.whereabouts}{NOT_READ if result.partial else ''}"
        sys.stdout.write(f"{name}: {result.rows:,} rows {where}\n")
        if result.path is None:
            sys.stdout.write(preview(result))
    if outcome.restarts:
        sys.stdout.write(f"restarts: {outcome.restarts}\n")
    if outcome.metrics.relays:
        sys.stdout.write(f"links between hosts: {describe_links(outcome.metrics.relays)}\n")
    if options.json:
        sys.stdout.write(json_text(_described(job.name, outcome)) + "\n")
    return 0 if job.state in ("finished", "stopped") else EXIT_INTERRUPTED


class NotStarted(BaseException):  # no error: it passes whatever a command catches
    """Something else was done with a topology than to start it; `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def start_job(
    topology: Topology,
    options: argparse.Namespace,
    settings: Settings,
    line: Callable[[JobMetrics], str] | None = None,
) -> Job:
    """Start a job as the options say and wait for its end; for a detached job print its id.

    Args:
        topology: the topology to run.
        options: parsed options, see `add_settings` and `add_placement`.
        settings: the settings of the options.
        line: returns the text of a progress line for the metrics; by default how many rows the
            sources have read and the sinks have written. `--watch` overrides it.

    Raises:
        NotStarted: the options have a function `instead`, which was called with the topology, the
            options and the settings.
    """
    from ..api.submission import run, submit
    from ..metrics.job_metrics import JobMetrics

    instead: InsteadOfStart | None = getattr(options, "instead", None)
    if instead is not None:
        raise NotStarted(instead(topology, options, settings))
    checkpoints = checkpoint_options(options)
    if settings.metrics.prometheus_port:
        host, port = settings.metrics.prometheus_host, settings.metrics.prometheus_port
        sys.stderr.write(f"metrics for Prometheus: http://{host}:{port}/metrics\n")
    if options.on == "inline":
        line = None if options.watch else line or JobMetrics.progress_line
        return run(
            topology,
            settings=settings,
            watch=sys.stderr,
            line=line,
            optimize=options.optimize,
            **checkpoints,
        )
    job = submit(
        topology,
        on=options.on,
        address=options.address,
        workers=options.workers,
        settings=settings,
        detach=options.detach,
        queue=options.queue,
        optimize=options.optimize,
        **checkpoints,
    )
    return follow_job(job, options, line)


def follow_job(
    job: Job, options: argparse.Namespace, line: Callable[[JobMetrics], str] | None = None
) -> Job:
    """Wait for a job's end, and print its progress; for a detached job print its id."""
    from ..metrics.job_metrics import JobMetrics

    line = None if options.watch else line or JobMetrics.progress_line
    if job.dashboard_url:
        sys.stderr.write(
            f"Ray's dashboard: {job.dashboard_url} (for its token: ray get-auth-token)\n"
        )
    if options.detach:
        sys.stdout.write(f"{job.id}\n")
        sys.stderr.write(f"{job.logs}\n")
    else:
        job.wait(watch=sys.stderr, line=line)
    return job


def _described(name: str, outcome: JobOutcome) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    from ..metrics.edge_metrics import carriers_as_dict

    return {
        "topology": name,
        "state": outcome.state,
        "outputs": {
            sink: {"rows": result.rows, "path": result.path, "partial": result.partial}
            for sink, result in outcome.results.items()
        },
        "workers": outcome.workers,
        "restarts": outcome.restarts,
        "seconds": round(outcome.seconds, 3),
        "checkpoint": outcome.checkpoint,
        **carriers_as_dict(outcome.metrics.edges, outcome.metrics.relays),
    }


def _explain(parsed: argparse.Namespace) -> int:
    if parsed.app in APPLICATIONS:
        parser = Parser(prog=f"whale-ray explain {parsed.app}")
        plan = command_of(parsed.app).explain(parsed.rest, parser)
    else:
        options = _own_options("explain", parsed)
        plan = explained(load_topology(parsed.app), options)
    as_json = "--json" in parsed.rest  # an option of all of them, never a value
    sys.stdout.write(f"{json_text(plan.as_dict()) if as_json else plan}\n")
    return 0


def explained(topology: Topology, options: argparse.Namespace) -> Explanation:
    """Return the explanation of the job that `start_job` would start."""
    settings = with_checkpoints(options, settings_of(options))
    check_placement(options, settings)
    if options.on == "ray":
        from ..deployment.on_ray.ray_explain import ray_runs

        on: Literal["ray"] | None = "ray" if ray_runs(options.address) else None
        return topology.explain(options.workers, settings, on=on, address=options.address)
    if options.on != "inline":
        return topology.explain(options.workers, settings)
    return topology.explain(1, settings.with_overrides({"runtime.hosts": 1}))


def command_of(app: str) -> Any:
    """Return the module of an application's command."""
    return import_module(f"whale_ray.applications.{app.replace('-', '_')}.command")


def load_topology(app: str) -> Topology:
    """Return the topology `name` of `file.py:name`, the only one of `file.py`, or a tspec's.

    Raises:
        UsageError: there is no such file or topology, there are several, or running the file
            raised an error.
    """
    from ..api.topology import Topology

    if app.endswith(_TSPEC):
        from ..tspec.building import build_topology
        from ..tspec.reading import read_tspec

        return build_topology(read_tspec(app))
    path, colon, name = app.rpartition(":")
    if not colon and not app.endswith(".py"):
        raise UsageError(_no_application(app))
    path = path or app
    if not Path(path).is_file():
        msg = f"{path}: no such file; write path/to/file.py{':' + name if colon else ''}"
        raise UsageError(msg)
    named = {key: value for key, value in _run_file(path).items() if isinstance(value, Topology)}
    if not colon:
        return _only_topology(path, named)
    if name not in named:
        remedy = f"it has {', '.join(named)}" if named else "assign whale.Topology(...) to it"
        msg = f"{path} has no topology called {name!r}; {remedy}"
        raise UsageError(msg)
    return named[name]


def _only_topology(path: str, named: dict[str, Topology]) -> Topology:
    """Return the topology of a file that has one, possibly by several names.

    Raises:
        UsageError: it has none, or several.
    """
    distinct = {id(topology): topology for topology in named.values()}
    if not distinct:
        msg = f"{path} has no topology; assign whale.Topology(...) to a name"
        raise UsageError(msg)
    if len(distinct) > 1:
        names = " or ".join(f"{path}:{name}" for name in named)
        msg = f"{path} has several topologies; name one: {names}"
        raise UsageError(msg)
    return next(iter(distinct.values()))


def _no_application(app: str) -> str:
    near = did_you_mean(app, APPLICATIONS) or f"; there is {', '.join(APPLICATIONS)}"
    return f"unknown application {app!r}{near}, or name your own: file.py or file.py:topology"


def _run_file(path: str) -> dict[str, Any]:
    """Execute a user's file, with its folder on the import path; return its global names."""
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        return runpy.run_path(path, run_name="__whale_ray__")
    except WhaleError:
        raise
    except Exception as error:  # any error of the user's file
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == path]
        where = f"{path}:{lines[-1]}" if lines else path
        reason = next(iter(str(error).splitlines()), "")
        msg = f"{where}: {type(error).__name__}: {reason}; --debug shows the traceback"
        raise UsageError(msg) from error
