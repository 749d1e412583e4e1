"""How a job ended that is not there any more, of those that this machine has kept."""

from __future__ import annotations

from ..configs.loading import load_settings
from ..records.folders import RunFolders
from ..transport.clock import SystemClock


def describe_ended(named: str) -> str | None:
    """Return a line about the newest ended job of that id or name; None if there is none here."""
    from .run_reader import RunReader

    records = load_settings().records
    reader = RunReader(RunFolders(records), SystemClock(), records.interval_ms or 1000)
    for one in reader.jobs():
        if named in (one["id"], one["name"]) and not one["alive"]:
            why = in_one_line(one["error"])
            return f"job {one['id']!r} has ended ({one['state']})" + (why and f": {why}")
    return None


def in_one_line(error: str) -> str:
    """Return what an error says, without the frames of a traceback in it."""
    lines = [one for one in error.splitlines() if one and not one.startswith((" ", "Traceback"))]
    return ", ".join(lines)
