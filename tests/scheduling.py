"""In which order the workers of a run (pytest-xdist) get the files of tests."""

from __future__ import annotations

from typing import Final

from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

ONE_SERVER: Final = ("tests/whale_ray/deployment/on_ray/", "tests/whale_ray/exchange/")
"""Folders whose files share a running Ray, so one worker gets all files of such a folder."""

SLOW_FIRST: Final = (
    *ONE_SERVER,
    "tests/whale_ray/lab/bench/test_streaming_",
    "tests/whale_ray/hosts/",
    "tests/whale_ray/applications/",
    "tests/whale_ray/deployment/",
    "tests/whale_ray/spark/",
    "tests/simulation/",
    "tests/whale_ray/",
    "tests/test_",
    "tests/typing/",
    "tests/operators/sinks/",
    "tests/transport/",
)
"""Folders of files with tests that take long each: they start jobs, Ray, Spark or programs."""


class SlowFilesFirst(LoadFileScheduling):
    """Gives whole files, or folders that share a Ray, to the workers, the slow ones first.

    xdist begins with the files of most tests, which are quick ones here; one worker would be left
    with a slow file while the others have ended.
    """

    def _split_scope(self, nodeid: str) -> str:
        """Return what a test goes along with: its folder or its file."""
        folders = (folder for folder in ONE_SERVER if nodeid.startswith(folder))
        return next(folders, super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


def rank(unit: str) -> int:
    """Return the place of a file or folder among `SLOW_FIRST`, or the place behind them all."""
    places = (place for place, folder in enumerate(SLOW_FIRST) if unit.startswith(folder))
    return next(places, len(SLOW_FIRST))
