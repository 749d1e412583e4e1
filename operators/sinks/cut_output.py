"""Output that a writer has set apart at the marker of an epoch, and another thread completes.

::

    loop      write … write ── cut ── write … write ── cut ── …          drop
    thread                     └── complete: end the files, sync them    (at any time)

What fails while the output is synced is done again. Rows that could not be encoded are gone, since
a file that was begun cannot be gone on with: `check` then lets the attempt end, so that the job
goes back to the last checkpoint that counts, and reads them again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Lock
from typing import Generic, TypeVar

from ...configs.errors import AttemptLostError, OutputError

__all__ = ["CutOutput"]

Completed = TypeVar("Completed")


class CutOutput(ABC, Generic[Completed]):
    """The output of one writer and one epoch."""

    def __init__(self) -> None:
        """Begin with output that is whole, and neither encoded to its end nor synced."""
        self._busy = Lock()
        self._is_encoded = self._is_dropped = False
        self._lost: BaseException | None = None
        self.is_complete = False
        """Whether it is on disk, so that `drop` leaves it."""

    def complete(self) -> Completed:
        """Encode the output to its end and sync it; a call behind one that raised goes on there.

        Raises:
            OutputError: it cannot be done at present, or the output was dropped.
            AttemptLostError: rows of it are gone: an earlier call could not encode them.
        """
        try:
            with self._busy:
                if self._is_dropped:
                    msg = "the attempt is over"
                    raise OutputError(msg)
                self._encode_once()
                completed = self._sync()
                self.is_complete = True
                return completed
        finally:
            if self._is_dropped:
                self.drop()

    def drop(self) -> None:
        """Free it unless it is complete; if it is just being completed, behind that."""
        self._is_dropped = True
        if self._busy.acquire(blocking=False):
            try:
                if not self.is_complete:
                    self._free()
            finally:
                self._busy.release()

    def check(self) -> None:
        """Raise AttemptLostError if rows of it are gone."""
        if self._lost is not None:
            msg = f"rows of a checkpoint could not be written: {self._lost}"
            raise AttemptLostError(msg)

    def _encode_once(self) -> None:
        self.check()
        if self._is_encoded:
            return
        try:
            self._encode()
        except BaseException as error:
            self._lost = error
            raise
        self._is_encoded = True

    @abstractmethod
    def _encode(self) -> None:
        """Write the end of the files; raise OutputError if that is impossible."""

    @abstractmethod
    def _sync(self) -> Completed:
        """Let it survive this process; raise OutputError if that is impossible at present."""

    @abstractmethod
    def _free(self) -> None:
        """Give up what is not complete."""
