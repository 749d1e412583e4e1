"""How a job ended that is not there any more, of those that this machine has kept."""

from __future__ import annotations

from ..configs.loading import load_settings
from ..records.folders import RunFolders
from ..transport.clock import SystemClock


def describe_ended(named: str) -> str | None:
    """Return a line about the newest ended job of that id or name; None if there is none here."""
    from ..ui.run_reader import RunReader

    records = load_settings().records
    reader = RunReader(RunFolders(records), SystemClock(), records.interval_ms or 1000)
    for one in reader.jobs():
        if named in (one["id"], one["name"]) and not one["alive"]:
            why = f": {one['error']}" if one["error"] else ""
            return f"job {one['id']!r} has ended ({one['state']}){why}"
    return None
