"""In which order the workers of a run (pytest-xdist) get the files of tests."""

from __future__ import annotations

from typing import Final

from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

SLOW_FIRST: Final = (
    "tests/whale_ray/hosts/",
    "tests/whale_ray/applications/",
    "tests/whale_ray/deployment/",
    "tests/whale_ray/spark/",
    "tests/simulation/",
    "tests/whale_ray/",
)
"""Folders of files with few tests that take long each, since they start jobs, Ray or Spark."""


class SlowFilesFirst(LoadFileScheduling):
    """Gives whole files to the workers, the slow ones first.

    xdist begins with the files of most tests, which are quick ones here; one worker would be left
    with a slow file while the others have ended.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


def rank(file: str) -> int:
    """Return the place of a file's folder among `SLOW_FIRST`, or the place behind them all."""
    places = (place for place, folder in enumerate(SLOW_FIRST) if file.startswith(folder))
    return next(places, len(SLOW_FIRST))
