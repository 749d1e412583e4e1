"""`whale-ray list`, `attach` and `stop`: jobs on a running Ray."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from typing import Any

from ..configs.errors import UsageError
from ..configs.json_text import json_text
from .checkpoints import Finish
from .parser import check_timeout


def add_list(commands: Any) -> None:
    """Add `list`."""
    command = commands.add_parser(
        "list", help="list the jobs on a Ray cluster: those that run, and detached ones that failed"
    )
    _add_address(command)
    command.add_argument("--json", action="store_true", help="one JSON list")
    command.set_defaults(function=_list)


def add_attach(commands: Any, finish: Finish) -> None:
    """Add `attach`; `finish` waits for the end of the job."""
    command = commands.add_parser(
        "attach", help="follow a job on Ray to its end, from anywhere; Ctrl-C leaves it running"
    )
    _add_job(command)
    command.add_argument("--watch", action="store_true", help="print what every operator does")
    command.add_argument("--json", action="store_true", help="one JSON object on the last line")
    _add_address(command)
    command.set_defaults(detach=False, function=lambda parsed: _attach(parsed, finish))


def _attach(parsed: argparse.Namespace, finish: Finish) -> int:
    from ..api.attaching import attach

    return finish(attach(parsed.job, address=parsed.address), parsed)


def add_stop(commands: Any) -> None:
    """Add `stop`."""
    command = commands.add_parser("stop", help="drain a job on Ray: what it has read is published")
    _add_job(command)
    command.add_argument("--now", action="store_true", help="cancel it instead of draining it")
    command.add_argument(
        "--savepoint",
        action="store_true",
        help="save its state instead of draining it; `whale-ray resume` continues it",
    )
    command.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    _add_address(command)
    command.set_defaults(function=_stop)


def _add_job(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "job", metavar="JOB", help="its id or name, as `whale-ray list` shows them"
    )


def _add_address(command: argparse.ArgumentParser) -> None:
    command.add_argument("--address", default=None, help="of Ray; found by itself if left out")


def _list(parsed: argparse.Namespace) -> int:
    from ..deployment.on_ray.ray_jobs import list_jobs
    from ..ui.ended_jobs import in_one_line

    jobs = list_jobs(parsed.address)
    failed = _detached_that_failed({job.id for job in jobs})
    if parsed.json:
        sys.stdout.write(json_text([*map(vars, jobs), *failed]) + "\n")
        return 0
    for job in jobs:
        sys.stdout.write(f"{job.id}  {job.name}  {job.state}\n")
    if not jobs:
        sys.stdout.write("no job runs\n")
    for one in failed:
        what = f"{one['id']}  {one['name']}  {one['state']}"
        why = in_one_line(one["error"])
        sys.stdout.write(f"{what}: {why}\n" if why else f"{what}\n")
    return 0


def _detached_that_failed(running: Collection[str]) -> list[dict[str, Any]]:
    """Return the detached jobs that did not end well, of those that this machine has kept.

    Nobody waited for them, so nobody was told.
    """
    from ..configs.loading import load_settings
    from ..records.folders import RunFolders
    from ..transport.clock import SystemClock
    from ..ui.run_reader import LOST, RunReader

    records = load_settings().records
    reader = RunReader(RunFolders(records), SystemClock(), records.interval_ms or 1000)
    found = []
    for folder in reader.folders.all():
        described, one = reader.description(folder), reader.summary(folder)
        if described is None or one is None or not described.get("detached"):
            continue
        if one["state"] in ("failed", LOST) and one["id"] not in running:
            found.append({name: one[name] for name in ("id", "name", "state", "error")})
    return found


def _stop(parsed: argparse.Namespace) -> int:
    from ..deployment.on_ray.ray_jobs import HowToStop, stop_job

    check_timeout(parsed.timeout)
    if parsed.now and parsed.savepoint:
        msg = "--now cancels the job, and --savepoint keeps what it knows; give one of them"
        raise UsageError(msg)
    how: HowToStop = "savepoint" if parsed.savepoint else "now" if parsed.now else "drain"
    job_id = stop_job(parsed.job, how, parsed.address, parsed.timeout)
    sys.stdout.write(f"{job_id} has ended\n")
    return 0
