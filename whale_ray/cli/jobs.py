"""`whale-ray list` and `whale-ray stop`: jobs on a running Ray."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from ..configs.errors import UsageError


def add_list(commands: Any) -> None:
    """Add `list`."""
    command = commands.add_parser("list", help="list the jobs that run on a Ray cluster")
    _add_address(command)
    command.add_argument("--json", action="store_true", help="one JSON list")
    command.set_defaults(function=_list)


def add_stop(commands: Any) -> None:
    """Add `stop`."""
    command = commands.add_parser("stop", help="drain a job on Ray: what it has read is published")
    command.add_argument(
        "job", metavar="JOB", help="its id or name, as `whale-ray list` shows them"
    )
    command.add_argument("--now", action="store_true", help="cancel it instead of draining it")
    command.add_argument(
        "--savepoint",
        action="store_true",
        help="save its state instead of draining it; `whale-ray resume` continues it",
    )
    command.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    _add_address(command)
    command.set_defaults(function=_stop)


def _add_address(command: argparse.ArgumentParser) -> None:
    command.add_argument("--address", default=None, help="of Ray; found by itself if left out")


def _list(parsed: argparse.Namespace) -> int:
    from ..deployment.on_ray.ray_jobs import list_jobs

    jobs = list_jobs(parsed.address)
    if parsed.json:
        sys.stdout.write(json.dumps([vars(job) for job in jobs]) + "\n")
        return 0
    for job in jobs:
        sys.stdout.write(f"{job.id}  {job.name}  {job.state}\n")
    if not jobs:
        sys.stdout.write("no job runs\n")
    return 0


def _stop(parsed: argparse.Namespace) -> int:
    from ..deployment.on_ray.ray_jobs import HowToStop, stop_job

    if not 0 <= parsed.timeout < math.inf:  # also refuses NaN
        msg = f"--timeout is {parsed.timeout:g}: give seconds, 0 or more"
        raise UsageError(msg)
    if parsed.now and parsed.savepoint:
        msg = "--now cancels the job, and --savepoint keeps what it knows; give one of them"
        raise UsageError(msg)
    how: HowToStop = "savepoint" if parsed.savepoint else "now" if parsed.now else "drain"
    job_id = stop_job(parsed.job, how, parsed.address, parsed.timeout)
    sys.stdout.write(f"{job_id} has ended\n")
    return 0
