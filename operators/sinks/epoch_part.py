"""A part of a file sink that holds the rows of an epoch: set apart at its marker, staged later."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ...configs.errors import OutputError
from .base import Staged
from .cut_output import CutOutput
from .held_folders import device_of
from .part_file import sync_folder

if TYPE_CHECKING:
    from .epoch_parts import EpochParts
    from .files import FileSink
    from .formats import PartEncoder
    from .held_folders import FolderHold
    from .part_file import PartFile

__all__ = ["EpochFolder", "EpochPart"]

_OF_ANOTHER_DISK = (errno.EXDEV, errno.ENOENT)
"""What linking a file to another disk gives, without and with a name that is hidden meanwhile."""


class EpochFolder:
    """The hidden folder of a job's parts, which one writer holds once it has staged a part.

    What is created where an output was, while its disk is not mounted, is not seen any more once it
    is back. So the folder is not created if the place is another one than when the writer opened.
    """

    def __init__(self, parts: EpochParts) -> None:
        self.parts = parts
        self.columns = b""
        """The serialized Arrow schema of all parts; set before the first is staged."""
        self._hold: FolderHold | None = None
        self._was_there = parts.is_there
        self._device = device_of(parts.hidden)

    @property
    def is_held(self) -> bool:
        """Whether it is held, so that the columns are those of the other parts."""
        return self._hold is not None

    def hold(self) -> None:
        """Create the folder and lock it, unless it is held; see `EpochParts.hold`.

        Raises:
            OutputError: the output is gone, or its disk; or see there.
        """
        if self._hold is not None and not self._hold.is_at(self.parts.hidden):
            self.close()
        if self._hold is None:
            is_gone = self._was_there and not self.parts.is_there
            if is_gone or device_of(self.parts.hidden) != self._device:
                msg = (
                    f"the output {self.parts.folder.path!r} is gone, or its disk is, while the job"
                    " runs: bring it back (is a disk no longer mounted?)"
                )
                raise OutputError(msg)
            self._hold = self.parts.hold(self.columns)
            self._was_there = True

    def close(self) -> None:
        """Give the lock back."""
        if self._hold is not None:
            self._hold.close()
            self._hold = None


class EpochPart(CutOutput[Staged]):
    """One part, linked into the hidden folder, where it outlives this process.

    Args:
        sink: of the writer.
        folder: of the writer.
        epoch: the part's.
        receipt: what is told of the part, but for what its file says.
        file: holds the rows, encoded but for its end.
        encoder: writes the end.
    """

    def __init__(
        self,
        sink: FileSink,
        folder: EpochFolder,
        epoch: int,
        receipt: Staged,
        file: PartFile,
        encoder: PartEncoder,
    ) -> None:
        super().__init__()
        self._sink, self._folder = sink, folder
        self._epoch, self._receipt = epoch, receipt
        self._file, self._encoder = file, encoder
        self._path: str | None = None

    def _encode(self) -> None:
        with self._sink.errors():
            self._encoder.close()

    def _sync(self) -> Staged:
        with self._sink.errors():
            self._folder.hold()
            parts = self._folder.parts
            if self._path is None:
                path = os.path.join(parts.hidden, parts.stem(self._receipt.instance, self._epoch))
                self._path = self._link(path)
            sync_folder(parts.hidden)
            found = os.stat(self._path)
        self._file.close()
        return replace(self._receipt, nbytes=found.st_size, path=self._path, inode=found.st_ino)

    def _link(self, stem: str) -> str:
        suffix = self._sink.format.suffix
        try:
            return self._file.link_free(stem, suffix)
        except OSError as error:
            if error.errno not in _OF_ANOTHER_DISK:
                raise
        # Its rows came while the disk of the output was gone, so it is on the one beneath.
        parts = self._folder.parts
        copy = parts.folder.new_file(parts.job, os.path.basename(stem))
        try:
            self._file.copy_to(copy)
        except BaseException:
            copy.close()
            raise
        self._file.close()
        self._file = copy
        return copy.link_free(stem, suffix)

    def _free(self) -> None:
        if not self._is_encoded:
            self._encoder.drop()
        self._file.close()
