"""Options about checkpoints, and the commands `resume` and `savepoint`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .parser import check_timeout

if TYPE_CHECKING:
    from ..api.job import Job
    from ..configs.settings import Settings

Finish = Callable[["Job", argparse.Namespace], int]
"""Waits for a job's end as `run` does; returns the exit code."""


def add_checkpoints(command: argparse.ArgumentParser) -> None:
    """Add the options with which a job takes checkpoints, and resumes from one."""
    command.add_argument(
        "--checkpoints", default=None, metavar="URL", help="folder in which the job keeps its state"
    )
    command.add_argument(
        "--checkpoint-interval",
        default=None,
        metavar="TIME",
        help="from one checkpoint to the next, such as '10 seconds'",
    )
    command.add_argument(
        "--checkpoint-timeout",
        default=None,
        metavar="TIME",
        help="for each step of a checkpoint, such as '5 min'; one that takes longer fails",
    )
    command.add_argument(
        "--restore",
        default=None,
        metavar="PATH",
        help="continue from this checkpoint, from the newest in this folder, or from latest",
    )
    command.add_argument(
        "--restore-without",
        action="append",
        default=[],
        metavar="ID",
        help="an operator that is gone, whose state is given up (may be repeated)",
    )


def checkpoint_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `submit` about checkpoints."""
    return {
        "checkpoints": options.checkpoints,
        "checkpoint_interval": options.checkpoint_interval,
        "checkpoint_timeout": options.checkpoint_timeout,
        "restore": options.restore,
        "restore_without": options.restore_without,
    }


def with_checkpoints(options: argparse.Namespace, settings: Settings) -> Settings:
    """Return settings with the options about checkpoints in them, for `explain`."""
    from ..api.checkpoints import CheckpointOptions

    asked = CheckpointOptions(
        options.checkpoints,
        options.checkpoint_interval,
        options.checkpoint_timeout,
        options.restore,
        options.restore_without,
    )
    return asked.configured(settings)


def add_resume(commands: Any, finish: Finish) -> None:
    """Add `resume`; `finish` waits for the end of the job."""
    command = commands.add_parser(
        "resume", help="continue a job from its checkpoints, without its script"
    )
    command.add_argument("path", metavar="PATH", help="a folder of checkpoints, or one of them")
    command.add_argument(
        "--on", choices=("ray", "processes"), help="Ray actors, or plain processes (as before)"
    )
    command.add_argument("--address", default=None, help="of a running Ray; else one is started")
    command.add_argument("--workers", type=int, default=None, help="worker processes")
    command.add_argument(
        "--parallelism",
        action="append",
        default=[],
        type=_instances,
        metavar="ID=N",
        help="another number of instances of an operator (may be repeated)",
    )
    command.add_argument(
        "--take-over",
        action="store_true",
        help="take the folder also from a job that uses it, which then commits nothing more",
    )
    command.add_argument("--detach", action="store_true", help="let the job outlive this command")
    command.add_argument(
        "--queue", action="store_true", help="wait for room on Ray if others hold it"
    )
    command.add_argument("--watch", action="store_true", help="print what every operator does")
    command.add_argument("--json", action="store_true", help="one JSON object on the last line")
    command.set_defaults(function=lambda parsed: _resume(parsed, finish))


def _resume(parsed: argparse.Namespace, finish: Finish) -> int:
    from ..api.submission import resume
    from ..configs.errors import UsageError

    if parsed.on == "processes":
        for option in ("address", "detach", "queue"):
            if getattr(parsed, option):
                msg = f"--{option} means nothing with --on processes; leave one of them out"
                raise UsageError(msg)
    job = resume(
        parsed.path,
        on=parsed.on,
        address=parsed.address,
        workers=parsed.workers,
        parallelism=dict(parsed.parallelism),
        take_over=parsed.take_over,
        detach=parsed.detach,
        queue=parsed.queue,
    )
    return finish(job, parsed)


def _instances(text: str) -> tuple[str, int]:
    """Return operator and number of `ID=N`."""
    name, equals, count = text.rpartition("=")
    if not (equals and name and count.isdecimal()):
        msg = f"{text!r} is not ID=N, such as counts=4"
        raise argparse.ArgumentTypeError(msg)
    return name, int(count)


def add_savepoint(commands: Any) -> None:
    """Add `savepoint`."""
    command = commands.add_parser("savepoint", help="save the state of a job on Ray, which runs on")
    command.add_argument(
        "job", metavar="JOB", help="its id or name, as `whale-ray list` shows them"
    )
    command.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    command.add_argument("--address", default=None, help="of Ray; found by itself if left out")
    command.set_defaults(function=_savepoint)


def _savepoint(parsed: argparse.Namespace) -> int:
    from ..deployment.on_ray.ray_jobs import take_savepoint

    check_timeout(parsed.timeout)
    sys.stdout.write(f"{take_savepoint(parsed.job, parsed.address, parsed.timeout)}\n")
    return 0
