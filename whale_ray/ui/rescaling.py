"""What is checked before a running job is stopped, to go on with other numbers of instances.

The job stops with a savepoint, and `whale-ray resume` goes on from it. What is known to make that
impossible is refused while the job still runs. Whether an operator keeps something that cannot be
divided is known only once its state is read, which is left to the process that resumes the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..configs.errors import UsageError
from ..state.epochs.checkpoint_store import CheckpointStore

__all__ = ["Rescale", "check_rescale", "rescale_of"]

_WORKERS_MAX = 4096


@dataclass(frozen=True)
class Rescale:
    """What a job goes on with.

    Args:
        parallelism: instances by the ids of operators; the others keep what they have.
        workers: how many workers; None: as many as before.
    """

    parallelism: Mapping[str, int]
    workers: int | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The same as options of `whale-ray resume`."""
        words = [word for one in self.parallelism.items() for word in ("--parallelism", _pair(one))]
        return (*words, *(() if self.workers is None else ("--workers", str(self.workers))))


def rescale_of(asked: Mapping[str, Any]) -> Rescale:
    """Return what a browser asks for; raises UsageError if it makes no sense."""
    parallelism, workers = asked.get("parallelism", {}), asked.get("workers")
    if not isinstance(parallelism, dict) or not all(map(_is_count, parallelism.values())):
        msg = "parallelism must have whole numbers, 1 or more, by the ids of operators"
        raise UsageError(msg)
    if workers is not None and not (_is_count(workers) and workers <= _WORKERS_MAX):
        msg = f"workers must be a number from 1 to {_WORKERS_MAX:,}"
        raise UsageError(msg)
    if not parallelism and workers is None:
        msg = "nothing is to change: name other instances or workers"
        raise UsageError(msg)
    return Rescale(parallelism, workers)


def check_rescale(described: Mapping[str, Any], wanted: Rescale) -> None:
    """Check that a job could go on; reads its folder of checkpoints.

    Args:
        described: the job, as in its record.
        wanted: what it is to go on with.

    Raises:
        UsageError: it could not; the message says why.
        InputError: the folder cannot be read.
    """
    job, url = described["id"], described["checkpoints"]
    if not url:
        msg = f"job {job} takes no checkpoints, so it cannot go on: submit it with checkpoints="
        raise UsageError(msg)
    fused = {one: stage["operators"] for stage in described["stages"] for one in stage["operators"]}
    for name in wanted.parallelism:
        if name not in fused:
            msg = f"job {job} has no operator {name!r:.80} whose instances can change"
            raise UsageError(msg)
    if CheckpointStore.at(url).jobs.read(job) is None:
        msg = f"job {job} runs in the process that called it, so only its program can start it anew"
        raise UsageError(msg)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _pair(one: tuple[str, int]) -> str:
    return f"{one[0]}={one[1]}"
