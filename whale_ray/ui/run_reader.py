"""Reads what is kept of runs: those that go on, those that have ended, those that were killed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..records.describing import FORMAT
from ..records.folders import DESCRIPTION, HISTORY, NOW, RunFolders, is_alive, is_led
from ..records.sampling import empty_sample
from ..transport.clock import Clock
from .kept_files import KeptFiles

__all__ = ["LOST", "HistoryTail", "RunReader"]

LOST = "lost"
"""The state of a job whose process ended without a word."""

_STALE_INTERVALS = 5
_HISTORY_BYTES_MAX = 64 * 1024 * 1024


@dataclass
class HistoryTail:
    """How far a history was read."""

    inode: int = 0
    offset: int = 0


@dataclass
class RunReader:
    """Reads runs for the page.

    Attributes:
        folders: where they are.
        clock: tells how old the newest sample of a run is.
        interval_ms: how often jobs usually write one.
    """

    folders: RunFolders
    clock: Clock
    interval_ms: int
    _files: KeptFiles = field(default_factory=KeptFiles)

    def jobs(self) -> list[dict[str, Any]]:
        """Return a summary of each run, newest first."""
        found = [self.summary(folder) for folder in self.folders.all()]
        return [one for one in found if one is not None]

    def summary(self, folder: Path) -> dict[str, Any] | None:
        """Return what the list shows of a run; None if it is gone by now."""
        described, now = self.description(folder), self.now(folder)
        if described is None or now is None:
            return None
        fed = {edge["target"] for edge in described["edges"]}
        sources = {one["id"] for one in described["operators"]} - fed
        read = [one for one in now["operators"] if one["operator_id"] in sources]
        end = now["end"]
        return {
            "id": described["id"],
            "name": described["name"],
            "began_s": described["began_s"],
            "state": now["state"],
            "alive": end is None and now["state"] != LOST,
            "seconds": now["at_s"],
            "silent_s": now["silent_s"],
            "workers": len(described["worker_host"]),
            "instances": sum(one["parallelism"] for one in described["operators"]),
            "rows_in": sum(one["rows_in"] for one in read),
            "rate_per_s": sum(one["rate_per_s"] for one in read),
            "error": "" if end is None else end["error"],
        }

    def description(self, folder: Path) -> dict[str, Any] | None:
        """Return what does not change of a run; None if it is gone, or another version's.

        The caller must not change it.
        """
        return self._read(folder / DESCRIPTION)

    def now(self, folder: Path) -> dict[str, Any] | None:
        """Return the newest sample, with its state; an empty one before the first.

        None if the run is gone, or another version's.
        """
        kept = self._read(folder / NOW)
        led = True
        if kept is None or kept["end"] is None:  # most have ended; looking for a process takes long
            led = is_led(folder)
            kept = self._read(folder / NOW)  # which says so if the job has ended in between
        if kept is None:
            described = self.description(folder)
            if described is None:
                return None
            kept = empty_sample(described["began_s"])
        now = dict(kept)
        if now["end"] is not None:
            now["state"] = str(now["end"]["state"])
        elif not led:
            now["state"] = LOST
        now["silent_s"] = 0.0 if now["state"] == LOST else self.silent_s(now)
        return now

    def end(self, folder: Path) -> dict[str, Any] | None:
        """Return how a job ended; None while it runs."""
        now = self.now(folder)
        if now is not None and now["end"] is not None:
            return dict(now["end"])
        lost = not is_alive(folder) if now is None else now["state"] == LOST
        return {"state": LOST} if lost else None

    def history(self, folder: Path, tail: HistoryTail) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether the history begins anew, and its lines behind `tail`, which moves on."""
        try:
            found = (folder / HISTORY).stat()
            if (found.st_ino, found.st_size) == (tail.inode, tail.offset):
                return False, []  # nothing was added
            with (folder / HISTORY).open("rb") as history:
                inode = (folder / HISTORY).stat().st_ino
                anew = inode != tail.inode
                tail.offset = 0 if anew else tail.offset
                tail.inode = inode
                history.seek(tail.offset)
                read = history.read(_HISTORY_BYTES_MAX)
        except OSError:
            return False, []
        whole = read[: read.rfind(b"\n") + 1]  # the last line may be under way
        tail.offset += len(whole)
        return anew, [json.loads(line) for line in whole.splitlines()]

    def silent_s(self, now: dict[str, Any]) -> float:
        """Return for how long a job that has not ended wrote nothing; 0 while that is usual."""
        if now["end"] is not None:
            return 0.0
        silent_s = self.clock.wall_ns() / 1e9 - float(now["wall_s"])
        return silent_s if silent_s * 1e3 > _STALE_INTERVALS * self.interval_ms else 0.0

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return a file of a run; None if it is gone, damaged, or not of this version."""
        try:
            found = self._files.read(path)
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("format") == FORMAT else None
