"""Parts of files that are staged for epochs: they survive their processes, and are committed once.

A part `part-<instance>-<epoch>-<job>` is complete and on disk in the job's hidden folder before its
epoch counts. The job's id in its name makes it unique among all jobs that write to one output: a
job that was restored from an older epoch has the same epochs again, with other rows.

::

    unbounded   hidden folder ── commit: listed, then renamed ──► output
    bounded     hidden folder ── publish: the folder is renamed ─► output

A commit that is repeated finds a part either in the hidden folder, or in the output, or, if a
reader has taken it away from there, in the output's list of parts. Nowhere means that somebody
removed it, which is an error: going on would lose rows.

A part is known by its name and size, not by its place: an output may be moved or copied, with the
hidden folders beside it, between two jobs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...configs.errors import OutputError
from .base import Staged
from .epoch_note import COMMITTED, NOTE, EpochNote, has_parts, read_note, write_note
from .held_folders import FolderHold, opened_folder, remove_unless_held
from .manifest import add_epoch, has_manifest, listed_columns, listed_parts
from .part_file import sync_folder
from .staging import PART_PREFIX, OutputFolder
from .writer_schema import check_same_columns


@dataclass(frozen=True)
class EpochParts:
    """The parts of epochs of one job, in its hidden folder.

    Attributes:
        folder: the output.
        job: the job's id, which is also the token of its hidden folder.
        checkpoints: the folder or URL of its checkpoints; empty if it is not known.
    """

    folder: OutputFolder
    job: str
    checkpoints: str = ""

    @property
    def hidden(self) -> str:
        """The hidden folder."""
        return self.folder.hidden(self.job)

    # --- a writer stages --------------------------------------------------------------------------

    def check_columns(self, columns: bytes) -> None:
        """Check rows before any of them is staged; raises what `hold` does."""
        note = read_note(self.hidden)
        if note is not None:
            check_same_columns(note.columns, columns, self.folder.path)

    def hold(self, columns: bytes) -> FolderHold:
        """Create the hidden folder and its note unless they exist, and lock the folder.

        Raises:
            OutputError: it has parts of other columns, maybe of the job that this one resumes from.
        """
        hold = self.folder.hold_hidden(self.job)
        try:
            note = write_note(self.hidden, EpochNote(self.job, self.checkpoints, columns))
            sync_folder(os.path.dirname(self.hidden))
            check_same_columns(note.columns, columns, self.folder.path)
        except BaseException:
            hold.close()
            raise
        return hold

    def stem(self, instance: int, epoch: int) -> str:
        """Return the name of a part without the suffix of its format."""
        return f"{PART_PREFIX}{instance:05d}-{epoch:08d}-{self.job}"

    @property
    def is_there(self) -> bool:
        """Whether there is an output, or a hidden folder of the job."""
        return os.path.isdir(self.hidden) or self.has_output

    # --- the coordinator of an unbounded job ------------------------------------------------------

    def commit(self, staged: Sequence[Staged]) -> None:
        """Move staged parts to the output, unless they are there.

        Raises:
            OutputError: a part is gone, or the output; nothing is changed.
        """
        parts = [part for part in staged if part.path is not None]
        waiting = {path: part for part in parts if (path := self._staged_at(part)) is not None}
        found = {part.path for part in waiting.values()}
        self._check_committed(str(part.path) for part in parts if part.path not in found)
        if not waiting:
            return
        self._open_output()
        sizes = {os.path.basename(path): part.nbytes for path, part in waiting.items()}
        columns = next((part.schema for part in parts if part.schema is not None), None)
        add_epoch(self.folder.path, self.job, sizes, columns)
        for path in waiting:
            self._move(path)
        sync_folder(self.folder.path)
        with suppress(FileNotFoundError), open(os.path.join(self.hidden, COMMITTED), "wb"):
            pass
        for folder in {self.hidden, *map(os.path.dirname, waiting)}:
            remove_if_spent(folder)  # its job has ended, or another one has taken over

    def recover(self, staged: Sequence[Staged]) -> None:
        """Remove what is staged and not listed in `staged`, and check that all else is there.

        Raises:
            OutputError: a part is gone, or the output cannot be written.
        """
        self.folder.check_place()
        has_output = self.has_output
        if not has_output:
            self.folder.check()
        elif not os.access(self.folder.path, os.W_OK | os.X_OK):
            msg = f"no permission to write in {self.folder.path!r}; change its mode"
            raise OutputError(msg)
        parts = [part for part in staged if part.path is not None]
        self._check_committed(str(one.path) for one in parts if self._staged_at(one) is None)
        self._remove_all_but(os.path.basename(str(part.path)) for part in parts)
        columns = next((part.schema for part in staged if part.schema is not None), None)
        if columns is None and has_output:
            with opened_folder(self.folder.path) as descriptor:
                columns = listed_columns(descriptor)
        self._note(columns)
        if has_output and columns is not None:
            with open(os.path.join(self.hidden, COMMITTED), "wb"):
                pass

    def remove_spent(self) -> None:
        """Remove hidden folders without parts of jobs whose checkpoints are this one's by now."""
        for folder in self.folder.hidden_folders():
            with suppress(OSError, ValueError, KeyError):  # unreadable: nobody knows whose it is
                note = read_note(folder)
                if folder != self.hidden and note is not None:
                    if self.checkpoints and note.checkpoints == self.checkpoints:
                        remove_if_spent(folder)

    def _check_committed(self, missing: Iterable[str]) -> None:
        """Raise `OutputError` if a part that is not staged any more was not committed either."""
        names = {os.path.basename(path): path for path in missing}
        gone = [n for n in names if not os.path.lexists(os.path.join(self.folder.path, n))]
        if not gone:
            return
        listed: Collection[str] = ()
        with suppress(FileNotFoundError), opened_folder(self.folder.path) as descriptor:
            listed = listed_parts(descriptor)
        for name in gone:
            if name not in listed:
                raise self._gone(names[name])

    def _open_output(self) -> None:
        """Create the output unless it exists.

        Raises:
            OutputError: it has gone since an earlier commit, or something else is there.
        """
        if self.has_output:
            return
        if os.path.lexists(os.path.join(self.hidden, COMMITTED)):
            msg = (
                f"the output {self.folder.path!r} was removed, or moved, while its job was running;"
                " put it back and restore the job from its last checkpoint, or start it anew with "
                "another output"
            )
            raise OutputError(msg)
        if not os.path.isdir(self.folder.path):
            os.makedirs(self.folder.path)
            sync_folder(os.path.dirname(self.folder.path))
            return
        self.folder.check()

    @property
    def has_output(self) -> bool:
        """Whether the output exists, and jobs have committed parts to it."""
        with suppress(FileNotFoundError, NotADirectoryError), opened_folder(self.folder.path) as fd:
            return has_manifest(fd)
        return False

    def _move(self, path: str) -> None:
        target = os.path.join(self.folder.path, os.path.basename(path))
        if os.path.lexists(target) and not os.path.samefile(target, path):
            msg = f"{target!r} exists, and this job has not written it; remove it"
            raise OutputError(msg)
        os.rename(path, target)

    # --- the coordinator of a bounded job ---------------------------------------------------------

    def gather(self, staged: Sequence[Staged]) -> None:
        """Have exactly these parts in the hidden folder, also those of jobs before this one.

        Raises:
            OutputError: a part is gone.
        """
        found = {part: self._found(part) for part in staged if part.path is not None}
        hold = self.folder.hold_hidden(self.job)
        try:
            for part, path in found.items():
                self._link_here(part, path)
            self._remove_all_but(os.path.basename(path) for path in found.values())
            self._note(next((part.schema for part in staged if part.schema is not None), None))
        finally:
            hold.close()
        remove_if_spent(self.hidden)  # nothing was staged

    def is_whole(self, names: Iterable[str]) -> bool:
        """Return whether these parts are in the hidden folder, which has no note of epochs."""
        paths = (os.path.join(self.hidden, name) for name in names)
        return read_note(self.hidden) is None and all(map(os.path.lexists, paths))

    def with_files(self, staged: Sequence[Staged], suffix: str) -> list[Staged]:
        """Return staged parts with their payloads in files of the hidden folder.

        A payload is the content of a file. The names follow the order of the parts; one that a
        call before this has published is found in the output, which must be this job's alone. They
        differ from those of epochs: a worker that died may have left such a part, with other rows.
        """
        parts: list[Staged] = []
        for number, part in enumerate(staged):
            if part.payload is None:
                parts.append(part)
                continue
            name = f"{self.stem(part.instance, number)}-copy{suffix}"
            places = (self.folder.path, self.folder.partial(1).path, self.hidden)
            path = next((p for one in places if os.path.lexists(p := f"{one}/{name}")), None)
            parts.append(_with_file(part, path or self._written(name, part.payload)))
        return parts

    def _written(self, name: str, content: bytes) -> str:
        hold = self.folder.hold_hidden(self.job)
        try:
            path = os.path.join(self.hidden, name)
            with open(path + "-writing", "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(path + "-writing", path)
        finally:
            hold.close()
        return path

    def release(self, staged: Sequence[Staged]) -> None:
        """Remove published parts from the hidden folders of jobs before this one."""
        parts = [part for part in staged if part.path is not None]
        if all(os.path.dirname(str(part.path)) == self.hidden for part in parts):
            return
        for folder in self.folder.hidden_folders():
            for part in parts:
                path = os.path.join(folder, os.path.basename(str(part.path)))
                with suppress(FileNotFoundError):
                    if part.is_file(os.stat(path)):
                        os.unlink(path)
            remove_if_spent(folder)

    def _link_here(self, part: Staged, path: str) -> None:
        here = os.path.join(self.hidden, os.path.basename(str(part.path)))
        if not os.path.lexists(here):
            os.link(path, here)

    def _found(self, part: Staged) -> str:
        """Return where a part is now; raise `OutputError` if it is gone."""
        path = self._staged_at(part)
        if path is None:
            path = _part_in(self.folder.path, part)
        if path is None:
            raise self._gone(str(part.path))
        return path

    # --- both -------------------------------------------------------------------------------------

    def folders_of(self, staged: Iterable[Staged]) -> set[str]:
        """Return the hidden folders in which these parts wait now."""
        paths = (self._staged_at(part) for part in staged if part.path is not None)
        return {os.path.dirname(path) for path in paths if path is not None}

    def _staged_at(self, part: Staged) -> str | None:
        """Return where a part waits: in a hidden folder of this output; None if it does not.

        Where it was staged does not matter: if the output was copied, with what is beside it, the
        part is there, too, but belongs to whoever goes on with the original.
        """
        found = (_part_in(folder, part) for folder in self.folder.hidden_folders())
        return next((path for path in found if path is not None), None)

    def _note(self, columns: bytes | None) -> None:
        if columns is None:
            return
        hold = self.folder.hold_hidden(self.job)  # a job that ends may sweep: no note is there yet
        try:
            write_note(self.hidden, EpochNote(self.job, self.checkpoints, columns))
            sync_folder(self.hidden)
        finally:
            hold.close()

    def _remove_all_but(self, names: Iterable[str]) -> None:
        kept = {*names, NOTE, COMMITTED}
        with suppress(FileNotFoundError):
            for name in os.listdir(self.hidden):
                if name not in kept:
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(self.hidden, name))

    def _gone(self, path: str) -> OutputError:
        return OutputError(
            f"{path!r}, which a checkpoint needs, is gone: it is not in the output "
            f"{self.folder.path!r} either, nor in a hidden folder beside that; put it back (what is"
            " moved to another place needs the hidden folders beside the output, too; submit the "
            "topology with its new path and restore=), restore an older checkpoint, or start the "
            "job anew"
        )


def _part_in(folder: str, part: Staged) -> str | None:
    """Return the path of a part in a folder; None if it is not there."""
    path = os.path.join(folder, os.path.basename(str(part.path)))
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return path if part.is_file(found) else None


def _with_file(part: Staged, path: str) -> Staged:
    found = os.stat(path)
    return replace(part, path=path, inode=found.st_ino, nbytes=found.st_size, payload=None)


def remove_if_spent(hidden: str) -> None:
    """Remove a hidden folder in which nothing is staged, unless a process holds it."""
    with suppress(OSError):
        if read_note(hidden) is None:
            os.rmdir(hidden)
        elif not has_parts(hidden):
            remove_unless_held(hidden, unless=has_parts)


def drop_note(folder: str) -> None:
    """Remove what only a hidden folder needs from one that was published."""
    for name in (NOTE, COMMITTED):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
