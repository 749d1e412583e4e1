"""Where runs are kept, one folder for each job, and which of them are removed.

A run's folder has four files: `job.json`, what does not change (describing.py); `now.json`, the
newest sample with all details, replaced as a whole; `history.jsonl`, one short line for each
sample; `decisions.yaml`, the log of what was decided (`optimizer.decisions`), once anything was.
Another process asks for the job's end by writing `request.json`, which the job removes. Only their
owner may read the folders, and so only their owner can ask for anything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ..configs.errors import ResourceError
from ..configs.file_names import check_encodable
from ..configs.settings import RecordSettings
from ..transport.clock import SystemClock

__all__ = [
    "DECISIONS",
    "DESCRIPTION",
    "HISTORY",
    "NOW",
    "REQUEST",
    "RunFolders",
    "identity_of",
    "is_alive",
    "is_led",
    "replace_json",
    "replace_text",
]

DESCRIPTION = "job.json"
NOW = "now.json"
HISTORY = "history.jsonl"
REQUEST = "request.json"
DECISIONS = "decisions.yaml"

_QUIET_S = 7_200
"""A run that has not written for so long has ended: twice the longest `records.interval_ms`."""

_JOB_ID = re.compile(r"[a-z0-9-]{1,64}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunFolders:
    """All runs that are kept below one folder."""

    def __init__(self, settings: RecordSettings) -> None:
        check_encodable("records.folder", settings.folder)
        self.root = Path(settings.folder) if settings.folder else _default_root()
        self._keep = settings.keep

    def of(self, job_id: str) -> Path | None:
        """Return the folder of a job; None if there is none, or the id cannot be one."""
        if _JOB_ID.fullmatch(job_id) is None:
            return None
        folder = self.root / job_id
        return folder if (folder / DESCRIPTION).is_file() else None

    def make(self, job_id: str) -> Path:
        """Make the folder of a new job, and remove the oldest of those that have ended.

        Raises OSError.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.remove_oldest()
        folder = self.root / job_id
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def all(self) -> Iterator[Path]:
        """Yield the folders of all jobs, newest first."""
        found = []
        with suppress(OSError):
            for folder in self.root.iterdir():
                with suppress(OSError):
                    found.append(((folder / DESCRIPTION).stat().st_mtime_ns, folder))
        yield from (folder for _, folder in sorted(found, reverse=True))

    def remove_oldest(self) -> None:
        """Remove the oldest runs that have ended, beyond those that are kept."""
        found = list(self.all())
        if len(found) <= self._keep:
            return  # without a look at each of them
        ended = [folder for folder in found if _has_ended(folder)]
        for folder in ended[self._keep :]:
            if _is_run(folder):  # of those that have said their end it is not known yet
                shutil.rmtree(folder, ignore_errors=True)


def _is_run(folder: Path) -> bool:
    """Whether a folder is that of a run: another program may have a file of that name, too."""
    try:
        described = json.loads((folder / DESCRIPTION).read_bytes())
        return bool(described["id"] == folder.name)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def identity_of(pid: int) -> dict[str, Any]:
    """Return what tells a process from others that have had its number, also before a reboot.

    It started so many seconds after the boot: a time of day would change as the clock is set.

    Raises psutil.Error.
    """
    boot_s = psutil.boot_time()  # first: psutil before 7 adds the one that it has read last
    started_s = round(psutil.Process(pid).create_time() - boot_s, 2)  # the kernel's ticks
    boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return {"pid": pid, "process_started_s": started_s, "boot_id": boot_id}


def is_led(folder: Path) -> bool:
    """Whether the process that leads a run is there."""
    try:
        described = json.loads((folder / DESCRIPTION).read_bytes())
        identity = identity_of(int(described["pid"]))
        is_zombie = psutil.Process(identity["pid"]).status() == psutil.STATUS_ZOMBIE
        # The parent of a zombie does not care that it has ended.
        return not is_zombie and all(described[name] == identity[name] for name in identity)
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return False


def is_alive(folder: Path) -> bool:
    """Whether a run has not ended: it has not said so, and its process is there."""
    return not _has_said_end(folder) and is_led(folder)  # looking for a process takes longer


def _has_said_end(folder: Path) -> bool:
    try:
        return json.loads((folder / NOW).read_bytes()).get("end") is not None
    except FileNotFoundError:
        return False  # it has just begun
    except (OSError, ValueError):
        return True


def _has_ended(folder: Path) -> bool:
    """Whether a run has ended for all that is known here.

    One that has not said so may be led by a process that is not seen here, as on a host with this
    home, which writes from time to time.
    """
    if _has_said_end(folder):
        return True
    newest_s = 0.0
    for name in (NOW, DESCRIPTION):
        with suppress(OSError):
            newest_s = max(newest_s, (folder / name).stat().st_mtime)
    is_quiet = SystemClock().wall_ns() / 1e9 - newest_s >= _QUIET_S
    return is_quiet and _is_run(folder) and not is_led(folder)


def replace_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file so that a reader finds the old content or the new one; raises OSError."""
    replace_text(path, json.dumps(content, separators=(",", ":")))


def replace_text(path: Path, content: str) -> None:
    """Write a text file so that a reader finds the old content or the new one; raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(content, encoding="utf-8")
    beside.replace(path)


def _default_root() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    try:
        parent = Path(state) if state else Path.home() / ".local" / "state"
    except RuntimeError as error:
        msg = f"no folder for records of runs: {error}; name one with records.folder"
        raise ResourceError(msg) from error
    return parent / "whale-ray" / "runs"
