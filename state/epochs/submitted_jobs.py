"""What jobs were submitted as, beside their checkpoints."""

from __future__ import annotations

from .store_files import StoreFiles
from .store_names import MANIFESTS, job_name, manifest_names

__all__ = ["SubmittedJobs"]


class SubmittedJobs:
    """A file for each job of a folder of checkpoints; `files` is the folder."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files

    def write(self, job: str, data: bytes) -> None:
        """Keep what a job was submitted as; raises OutputError if it cannot be written."""
        self._files.put(job_name(job), data)

    def read(self, job: str) -> bytes | None:
        """Return what a job was submitted as, None if it is not there.

        Raises:
            InputError: the folder cannot be read.
        """
        return self._files.get(job_name(job))

    def forget(self, job: str) -> None:
        """Remove what a job was submitted as, unless it has a checkpoint; raises WhaleError."""
        if all(name.job != job for name in manifest_names(self._files.names(MANIFESTS))):
            self._files.remove(job_name(job))
